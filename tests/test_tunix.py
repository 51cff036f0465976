"The Tunix engine: interrupted is the same as uninterrupted, and each known pitfall has its guard."
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from engine_runs import adapter, lines, runner, start_without_a_winner

tunix = pytest.importorskip("grpo_tutorials.engines.tunix") if os.environ.get("CI", "").lower() != "true" else __import__("grpo_tutorials.engines.tunix", fromlist=["train"])
from grpo_tutorials.core.runs import Run
from grpo_tutorials.core.scale import Unavailable, override
from grpo_tutorials.models.lora import read_tensors
from grpo_tutorials.models.tiny import checkpoint
from grpo_tutorials.tasks.task import get_task

TASK = get_task("gsm8k", scale="smoke")
SCALE = TASK.scale("smoke", "tunix", steps=4, save_steps=2, eval_n=16)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")    # Tunix's own


run = runner(tunix, TASK, SCALE)




@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert run(path)["steps"] == 4
    return path


@pytest.mark.parametrize("stop", [1, 2, 3])    # before the first checkpoint, at it, after it
def test_an_interrupted_run_ends_like_an_uninterrupted_one(whole, tmp_path, stop):
    path = tmp_path / "run"
    assert run(path, stop=stop) is None
    assert run(path, resume=True)["steps"] == 4
    ours, theirs = adapter(path), adapter(whole)
    assert ours.keys() == theirs.keys()
    for k in ours: np.testing.assert_allclose(ours[k], theirs[k], atol=1e-5)
    assert any(np.abs(ours[k]).max() > 0 for k in ours if "lora_B" in k)
    a, b = lines(path, "metrics.jsonl"), lines(whole, "metrics.jsonl")
    assert [x["step"] for x in a] == [1, 2, 3, 4]
    for x, y in zip(a, b): assert x["reward"] == y["reward"] and x["loss"] == pytest.approx(y["loss"], abs=1e-5)
    seen = lambda p: [(s["step"], s["prompt"][-1]["content"], s["completion"]) for s in lines(p, "samples.jsonl") if s["phase"] == "train"]
    assert seen(path) == seen(whole)
    ends = lambda p: {k: v for k, v in json.loads((p / "summary.json").read_text()).items() if k in ("before", "after")}
    assert ends(path) == ends(whole)


