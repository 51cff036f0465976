"A pod's event files as a run folder: steps, restarts, places, and that plots, report and doctor work on it."
import json
import re
from pathlib import Path

import pytest
from tensorboardX import SummaryWriter
from typer.testing import CliRunner

from grpo_tutorials.cli import app
from grpo_tutorials.cluster.monitor import collect, evaluations, event_files, lines, metric_of, read_events, settings, watched
from grpo_tutorials.cluster.recipe import gemma4_e4b
from grpo_tutorials.core.doctor import Record, diagnose, verdict
from grpo_tutorials.core.scale import Scale

FLAGS = gemma4_e4b(num_batches=40).flags
LOG = """\
W1130 12:00:00 Pre RL Training: corr=192, total=640, accuracy=30.0%, partial_accuracy=31.2%, format_accuracy=55.0%, mean_reward=0.3550
W1130 13:00:00 Post RL Training: corr=320, total=640, accuracy=50.0%, partial_accuracy=51.1%, format_accuracy=99.0%, mean_reward=0.5990
"""


def write(folder: Path, first: int = 0, steps: int = 40, started: int = 100, offset: float = 0.0, **values) -> Path:
    "What Tunix writes: a rollout's numbers from step 0 on, the trainer's from 1 on."
    with SummaryWriter(str(folder / str(started))) as w:
        for i in range(first, first + steps):
            for tag, value in {"rewards/train/score/mean": .2 + .02 * i + offset, "rewards/train/mean": (.2 + .02 * i) / 3, "rewards/train/check_numbers": .1, "completions/train/mean_length": 900 - i,
                               "global/train/actor_dequeue_time": 3.0, "rewards/eval/score/mean": 99.0}.items(): w.add_scalar(tag, values.get(tag, value), i)
            for tag, value in {"actor/train/loss": .01, "actor/train/kl": .001, "actor/train/grad_norm": .5, "actor/train/step_time_sec": 61.0, "perf/train/mean/rollout_time": 41.0, "actor/eval/loss": 99.0}.items():
                w.add_scalar(tag, values.get(tag, value), i + 1)
    [file] = (folder / str(started)).glob("*tfevents*")
    return file.rename(file.with_name(re.sub(r"tfevents\.\d+", f"tfevents.{started}", file.name)))


def test_one_line_a_step(tmp_path):
    write(tmp_path)
    rows = lines(read_events(tmp_path))
    assert [r["step"] for r in rows] == list(range(1, 41))
    assert rows[0]["reward"] == pytest.approx(.2) and rows[-1]["reward"] == pytest.approx(.98) and rows[0]["step_seconds"] == 61
    assert rows[0]["rewards/check_numbers"] == pytest.approx(.1) and rows[0]["tunix/rollout_time"] == 41 and rows[0]["tunix/actor_dequeue_time"] == 3
    assert rows[0]["tunix/rewards_mean"] == pytest.approx(rows[0]["reward"] / 3), "rewards/mean is over the reward functions too"
    assert not any(v == 99 for r in rows for v in r.values()), "an evaluation is no training step"
    assert all(len(set(r) & {"reward", "loss", "kl", "grad_norm", "completion_length", "step_seconds"}) == 6 for r in rows)


@pytest.mark.parametrize("tag, want", [("rewards/train/score/mean", ("rewards/score/mean", 1)), ("score/mean", ("score/mean", 1)), ("actor/train/loss", ("loss", 0)), ("critic/train/loss", ("loss", 0)), ("loss", ("loss", 0)),
                                       ("/global/train/actor_dequeue_time", ("actor_dequeue_time", 1)), ("perf/train/sum/rollout_time", ("sum/rollout_time", 0)), ("actor/eval/loss", None), ("rollout_time", ("rollout_time", 0))])
def test_tags(tag, want): assert metric_of(tag) == want


def test_a_restart(tmp_path):
    write(tmp_path, 0, 40, 100)
    write(tmp_path, 25, 5, 101, offset=1.0)
    rows = lines(read_events(tmp_path))
    assert [r["step"] for r in rows] == list(range(1, 31)) and rows[24]["reward"] < 1 < rows[25]["reward"]
    assert [p.name.split(".")[3] for p in event_files(tmp_path)] == ["100", "101"]


