"The faults that a GRPO loss can have, by their numbers, and their kinds: advantages, masks, losses and metrics (numpy; the other libraries are in test_parity_*)."

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import OPTIONS, SETTINGS, batch, reference, same, seeds

from grpo_tutorials.core.grpo import expected_silent, gaps, gdpo_advantages, group_advantages, leave_one_out, log_mean, silent_groups
from grpo_tutorials.core.losses import LOSSES, clipped, completion_logp, completion_mask, divisor, entropy, grpo_loss, kl, ratio, token_logp, token_losses, token_weights, truncated
from grpo_tutorials.core.scale import Scale
from grpo_tutorials.core.training import fitting_rows, training_rows

SCALES = ["group", "batch", "none", "leave one out"]


def advantages(r, scale): return leave_one_out(r) if scale == "leave one out" else group_advantages(r, scale)


def slope(f, x, h=1e-6):
    out = np.zeros(x.shape)
    for i in np.ndindex(*x.shape):
        e = np.zeros(x.shape)
        e[i] = h
        out[i] = (f(x + e) - f(x - e)) / (2 * h)
    return out


# ---------------------------------------------------------------- advantages

def test_within_the_group_never_across():                                       # G06
    r = np.array([[1.0, 0], [5, 5]])
    same(group_advantages(r), [[.707, -.707], [0, 0]], tolerance=1e-3)
    for scale in ("group", "none", "leave one out"):
        alone = [advantages(row[None], scale)[0] for row in r]
        np.testing.assert_array_equal(advantages(r, scale), alone)


@pytest.mark.parametrize("scale", SCALES)
def test_one_prompt_does_not_move_another(scale):                               # G06: the kind
    @settings(max_examples=60, **SETTINGS)
    @given(seed=seeds, prompts=st.integers(1, 5), size=st.integers(2, 6), missing=st.sampled_from([0, .3, .9]))
    def check(seed, prompts, size, missing):
        rng = np.random.default_rng(seed)
        r = np.where(rng.random((prompts, size)) < missing, np.nan, rng.integers(0, 4, (prompts, size)))
        a = advantages(r, scale)
        assert np.isfinite(a).all() and (a[np.isnan(r)] == 0).all() and np.abs(a.sum(1)).max() < 1e-9
        moved = advantages(r + 100 * np.arange(prompts)[:, None], scale) if scale != "batch" else advantages(r + 100, scale)
        same(moved, a, 1.0, tolerance=1e-9)                                     # a prompt that pays more for everything is the same prompt
        for row, what in zip(r, a):
            judged = row[np.isfinite(row)]
            if len(set(judged)) <= 1: assert (what == 0).all()                  # equals: exact zeros
            else: assert (np.argsort(what[np.isfinite(row)], kind="stable") == np.argsort(judged, kind="stable")).all()
    check()


def test_not_judged_is_left_out():                                              # G07
    r = np.array([[1, np.nan, 2.0, 0]])
    a = group_advantages(r)
    assert a[0, 1] == 0
    same(np.delete(a, 1, 1), group_advantages(np.array([[1.0, 2, 0]])))
    same(group_advantages([[1, None, 2, 0]]), a)
    assert (group_advantages(np.full((1, 3), np.nan)) == 0).all() and (group_advantages([[None, 7, None]]) == 0).all()
    assert (gdpo_advantages(np.full((2, 2, 2), np.nan)) == 0).all()


def test_normalised_once():                                                     # G30
    same(group_advantages([[0, 1]]), [[-.707, .707]], tolerance=1e-3)
    assert group_advantages([[0, 1]], eps=0.0)[0, 1] == pytest.approx(np.sqrt(.5))


def test_a_group_of_one():                                                      # G14
    for f in (group_advantages, leave_one_out): pytest.raises(ValueError, f, np.ones((4, 1))).match("at least 2 generations")
    pytest.raises(ValueError, gdpo_advantages, np.ones((4, 1, 2))).match("at least 2 generations")
    pytest.raises(ValueError, group_advantages, np.ones(4)).match("give \\(prompts, G\\)")


def test_share_of_silent_groups():                                              # G27
    same([expected_silent(.1819, g) for g in (2, 4, 8)], [.702, .449, .201], tolerance=1e-3)
    rng = np.random.default_rng(0)
    for p, g in ((.2, 2), (.5, 4), (.9, 8)): assert silent_groups((rng.random((20000, g)) < p).astype(float)) == pytest.approx(expected_silent(p, g), abs=.015)


