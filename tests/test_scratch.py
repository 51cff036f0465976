"GRPO from scratch: the forward is transformers', the devices change nothing, interrupted is the same as uninterrupted."
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from engine_runs import adapter, lines, runner, start_without_a_winner
from hypothesis import given, settings, strategies as st

CI = os.environ.get("CI", "").lower() == "true"
jax = __import__("jax") if CI else pytest.importorskip("jax")
import jax.numpy as jnp

from grpo_tutorials.core.scale import Unavailable, override
from grpo_tutorials.engines import scratch as S
from grpo_tutorials.models import forward as F
from grpo_tutorials.models.lora import read_tensors, write_tensors
from grpo_tutorials.models.tiny import checkpoint
from grpo_tutorials.tasks.task import get_task

S.compile_cache()


def free(completions, **columns):
    "A reward that differs from text to text and asks nothing of it: a model of one layer earns no other."
    return [zlib.crc32(c.encode()) % 97 / 97 for c in completions]


def one_layer(out):
    "The shipped model's first layer as a model folder: it writes nonsense and compiles in a third of the time."
    shutil.copytree(checkpoint("gsm8k"), out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | dict(num_hidden_layers=1, layer_types=config["layer_types"][:1])))
    write_tensors(out / "model.safetensors", {k: v for k, v in read_tensors(out / "model.safetensors").items() if ".layers." not in k or ".layers.0." in k})
    return out


FOLDER = one_layer(Path(tempfile.mkdtemp()) / "model")
TASK = dataclasses.replace(get_task("gsm8k", scale="smoke"), rewards=(free,))
NUMBERS = dict(model=str(FOLDER), steps=4, save_steps=2, eval_n=8, max_completion_length=16, learning_rate=1e-4)     # small, so that no rounding turns into another draw
SCALE = TASK.scale("smoke", "scratch", **NUMBERS)


# ---------------------------------------------------------------- the forward

def gemma(family, **more):
    "A model of a few thousand random weights; gains and scalars too, which transformers starts at one."
    torch = pytest.importorskip("torch")
    import transformers as tf
    small = dict(vocab_size=97, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=48, num_hidden_layers=4, sliding_window=5,
                 layer_types=["sliding_attention", "full_attention"] * 2, pad_token_id=0, bos_token_id=2, eos_token_id=1)
    kind = dict(gemma3=(tf.Gemma3TextConfig, tf.Gemma3ForCausalLM), gemma4=(tf.Gemma4TextConfig, tf.Gemma4ForCausalLM))[family]
    if family == "gemma4": small |= dict(vocab_size_per_layer_input=97, hidden_size_per_layer_input=0, global_head_dim=16, num_kv_shared_layers=0)
    torch.manual_seed(0)
    model = kind[1](kind[0](**(small | more))).eval()
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name or "layer_scalar" in name: p.add_(.3 * torch.randn_like(p))
            elif "inv_freq" not in name and "scale" not in name: p.add_(.2 * torch.randn_like(p))
    return model


WAYS = {
    "gemma3": ("gemma3", dict(query_pre_attn_scalar=11)),
    "gemma3 one key for all": ("gemma3", dict(num_key_value_heads=1)),
    "gemma3 soft cap": ("gemma3", dict(final_logit_softcapping=3.0)),
    "gemma3 slower rope": ("gemma3", dict(rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1e6), sliding_attention=dict(rope_type="default", rope_theta=1e4)))),
    "gemma4": ("gemma4", {}),
    "gemma4 per layer": ("gemma4", dict(hidden_size_per_layer_input=6)),
    "gemma4 shared": ("gemma4", dict(num_kv_shared_layers=2, hidden_size_per_layer_input=6, use_double_wide_mlp=True)),
    "gemma4 values are keys": ("gemma4", dict(attention_k_eq_v=True, num_global_key_value_heads=1)),
}


