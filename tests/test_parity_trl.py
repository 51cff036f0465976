"""Our losses and advantages against TRL's own code, in value and in gradient: `GRPOTrainer._compute_loss` and the advantages of a real trainer.

The rows of the table on the page nbs/core/01a_losses that are about TRL are proved here. An upgrade of TRL that changes a formula fails here first."""

import os
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import OPTIONS, SETTINGS, batch, reference, same, seeds, spreads

import grpo_tutorials.core.grpo as G
import grpo_tutorials.core.losses as L
from grpo_tutorials.models.tiny import checkpoint

if os.environ.get("CI"): import trl
else: trl = pytest.importorskip("trl", reason="needs the [trl] extra")

import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig  # noqa: E402

GROUP = 3
EOS, PAD = 1, 0


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    "A trainer of TRL's own, around a model of random weights; what it is to generate and to pay is put in by the tests."
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint("gsm8k"))
    torch.manual_seed(0)
    model = Gemma3ForCausalLM(Gemma3TextConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                                               num_key_value_heads=1, head_dim=8, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=2))
    def first(completions, **_): return [0.0] * len(completions)
    def second(completions, **_): return [0.0] * len(completions)
    args = trl.GRPOConfig(output_dir=str(tmp_path_factory.mktemp("trl")), use_cpu=True, bf16=False, report_to="none", gradient_checkpointing=False,
                          per_device_train_batch_size=2 * GROUP, num_generations=GROUP, max_completion_length=8, temperature=.7, pad_to_multiple_of=None)
    made = trl.GRPOTrainer(model=model, reward_funcs=[first, second], args=args, processing_class=tokenizer, train_dataset=Dataset.from_list([{"prompt": "1 + 1"}] * 4))
    made.model.train()
    made.current_gradient_accumulation_steps = 1        # its training loop sets this
    yield made
    torch.set_num_threads(threads)


@pytest.fixture
def set_(monkeypatch, trainer):
    "Set attributes of the trainer or of its arguments, by their own names, for one test."
    def change(**values):
        for k, v in values.items():
            at = trainer.args if k in ("delta", "use_bias_correction_kl", "steps_per_generation") else trainer
            assert hasattr(at, k), f"TRL has no {k} any more"
            monkeypatch.setattr(at, k, v)
    return change


def trl_loss(trainer, set_, b, loss_type, options, max_length, parts=1):
    "TRL's loss of an update in some parts, and its gradient in the log-probabilities."
    level = options.get("level") or ("sequence" if loss_type in ("gspo", "luspo") else "token")
    epsilon = options.get("epsilon", .2)
    set_(loss_type="grpo" if loss_type == "gspo" else loss_type, importance_sampling_level=level, epsilon_low=epsilon, epsilon_high=options.get("epsilon_high", epsilon),
         beta=options.get("beta", 0.0), max_completion_length=max_length, current_gradient_accumulation_steps=parts,
         delta=options.get("delta"), use_bias_correction_kl=options.get("kl_ratio", False), steps_per_generation=parts)
    t = {k: torch.tensor(v) for k, v in b.items()}
    logp, rows = t["logp"].requires_grad_(), len(b["logp"])
    total = 0
    for i in np.split(np.arange(rows), parts):
        set_(_get_per_token_logps_and_entropies=lambda *a, i=i, **k: (logp[i], torch.ones(len(i), logp.shape[1]), None))
        total = total + trainer._compute_loss(trainer.model, dict(
            prompt_ids=torch.zeros(len(i), 1, dtype=torch.int64), prompt_mask=torch.ones(len(i), 1, dtype=torch.int64), completion_ids=torch.zeros(len(i), logp.shape[1], dtype=torch.int64),
            completion_mask=t["mask"][i], advantages=t["advantages"][i], old_per_token_logps=t["old"][i], ref_per_token_logps=t["ref"][i], num_items_in_batch=t["mask"].sum()))
    return total.item(), torch.autograd.grad(total, logp)[0].numpy()