def test_a_file_that_is_being_written(tmp_path):
    file = write(tmp_path)
    file.write_bytes(file.read_bytes()[:-7])
    assert len(lines(read_events(tmp_path))) == 40
    file.write_bytes(file.read_bytes()[:len(file.read_bytes()) // 2])
    assert 10 < len(lines(read_events(tmp_path))) < 30


def test_from_a_bucket(tmp_path):
    "fsspec's file system in memory stands for the bucket."
    fsspec = pytest.importorskip("fsspec")
    files = [write(tmp_path / "a", 0, 5, 100), write(tmp_path / "b", 3, 5, 101)]
    fs = fsspec.filesystem("memory")
    for i, f in enumerate(files): fs.pipe_file(f"/bucket/rl-test/tensorboard/{i}/{f.name}", f.read_bytes())
    assert read_events("memory://bucket/rl-test/tensorboard") == read_events(tmp_path)
    with pytest.raises(FileNotFoundError, match="no event files"): read_events("memory://bucket/nothing")


def test_a_bucket_without_gcsfs(monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    def missing(*_): raise ImportError("Please install gcsfs")
    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(ImportError, match="^needs: pip install 'grpo_tutorials.gcs"): read_events("gs://my-bucket/x")


def test_a_run_folder_like_any_other(tmp_path):
    write(tmp_path / "tb")
    run = collect(tmp_path / "tb", tmp_path / "run", FLAGS, LOG)
    assert {"config.json", "metrics.jsonl", "summary.json", "curves.png", "report.html"} <= {p.name for p in run.path.iterdir()} and run.finished
    record = Record.load(run.path)
    assert verdict(record).startswith("learned: greedy accuracy .30 -> .50 on 640") and not [f for f in diagnose(record) if f.severity == "fail"]
    assert run.summary["reward_first"] == pytest.approx(.2) and run.summary["engine"] == "maxtext" and run.summary["steps"] == 40
    page = (run.path / "report.html").read_text()
    assert "Each reward function" in page and "gemma-4-E4B" in page and "grpo-tutorials tpu submit" in page and "a pod; read from" in page and "CPU cores" not in page
    Scale(**run.config["numbers"])          # every number is one that a Scale takes


def test_while_it_runs_and_again(tmp_path):
    write(tmp_path / "tb", 0, 12)
    run = collect(tmp_path / "tb", tmp_path / "run", FLAGS)
    assert len(run.read_metrics()) == 12 and not run.finished and (run.path / "report.html").exists() and "12 of 40" in verdict(Record.load(run.path))
    write(tmp_path / "tb", 12, 8, 101)
    assert len(collect(tmp_path / "tb", tmp_path / "run", FLAGS).read_metrics()) == 20
    write(tmp_path / "other")
    with pytest.raises(FileExistsError, match="another run"): collect(tmp_path / "other", tmp_path / "run", FLAGS)
    (tmp_path / "mine").mkdir(); (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(FileExistsError): collect(tmp_path / "tb", tmp_path / "mine", FLAGS)
    assert (tmp_path / "mine/notes.txt").read_text() == "mine"


def test_numbers_that_are_none(tmp_path):
    write(tmp_path / "tb", **{"actor/train/loss": float("nan")})
    run = collect(tmp_path / "tb", tmp_path / "run", FLAGS)
    assert run.read_metrics()[0]["loss"] is None and any(f.name == "NaN" for f in diagnose(Record.load(run.path)))


def test_evaluations():
    e = evaluations(LOG)
    assert e["before"]["accuracy"] == .3 and e["after"]["format"] == .99 and e["before"]["ci95"][0] < .3 < e["before"]["ci95"][1]
    assert evaluations(LOG.replace("corr=192, total=640", "corr=0, total=0")).keys() == {"after"}
    assert evaluations("Post RL Training: corr=9, total=3, accuracy=300%, partial_accuracy=1%, format_accuracy=1%") == {}


def test_maxtext_writes_its_evaluations_like_that():
    from importlib.metadata import PackageNotFoundError, distribution
    try: text = Path(distribution("maxtext").locate_file("maxtext/trainers/post_train/rl/train_rl.py")).read_text()
    except PackageNotFoundError: pytest.fail("the maxtext wheel is not installed: scripts/setup all")
    for when, corr in (("Pre", 192), ("Post", 320)):
        said = re.search(rf'f"({when} RL Training: .*?)"\s+f"(.*?)"', text, re.S)
        template = said[1] + said[2]
        line = eval(f"f{template!r}", dict(corr=corr, total=640, accuracy=corr / 6.4, partial_accuracy=1.0, format_accuracy=55.0, mean_reward=.1))
        assert evaluations(line)[{"Pre": "before", "Post": "after"}[when]]["accuracy"] == corr / 640


def test_settings_are_the_recipes():
    numbers = settings(gemma4_e4b().flags)["numbers"]
    assert (numbers["group_size"], numbers["prompts_per_step"], numbers["steps"], numbers["max_completion_length"]) == (8, 128, 500, 3584)


def test_what_to_watch(tmp_path):
    write(tmp_path)
    table = {name: (a, b) for name, a, b in watched(lines(read_events(tmp_path)))}
    assert set(table) == {"score/mean", "rewards/mean", "rollout_time", "completions/mean_length", "actor_dequeue_time", "step_time_sec"} and None not in [x for pair in table.values() for x in pair]
    assert watched([]) == [(name, None, None) for name, *_ in watched([])]


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: (p.mkdir(), (p / "x.txt").write_text("x"))])
def test_no_event_files(tmp_path, make):
    make(tmp_path / "tb")
    with pytest.raises(FileNotFoundError) as e: read_events(tmp_path / "tb")
    assert "\n" not in str(e.value)


def test_the_command(tmp_path):
    write(tmp_path / "rl-test/tensorboard")
    (tmp_path / "job.log").write_text(LOG)
    call = lambda *a, **env: CliRunner(env=env).invoke(app, ["tpu", "metrics", *map(str, a)])
    r = call(tmp_path / "rl-test/tensorboard", "--out", tmp_path / "run", "--log", tmp_path / "job.log", "--set", "num_batches=40")
    assert r.exit_code == 0 and "learned: greedy accuracy" in r.stdout and "actor_dequeue_time" in r.stdout, r.stderr
    r = call(tmp_path / "rl-test/tensorboard", "--out", tmp_path / "run", "--json")
    assert json.loads(r.stdout)["steps"] == 40 and json.loads(r.stdout)["watched"]["step_time_sec"] == [61, 61]
    for args, env, words in (([], {"RUN_NAME": None, "BASE_OUTPUT_DIRECTORY": None}, "BASE_OUTPUT_DIRECTORY is not set"), ([tmp_path / "no"], {}, "no folder"), ([tmp_path / "rl-test/tensorboard", "--log", tmp_path / "no.log"], {}, "no file")):
        r = call(*args, **env)
        assert r.exit_code == 2 and words in r.stderr and all(l.startswith("error: ") for l in r.stderr.splitlines())


# ---------------------------------------------------------------- files that are not whole

def spoil(file, at, by=b"\xff" * 4):
    data = bytearray(file.read_bytes())
    data[at:at + len(by)] = bytes(a ^ b for a, b in zip(data[at:], by))
    file.write_bytes(data)


def test_a_damaged_file_is_told_from_one_that_is_being_written(tmp_path):
    file = write(tmp_path / "tb")
    size = file.stat().st_size
    spoil(file, size // 2)
    with pytest.raises(ValueError, match="damaged at byte .*; copy it again"): read_events(tmp_path / "tb")
    told = []
    assert 10 < len(lines(read_events(tmp_path / "tb", told))) < 30 and len(told) == 1 and "\n" not in told[0]
    run = collect(tmp_path / "tb", tmp_path / "run", FLAGS)
    assert "damaged" in (run.path / "notes.log").read_text()


@pytest.mark.parametrize("data, words", [(b"", "no training step yet"), (b"\0" * 64, "no training step yet"), (b"hello world" * 9, "damaged at byte 0"), (b"\x18", "no training step yet")])
def test_a_file_with_nothing_in_it(tmp_path, data, words):
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb/events.out.tfevents.100.host").write_bytes(data)
    with pytest.raises(ValueError, match=words) as e: collect(tmp_path / "tb", tmp_path / "run", FLAGS)
    assert "\n" not in str(e.value) and not (tmp_path / "run").exists()


def test_a_length_that_no_memory_holds(tmp_path):
    import struct
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
    file = write(tmp_path)
    head = struct.pack("<Q", 2**62)
    file.write_bytes(file.read_bytes() + head + struct.pack("<I", masked_crc32c(head)))
    assert len(lines(read_events(tmp_path))) == 40


def test_files_without_a_training_step_say_what_they_hold(tmp_path):
    with SummaryWriter(str(tmp_path / "tb")) as w: w.add_scalar("foo/bar", 1.0, 1)
    with pytest.raises(ValueError, match="hold foo/bar and no number of a training step"): collect(tmp_path / "tb", tmp_path / "run", FLAGS)


def test_collecting_again_keeps_what_the_reader_put_there(tmp_path):
    write(tmp_path / "tb", 0, 12)
    collect(tmp_path / "tb", tmp_path / "run", FLAGS, LOG)
    (tmp_path / "run/job.log").write_text("mine")
    run = collect(tmp_path / "tb", tmp_path / "run", FLAGS)
    assert (tmp_path / "run/job.log").read_text() == "mine" and not run.finished and not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_a_bucket_that_says_no(monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    class Locked:
        def find(self, root): raise RuntimeError("anonymous caller\ndoes not have storage.objects.list access")
    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda text: (Locked(), "x"))
    with pytest.raises(OSError, match="application-default login") as e: read_events("gs://my-bucket/x")
    assert "\n" not in str(e.value)


def test_odd_numbers_in_the_log():
    assert evaluations("Pre RL Training: corr=5, total=10, accuracy=5.0.0%, partial_accuracy=6%, format_accuracy=7.0.0%") == {}