@pytest.mark.parametrize("way", WAYS)
def test_log_probabilities_are_transformers(way, tmp_path):
    "Groups, left padding and a window that is shorter than the text."
    torch = pytest.importorskip("torch")
    family, more = WAYS[way]
    model = gemma(family, **more)
    model.save_pretrained(tmp_path)
    ours = F.load(tmp_path)
    rng = np.random.default_rng(0)
    prompts, ids = [rng.integers(3, 97, n).tolist() for n in (9, 6)], rng.integers(3, 97, (2, 3, 7))
    p, mask = S.pad(prompts, 11)
    logp, entropy = jax.jit(lambda w: S.logprobs(ours.config, w, jnp.asarray(p), jnp.asarray(mask), jnp.asarray(ids), 0.7))(F.fuse(ours))
    for b, prompt in enumerate(prompts):
        for g in range(3):
            with torch.no_grad(): z = model(torch.tensor([prompt + ids[b, g].tolist()])).logits[0, len(prompt) - 1:-1] / 0.7
            want = z.log_softmax(-1)
            np.testing.assert_allclose(logp[b, g], want[range(7), ids[b, g]].numpy(), atol=1e-4)
            np.testing.assert_allclose(entropy[b, g], -(want.exp() * want).sum(-1).numpy(), atol=1e-4)
    counts = np.arange(7) < rng.integers(1, 7, (2, 3))[..., None]
    tight = jax.jit(lambda w: S.logprobs(ours.config, w, jnp.asarray(p), jnp.asarray(mask), jnp.asarray(ids), 0.7, jnp.asarray(counts), int(counts[..., 1:].sum()) + 1))(F.fuse(ours))
    for a, b in zip(tight, (logp, entropy)): np.testing.assert_allclose(a, np.where(counts, b, 0), atol=1e-4)
    F.save(ours, tmp_path / "again.safetensors")
    a, b = read_tensors(tmp_path / "again.safetensors"), read_tensors(tmp_path / "model.safetensors")
    for k in a: np.testing.assert_array_equal(a[k], b[k])


@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_computing_no_padding_changes_no_gradient(data):
    "Completions of any lengths, in a list that is just long enough, one that is longer, or as long as the rectangle."
    length = np.array(data.draw(st.lists(st.integers(1, 9), min_size=4, max_size=4))).reshape(2, 2)
    needed = int((length - 1).sum())
    size = data.draw(st.sampled_from(sorted({max(needed, 1), min(needed + 5, 32), 32})))
    base = F.load(FOLDER)
    rng = np.random.default_rng(needed)
    p, mask = map(jnp.asarray, S.pad([[2, 40, 50], [2, 9, 8, 7, 6]], 16))
    ids, how = jnp.asarray(rng.integers(6, 700, (2, 2, 9))), jnp.asarray(rng.normal(size=(2, 2, 9)), jnp.float32)
    counts = jnp.asarray(np.arange(9) < length[..., None])
    def of(*more): return jax.value_and_grad(lambda w: (jnp.where(counts, S.logprobs(base.config, w, p, mask, ids, 1.0, *more)[0], 0) * how).sum())(F.fuse(base))
    (a, da), (b, db) = of(), of(counts, size)
    assert float(a) == pytest.approx(float(b), abs=1e-4)
    for x, y in zip(jax.tree.leaves(da), jax.tree.leaves(db)): np.testing.assert_allclose(x, y, atol=1e-5 * max(float(jnp.abs(x).max()), 1e-3))


@pytest.mark.parametrize("change, says", [(dict(model_type="llama"), "llama"), (dict(enable_moe_block=True), "enable_moe_block"), (dict(attention_bias=True), "attention_bias"),
                                          (dict(hidden_activation="silu"), "hidden_activation"), (dict(use_bidirectional_attention=True), "looks ahead")])
def test_a_model_that_would_be_misread_is_refused(change, says, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(json.loads((checkpoint("gsm8k") / "config.json").read_text()) | change))
    with pytest.raises(ValueError, match=says): F.read_config(tmp_path)


# ---------------------------------------------------------------- the sampler

def test_a_sampled_completion_is_the_likeliest_where_asked_and_its_own_log_probabilities_agree():
    "Greedy through the cache = the argmax of the full pass, token for token; ends stop a row and the loop."
    base = F.load(checkpoint("sudoku"))
    w, stop = F.fuse(base), (5, 1023)
    p, mask = map(jnp.asarray, S.pad([[2, 40, 50], [2, 9, 8, 7, 6]], 16))
    ids = np.asarray(jax.jit(lambda w: S.sample(base.config, w, p, mask, jnp.full((2, 2, 16), -1.0), stop))(w))
    logp = np.asarray(jax.jit(lambda w: S.logprobs(base.config, w, p, mask, jnp.asarray(ids)))(w)[0])
    every = np.stack([np.asarray(jax.jit(lambda w, t: S.logprobs(base.config, w, p, mask, t))(w, jnp.asarray(np.where(np.arange(16) == 3, other, ids)))[0])[..., 3] for other in (11, 99, 400)])
    assert (every <= logp[..., 3] + 1e-5).all() and (ids[:, 0] == ids[:, 1]).all()
    m = np.asarray(S.completion_mask(jnp.asarray(ids), stop))
    assert (ids[m == 0] == 0).all()


