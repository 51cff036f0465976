"""Runs under fire: killed at any moment, opened by many at once, cut at any byte."""
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings, strategies as st

from grpo_tutorials.core import runs
from grpo_tutorials.core.runs import Reading, Run

CONFIG = dict(task="gsm8k", engine="tunix", scale="smoke", seed=0, steps=10_000)

# what a trainer does, as fast as it can; the state in a checkpoint is its step
TRAINER = """
import sys
from grpo_tutorials.core.runs import Run, write
path, resume = sys.argv[1], True
with Run.open(path, dict(task="gsm8k", engine="tunix", scale="smoke", seed=0, steps=10_000), resume=resume) as run:
    found = run.latest_checkpoint()
    start = 0 if found is None else int((found[1]/"weights").read_text().split()[0])
    assert found is None or found[0] == start
    run.trim(start)
    print("started", start, flush=True)
    for step in range(start + 1, 10_000):
        run.metrics(step, reward=step * .5, **{"rewards/format": 1.0})
        for i in range(3): run.sample(step, "train", "question", "text " * 50, {"format": 1.0}, total=1.0, advantage=0.0)
        if step % 3 == 0:
            with run.checkpoint(step) as folder: write(folder/"weights", f"{step} " + "x" * 20_000)
"""


def start(path):
    child = subprocess.Popen([sys.executable, "-c", TRAINER, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = child.stdout.readline()
    assert line.startswith("started"), child.stderr.read()
    return child, int(line.split()[1])


def check(path):
    "The folder reads, and its lines are what one uninterrupted run would have written."
    metrics = Reading.read(path).read_metrics()
    assert [m["step"] for m in metrics] == list(range(1, len(metrics) + 1))
    assert all(m["reward"] == m["step"] * .5 for m in metrics)
    whole, _ = runs.checkpoint_folders(path / "checkpoints")
    for step, folder in whole.items():
        text = (folder / "weights").read_text()
        assert text == f"{step} " + "x" * 20_000
    return whole


def test_killed_again_and_again_the_run_goes_on_where_it_was(tmp_path):
    path, last = tmp_path / "run", 0
    for pause in (.02, .11, .05, .17):
        child, begun = start(path)
        assert begun == last
        time.sleep(pause)
        child.kill()
        child.wait()
        assert runs.lock_owner(path) is None            # its owner is dead
        last = max(check(path), default=0)
    with Run.open(path, CONFIG, resume=True) as run:
        run.say = lambda text: None
        run.trim(last)
        assert len(run.read_metrics()) == last
        samples = run.read_samples()
        assert [s["step"] for s in samples] == [s for s in range(1, last + 1) for _ in range(3)]


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to a child there")
def test_ctrl_c_leaves_a_folder_that_reads_and_resumes(tmp_path):
    path = tmp_path / "run"
    child, _ = start(path)
    time.sleep(.1)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=60)
    assert "go on with --resume" in err
    assert not (path / "lock").exists()
    last = max(check(path), default=0)
    child, begun = start(path)
    child.kill()
    child.wait()
    assert begun == last


def test_of_many_that_open_one_folder_one_gets_it(tmp_path):
    code = ("import sys, time\nfrom grpo_tutorials.core.runs import Run\n"
            f"run = Run.open(sys.argv[1], {CONFIG!r}, resume=True)\nprint('mine', flush=True)\nsys.stdin.read()")
    path = tmp_path / "run"
    with Run.open(path, CONFIG): pass
    runs.write(path / "lock", json.dumps(dict(pid=2**22 + 1, started=None, host=runs.socket.gethostname(), token="dead")))     # a dead owner's lock to fight over
    children = [subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    winners, losers = [], []
    while len(winners) + len(losers) < len(children):
        for c in children:
            if c in winners or c in losers: continue
            if c.poll() is not None: losers.append(c)
            elif len(losers) + len(winners) == len(children) - 1 and c.stdout.readline() == "mine\n": winners.append(c)
        time.sleep(.02)
    errors = [c.communicate()[1] for c in losers]
    winners[0].communicate("")
    assert len(winners) == 1
    assert all("in use by process" in e for e in errors), errors


def test_a_live_owner_keeps_its_folder_until_it_dies(tmp_path):
    path = tmp_path / "run"
    child, _ = start(path)
    try:
        with pytest.raises(FileExistsError, match=f"in use by process {child.pid}"): Run.open(path, CONFIG, resume=True)
        with pytest.raises(FileExistsError, match="in use"): Run.open(path, CONFIG, force=True)
        while child.poll() is None and not (path / "metrics.jsonl").exists(): time.sleep(.01)     # it had only just begun
    finally:
        child.kill()
        child.wait()
    with Run.open(path, CONFIG, force=True) as run: run.say = lambda text: None
    assert (tmp_path / "run.old-1" / "metrics.jsonl").exists()


RECORDS = [dict(step=i, text="naïve \u2028 \u0085 \u0000 \"quoted\" \\ \n line") for i in range(1, 6)]
BYTES = b"".join((runs.dumps(r) + "\n").encode() for r in RECORDS)


@settings(max_examples=120, deadline=None)
@given(cut=st.integers(0, len(BYTES)))
def test_a_file_cut_at_any_byte_gives_the_lines_before_the_cut(tmp_path_factory, cut):
    f = tmp_path_factory.mktemp("cut") / "m.jsonl"
    f.write_bytes(BYTES[:cut])
    got = runs.read_jsonl(f)
    assert got == RECORDS[:len(got)]
    assert len(got) >= BYTES[:cut].count(b"\n")
    runs.keep_lines(f, lambda r: True)                  # mends the tail, so that the next line has a line of its own
    runs.append(f, dict(step=99))
    assert runs.read_jsonl(f) == got + [dict(step=99)]


def test_a_torn_line_in_the_middle_is_named(tmp_path):
    f = tmp_path / "samples.jsonl"
    lines = BYTES.split(b"\n")
    f.write_bytes(b"\n".join([lines[0], lines[1][:9], *lines[2:]]))
    with pytest.raises(ValueError, match=r"samples\.jsonl, line 2: not JSON"): runs.read_jsonl(f)


@pytest.mark.parametrize("stop", range(0, 7))
def test_trim_at_every_step_and_both_sides_of_it(tmp_path, stop):
    with Run.open(tmp_path / "r", CONFIG | dict(steps=6)) as run:
        run.sample(0, "before", "q", "t", {})
        run.keep("before", dict(n=1))
        for step in range(1, 7):
            run.metrics(step, reward=step)
            run.sample(step, "train", "q", "t", {})
        run.sample(6, "after", "q", "t", {})
        run.trim(stop)
        assert [m["step"] for m in run.read_metrics()] == [*range(1, stop + 1)]
        assert [(s["phase"], s["step"]) for s in run.read_samples()] == [("before", 0)] + [("train", s) for s in range(1, stop + 1)]
        run.metrics(stop + 1, reward=0)


def test_half_an_evaluation_before_training_is_forgotten(tmp_path):
    with Run.open(tmp_path / "r", CONFIG) as run: run.sample(0, "before", "q", "t", {})
    with Run.open(tmp_path / "r", CONFIG, resume=True) as run:
        run.trim(0)
        assert run.read_samples() == []


@pytest.mark.parametrize("steps,save,expected", [(60, 100, [60]), (60, 20, [20, 40, 60]), (50, 20, [20, 40, 50]), (1, 1, [1]), (0, 5, [])])
def test_a_checkpoint_is_always_due_at_the_end(steps, save, expected):
    assert [s for s in range(steps + 1) if runs.due(s, save, steps)] == expected


def test_the_newest_checkpoint_is_unfinished(tmp_path):
    said = []
    with Run.open(tmp_path / "r", CONFIG) as run:
        run.say = said.append
        assert run.latest_checkpoint() is None
        with run.checkpoint(1800) as d: runs.write(d / "w", "1800")
        bad = run.path / "checkpoints" / "step-001820"
        bad.mkdir()
        runs.write(bad / "w", "half")
        assert run.latest_checkpoint() == (1800, run.path / "checkpoints" / "step-001800")
        assert run.latest_checkpoint()[0] == 1800 and len(said) == 1 and "step-001820 was never finished" in said[0]
        with run.checkpoint(1820) as d: runs.write(d / "w", "1820")
        step, folder = run.latest_checkpoint()
        assert (step, (folder / "w").read_text()) == (1820, "1820")


@pytest.mark.parametrize("values,names", [
    (dict(loss=float("nan")), ["loss"]), (dict(loss=float("inf"), kl=float("-inf")), ["loss", "kl"]), ({"rewards/a": float("nan")}, ["rewards/a"]), (dict(loss=None), None)])
def test_what_is_not_finite_is_null_and_named(values, names):
    line = runs.metrics_line(1, values)
    json.loads(runs.dumps(line))
    assert line.get("nonfinite") == names


def test_numbers_of_any_library():
    np = pytest.importorskip("numpy")
    for x in (np.float32(.5), np.array(.5), np.array([.5])[0]): assert runs.finite(x) == .5
    assert runs.plain(dict(a=np.float32(.5), b=np.arange(3))) == dict(a=.5, b=[0, 1, 2])
    for bad in ("0.5", [1.0], {}, np.arange(2)):
        with pytest.raises(ValueError, match="number"): runs.finite(bad, "loss")


def test_broken_files_are_named(tmp_path):
    with Run.open(tmp_path / "r", CONFIG): pass
    (tmp_path / "r" / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json: not JSON"): Run.open(tmp_path / "r", CONFIG, resume=True)
    with pytest.raises(ValueError, match=r"config\.json: not JSON"): Run.read(tmp_path / "r")


@pytest.mark.parametrize("name, text", [
    ("lock", "null"), ("lock", "[]"), ("lock", '{"pid": "abc"}'), ("lock", '{"pid": null}'), ("lock", '{"pid": 1.5}'), ("lock", '{"pid": -1}'), ("lock", "{"),
])
def test_a_lock_that_is_none_of_ours_is_nobodys(tmp_path, name, text):
    Run.open(tmp_path / "r", CONFIG_OF_THE_DAMAGED).close()
    (tmp_path / "r" / name).write_text(text)
    Run.open(tmp_path / "r", CONFIG_OF_THE_DAMAGED, resume=True).close()


@pytest.mark.parametrize("name, text", [
    ("summary.json", '{"steps": "2", "before": {"n": 1}, "after": {"n": 1}, "verdict": ""}'), ("summary.json", '{"steps": 2, "before": null, "after": {"n": 1}, "verdict": ""}'),
    ("summary.json", '{"steps": 2, "before": {"n": 1}, "after": {}, "verdict": ""}'), ("summary.json", '{"steps": 2, "before": {"n": 1}, "after": {"n": 1}}'),
    ("state.json", '{"seconds": "x"}'), ("state.json", '{"before": []}'), ("config.json", '{"task": "t", "resumed": 5}'), ("config.json", "[]"), ("state.json", "{"),
])
def test_a_damaged_file_is_named_when_a_run_goes_on(tmp_path, name, text):
    Run.open(tmp_path / "r", CONFIG_OF_THE_DAMAGED).close()
    (tmp_path / "r" / name).write_text(text)
    with pytest.raises(ValueError, match=name) as e: Run.open(tmp_path / "r", CONFIG_OF_THE_DAMAGED, resume=True)
    assert "\n" not in str(e.value) and (tmp_path / "r" / name).read_text() == text


CONFIG_OF_THE_DAMAGED = dict(task="t", engine="e", seed=0)