def test_killed_without_warning(whole, tmp_path):
    "kill -9 in the middle of training leaves a folder that goes on from its last whole checkpoint."
    path, env = tmp_path / "run", dict(os.environ, GRPO_SCALE="smoke")
    argv = [sys.executable, "-m", "grpo_tutorials", "run", "gsm8k", "--scale", "smoke", "--steps", "4", "--eval-n", "16", "--out", str(path)]
    p = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (path / "checkpoints" / "step-000002" / "complete").exists():
        assert p.poll() is None and time.monotonic() < deadline, "the run ended before it could be killed"
        time.sleep(.02)
    p.send_signal(signal.SIGKILL)
    p.wait()
    assert not (path / "summary.json").exists()
    done = subprocess.run(argv + ["--resume"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours, theirs = adapter(path), adapter(whole)
    for k in ours: np.testing.assert_allclose(ours[k], theirs[k], atol=1e-5)


def test_a_finished_run_trains_nothing_more(whole):
    before = (whole / "metrics.jsonl").read_bytes()
    with Run.open(whole, dict(task="gsm8k", engine="tunix", scale=SCALE, seed=0), resume=True) as r:
        assert tunix.train(TASK, SCALE, r, resume=True)["steps"] == 4
    assert (whole / "metrics.jsonl").read_bytes() == before


def test_what_is_not_judged_stays_out(tmp_path):
    "A reward of None neither fails the run nor counts as 0."
    def sometimes(completions, **_): return [None if i % 3 == 0 else float(len(c)) for i, c in enumerate(completions)]
    run(tmp_path / "a", override(SCALE, steps=1, eval_n=1), task=dataclasses.replace(TASK, rewards=(sometimes,)))
    (line,) = lines(tmp_path / "a", "metrics.jsonl")
    train = [s for s in lines(tmp_path / "a", "samples.jsonl") if s["phase"] == "train"]
    judged = [s["total"] for s in train if s["total"] is not None]
    assert len(judged) < len(train) and line["reward"] == pytest.approx(np.mean(judged)) and np.isfinite(line["loss"])
    assert all(s["advantage"] == 0 for s in train if s["total"] is None)


def test_the_kl_that_is_logged_is_never_negative(whole):
    "The k3 estimator: Tunix's default, k1, would go below 0."
    kl = [x["kl"] for x in lines(whole, "metrics.jsonl")]
    assert min(kl) >= 0 and max(kl) > 0


def test_rollouts_differ_between_steps(tmp_path):
    "Tunix's sampler without a seed of its own repeats itself for ever."
    scale = override(SCALE, steps=2, eval_n=1, learning_rate=1e-12)    # the policy stays as it is
    row = TASK.rows("train", 1, 0)
    run(tmp_path / "a", scale, task=dataclasses.replace(TASK, rows=lambda split, n, seed: row * n, size=None))
    train = [s["completion"] for s in lines(tmp_path / "a", "samples.jsonl") if s["phase"] == "train"]
    assert train[:scale.completions_per_step] != train[scale.completions_per_step:]


def test_the_policy_shares_the_frozen_weights_with_the_reference():
    from tunix.rl.utils import is_sharing_backbone
    mesh = tunix.make_mesh()
    base = tunix.load_base(checkpoint("gsm8k"), mesh)
    assert is_sharing_backbone(tunix.add_lora(base, 4, 4.0, mesh), base)


def test_full_weights_leave_a_model_folder(tmp_path):
    scale = override(SCALE, steps=2, lora_rank=0, learning_rate=1e-4)
    run(tmp_path / "run", scale)
    before, after = read_tensors(checkpoint("gsm8k") / "model.safetensors"), read_tensors(tmp_path / "run" / "model" / "model.safetensors")
    assert before.keys() == after.keys() and any(not np.array_equal(before[k], after[k]) for k in before)
    policy = tunix.load_policy(tmp_path / "run" / "model", scale)
    rows = TASK.rows("test", 16, 0)
    greedy = [s["completion"] for s in lines(tmp_path / "run", "samples.jsonl") if s["phase"] == "after" and s["decoding"] == "greedy"]
    assert policy([r["prompt"] for r in rows], greedy=True) == greedy


def test_the_adapter_on_disk_answers_like_the_policy_that_was_trained(whole):
    policy = tunix.load_policy(checkpoint("gsm8k"), SCALE, whole / "adapter")
    greedy = [s["completion"] for s in lines(whole, "samples.jsonl") if s["phase"] == "after" and s["decoding"] == "greedy"]
    assert policy([r["prompt"] for r in TASK.rows("test", 16, 0)], greedy=True) == greedy


@pytest.mark.parametrize("changes, message", [
    (dict(max_prompt_length=10), "--max-prompt-length"),
    (dict(model="./nowhere"), "no model folder ./nowhere"),
    (dict(mesh=(64, 64)), "devices"),
])
def test_bad_input_is_one_line(tmp_path, changes, message):
    scale = dataclasses.replace(SCALE, **changes)
    with pytest.raises((ValueError, FileNotFoundError, Unavailable), match=message) as e: run(tmp_path / "run", scale)
    assert "\n" not in str(e.value)


def test_full_scale_says_what_is_missing(tmp_path, monkeypatch):
    "No accelerator; then no token; then no licence: one line each, and the estimate comes first."
    import huggingface_hub as hub
    with pytest.raises(ValueError, match="neither a folder nor"): tunix.hub_config("google/gemma-9b")
    said, full = [], get_task("gsm8k", "full", "embedded").scale("full", "tunix")
    with pytest.raises(Unavailable, match="needs an accelerator"): tunix.preflight(full, "gsm8k", say=said.append)
    assert "estimated accelerator memory" in said[0] and "total" in said[0]
    monkeypatch.setattr(hub, "get_token", lambda: None)
    with pytest.raises(Unavailable, match="no access token"): tunix.preflight(full, "gsm8k", force=True, say=said.append)
    monkeypatch.setattr(hub, "get_token", lambda: "hf_x")
    def gated(*args, **kwargs): raise hub.errors.GatedRepoError.__new__(hub.errors.GatedRepoError)
    monkeypatch.setattr(hub, "snapshot_download", gated)
    with pytest.raises(Unavailable, match="accept its licence"): tunix.preflight(full, "gsm8k", force=True, say=said.append)
    def offline(*args, **kwargs): raise ConnectionError("no route")
    monkeypatch.setattr(hub, "snapshot_download", offline)
    with pytest.raises(Unavailable, match="cannot reach the hub"): tunix.preflight(full, "gsm8k", force=True, say=said.append)


def test_another_family_of_models_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="llama", head_dim=4)))
    with pytest.raises(ValueError, match="reads Gemma 3 and Gemma 4"): tunix.tunix_config(tmp_path)