@pytest.mark.parametrize("how", [{}, dict(top_k=5), dict(top_p=.6), dict(top_k=9, top_p=.7, temperature=.5), dict(temperature=2.0)], ids=str)
def test_draws_have_the_right_shares(how):
    "Against the distribution that transformers would draw from, written here once more in NumPy."
    z = np.random.default_rng(1).normal(size=50) * 2
    q = np.exp(z / how.get("temperature", 1.0))
    if k := how.get("top_k"): q[q < np.sort(q)[-k]] = 0
    q /= q.sum()
    if top_p := how.get("top_p"):
        order = np.argsort(-q)
        q[order[np.cumsum(q[order]) - q[order] >= top_p]] = 0
        q /= q.sum()
    n = 20_000
    dice = (np.arange(n) + .5) / n
    got = np.bincount(np.asarray(jax.jit(lambda z, d: S.pick(z, d, **how))(jnp.tile(jnp.asarray(z, jnp.float32), (n, 1)), jnp.asarray(dice, jnp.float32))), minlength=50) / n
    np.testing.assert_allclose(got, q, atol=2e-4)
    assert not got[q == 0].any()
    assert int(S.pick(jnp.asarray(z, jnp.float32)[None], jnp.array([-1.0]), **how)[0]) == z.argmax()


# ---------------------------------------------------------------- runs