def our_loss(b, loss_type, options, max_length, parts=1):
    "Ours, with the divisor of the whole update, but for TRL's bnpo, where each part has its own."
    t = {k: torch.tensor(v) for k, v in b.items()}
    logp = t["logp"].requires_grad_()
    by = L.divisor(t["mask"], loss_type, max_length)
    total = 0
    for i in np.split(np.arange(len(b["logp"])), parts):
        if loss_type == "bnpo": by = L.divisor(t["mask"][i], "bnpo") * parts
        total = total + L.grpo_loss(logp[i], t["old"][i], t["advantages"][i], t["mask"][i], t["ref"][i], loss_type=loss_type, divide_by=by, **options)[0]
    return total.item(), torch.autograd.grad(total, logp)[0].numpy()


@pytest.mark.parametrize("loss_type", OPTIONS)
def test_loss(trainer, set_, loss_type):
    @settings(max_examples=30, **SETTINGS)
    @given(seed=seeds, rows=st.integers(1, 3), width=st.integers(1, 9), spread=spreads, parts=st.sampled_from([1, 2, 4]), options=st.sampled_from(OPTIONS[loss_type]))
    def check(seed, rows, width, spread, parts, options):
        b = batch(seed, rows * parts, width, spread)                       # uneven lengths, some completions masked whole
        value, grad = trl_loss(trainer, set_, b, loss_type, options, width + 2, parts)
        mine, my_grad = our_loss(b, loss_type, options, width + 2, parts)
        same(mine, value, reference(b, loss_type, options, width + 2)[1] or 1.0, loss_type)
        same(my_grad, grad, what=loss_type)
    check()


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "cispo", "sapo"])
def test_sequence_level_of_the_others(trainer, set_, loss_type):
    "The level of the ratio can be chosen apart from the loss type."
    for seed in range(5):
        b, options = batch(seed, 4, 6), dict(level="sequence", beta=.1, kl_ratio=True) | (dict(epsilon_high=1.1) if loss_type == "cispo" else {})
        value, grad = trl_loss(trainer, set_, b, loss_type, options, 6)
        mine, my_grad = our_loss(b, loss_type, options, 6)
        same(mine, value, 1.0)
        same(my_grad, grad)


def test_first_step(trainer, set_):
    "Nothing was stored of then: the ratio is 1 and the gradient -A."
    b = batch(1, 4, 5)
    b["old"] = b["logp"]
    value, grad = trl_loss(trainer, set_, b, "grpo", {}, 5)
    mine, my_grad = our_loss(b, "grpo", {}, 5)
    same([mine, value], [value, mine], 1.0)
    same(my_grad, grad)
    same(grad, -b["advantages"][:, None] * L.token_weights(b["mask"], "grpo"))


def test_metrics(trainer, set_):
    b, options = batch(3, 6, 7, .5, 0), dict(epsilon_high=.28, beta=.1)
    trainer._metrics["train"].clear()
    trl_loss(trainer, set_, b, "dapo", options, 7)
    logged = {k: v[-1] for k, v in trainer._metrics["train"].items()}
    _, told = L.grpo_loss(b["logp"], b["old"], b["advantages"], b["mask"], b["ref"], loss_type="dapo", entropy=np.ones((6, 7)), **options)
    assert logged["clip_ratio/region_mean"] > 0
    same(told["clip_fraction"], logged["clip_ratio/region_mean"], tolerance=1e-6)
    same(told["kl"], logged["kl"])
    same(told["entropy"], logged["entropy"])


def test_log_probabilities(trainer):
    "Its own forward against our softmax on the plain logits, at the sampling temperature."
    rng = np.random.default_rng(0)
    ids = torch.tensor(rng.integers(3, 300, (3, 9)))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    logps, entropies, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, 5, compute_entropy=True)
    with torch.no_grad(): logits = trainer.model(input_ids=ids, attention_mask=mask).logits
    on = mask[:, 4:].bool()
    same(L.completion_logp(logits, ids, 5, .7)[on], logps.detach()[on])
    same(L.entropy(logits[:, 3:-1], .7)[on], entropies.detach()[on])