def test_equals_are_silent_in_every_precision():
    for value in (.1, 1 / 3, 1e-8, 1e8, -7.7):
        for size in (2, 3, 7):
            r = np.full((2, size), value)
            assert silent_groups(r) == 1.0 and (group_advantages(r) == 0).all()


def test_huge_and_tiny_rewards():
    for size in (1e-30, 1e-8, 1e150, 1e300):
        a = group_advantages(np.array([[0, 1, 3.0]]) * size, eps=0.0)
        same(a, [[-.8729, -.2182, 1.0911]], tolerance=1e-3)


def test_nothing_at_all():
    for scale in SCALES: assert advantages(np.zeros((0, 4)), scale).shape == (0, 4)
    assert silent_groups(np.zeros((0, 4))) == 1.0
    assert log_mean([]) == (None, 0)


def test_log_mean():                                                            # G08
    assert log_mean([.5, None, .8]) == (pytest.approx(.65), 1)
    assert log_mean([float("nan"), None, float("inf")]) == (None, 3)
    assert log_mean(np.array([[1.0, np.nan], [3.0, 2.0]])) == (2.0, 1)


def test_gaps_count_the_judged():
    _, gap, n = gaps([[1, None, 3], [None, None, None]])
    assert n[:, 0].tolist() == [2, 0] and gap.tolist() == [[-1, 0, 1], [0, 0, 0]]


# ---------------------------------------------------------------- masks and alignment

def test_completion_mask():                                                     # G18
    ids = np.array([[5, 6, 1, 0, 0], [5, 1, 1, 1, 1], [5, 6, 7, 8, 9]])
    want = [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]
    for pad in (None, 1): np.testing.assert_array_equal(completion_mask(ids, [1], pad_id=pad), want)
    assert truncated(ids, 1).tolist() == [False, False, True]


@settings(max_examples=200, **SETTINGS)
@given(ids=st.lists(st.integers(0, 4), min_size=1, max_size=8), eos=st.sets(st.integers(0, 4), min_size=1, max_size=3), pad=st.none() | st.integers(0, 4), drop=st.booleans())
def test_completion_mask_by_the_book(ids, eos, pad, drop):                      # G18: the kind
    ends = [i for i, t in enumerate(ids) if t in eos]
    if ends: keep = ends[0] + 1
    else:
        keep = len(ids)
        while pad is not None and keep and ids[keep - 1] == pad: keep -= 1
        if drop: keep = 0
    mask = completion_mask(np.array([ids]), sorted(eos), pad_id=pad, mask_truncated=drop)
    assert mask.tolist() == [[i < keep for i in range(len(ids))]]
    assert truncated(np.array([ids]), sorted(eos)).tolist() == [not ends]


def test_token_t_is_scored_by_the_row_before():                                 # G23
    ids = np.array([[7, 8, 9, 4, 5]])
    for row, token in ((2, 4), (3, 5)):
        logits = np.zeros((1, 5, 10))
        logits[0, row, token] = 50
        got = completion_logp(logits, ids, 2)
        assert got.shape == (1, 2) and np.argmax(got) == row - 2 and got.max() == pytest.approx(0, abs=1e-9)
    for bad in (5, 6, -1): pytest.raises(ValueError, completion_logp, logits, ids, bad).match("length is")


def test_log_probabilities_of_large_and_impossible_scores():
    z = np.array([[1000.0, 0, -np.inf], [-1000, -1000, -1000]])
    same(token_logp(z, np.array([0, 2])), [0, -np.log(3)], 1.0)
    same(entropy(z), [0, np.log(3)], 1.0)


# ---------------------------------------------------------------- losses

@pytest.mark.parametrize("loss_type", LOSSES)
def test_all_masked(loss_type):                                                 # G01
    for rows, width in ((2, 3), (1, 0), (0, 4)):
        options = dict(OPTIONS[loss_type][-1])
        nothing = np.full((rows, width), np.nan)
        loss, told = grpo_loss(nothing, nothing, np.ones(rows), np.zeros((rows, width)), nothing, loss_type=loss_type, max_length=4, **options)
        assert loss == 0 and told["tokens"] == 0 and told["empty_rows"] == 1 and told["silent_rows"] == 1
        assert all(np.isfinite(v) for v in told.values())