run = runner(S, TASK, SCALE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert run(path)["steps"] == 4
    return path


@pytest.mark.parametrize("stop", [1, 3])    # before the first checkpoint, after it
def test_an_interrupted_run_ends_like_an_uninterrupted_one(whole, tmp_path, stop):
    path = tmp_path / "run"
    assert run(path, stop=stop) is None
    assert run(path, resume=True)["steps"] == 4
    for k, v in adapter(whole).items(): np.testing.assert_array_equal(adapter(path)[k], v)
    same = lambda p: [{k: v for k, v in x.items() if k not in ("step_seconds", "tokens_per_second")} for x in lines(p, "metrics.jsonl")]
    assert same(path) == same(whole)
    seen = lambda p: [(x["step"], x["prompt"], x["completion"], x["rewards"]) for x in lines(p, "samples.jsonl") if x["phase"] == "train"]
    assert seen(path) == seen(whole)
    assert len(set(c for _, _, c, _ in seen(whole))) > 4                       # each step draws anew


def test_the_line_of_a_step_says_what_the_other_engines_say(whole):
    x = lines(whole, "metrics.jsonl")[-1]
    for k in ("reward", "reward_std", "loss", "kl", "entropy", "clip_fraction", "completion_length", "truncated", "silent_groups", "grad_norm", "lr", "step_seconds", "tokens_per_second"):
        assert np.isfinite(x[k]), k
    assert x["kl"] > 0 and any(k.startswith("rewards/") for k in x)


def test_parts_change_nothing(whole, tmp_path):
    "One pass, or four of which each has half a group: the same completions, losses and adapter."
    path = tmp_path / "run"
    run(path, override(SCALE, micro_batch=2))
    close(path, whole)


def close(path, whole):
    seen = lambda p: [(x["step"], x["completion"], x["total"]) for x in lines(p, "samples.jsonl") if x["phase"] == "train"]
    assert seen(path) == seen(whole)
    for x, y in zip(lines(path, "metrics.jsonl"), lines(whole, "metrics.jsonl")):
        for k in ("reward", "loss", "kl", "grad_norm", "entropy", "truncated"): assert x[k] == pytest.approx(y[k], abs=1e-5, rel=1e-4), k
    for k, v in adapter(whole).items(): np.testing.assert_allclose(adapter(path)[k], v, atol=2e-4)     # Adam makes a step of a sign: rounding is seen in the smallest gradients


def test_full_weights_are_written_as_a_model_folder(tmp_path):
    scale = override(SCALE, lora_rank=0, lora_alpha=0.0, steps=1, max_grad_norm=100.0, learning_rate=1e-3, warmup=0.0)
    assert run(tmp_path / "run", scale).get("adapter") is None
    new, old = (read_tensors(f / "model.safetensors") for f in (tmp_path / "run" / "model", FOLDER))
    assert new.keys() == old.keys() and all(np.isfinite(v).all() for v in new.values())
    assert sum(bool((new[k] != old[k]).any()) for k in new) == len(new)        # every tensor learns
    asked = [r["prompt"] for r in TASK.rows("test", 4, 0)]
    wrote = [x["completion"] for x in lines(tmp_path / "run", "samples.jsonl") if x["phase"] == "after" and x["decoding"] == "greedy"][:4]
    assert S.load_policy(tmp_path / "run" / "model", scale)(asked, greedy=True) == wrote


def test_what_cannot_be_done_is_said_at_once(tmp_path):
    for changes, says in ((dict(optim="adamw_8bit"), "optim"), (dict(model="google/gemma-3-1b-it"), "downloads nothing"),
                          (dict(name="full"), "accelerator"), (dict(mesh=(jax.device_count() + 1, 1)), "sees")):
        with pytest.raises((ValueError, FileNotFoundError, Unavailable), match=says): run(tmp_path / says.split()[0], override(SCALE, **changes))


# ---------------------------------------------------------------- devices and processes

CHILD = """
import dataclasses, json, os, sys, zlib
scale, folder, rank, port, small = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
import jax
if port != "none":
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, rank)
from grpo_tutorials.core.runs import Run
from grpo_tutorials.core.scale import override
from grpo_tutorials.engines import scratch
from grpo_tutorials.models import devices
from grpo_tutorials.tasks.task import get_task
devices.SMALL = small      # 0: also what is small is cut in pieces
def free(completions, **columns): return [zlib.crc32(c.encode()) % 97 / 97 for c in completions]
task = dataclasses.replace(get_task("gsm8k", scale="smoke"), rewards=(free,))
scale = task.scale("smoke", "scratch", **scale)
with Run.open(folder, dict(task="gsm8k", engine="scratch", scale=scale, seed=0)) as run: scratch.train(task, scale, run, seed=0)
print(jax.device_count(), jax.process_count(), flush=True)
os._exit(0)      # jax.distributed waits for the others at exit
"""

def child(folder, devices, rank=0, port="none", small=0, **changes):
    env = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", CHILD, json.dumps(NUMBERS | changes), str(folder), str(rank), str(port), str(small)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

def wait(p):
    try: out, err = p.communicate(timeout=400)
    except subprocess.TimeoutExpired: p.kill(); raise
    assert p.returncode == 0, err[-2000:]
    return out.splitlines()[-1].split()       # gloo talks too


@pytest.mark.parametrize("small", [0, 2**18])
def test_one_device_and_eight(whole, tmp_path, small):
    "With the weights in pieces, and whole on each device."
    assert wait(child(tmp_path / "run", 8, mesh=(4, 2), small=small)) == ["8", "1"]
    close(tmp_path / "run", whole)


def test_two_processes_with_a_share_of_the_prompts_each(whole, tmp_path):
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    both = [child(tmp_path / f"run{rank}", 2, rank, port, mesh=(4, 1)) for rank in (0, 1)]
    assert [wait(p) for p in both] == [["4", "2"]] * 2
    runs = [tmp_path / "run0", tmp_path / "run1"]
    seen = lambda p: [(x["step"], x["prompt"][-1]["content"], x["completion"], x["total"]) for x in lines(p, "samples.jsonl") if x["phase"] == "train"]
    for step in range(1, 5):
        of = lambda p: [x for x in seen(p) if x[0] == step]
        assert of(runs[0]) + of(runs[1]) == of(whole)                          # the second prompts are the second process's
        assert {x[1] for x in of(runs[0])}.isdisjoint(x[1] for x in of(runs[1]))
    for p in runs:
        for x, y in zip(lines(p, "metrics.jsonl"), lines(whole, "metrics.jsonl")):
            for k in ("reward", "reward_std", "loss", "kl", "grad_norm", "completion_length"): assert x[k] == pytest.approx(y[k], abs=1e-5, rel=1e-4), k
    for k, v in adapter(runs[0]).items(): np.testing.assert_array_equal(v, adapter(runs[1])[k])


def test_a_start_without_a_winner_stops(tmp_path): start_without_a_winner(run, TASK, SCALE, tmp_path)


def test_a_completion_of_one_token(tmp_path):
    "The last token of the prompt scores it."
    assert run(tmp_path / "run", override(SCALE, max_completion_length=1, steps=1))["steps"] == 1
    assert lines(tmp_path / "run", "metrics.jsonl")[0]["grad_norm"] > 0
