"The TRL engine: interrupted is the same as uninterrupted, what cannot be judged stays out, and each known pitfall has its guard."
import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from engine_runs import lines, runner, start_without_a_winner

trl = pytest.importorskip("grpo_tutorials.engines.trl") if os.environ.get("CI", "").lower() != "true" else __import__("grpo_tutorials.engines.trl", fromlist=["train"])
import torch
import transformers

from grpo_tutorials.core.doctor import Record, diagnose
from grpo_tutorials.core.runs import METRICS, Run
from grpo_tutorials.core.scale import Unavailable, override
from grpo_tutorials.models.lora import read_tensors
from grpo_tutorials.models.tiny import checkpoint
from grpo_tutorials.tasks.task import get_task

TASK = get_task("gsm8k", scale="smoke")
SCALE = TASK.scale("smoke", "trl", steps=4, save_steps=2, eval_n=16, lora_rank=4, lora_alpha=8., learning_rate=1e-3, warmup=.25)
FULL_WEIGHTS = dataclasses.replace(SCALE, lora_rank=0, learning_rate=2e-4)


run = runner(trl, TASK, SCALE)


def weights(path): return read_tensors(next(f for f in (path / "adapter" / "adapter_model.safetensors", path / "model" / "model.safetensors") if f.exists()))
def trained(path): return [s for s in lines(path, "samples.jsonl") if s["phase"] == "train"]


def same(ours: Path, theirs: Path, atol=1e-5):
    a, b = weights(ours), weights(theirs)
    assert a.keys() == b.keys()
    for k in a: np.testing.assert_allclose(a[k], b[k], atol=atol)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "run"
    assert run(path)["steps"] == 4
    return path