def test_silent_group_still_pays_for_its_distance():                            # G04
    logp = np.log([[.2, .3], [.4, .1]])
    loss, told = grpo_loss(logp, logp, [0, 0], np.ones((2, 2)), logp + .5, beta=.08)
    assert loss == pytest.approx(.08 * .148721, abs=1e-6) and told["silent_rows"] == 1
    assert np.abs(slope(lambda x: grpo_loss(x, logp, [0, 0], np.ones((2, 2)), logp + .5, beta=.08)[0], logp)).min() > 1e-3


def test_first_step():                                                          # G10
    a = group_advantages([[0, 1]])[0]
    logp = np.log([[.3, .2], [.5, .1]])
    loss = lambda x: grpo_loss(x, logp, a, np.ones((2, 2)), logp, beta=.04)[0]
    assert loss(logp) == pytest.approx(0, abs=1e-12)
    same(slope(loss, logp).sum(1) * 2, [.707, -.707], tolerance=1e-3)           # minus the advantage, divided by the batch of 2


def test_normalisers():                                                         # G11
    mask = np.arange(1000) < np.array([[10], [1000]])
    zero = np.zeros(mask.shape)
    for loss_type, want in (("grpo", 0), ("bnpo", .980198), ("dapo", .980198), ("dr_grpo", .495)):
        assert grpo_loss(zero, None, [1, -1], mask, loss_type=loss_type, max_length=1000)[0] == pytest.approx(want, abs=1e-6)


def test_two_sided_clipping():                                                  # G13
    one = lambda rho, a, **o: float(clipped(np.array([float(rho)]), np.array([float(a)]), .2, .28, **o)[0])
    assert [one(10, -1), one(10, -1, delta=1.5), one(10, 1), one(.5, -1), one(10, 1, delta=1.5)] == pytest.approx([10, 1.5, -1.28, .8, -1.28])
    for delta in (1.0, 1.28): pytest.raises(ValueError, clipped, np.ones(1), np.ones(1), .2, .28, delta).match("more than 1.28")
    logp = np.zeros((1, 1))
    for loss_type in ("cispo", "sapo", "vespo"): pytest.raises(ValueError, grpo_loss, logp, None, [1], logp + 1, loss_type=loss_type, delta=2.0, epsilon_high=5.0).match("delta is for the clipped losses")


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dapo", "dr_grpo", "gspo", "luspo", "sapo"])
@pytest.mark.parametrize("parts", [[8], [4, 4], [2, 2, 2, 2], [1, 6, 1]])
def test_accumulation_leaves_the_gradient(loss_type, parts):                    # G29
    b = {k: v.astype(np.float64) for k, v in batch(11, 8, 5).items()}
    by = divisor(b["mask"], loss_type, 5)
    loss = lambda x, i: grpo_loss(x[i], b["old"][i], b["advantages"][i], b["mask"][i], b["ref"][i], loss_type=loss_type, divide_by=by, beta=.1)[0]
    pieces = np.split(np.arange(8), np.cumsum(parts)[:-1])
    same(sum(slope(lambda x, i=i: loss(x, i), b["logp"]) for i in pieces), slope(lambda x: loss(x, np.arange(8)), b["logp"]), tolerance=1e-6)


def test_what_is_masked_reaches_nothing():
    for loss_type, many in OPTIONS.items():
        b = batch(4, 5, 6)
        for junk in (np.nan, np.inf, -np.inf, 1e30):
            dirty = {k: np.where(b["mask"] > 0, b[k], np.float32(junk)) for k in ("logp", "old", "ref")}
            for options in many: same(reference(b | dirty, loss_type, options, 6)[0], reference(b, loss_type, options, 6)[0])


def test_nothing_overflows():
    logp, far = np.zeros((2, 2)), np.array([[-1e4, 1e4], [5e3, -800]])
    for loss_type, many in OPTIONS.items():
        for options in many:
            loss, told = grpo_loss(logp, far, [1, -1], np.ones((2, 2)), -far, loss_type=loss_type, max_length=2, **options)
            assert np.isfinite(loss) and all(np.isfinite(v) for v in told.values())
    for kind in ("k1", "k2", "k3"): assert np.isfinite(kl(far, -far, kind)).all()
    assert np.isfinite(ratio(far, -far, np.ones((2, 2)), "sequence")).all()