def test_the_sizes_of_gemma_3_1b_come_out_of_its_config(tmp_path):
    "As google/gemma-3-1b-it's config.json has them."
    (tmp_path / "config.json").write_text(json.dumps(dict(
        model_type="gemma3_text", num_hidden_layers=26, vocab_size=262144, hidden_size=1152, intermediate_size=6912, num_attention_heads=4, head_dim=256,
        num_key_value_heads=1, sliding_window=512, query_pre_attn_scalar=256, rope_theta=1000000, rope_local_base_freq=10000)))
    ours, theirs = tunix.tunix_config(tmp_path), tunix.hub_config("google/gemma-3-1b-it")
    for f in dataclasses.fields(theirs):
        if f.name != "param_dtype": assert getattr(ours, f.name) == getattr(theirs, f.name), f.name


SUDOKU = get_task("sudoku", scale="smoke")


@pytest.mark.parametrize("rank", [0, 4])
def test_gemma_4_goes_the_same_way(tmp_path, rank):
    "The sudoku checkpoint: trained, exported, loaded again; all its weights, or an adapter after an interruption."
    scale = SUDOKU.scale("smoke", "tunix", steps=2, save_steps=1, eval_n=8, group_size=4, lora_rank=rank)
    path = tmp_path / "run"
    if rank: assert run(path, scale, stop=1, task=SUDOKU) is None
    summary = run(path, scale, resume=bool(rank), task=SUDOKU)
    log = lines(path, "metrics.jsonl")
    assert [x["step"] for x in log] == [1, 2] and all(np.isfinite(x["loss"]) and x["grad_norm"] > 0 and 0 <= x["truncated"] <= 1 for x in log)
    assert {"truncated", "distinct"} <= summary["before"].keys() & summary["after"].keys()
    base, new = (checkpoint("sudoku"), path / "adapter") if rank else (path / "model", None)
    if rank: assert summary["adapter"]["ok"] and not any("layers.2.self_attn.k_proj" in k for k in summary["adapter"]["modules"])    # it shares its keys
    policy = tunix.load_policy(base, scale, new)
    greedy = [s["completion"] for s in lines(path, "samples.jsonl") if s["phase"] == "after" and s["decoding"] == "greedy"]
    assert policy([r["prompt"] for r in SUDOKU.rows("test", 8, 0)], greedy=True) == greedy
    written = [s["completion"] for s in lines(path, "samples.jsonl")]
    assert any(w.endswith("\n```") for w in written) and not any("<end_of_turn>" in w for w in written)


def test_an_end_that_is_text_is_put_back():
    from types import SimpleNamespace
    sampler = tunix.Sampler.__new__(tunix.Sampler)
    sampler.text_ends, sampler.tokenizer = frozenset({9}), SimpleNamespace(decode=lambda ids: " ".join(map(str, ids)))
    written = np.array([[1, 9, 0, 0], [1, 2, 5, 0], [1, 2, 3, 4], [1, 2, 3, 9]])      # the fence, the end of a turn, neither, the fence as the last token
    out = SimpleNamespace(tokens=[row[:n] for row, n in zip(written, (1, 2, 4, 3))], text=["1", "1 2", "1 2 3 4", "1 2 3"])
    sampler.restore(out, written)
    assert out.text == ["1 9", "1 2", "1 2 3 4", "1 2 3 9"] and [len(t) for t in out.tokens] == [2, 2, 4, 4]
    cut = [tunix.was_cut(t, SimpleNamespace(max_completion_length=4), sampler.text_ends) for t in out.tokens]
    assert cut == [False, False, True, False]


def test_a_start_without_a_winner_stops(tmp_path): start_without_a_winner(run, TASK, SCALE, tmp_path)