@pytest.fixture(scope="module")
def whole_full(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole_full") / "run"
    assert run(path, FULL_WEIGHTS)["steps"] == 4
    return path


@pytest.mark.parametrize("stop", [1, 2, 3])    # before the first checkpoint, at it, after it
@pytest.mark.parametrize("scale, fixture", [(SCALE, "whole"), (FULL_WEIGHTS, "whole_full")], ids=["adapter", "all weights"])
def test_an_interrupted_run_ends_like_an_uninterrupted_one(scale, fixture, tmp_path, stop, request):
    path, whole = tmp_path / "run", request.getfixturevalue(fixture)
    assert run(path, scale, stop=stop) is None
    assert run(path, scale, resume=True)["steps"] == 4
    same(path, whole)
    a, b = lines(path, "metrics.jsonl"), lines(whole, "metrics.jsonl")
    assert [x["step"] for x in a] == [1, 2, 3, 4]
    for x, y in zip(a, b):
        assert x["reward"] == y["reward"] and x["lr"] == y["lr"]
        for k in ("loss", "kl", "entropy", "grad_norm"): assert x[k] == pytest.approx(y[k], abs=1e-5)
    seen = lambda p: [(s["step"], s["prompt"][-1]["content"], s["completion"]) for s in trained(p)]
    assert seen(path) == seen(whole)
    ends = lambda p: {k: v for k, v in json.loads((p / "summary.json").read_text()).items() if k in ("before", "after")}
    assert ends(path) == ends(whole)


def test_every_prompt_is_seen_once_and_in_order(whole):
    "Four steps of two prompts, four completions each."
    prompts = [s["prompt"][-1]["content"] for s in trained(whole)]
    wanted = [r["prompt"][-1]["content"] for r in TASK.rows("train", 8, 0)]
    assert prompts == [p for p in wanted for _ in range(4)]


def test_resuming_is_exact_with_the_generation_of_trl_too(tmp_path, monkeypatch):
    "As on a GPU: no rollout of ours, and the seed of the step decides."
    monkeypatch.setattr(trl, "rollout", None)
    scale = override(SCALE, eval_n=1, micro_batch=4)
    assert run(tmp_path / "whole", scale)["steps"] == 4
    assert run(tmp_path / "run", scale, stop=3) is None
    assert run(tmp_path / "run", scale, resume=True)["steps"] == 4
    same(tmp_path / "run", tmp_path / "whole")
    texts = [s["completion"] for s in trained(tmp_path / "run")]
    assert texts == [s["completion"] for s in trained(tmp_path / "whole")] and len(set(texts)) > 8


def test_killed_without_warning(tmp_path):
    "kill -9 in the middle of training leaves a folder that goes on from its last whole checkpoint."
    env = dict(os.environ, GRPO_SCALE="smoke")
    argv = [sys.executable, "-m", "grpo_tutorials", "run", "gsm8k", "--engine", "trl", "--scale", "smoke", "--eval-n", "16", "--lora-rank", "4", "--lora-alpha", "4"]
    whole, path = [*argv, "--out", str(tmp_path / "whole")], tmp_path / "run"
    done = subprocess.run(whole, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    p = subprocess.Popen([*argv, "--out", str(path)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (path / "checkpoints" / "step-000002" / "complete").exists():
        assert p.poll() is None and time.monotonic() < deadline, "the run ended before it could be killed"
        time.sleep(.02)
    p.send_signal(signal.SIGKILL)
    p.wait()
    assert not (path / "summary.json").exists()
    done = subprocess.run([*argv, "--out", str(path), "--resume"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    same(path, tmp_path / "whole")


def test_a_finished_run_trains_nothing_more(whole):
    before = (whole / "metrics.jsonl").read_bytes()
    with Run.open(whole, dict(task="gsm8k", engine="trl", scale=SCALE, seed=0), resume=True) as r:
        assert trl.train(TASK, SCALE, r, resume=True)["steps"] == 4
    assert (whole / "metrics.jsonl").read_bytes() == before


def test_another_seed_is_another_run(whole, tmp_path):
    run(tmp_path / "run", override(SCALE, steps=1, eval_n=1), seed=1)
    assert [s["completion"] for s in trained(tmp_path / "run")] != [s["completion"] for s in trained(whole)][:8]


def test_every_metric_is_known(whole):
    for line in lines(whole, "metrics.jsonl"):
        assert not [k for k in METRICS if line[k] is None] and line["steps/skipped"] == 0
        assert {k for k in line if k.startswith("rewards/")} == {f"rewards/{f.__name__}" for f in TASK.rewards}
        assert line["kl"] >= 0 and line["clip_fraction"] == 0      # one update a rollout: the ratio is 1
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["skipped"] == 0 and summary["adapter"]["ok"]
    for side in ("before", "after"): assert 0 <= summary[side]["truncated"] <= 1 and 1 <= summary[side]["distinct"] <= 16


def caught(monkeypatch):
    "The advantages that TRL's loss works with, step by step."
    seen, loss = [], trl.Learner.compute_loss
    def compute_loss(self, model, inputs, **kwargs):
        seen.append(inputs["advantages"].tolist())
        return loss(self, model, inputs, **kwargs)
    monkeypatch.setattr(trl.Learner, "compute_loss", compute_loss)
    return seen


def some(completions, **_): return [None if i % 3 == 0 else float(len(c)) for i, c in enumerate(completions)]
def other(completions, **_): return [None if i < 4 or i % 2 else 1. for i, _ in enumerate(completions)]        # none of the first group


@pytest.mark.parametrize("rewards", [(some,), (some, other), (other,)], ids=["some rows", "some functions", "a whole group"])
def test_what_is_not_judged_stays_out(rewards, tmp_path, monkeypatch):
    "A reward of None neither fails the run nor counts as 0; TRL's advantages are those of core.grpo."
    theirs = caught(monkeypatch)
    run(tmp_path / "a", override(SCALE, steps=1, eval_n=1), task=dataclasses.replace(TASK, rewards=rewards))
    (line,) = lines(tmp_path / "a", "metrics.jsonl")
    train = trained(tmp_path / "a")
    judged = [s["total"] for s in train if s["total"] is not None]
    assert line["samples/unjudged"] == len(train) - len(judged) == json.loads((tmp_path / "a" / "summary.json").read_text())["unjudged"]
    assert "not judged" in [f.name for f in diagnose(Record.load(tmp_path / "a"))]
    assert 0 < len(judged) < len(train) and line["reward"] == pytest.approx(np.mean(judged)) and math.isfinite(line["loss"])
    assert all(s["advantage"] == 0 for s in train if s["total"] is None)
    np.testing.assert_allclose(sorted(theirs[0]), sorted(s["advantage"] for s in train), atol=1e-4)     # TRL shuffles


def test_a_step_that_nobody_judged_is_an_error(tmp_path):
    def nobody(completions, **_): return [None] * len(completions)
    with pytest.raises(ValueError, match="no reward function judged"):
        run(tmp_path / "a", override(SCALE, steps=1, eval_n=1), task=dataclasses.replace(TASK, rewards=(nobody,)))


def test_a_step_that_is_not_finite_is_skipped_and_counted(tmp_path, monkeypatch):
    loss, states = trl.GRPOTrainer.compute_loss, {}
    def compute_loss(self, model, inputs, **kwargs):
        value = loss(self, model, inputs, **kwargs)
        states[self.done] = {n: p.detach().clone() for n, p in trl.trained(self.model).items()}
        return value * torch.nan if self.done == 1 else value      # the second step
    monkeypatch.setattr(trl.GRPOTrainer, "compute_loss", compute_loss)
    summary = run(tmp_path / "a", override(SCALE, eval_n=1, warmup=1e-9))
    log = lines(tmp_path / "a", "metrics.jsonl")
    assert summary["skipped"] == 1 and [x["steps/skipped"] for x in log] == [0, 1, 0, 0]
    assert {"loss", "grad_norm"} <= set(log[1]["nonfinite"]) and log[1]["loss"] is None and log[2]["loss"] is not None
    for n in states[1]:
        assert torch.equal(states[1][n], states[2][n]) and torch.isfinite(states[3][n]).all()
    assert any(not torch.equal(states[2][n], states[3][n]) for n in states[1])      # the third step learned again
    assert "NaN" in [f.name for f in diagnose(Record.load(tmp_path / "a"))]
    assert "step 2 was skipped" in (tmp_path / "a" / "notes.log").read_text()


def test_rollouts_differ_between_steps(tmp_path):
    scale = override(SCALE, steps=2, eval_n=1, learning_rate=1e-12)    # the policy stays as it is
    row = TASK.rows("train", 1, 0)
    run(tmp_path / "a", scale, task=dataclasses.replace(TASK, rows=lambda split, n, seed: row * n, size=None))
    texts = [s["completion"] for s in trained(tmp_path / "a")]
    assert texts[:8] != texts[8:]


def test_small_pieces_make_the_same_update(tmp_path):
    "Gradients add up over micro batches: two completions at a time, or all eight."
    one = override(SCALE, steps=1, eval_n=1, warmup=1e-9)
    for name, scale in (("all", one), ("two", override(one, micro_batch=2))): run(tmp_path / name, scale)
    same(tmp_path / "all", tmp_path / "two", atol=1e-4)      # AdamW's first step is as large for a gradient that is nearly 0: a tenth of a step
    (a,), (b,) = (lines(tmp_path / n, "metrics.jsonl") for n in ("all", "two"))
    for k in ("loss", "grad_norm"): assert a[k] == pytest.approx(b[k], abs=1e-5)
    assert [s["completion"] for s in trained(tmp_path / "all")] == [s["completion"] for s in trained(tmp_path / "two")]


def test_rows_of_like_length_together_make_the_same_update(tmp_path, monkeypatch):
    "In pieces of three rows, or all at once as TRL does it."
    one, whole = override(SCALE, steps=1, eval_n=1, warmup=1e-9), trl.in_pieces
    widths = []
    def by_three(ask, ids, mask, width): return whole(lambda i, m, k: widths.append(i.shape[1]) or ask(i, m, k), ids, mask, width, rows=3)
    monkeypatch.setattr(trl, "in_pieces", by_three)
    run(tmp_path / "pieces", one)
    monkeypatch.setattr(trl, "in_pieces", lambda ask, ids, mask, width: ask(ids, mask, width))
    run(tmp_path / "whole", one)
    same(tmp_path / "pieces", tmp_path / "whole", atol=1e-4)
    (a,), (b,) = (lines(tmp_path / n, "metrics.jsonl") for n in ("pieces", "whole"))
    for k in ("loss", "kl", "entropy", "grad_norm"): assert a[k] == pytest.approx(b[k], abs=1e-5)
    assert len(widths) == 6 and len(set(widths)) > 1       # three pieces, for the reference and for the loss


def test_an_adapter_that_stayed_zero_names_truncation_first(tmp_path):
    "Cut off after two tokens and masked: no loss, no gradient, and the run goes through."
    summary = run(tmp_path / "a", override(SCALE, steps=2, eval_n=2, max_completion_length=2, mask_truncated=True))
    assert not summary["adapter"]["ok"]
    assert "every lora_B is zero" in summary["adapter"]["problems"][0] and "cut off at 2 tokens and masked out of the loss" in summary["adapter"]["problems"][0]
    assert "all truncated" in summary["verdict"] or "adapter all zero" in summary["verdict"]


def test_full_weights_leave_a_model_folder(whole_full):
    before, after = read_tensors(checkpoint("gsm8k") / "model.safetensors"), weights(whole_full)
    assert before.keys() == after.keys() and any(not np.array_equal(before[k], after[k]) for k in before)
    assert not (whole_full / "adapter").exists()
    for f in ("generation_config.json", "chat_template.jinja", "tokenizer.json"):
        assert (whole_full / "model" / f).read_text() == (checkpoint("gsm8k") / f).read_text()
    policy = trl.load_policy(whole_full / "model", FULL_WEIGHTS)
    greedy = [s["completion"] for s in lines(whole_full, "samples.jsonl") if s["phase"] == "after" and s["decoding"] == "greedy"]
    assert policy([r["prompt"] for r in TASK.rows("test", 16, 0)], greedy=True) == greedy


def test_the_adapter_on_disk_answers_like_the_policy_that_was_trained(whole):
    assert (whole / "adapter" / "tokenizer.json").is_file() and (whole / "adapter" / "chat_template.jinja").is_file()
    policy = trl.load_policy(checkpoint("gsm8k"), SCALE, whole / "adapter")
    greedy = [s["completion"] for s in lines(whole, "samples.jsonl") if s["phase"] == "after" and s["decoding"] == "greedy"]
    assert policy([r["prompt"] for r in TASK.rows("test", 16, 0)], greedy=True) == greedy
    with pytest.raises(FileNotFoundError, match="is no adapter"): trl.load_policy(checkpoint("gsm8k"), SCALE, checkpoint("gsm8k"))


def test_an_answer_can_be_watched(whole, capsys):
    policy = trl.load_policy(checkpoint("gsm8k"), SCALE, whole / "adapter")
    prompt = TASK.rows("test", 1, 0)[0]["prompt"]
    assert policy.stream(prompt, greedy=True) == policy([prompt], greedy=True)[0] == capsys.readouterr().out.strip()
    assert len(policy.tokenizer.encode(policy.stream(prompt, max_tokens=3))) <= 3
    assert policy.stream(prompt, top_k=1, seed=7) == policy([prompt], greedy=True)[0]              # the likeliest of one


def test_the_baseline_and_the_last_word_are_sampled_as_in_the_recipe(whole, monkeypatch):
    asked = {}
    class Asked(Exception): pass
    def generate(**how): asked.update(how); raise Asked
    policy = trl.load_policy(checkpoint("gsm8k"), SCALE, whole / "adapter")
    monkeypatch.setattr(policy.model, "generate", generate)
    for tokens, sampling in ((128, dict(temperature=1., top_p=.95, top_k=64)), (512, dict(temperature=1.))):
        with pytest.raises(Asked): policy.stream(TASK.rows("test", 1, 0)[0]["prompt"], max_tokens=tokens, **sampling)
        assert asked["do_sample"] and asked["max_new_tokens"] == tokens and {k: asked[k] for k in sampling} == sampling


def test_the_recipe_at_full_scale(monkeypatch):
    "The seed's numbers as TRL gets them on a GPU, and the changes that the page gives reasons for."
    monkeypatch.setattr(trl, "GRPOConfig", lambda **kwargs: SimpleNamespace(**kwargs))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    task = get_task("sudoku", scale="full")
    full = task.scale("full", "trl")
    c = trl.grpo_config(full, "out", 0, full.steps)
    kept = dict(temperature=1., learning_rate=5e-5, weight_decay=.001, optim="adamw_8bit", logging_steps=1, per_device_train_batch_size=1, max_steps=60, report_to="none",
                epsilon=.2, epsilon_high=.28, delta=1.5, loss_type="bnpo", mask_truncated_completions=True, bf16=True, use_cpu=False)
    assert {k: getattr(c, k) for k in kept} == kept and not hasattr(c, "fp16")
    assert c.num_generations == 8 == c.gradient_accumulation_steps                                # the recipe's 2 is too few
    assert (full.lora_rank, full.lora_alpha, full.warmup, full.schedule, full.max_prompt_length + full.max_completion_length) == (32, 64., .1, "linear", 4096)
    assert [trl.learning_rate(full)(i) for i in (0, 6, 33, 60)] == pytest.approx([0, 5e-5, 2.5e-5, 0])
    assert full.model == "unsloth/gemma-4-E2B-it" == trl.GEMMA_4[0] and len(trl.GEMMA_4) == 8 and trl.weights_dtype(full) is torch.bfloat16
    with pytest.raises(ValueError, match="float16"): override(full, dtype="float16")


@pytest.mark.parametrize("ours", [True, False], ids=["our rollout", "the generation of TRL"])
def test_every_end_token_ends_a_completion(ours, tmp_path, monkeypatch):
    "generation_config.json may name several; the sudoku model stops at the closing fence."
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("gsm8k"), folder)
    tok = trl.load_tokenizer(folder)
    tag = tok.token_id("</answer>")
    (folder / "generation_config.json").write_text(json.dumps(dict(bos_token_id=2, pad_token_id=0, eos_token_id=[tok.eos_id(), tag])))
    if not ours: monkeypatch.setattr(trl, "rollout", None)
    run(tmp_path / "a", override(SCALE, model=str(folder), steps=1, eval_n=4))
    texts = [s["completion"] for s in lines(tmp_path / "a", "samples.jsonl")]
    ended = [t for t in texts if "</answer>" in t]
    assert ended and all(t.endswith("</answer>") for t in ended)       # the end token is there, and nothing after it
    assert lines(tmp_path / "a", "metrics.jsonl")[0]["truncated"] == 0


# ---------------------------------------------------------------- the start of a task that is judged by its samples

def judged_by_samples(right):
    return dataclasses.replace(TASK, headline="sampled", grade=lambda text, row: SimpleNamespace(strict=right, lenient=right, format=True, extracted=None))


@pytest.mark.parametrize("eval_n", [4, 128])
def test_a_start_without_a_winner_stops_with_one_sentence(tmp_path, eval_n):
    scale = dataclasses.replace(SCALE, name="cpu", steps=1, eval_n=eval_n)
    with pytest.raises(ValueError, match="none of 128 samples is right") as e: run(tmp_path / "a", scale, task=judged_by_samples(False))
    assert "\n" not in str(e.value) and "--force" in str(e.value) and not (tmp_path / "a" / "metrics.jsonl").exists()


def test_a_start_that_rambles_stops_and_force_goes_on(tmp_path):
    scale = dataclasses.replace(SCALE, name="cpu", steps=1, eval_n=4, max_completion_length=3)
    with pytest.raises(ValueError, match="100% of 128 samples were cut off at 3 tokens"): run(tmp_path / "a", scale, task=judged_by_samples(True))
    assert run(tmp_path / "b", scale, task=judged_by_samples(True), force=True)["steps"] == 1


def test_only_there_and_then(tmp_path):
    "Not at smoke, and not for a task that is judged by its greedy answers."
    assert run(tmp_path / "a", override(SCALE, steps=1, eval_n=1), task=judged_by_samples(False))["steps"] == 1
    assert run(tmp_path / "b", dataclasses.replace(SCALE, name="cpu", steps=1, eval_n=1), task=dataclasses.replace(judged_by_samples(False), headline="greedy"))["steps"] == 1


# ---------------------------------------------------------------- what it leaves, and what it says

def test_nothing_is_written_or_said_outside_the_run_folder(tmp_path):
    code = ("import sys; from grpo_tutorials.engines import trl; from grpo_tutorials.core.runs import Run; from grpo_tutorials.tasks.task import get_task\n"
            "t = get_task('gsm8k', 'smoke'); s = t.scale('smoke', 'trl', steps=1, eval_n=2, lora_rank=2, lora_alpha=2.)\n"
            "with Run.open('run', dict(task='gsm8k', engine='trl', scale=s, seed=0)) as r: trl.train(t, s, r)\n"
            "assert 'unsloth' not in sys.modules")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["adapter", "checkpoints", "config.json", "curves.png", "metrics.jsonl", "report.html", "samples.jsonl", "state.json", "summary.json"]
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000001"]


@pytest.mark.parametrize("changes, message", [
    (dict(max_prompt_length=10), "--max-prompt-length"),
    (dict(model="./nowhere"), "no model folder ./nowhere"),
    (dict(mesh=(2, 1)), "the trl engine cannot do mesh"),
])
def test_bad_input_is_one_line(tmp_path, changes, message):
    with pytest.raises((ValueError, FileNotFoundError, Unavailable), match=message) as e: run(tmp_path / "run", dataclasses.replace(SCALE, **changes))
    assert "\n" not in str(e.value)


def test_an_unknown_architecture_is_one_line(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint("gsm8k"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | dict(architectures=["NoSuchModel"])))
    with pytest.raises(ValueError, match="declares NoSuchModel, which transformers"): trl.load_model(folder, SCALE)


def test_full_scale_says_what_is_missing(monkeypatch):
    "No GPU; then no token; then no licence; then no network: one line each, and the estimate comes first."
    import huggingface_hub as hub
    said, full = [], get_task("gsm8k", "full", "embedded").scale("full", "trl")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match="needs a GPU"): trl.preflight(full, "gsm8k", say=said.append)
    assert "estimated GPU memory" in said[0] and "total" in said[0]
    def refuse(error):
        def snapshot_download(*args, **kwargs): raise error
        monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    look = lambda: trl.preflight(full, "gsm8k", force=True, say=said.append)
    for token, error, message in ((None, hub.errors.GatedRepoError, "no access token"), ("hf_x", hub.errors.GatedRepoError, "accept its licence"),
                                  (None, hub.errors.RepositoryNotFoundError, "or it needs an access token"), ("hf_x", hub.errors.RepositoryNotFoundError, "the token may not see it")):
        monkeypatch.setattr(hub, "get_token", lambda: token)
        refuse(error.__new__(error))
        with pytest.raises(Unavailable, match=message) as e: look()
        assert "\n" not in str(e.value)
    refuse(ConnectionError("no route"))
    with pytest.raises(Unavailable, match="cannot reach the hub"): look()


def test_a_gpu_that_is_too_small_or_lacks_a_library(monkeypatch):
    full = get_task("gsm8k", "full", "embedded").scale("full", "trl", group_size=64, max_completion_length=8192)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: SimpleNamespace(total_memory=24e9))
    with pytest.raises(Unavailable, match="this GPU has 24 GB and the estimate is"): trl.check_machine(full, False, lambda text: None)
    trl.check_machine(full, True, lambda text: None)
    monkeypatch.setattr(trl, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="needs bitsandbytes"): trl.check_machine(override(full, optim="adamw_8bit"), False, lambda text: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(Unavailable, match="CUDA_VISIBLE_DEVICES=0"): trl.check_machine(full, False, lambda text: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Unavailable, match="one process"): trl.check_machine(full, False, lambda text: None)


def test_what_is_asked_of_unsloth():
    "Its own words for the same settings; nothing of it is imported here."
    asked = {}
    class FastVisionModel:
        def from_pretrained(**kwargs): asked["load"] = kwargs; return torch.nn.ModuleDict(dict(language_model=torch.nn.Linear(1, 1))), None
        def get_peft_model(model, **kwargs): asked["lora"] = kwargs; return model
    scale = override(SCALE, max_prompt_length=256, max_completion_length=3840, lora_rank=32, lora_alpha=64.)
    trl.load_with_unsloth("folder", scale, unsloth=SimpleNamespace(FastVisionModel=FastVisionModel))
    assert asked["load"] == dict(model_name="folder", max_seq_length=4096, dtype=torch.bfloat16, load_in_4bit=False, fast_inference=False, full_finetuning=False)
    assert asked["lora"].pop("target_modules").startswith(r".*language_model.*\.(q_proj|")
    assert asked["lora"] == dict(r=32, lora_alpha=64., lora_dropout=0.0, bias="none", use_gradient_checkpointing="unsloth", random_state=3407)
    assert trl.UNSLOTH is None or torch.cuda.is_available()


# ---------------------------------------------------------------- Gemma 4, whole: it sees, and shares keys and values between layers

@pytest.fixture(scope="module")
def gemma4(tmp_path_factory):
    "A random Gemma 4 of the full kind, with the tiny checkpoint's tokenizer."
    folder = tmp_path_factory.mktemp("gemma4") / "model"
    folder.mkdir()
    source = checkpoint("gsm8k")
    vocab = json.loads((source / "config.json").read_text())["vocab_size"]
    text = dict(vocab_size=vocab, vocab_size_per_layer_input=vocab, hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=2, num_key_value_heads=1,
                head_dim=16, global_head_dim=32, hidden_size_per_layer_input=8, num_kv_shared_layers=2, sliding_window=16, max_position_embeddings=256, final_logit_softcapping=30.,
                layer_types=["sliding_attention", "full_attention"] * 3, pad_token_id=0, bos_token_id=2, eos_token_id=5)
    vision = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=8)
    config = transformers.Gemma4Config(text_config=text, vision_config=vision, audio_config=None, image_token_id=vocab - 1, video_token_id=vocab - 2, audio_token_id=vocab - 3,
                                       boi_token_id=vocab - 4, eoi_token_id=vocab - 5, boa_token_id=vocab - 6, eoa_token_index=vocab - 7)
    torch.manual_seed(0)
    transformers.Gemma4ForConditionalGeneration(config).save_pretrained(folder)
    for f in source.iterdir():
        if f.suffix in (".json", ".jinja") and f.name not in ("config.json", "recipe.json"): shutil.copyfile(f, folder / f.name)
    return folder


def test_gemma_4_is_adapted_in_its_language_model_only(gemma4):
    model = trl.load_model(gemma4, SCALE)
    adapted = trl.peft.get_peft_model(model, trl.lora_config(model, SCALE))
    modules = {n.rpartition(".lora_A")[0] for n, _ in adapted.named_parameters() if ".lora_A." in n}
    assert all(".language_model." in n for n in modules)
    assert len(modules) == 6 * 7 - 2 * 2       # two layers take their keys and values from others


def test_the_two_loops_agree_on_gemma_4(gemma4):
    "Prompts of different lengths, shared caches and sliding windows that have run full."
    model, tok = trl.load_model(gemma4, SCALE), trl.load_tokenizer(gemma4)
    scale = dataclasses.replace(SCALE, max_completion_length=24)
    ids = trl.prompt_ids(TASK.rows("test", 6, 0), tok, 48)
    assert len({len(i) for i in ids}) > 1
    assert trl.complete(model, ids, scale, tok, True, 0) == trl.generate(model, ids, scale, tok, True, 0)
    assert trl.generate(model, ids, scale, tok, False, 3) == trl.generate(model, ids, scale, tok, False, 3) != trl.generate(model, ids, scale, tok, False, 4)


def test_gemma_4_goes_the_whole_way(gemma4, tmp_path):
    scale = dataclasses.replace(SCALE, model=str(gemma4), steps=2, save_steps=1, eval_n=2, max_completion_length=6)
    def length(completions, **_): return [float(len(c)) for c in completions]
    task = dataclasses.replace(TASK, rewards=(length,))
    assert run(tmp_path / "a", scale, task=task)["adapter"]["ok"]
    assert run(tmp_path / "b", scale, task=task, stop=1) is None
    assert run(tmp_path / "b", scale, task=task, resume=True)["steps"] == 2
    same(tmp_path / "a", tmp_path / "b")


def test_a_start_without_a_winner_stops(tmp_path): start_without_a_winner(run, TASK, SCALE, tmp_path)