def test_settings_that_make_no_sense():
    x, on = np.zeros((1, 2)), np.ones((1, 2))
    for message, options in (("one of grpo", dict(loss_type="ppo")), ("token or sequence", dict(level="word")), ("give ref_logp", dict(beta=.1)), ("between 0 and 1", dict(epsilon=1.5)),
                             ("max_length", dict(loss_type="dr_grpo")), ("give 1 or more", dict(loss_type="cispo")), ("give 1 or more", dict(loss_type="cispo", epsilon_high=.28))):
        pytest.raises(ValueError, grpo_loss, x, None, [1], on, **options).match(message)
    pytest.raises(ValueError, kl, x, x, "k4").match("k1, k2 or k3")
    pytest.raises(ValueError, group_advantages, np.ones((1, 2)), "std").match("group, batch or none")


def test_losses_are_weights_times_token_losses():
    b = batch(9, 4, 5)
    for loss_type, many in OPTIONS.items():
        for options in many:
            losses, told = token_losses(b["logp"], b["old"], b["advantages"], b["mask"], b["ref"], loss_type=loss_type, **options)
            assert losses.shape == b["mask"].shape and all(v.shape == losses.shape for v in told.values()) and (losses[b["mask"] == 0] == 0).all()
            same((losses * token_weights(b["mask"], loss_type, 5)).sum(), grpo_loss(b["logp"], b["old"], b["advantages"], b["mask"], b["ref"], loss_type=loss_type, max_length=5, **options)[0], 1.0)


def test_importing_is_light():
    code = "import sys, grpo_tutorials.core.grpo, grpo_tutorials.core.losses; print([m for m in ('array_api_compat', 'jax', 'torch', 'matplotlib') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert out.stdout.strip() == "[]", out.stderr


# ---------------------------------------------------------------- which prompts a step sees

def small(**more): return Scale("cpu", model="tiny", max_prompt_length=8, max_completion_length=8, **{**dict(group_size=2, prompts_per_step=3, steps=4, eval_n=7), **more})


def seven():
    "A task of seven rows, in order."
    def rows(split, n, seed): return [dict(prompt=str(i)) for i in range(min(n, 7))]
    return SimpleNamespace(size=lambda split: 7, rows=rows)


def test_a_batch_that_cannot_be_divided():                                          # G15
    with pytest.raises(ValueError, match=r"micro_batch is 7: it must divide the 8 completions of a step, so choose one of \[1, 2, 4, 8\]"): small(group_size=8, prompts_per_step=1, micro_batch=7)
    assert small(group_size=2, prompts_per_step=1, micro_batch=1).completions_per_step == 2      # the seed's: 2 completions in two passes


@given(st.integers(1, 9), st.integers(1, 12))
def test_no_row_is_dropped_and_none_seen_twice_before_all_were_seen_once(prompts, steps):       # G16, G17
    seen = [r["prompt"] for r in training_rows(seven(), small(prompts_per_step=prompts, steps=steps), 0)]
    assert len(seen) == prompts * steps
    for i in range(0, len(seen), 7): assert len(set(seen[i:i + 7])) == len(seen[i:i + 7])
    assert {r["prompt"] for r in seven().rows("test", 7, 0)} == {r["prompt"] for r in fitting_rows(seven(), "test", 7, 0, small())}      # and an evaluation drops none


# ---------------------------------------------------------------- bad input: one line, never a silent number

one, two = np.ones(2), np.zeros((2, 2)) - 1.0