def test_padding_on_the_left_changes_nothing(trainer):                                      # G21, G23
    "The same completion after a prompt alone and after one that is padded; each token scored by the row before it."
    prompt, completion = [7, 8], [9, 10]
    found = []
    for pad in (0, 3):
        ids = torch.tensor([[PAD] * pad + prompt + completion])
        mask = torch.tensor([[0] * pad + [1] * 4])
        found.append(trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, 2)[0].detach())
        with torch.no_grad(): logits = trainer.model(input_ids=ids, attention_mask=mask).logits
        same(L.completion_logp(logits, ids, 2, .7), found[-1])
    assert (found[0] - found[1]).abs().max() < 1e-4


# ---------------------------------------------------------------- advantages and masks, as the trainer makes them

def scored(trainer, monkeypatch, completions, rewards):
    "What TRL makes of completions (lists of token ids) and rewards (rows, functions)."
    n = len(completions)
    monkeypatch.setattr(trainer, "_generate", lambda prompts: ([[5]] * n, completions, None, ["x"] * n, None, {}, None, None))
    monkeypatch.setattr(trainer, "_calculate_rewards", lambda *a: torch.tensor(rewards, dtype=torch.float32))
    return trainer._generate_and_score_completions([{"prompt": "1 + 1"}] * n)


@pytest.mark.parametrize("scale", ["group", "batch", "none", "gdpo"])
def test_advantages(trainer, set_, monkeypatch, scale):
    weights = np.array([1.0, .5])
    set_(scale_rewards="group" if scale == "gdpo" else scale, multi_objective_aggregation="normalize_then_sum" if scale == "gdpo" else "sum_then_normalize",
         reward_weights=torch.tensor(weights, dtype=torch.float32))

    @settings(max_examples=20, **SETTINGS)
    @given(seed=seeds, prompts=st.integers(1, 3), missing=st.sampled_from([0, .3, .8]), levels=st.sampled_from([1, 2, 6]))
    def check(seed, prompts, missing, levels):
        rng = np.random.default_rng(seed)
        r = np.where(rng.random((prompts, GROUP, 2)) < missing, np.nan, rng.integers(0, levels, (prompts, GROUP, 2)) / 4)
        theirs = scored(trainer, monkeypatch, [[7, EOS]] * (prompts * GROUP), r.reshape(-1, 2))["advantages"]
        total = np.where(np.isnan(r).all(2), np.nan, np.nansum(r * weights, axis=2))
        ours = G.gdpo_advantages(r, weights) if scale == "gdpo" else G.group_advantages(total, scale)
        same(ours.reshape(-1), theirs, 1.0, scale, 1e-3 if scale == "gdpo" else 1e-5)      # GDPO divides twice, and its second divisor may be small
        if scale == "gdpo": same(G.gdpo_advantages(torch.tensor(r, dtype=torch.float32), weights).reshape(-1), theirs, 1.0, scale, 1e-3)
        if scale != "none": assert theirs.abs().max() < 10
    check()


@pytest.mark.parametrize("masked", [False, True])
def test_completion_masks(trainer, set_, monkeypatch, masked):
    "Uneven lengths, several end tokens, and completions that were cut off."
    set_(mask_truncated_completions=masked, eos_token_ids=[EOS, 6])
    rng = np.random.default_rng(4)
    for _ in range(10):
        completions = []
        for _ in range(2 * GROUP):
            ids, end = rng.integers(7, 30, rng.integers(1, 7)).tolist(), rng.integers(3)
            completions.append(ids + ([EOS], [6], [])[end])                      # the last: cut off
        out = scored(trainer, monkeypatch, completions, rng.normal(size=(2 * GROUP, 2)))
        ids = out["completion_ids"].numpy()
        ours = L.completion_mask(ids, [EOS, 6], pad_id=PAD, mask_truncated=masked)
        np.testing.assert_array_equal(ours, out["completion_mask"].numpy() == 1)
        assert L.divisor(ours, "dapo") == max(out["num_items_in_batch"].item(), 1)
        np.testing.assert_array_equal(L.truncated(ids, [EOS, 6]), [c[-1] not in (EOS, 6) for c in completions])


