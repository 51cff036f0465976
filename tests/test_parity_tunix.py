"""Our losses against Tunix's own code, in value and in gradient: `grpo_loss_fn`, its ways to aggregate, its three KL modes.

The rows of the table on the page nbs/core/01a_losses that are about Tunix are proved here. An upgrade of Tunix that changes a formula fails here first."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import SETTINGS, batch, same, seeds

import grpo_tutorials.core.grpo as G
import grpo_tutorials.core.losses as L

if os.environ.get("CI"): import tunix  # noqa: F401
else: pytest.importorskip("tunix", reason="needs the [tunix] extra")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from flax import nnx  # noqa: E402
from tunix.rl import algo_core, common, function_registry  # noqa: E402
from tunix.rl.grpo.dapo_learner import DAPOConfig  # noqa: E402
from tunix.rl.grpo.grpo_learner import GRPOConfig, TrainExample  # noqa: E402
from tunix.rl.reward_manager import SequenceRewardManager  # noqa: E402

PAD, EOS, WORDS, PROMPT = 0, 1, 7, 2


class Scores(nnx.Module):
    "A model that says what it was told to say."
    def __init__(self, logits): self.logits = nnx.Param(logits)
    def __call__(self, tokens, positions=None, cache=None, attention_mask=None): return self.logits[...], None


def setup(seed, rows, width, spread=.4):
    b = batch(seed, rows, width, spread)
    rng = np.random.default_rng(seed + 1)
    logits = rng.normal(0, 1.5, (rows, PROMPT + width, WORDS)).astype(np.float32)
    ids = rng.integers(2, WORDS, (rows, PROMPT + width))
    now = L.completion_logp(logits, ids, width)
    near = lambda: (now + rng.normal(0, spread, now.shape)).astype(np.float32)
    return logits, ids, b | dict(old=near(), ref=near())


CONFIGS = {}        # one object for each setting: the loss is compiled for it


def compiled(f): return jax.jit(jax.value_and_grad(f, has_aux=True), compiler_options={"xla_backend_optimization_level": 0})      # compiled quickly rather than well


def tunix_loss(config, rows, width):
    "Tunix's loss and its gradient in the logits, compiled."
    key = (tuple(sorted(config.items())), rows, width)
    if key not in CONFIGS:
        made = GRPOConfig(**{k: v for k, v in config.items() if k not in ("epsilon_high", "epsilon_c")})
        made.temperature = 1.0                                                    # its learner sets this from the sampler's
        for k in ("epsilon_high", "epsilon_c"):
            if k in config: setattr(made, k, config[k])                           # read by the loss, not among the fields

        def loss(logits, ids, old, ref, advantages, mask):
            example = TrainExample(prompt_ids=ids[:, :PROMPT], prompt_mask=ids[:, :PROMPT] != PAD, completion_ids=ids[:, PROMPT:], completion_mask=mask,
                                   advantages=advantages, ref_per_token_logps=ref, old_per_token_logps=old)
            return algo_core.grpo_loss_fn(Scores(logits), example, made, PAD, EOS)
        CONFIGS[key] = compiled(loss)
    return CONFIGS[key]


def our_loss(loss_type, rows, width, **options):
    "Ours, with the gradient in the same logits. `divide_by` says what of the batch divides."
    key = (loss_type, str(sorted(options.items())), rows, width)
    if key not in CONFIGS:
        count = options.pop("count", None)

        def loss(logits, ids, old, ref, advantages, mask):
            by = None if count is None else count(mask)
            return L.grpo_loss(L.completion_logp(logits, ids, width), old, advantages, mask, ref, loss_type=loss_type, divide_by=by,
                               entropy=L.entropy(logits[:, PROMPT - 1:-1]), **options)
        CONFIGS[key] = compiled(loss)
    return CONFIGS[key]


def with_tokens(mask): return jnp.maximum((mask.sum(-1) > 0).sum(), 1)             # Tunix averages over the completions that have any


def wide(mask): return with_tokens(mask) * mask.shape[1]


KINDS = {"kl": "k1", "mse_kl": "k2", "low_var_kl": "k3"}
# Tunix's settings: ours
PAIRS = {
    "token-mean": (dict(loss_agg_mode="token-mean"), dict(loss_type="bnpo")),
    "token-mean as dapo": (dict(loss_agg_mode="token-mean", epsilon_high=.28), dict(loss_type="dapo", epsilon_high=.28)),
    "sequence-mean-token-mean": (dict(loss_agg_mode="sequence-mean-token-mean"), dict(loss_type="grpo", count=with_tokens)),
    "sequence-mean-token-scale": (dict(loss_agg_mode="sequence-mean-token-scale"), dict(loss_type="dr_grpo", count=wide)),
    "seq-mean-token-sum": (dict(loss_agg_mode="seq-mean-token-sum"), dict(loss_type="luspo", level="token", count=with_tokens)),
    "sequence-mean-token-sum-norm": (dict(loss_agg_mode="sequence-mean-token-sum-norm"), dict(loss_type="luspo", level="token", count=with_tokens)),
    "gspo-token": (dict(loss_algo="gspo-token"), dict(loss_type="gspo", count=with_tokens)),
    "gspo-token and token-mean": (dict(loss_algo="gspo-token", loss_agg_mode="token-mean"), dict(loss_type="bnpo", level="sequence")),
    "epsilon_c": (dict(epsilon_c=1.4, epsilon_high=.3, loss_agg_mode="token-mean"), dict(loss_type="bnpo", delta=1.4, epsilon_high=.3)),
    **{f"kl_loss_mode {k}": (dict(kl_loss_mode=k), dict(loss_type="grpo", kl_kind=ours, count=with_tokens)) for k, ours in KINDS.items()},
}


@pytest.mark.parametrize("name", PAIRS)
def test_loss(name):
    theirs, ours = PAIRS[name]
    theirs, ours = dict(kl_loss_mode="low_var_kl", beta=.1) | theirs, dict(beta=.1) | ours
    rows, width = 4, 5
    their, our = tunix_loss(theirs, rows, width), our_loss(ours.pop("loss_type"), rows, width, **ours)

    @settings(max_examples=20, **SETTINGS)
    @given(seed=seeds, spread=st.sampled_from([0.0, .1, .5, 2.0]), lengths=st.lists(st.integers(0, width), min_size=rows, max_size=rows))
    def check(seed, spread, lengths):
        logits, ids, b = setup(seed, rows, width, spread)
        mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
        (value, aux), grad = their(logits, ids, b["old"], b["ref"], b["advantages"], mask)
        (mine, told), my_grad = our(logits, ids, b["old"], b["ref"], b["advantages"], mask)
        same(mine, value, .1, name)
        same(my_grad, grad, what=name)
        same(told["clip_fraction"], aux["pg_clipfrac"], what=name)
        same(told["kl"], aux["kl"], .1, name)
        if theirs.get("loss_agg_mode") == "token-mean": same(told["entropy"], aux["entropy"], what=name)
    check()


def test_another_shape():
    logits, ids, b = setup(3, 3, 9)
    args = (logits, ids, b["old"], b["ref"], b["advantages"], b["mask"])
    (value, _), grad = tunix_loss(dict(beta=.1, kl_loss_mode="low_var_kl"), 3, 9)(*args)
    (mine, _), my_grad = our_loss("grpo", 3, 9, beta=.1, count=with_tokens)(*args)
    same(mine, value, .1)
    same(my_grad, grad)


def test_without_old_and_reference():
    "The first step: ratios of 1, no KL."
    logits, ids, b = setup(0, 3, 4)
    made = GRPOConfig(beta=0.0)
    made.temperature = 1.0
    example = TrainExample(prompt_ids=ids[:, :PROMPT], prompt_mask=None, completion_ids=ids[:, PROMPT:], completion_mask=b["mask"], advantages=b["advantages"], ref_per_token_logps=None, old_per_token_logps=None)
    (value, aux), grad = compiled(lambda z: algo_core.grpo_loss_fn(Scores(z), example, made, PAD, EOS))(logits)
    (mine, told), my_grad = compiled(lambda z: L.grpo_loss(L.completion_logp(z, ids, 4), None, b["advantages"], b["mask"], divide_by=with_tokens(b["mask"])))(logits)
    same(mine, value, .1)
    same(my_grad, grad)
    assert float(aux["kl"]) == 0 and "kl" not in told


@pytest.mark.parametrize("scale", ["group", "none", "leave one out"])
def test_advantages(scale):
    theirs = {"group": algo_core.compute_advantages, "none": algo_core.compute_drgrpo_advantages, "leave one out": algo_core.compute_rloo_advantages}[scale]
    ours = {"group": lambda r: G.group_advantages(r, eps=1e-6), "none": lambda r: G.group_advantages(r, "none"), "leave one out": G.leave_one_out}[scale]

    @settings(max_examples=25, **SETTINGS)
    @given(seed=seeds, prompts=st.integers(1, 4), size=st.integers(2, 6))
    def check(seed, prompts, size):
        r = np.random.default_rng(seed).integers(0, 4, (prompts, size)).astype(np.float64)
        same(ours(r).reshape(-1), theirs(r.reshape(-1), size), 1.0, scale, 1e-9 if scale == "group" else 1e-6)
    check()


# ---------------------------------------------------------------- the table's rows, where Tunix goes its own way

def test_epsilon_of_the_deviation_is_smaller():
    r = np.array([[0.0, 0.0, 1.0, 3.0]])
    theirs = algo_core.compute_advantages(r.reshape(-1), 4)
    same(theirs, G.group_advantages(r, eps=1e-6)[0], tolerance=1e-12)
    assert 1e-5 < np.abs(theirs - G.group_advantages(r)[0]).max() < 1e-3


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_a_missing_reward_becomes_a_zero():
    def some(prompts, completions, **_): return [1.0, np.nan, 3.0]
    def other(prompts, completions, **_): return [2.0, np.nan, 1.0]
    paid = SequenceRewardManager([some, other], GRPOConfig())(["p"] * 3, ["c"] * 3)["rewards"]
    assert paid.tolist() == [3.0, 0.0, 4.0]                                                     # and the rewards are summed
    assert np.isnan(algo_core.compute_advantages(np.array([3.0, np.nan, 4.0]), 3)).all()        # told as missing, it takes its group along
    same(group := G.group_advantages([[3, None, 4]]), [[-.707, 0, .707]], tolerance=1e-3)
    assert np.abs(algo_core.compute_advantages(paid, 3) - group[0]).max() > .5


def test_estimators_by_name():
    for name, theirs in (("grpo", algo_core.compute_advantages), ("drgrpo", algo_core.compute_drgrpo_advantages), ("rloo", algo_core.compute_rloo_advantages)):
        assert GRPOConfig(advantage_estimator=name) and function_registry.get_advantage_estimator(name) is theirs
    pytest.raises(ValueError, GRPOConfig, loss_algo="cispo")


def test_the_temperature_divides_the_scores():
    logits, ids, _ = setup(0, 2, 3)
    graph, state = nnx.split(Scores(logits))
    theirs = common.compute_per_token_logps(graph, state, ids[:, :PROMPT], ids[:, PROMPT:], PAD, EOS, temperature=.7)
    same(L.completion_logp(logits, ids, 3, .7), theirs)


def test_an_update_in_parts_is_the_mean_of_their_means():
    "What optax.MultiSteps makes of the parts of token-mean; the divisor of the whole makes it the mean over all tokens."
    losses, mask = jnp.arange(8.0).reshape(2, 4), jnp.array([[1, 1, 1, 1], [1, 0, 0, 0]])
    of = lambda i: float(common.aggregate_loss(losses[i], mask[i], "token-mean"))
    assert of(slice(0, 2)) == 2.0 and (of(slice(0, 1)) + of(slice(1, 2))) / 2 == 2.75
    ours = lambda i: float((losses[i] * L.token_weights(mask[i], "dapo", divide_by=L.divisor(mask, "dapo"))).sum())
    assert ours(slice(0, 1)) + ours(slice(1, 2)) == pytest.approx(2.0)


def test_the_defaults():
    made = GRPOConfig()
    assert (made.kl_loss_mode, made.beta, made.loss_agg_mode, made.epsilon, made.num_iterations) == ("kl", .04, "sequence-mean-token-mean", .2, 1)
    assert not hasattr(made, "epsilon_high") and not hasattr(made, "epsilon_c")
    assert DAPOConfig().epsilon_high == .28 and DAPOConfig().beta is None and DAPOConfig().loss_agg_mode == "token-mean"


def test_completions_without_tokens_do_not_count_in_its_mean():
    loss, mask = jnp.ones((4, 3)), jnp.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]])
    assert float(common.aggregate_loss(loss, mask, "sequence-mean-token-mean")) == 1.0
    assert float((loss * L.token_weights(mask, "grpo")).sum()) == .5
    assert float((loss * L.token_weights(mask, "grpo", divide_by=2)).sum()) == 1.0


def test_its_constant_is_the_width_of_the_batch():
    mask = jnp.ones((2, 3))
    for width in (3, 6):
        padded = jnp.pad(mask, ((0, 0), (0, width - 3)))
        assert float(common.aggregate_loss(jnp.ones(padded.shape), padded, "sequence-mean-token-scale")) == pytest.approx(3 / width)
        assert float(L.token_weights(padded, "dr_grpo", max_length=10).sum()) == pytest.approx(.3)


def test_it_holds_the_log_ratio_within_20():
    logits, ids, b = setup(0, 1, 1)
    b["old"][:] = -200.0
    (value, _), grad = tunix_loss(dict(beta=0.0), 1, 1)(logits, ids, b["old"], b["ref"], np.array([-1.0], np.float32), np.ones((1, 1), np.int32))
    (mine, _), my_grad = our_loss("grpo", 1, 1)(logits, ids, b["old"], b["ref"], np.array([-1.0], np.float32), np.ones((1, 1), np.int32))
    same([mine, value], [np.exp(20)] * 2)
    same(my_grad, np.zeros_like(grad))
    same(grad, np.zeros_like(grad))


def test_padding_is_told_by_its_value():
    "Where the end token pads as well, it is not seen by the model; `make_completion_mask`, which its agents use, knows better."
    ids = np.array([[5, 6, 1, 1, 1]])
    _, _, _, seen = common.process_ids(jnp.array([[4]]), jnp.asarray(ids), 1, 1)
    assert np.asarray(seen)[0, 1:].tolist() == [1, 1, 0, 0, 0]
    assert L.completion_mask(ids, 1)[0].tolist() == [True, True, True, False, False]
    np.testing.assert_array_equal(common.make_completion_mask(jnp.asarray(ids), 1), L.completion_mask(ids, 1))