@pytest.mark.parametrize("call, says", [
    (lambda: grpo_loss(two, two, one, np.ones((2, 1))), "mask has the shape"),
    (lambda: token_losses(two[:1], two[:1], np.ones((1, 2))[None], np.ones((1, 2))), "advantages has the shape"),
    (lambda: grpo_loss(two, two[0], one, np.ones((2, 2))), "old_logp has the shape"),
    (lambda: grpo_loss(two, two, one, np.ones((2, 2)), two[:, :1], beta=.1), "ref_logp has the shape"),
    (lambda: grpo_loss(two, two, one, np.ones((2, 2)), entropy=one), "entropy has the shape"),
    (lambda: grpo_loss(two, two, one, np.ones((2, 2)), loss_type="dr_grpo", max_length=-2), "max_length is -2"),
    (lambda: grpo_loss(two, two, one, np.ones((2, 2)), divide_by=-4), "divide_by is -4"),
    (lambda: grpo_loss(two, two, one, np.ones((2, 2)), two, beta=-1), "beta is -1"),
    (lambda: grpo_loss(two, two, one, np.ones((2, 2)), two, beta=float("nan")), "beta is nan"),
    (lambda: grpo_loss(two, two, one, np.ones((2, 2)), delta=float("nan")), "delta is nan"),
    (lambda: grpo_loss(two, two, one, np.ones((2, 2)), epsilon_high=-.5), "epsilon_high is -0.5"),
    (lambda: grpo_loss(two, two, one, np.ones((2, 2)), loss_type="cispo", epsilon_high=float("nan")), "epsilon_high is nan"),
    (lambda: grpo_loss(two, two, one, np.ones((2, 2)), kl_kind="k9"), "k1, k2 or k3"),
    (lambda: grpo_loss(two, two, one, np.ones((2, 2)), loss_type=["grpo"]), "loss_type is"),
    (lambda: completion_logp(np.zeros((1, 4, 6)), np.ones((1, 5), int), 2), "one row of logits for each token"),
    (lambda: token_logp(np.zeros((2, 4, 6)), np.ones((1, 4), int)), "one row of logits for each token"),
    (lambda: token_logp(np.zeros((1, 2, 6)), [[0, -1]]), "ids hold -1"),
    (lambda: token_logp(np.zeros((1, 2, 6)), [[0, 6]]), "ids hold 6"),
    (lambda: token_logp(np.zeros((1, 2, 6)), [[0., 1.7]]), "whole numbers"),
    (lambda: token_logp(np.zeros((1, 2, 6)), [[0, 1]], temperature=0), "temperature is 0"),
    (lambda: entropy(np.zeros((1, 2, 6)), temperature=float("nan")), "temperature is nan"),
    (lambda: completion_mask(np.ones((1, 3), int), []), "no token id"),
    (lambda: completion_mask(np.ones((1, 3), int), None), "no token id"),
    (lambda: group_advantages(np.zeros((0, 2)), scale="grp"), "scale is 'grp'"),
    (lambda: gdpo_advantages(np.zeros((1, 2, 2)), weights=[1, None]), "one finite number for each of the 2 functions"),
    (lambda: gdpo_advantages(np.zeros((1, 2, 2)), weights=[2]), "one finite number for each of the 2 functions"),
    (lambda: small(temperature=1e-40), "temperature is 1e-40"),
    (lambda: small(mesh=(0, 1)), "at least 1 device"),
    (lambda: small(sampler_mesh=(-1, 2)), "at least 1 device"),
])
def test_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says): call()


@pytest.mark.parametrize("library", ["numpy", "jax", "torch"])
def test_libraries_may_be_mixed(library):
    "Whatever the others are, the answer is of the library of the log-probabilities."
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    make = dict(numpy=np.asarray, jax=jnp.asarray, torch=torch.tensor)
    want = float(grpo_loss(two, two - .1, one, np.ones((2, 2)))[0])
    for other in make.values():
        loss, _ = grpo_loss(make[library](two), other(two - .1), other(one), other(np.ones((2, 2))))
        assert float(loss) == pytest.approx(want, rel=1e-6) and type(loss).__module__.split(".")[0] == type(make[library](two).sum()).__module__.split(".")[0]
        assert np.asarray(token_logp(make[library](np.zeros((1, 2, 6))), other(np.array([[0, 5]])))) == pytest.approx(-np.log(6), rel=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@pytest.mark.parametrize("far", [-900., -21., -19., 19., 21., 900.])
def test_a_policy_that_is_far_away_is_still_pulled_back(kind, far):
    "The slope at the edge goes on beyond it: value and slope are finite, and never 0."
    x = np.array([far])
    got = slope(lambda v: float(kl(v, np.zeros(1), kind)[0]), x, h=1e-3)
    edge = np.clip(x, -20, 20)
    assert got == pytest.approx(dict(k1=np.ones(1), k2=x, k3=-np.expm1(-edge))[kind], rel=1e-3)
    assert np.isfinite(kl(np.array([-np.inf]), np.zeros(1), kind)).all()


def test_a_ratio_of_a_completion_is_limited_as_a_whole():
    assert ratio(np.zeros((1, 10)), np.array([[40.] + [0.] * 9]), np.ones((1, 10)), "sequence") == pytest.approx(np.exp(-4.))


def test_silent_rows_count_rows_in_which_no_token_has_an_advantage():
    assert grpo_loss(np.zeros((2, 3)), None, np.array([1., np.nan]), np.array([[1, 1, 0], [0, 0, 0]]))[1]["silent_rows"] == .5