# ---------------------------------------------------------------- the table's rows, where TRL goes its own way

def test_the_defaults():
    default = {f.name: f.default for f in fields(trl.GRPOConfig)}
    want = dict(beta=0.0, loss_type="dapo", epsilon=.2, epsilon_high=None, delta=None, use_bias_correction_kl=True, scale_rewards="group", importance_sampling_level="token",
                multi_objective_aggregation="sum_then_normalize", mask_truncated_completions=False, num_iterations=1)
    assert {k: default[k] for k in want} == want


def test_bnpo_depends_on_how_the_update_is_cut(trainer, set_):
    b = batch(0, 8, 6, empty=0)
    assert len(set(b["mask"].sum(1))) > 2
    of = lambda loss_type, parts: trl_loss(trainer, set_, b, loss_type, {}, 6, parts)[1]
    for parts in (2, 4):
        assert np.abs(of("bnpo", parts) - of("bnpo", 1)).max() > 1e-3
        same(of("dapo", parts), of("dapo", 1))
        same(of("dapo", parts), our_loss(b, "dapo", {}, 6, parts)[1])
    same(of("bnpo", 1), of("dapo", 1))


def test_completions_without_tokens_count_in_its_mean(trainer, set_):
    b = batch(0, 4, 5, 0.0, 0) | dict(advantages=np.ones(4, np.float32))
    b["mask"][2:] = 0
    same(trl_loss(trainer, set_, b, "grpo", {}, 5)[0], -.5)
    same(our_loss(b, "grpo", {}, 5)[0], -.5)


def test_its_kl_has_the_ratio_and_with_it_another_gradient(trainer, set_):
    b = batch(2, 4, 5, empty=0)
    b["old"], b["advantages"] = b["logp"], np.zeros(4, np.float32)              # on-policy: the ratio is 1
    with_, without = (trl_loss(trainer, set_, b, "dapo", dict(beta=1.0, kl_ratio=k), 5) for k in (True, False))
    same(with_[0], without[0])
    assert np.abs(with_[1] - without[1]).max() > 1e-3
    for k, (value, grad) in ((True, with_), (False, without)):
        mine = our_loss(b, "dapo", dict(beta=1.0, kl_ratio=k), 5)
        same(mine[0], value)
        same(mine[1], grad)


def test_it_does_not_hold_the_ratio(trainer, set_):
    b = batch(0, 1, 1, empty=0) | dict(advantages=-np.ones(1, np.float32))
    b["mask"][:], b["logp"][:], b["old"][:] = 1, 0, -25
    same(trl_loss(trainer, set_, b, "grpo", {}, 1)[0], np.exp(25.0))
    same(our_loss(b, "grpo", {}, 1)[0], np.exp(20.0))
    b["old"][:] = -90
    assert not np.isfinite(trl_loss(trainer, set_, b, "grpo", {}, 1)[0])
    same(our_loss(b, "grpo", {}, 1)[0], np.exp(20.0))


def test_cispo_without_a_cap_weakens_every_token(trainer, set_):
    b = batch(0, 2, 3, 0.0, 0)
    same(trl_loss(trainer, set_, b, "cispo", {}, 3)[1], -.2 * b["advantages"][:, None] * L.token_weights(b["mask"], "cispo"))
    with pytest.raises(ValueError, match="caps the ratio at this number itself"): our_loss(b, "cispo", {}, 3)
