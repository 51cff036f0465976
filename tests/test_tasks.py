"The tasks over whole data sets, many seeds, and bad input."
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from grpo_tutorials.core import answers
from grpo_tutorials.core.answers import TAGS, Tags
from grpo_tutorials.core.chat import render
from grpo_tutorials.core.scale import Unavailable
from grpo_tutorials.tasks import gsm8k
from grpo_tutorials.tasks.task import adapt, engine_names, get_engine, get_task, task_names

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("GRPO_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def folder():
    "The real GSM8K files; in CI they must be there."
    found = Path(os.environ.get("GRPO_GSM8K_DIR", SHARED / "gsm8k"))
    if (found / "train.jsonl").is_file() and (found / "test.jsonl").is_file(): return found
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"): pytest.fail("CI needs the GSM8K files ($GRPO_GSM8K_DIR)")
    pytest.skip("not here: the GSM8K files ($GRPO_GSM8K_DIR)")


def write(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    return path


ROWS = [dict(question=f"What is {i} + 1?", answer=f"Add.\n#### {i + 1}") for i in range(20)]


# The generator

def test_train_and_test_never_meet():
    sides = {"train": set(), "test": set()}
    for split, found in sides.items():
        for level in gsm8k.LEVELS:
            for seed in range(12): found |= {r["question"] for r in gsm8k.word_problems(split, 300, seed, level)}
        for q in found: assert gsm8k.split_of(q) == split
    assert not sides["train"] & sides["test"]
    assert not sides["test"] & {d["prompt"][0]["content"].split("\n", 1)[1] for d in gsm8k.demonstrations(3000)}


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_any_seed_finds_as_many_as_promised(split, seed):
    n = gsm8k.EMBEDDED_SIZE[split]
    rows = gsm8k.word_problems(split, n, seed)
    assert len({r["question"] for r in rows}) == n
    kinds = Counter(r["kind"] for r in rows)
    assert set(kinds) == set(gsm8k.KINDS) and all(abs(c / n - 1 / 6) < 0.03 for c in kinds.values())


@pytest.mark.parametrize("split", ["train", "test"])
def test_more_than_there_are_raises(split):
    with pytest.raises(ValueError, match="is left at level 1.*ask for fewer"): gsm8k.word_problems(split, 10**6)


def test_generated_answers_are_right():
    "The story is read a second time, by other code, and the annotations are added up."
    words = {
        "buy": (r"has (\d+) .* buys (\d+)", lambda a, b: a + b), "give away": (r"has (\d+) .* gives (\d+)", lambda a, b: a - b),
        "boxes": (r"has (\d+) boxes with (\d+)", lambda a, b: a * b), "find and lose": (r"has (\d+) .* finds (\d+) .* loses (\d+)", lambda a, b, c: a + b - c),
        "boxes and more": (r"has (\d+) boxes with (\d+) .* and (\d+) more", lambda a, b, c: a * b + c), "together": (r"has (\d+) .* has (\d+) more", lambda a, b: a + a + b),
    }
    for r in gsm8k.word_problems("train", 3000):
        pattern, work = words[r["kind"]]
        value = work(*map(int, re.search(pattern, r["question"]).groups()))
        assert r["answer"].endswith(f"\n#### {value}") and answers.gold(r["answer"]) == value
        for a, sign, b, c in re.findall(r"<<(\d+)([-+*])(\d+)=(\d+)>>", r["answer"]):
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(c)
        assert all(2 <= int(x) <= 9 for x in re.findall(r"\d+", r["question"]))


@pytest.mark.parametrize("level", list(gsm8k.LEVELS))
def test_right_completions_are_graded_right(level):
    for r in gsm8k.word_problems("test", 200, level=level):
        g = gsm8k.grade(gsm8k.solution_completion(r), r)
        assert g.format and g.strict and g.lenient, r


def test_the_same_on_every_run_and_platform():
    "Another process with another hash seed gives the same text."
    code = "from grpo_tutorials.tasks.gsm8k import *; import hashlib; print(hashlib.sha256(repr([word_problems('train', 50, 7, l) for l in LEVELS] + demonstrations(50, 3)).encode()).hexdigest())"
    out = {subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": h}, capture_output=True, text=True, check=True, cwd=ROOT).stdout for h in ("1", "2")}
    assert len(out) == 1


def test_habits_are_graded_as_what_they_are():
    shown = gsm8k.demonstrations(6000, seed=1)
    for habit in {"right", "one step", *gsm8k.SLIPS}:
        p = gsm8k.Problem("find and lose", "q", (gsm8k.Step(3, "+", 4), gsm8k.Step(7, "-", 2)))
        g = gsm8k.grade(gsm8k.written(p, habit, random.Random(0)), {"answer": p.answer})
        assert (g.strict, g.format) == (habit == "right", habit in ("right", "one step", "arithmetic")), habit
        assert g.lenient == (habit not in ("one step", "arithmetic")), habit
    for kind in gsm8k.KINDS:
        of = [d for d in shown if d["kind"] == kind]
        share = sum(d["habit"] == "right" for d in of) / len(of)
        assert abs(share - (0.34 if kind in gsm8k.HABITS else 0.85)) < 0.06, (kind, share)
        if habit := gsm8k.HABITS.get(kind): assert abs(sum(d["habit"] == habit for d in of) / len(of) - 0.6) < 0.06


def test_other_tags():
    tags = Tags("[R]", "[/R]", "[A]", "[/A]")
    row = gsm8k.word_problems("train", 1, tags=tags)[0]
    assert "[R]" in row["prompt"][0]["content"] and "<answer>" not in row["prompt"][0]["content"]
    assert answers.grade_number(gsm8k.solution_completion(row, tags), row["answer"], tags).strict


# The real data

def test_whole_gsm8k(folder):
    task = get_task("gsm8k", "full", str(folder))
    sizes = {s: task.size(s) for s in ("train", "test")}
    assert str(sizes["train"]) in task.source and str(sizes["test"]) in task.source and "generator" not in task.source
    questions = {}
    for split, n in sizes.items():
        rows = task.rows(split, n, 0)
        assert len(rows) == n and not task.rows.dropped[split]
        questions[split] = {r["question"] for r in rows}
        for r in rows:
            completion = gsm8k.solution_completion(r)
            g = task.grade(completion, r)
            assert g.format and g.strict and g.lenient, r
            assert "<<" not in completion and "####" not in completion
            text = render(r["prompt"], "gemma3")
            assert r["question"].strip() in text and text.count("<start_of_turn>") == 2 and TAGS.answer_end in text
    assert not questions["train"] & questions["test"]
    generated = {r["question"] for r in gsm8k.word_problems("test", 2000)}
    assert not generated & (questions["train"] | questions["test"])


def test_real_rows_are_drawn_the_same_way_for_a_seed(folder):
    task = get_task("gsm8k", "full", str(folder))
    assert task.rows("test", 10, 3) == task.rows("test", 50, 3)[:10] != task.rows("test", 10, 4)
    with pytest.raises(ValueError, match="n is 1320: the test split has 1319 problems"): task.rows("test", 1320, 0)


def test_platinum_shape(tmp_path):
    "1209 rows, one more column, no train split: nothing is hard-coded, and the column reaches the rewards."
    write(tmp_path / "test.jsonl", [dict(question=f"{i}?", answer=f"#### {i}", cleaning_status="consensus") for i in range(1209)])
    task = get_task("gsm8k", "full", str(tmp_path))
    assert task.scale("full").eval_n == 1209 and task.size("test") == 1209
    rows, seen = task.rows("test", 1209, 0), []
    def reward(completions, answer, **columns): seen.append(columns); return [0.0] * len(completions)
    columns = {k: [r[k] for r in rows] for k in rows[0] if k != "prompt"}
    adapt(reward)(["x"] * 1209, **columns)
    assert seen[0]["cleaning_status"] == ["consensus"] * 1209


def test_golds_that_cannot_be_parsed_are_dropped_and_counted(tmp_path):
    odd = [dict(question="a?", answer="None"), dict(question="b?", answer=None), dict(question="c?", answer="Nobody knows.\n#### unknown")]
    write(tmp_path / "train.jsonl", ROWS + odd)
    task = get_task("gsm8k", "full", str(tmp_path))
    assert task.size("train") == 20 and task.rows.dropped == {"train": 3} and "3 more dropped" in task.source
    write(tmp_path / "train.jsonl", odd)
    with pytest.raises(ValueError, match="none of the 3 answers holds a number"): get_task("gsm8k", "full", str(tmp_path))


@pytest.mark.parametrize("text, why", [
    ('{"question": "a?", "answer": "#### 1"}\n{"question": "b?"', r"train.jsonl, line 2: not JSON"),
    ('{"question": "a?", "answer": "#### 1"}\n\n[1]\n', r"line 3: not a JSON object"),
    ('{"question": "a?"}\n', r"line 1: no answer \(it has question\)"),
    ('{"q": 1}\n', r"line 1: no question and no answer \(it has q\)"),
    ('{}\n', r"line 1: no question and no answer \(it has no columns\)"),
    ('{"question": "", "answer": "#### 1"}\n', r"line 1: the question is ''"),
    ('{"question": 5, "answer": "#### 1"}\n', r"line 1: the question is 5"),
    ('{"question": "a?", "answer": "#### 1", "prompt": "x"}\n', r"line 1: a column is called 'prompt'"),
    ("", r"train.jsonl: no rows"), ("\n  \n", r"train.jsonl: no rows"), ("[" * 100_000, r"line 1: not JSON"),
])
def test_broken_files_are_named(tmp_path, text, why):
    (tmp_path / "train.jsonl").write_text(text)
    with pytest.raises(ValueError, match=why) as e: get_task("gsm8k", "full", str(tmp_path))
    assert "\n" not in str(e.value)


def test_encodings(tmp_path):
    "A byte order mark and Windows line ends are read; a line separator inside a question is no line end; bytes that are no text are named."
    rows = [dict(question="a\u2028b\u0085c?", answer="#### 1")]
    (tmp_path / "train.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(rows[0], ensure_ascii=False).encode() + b"\r\n")
    assert gsm8k.read_jsonl(tmp_path / "train.jsonl") == rows
    (tmp_path / "train.jsonl").write_bytes(b'{"question": "\xff"}')
    with pytest.raises(ValueError, match="not UTF-8 text"): gsm8k.read_jsonl(tmp_path / "train.jsonl")


def test_missing_folders_and_files(tmp_path):
    for data, why in ((str(tmp_path / "nowhere"), "no data folder"), (str(tmp_path), "neither train.jsonl nor test.jsonl"), ("embeded", "one of embedded, hub")):
        with pytest.raises(FileNotFoundError, match=why): get_task("gsm8k", "smoke", data)


def test_default_data(monkeypatch, tmp_path):
    write(tmp_path / "train.jsonl", ROWS)
    monkeypatch.delenv("GRPO_GSM8K_DIR", raising=False)
    assert "not GSM8K" in get_task("gsm8k", "cpu").source and "not GSM8K" in get_task("gsm8k", "smoke").source
    assert "openai/gsm8k" in get_task("gsm8k", "full").source
    monkeypatch.setenv("GRPO_GSM8K_DIR", str(tmp_path))
    assert "20 train" in get_task("gsm8k", "full").source and "not GSM8K" in get_task("gsm8k", "cpu").source
    assert "not GSM8K" in get_task("gsm8k", "full", "embedded").source


def test_hub_reader_on_local_files(tmp_path, monkeypatch):
    "The real `datasets` code, on files of this machine."
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    data, cache = tmp_path / "data", str(tmp_path / "cache")
    data.mkdir()
    for split in ("train", "test"): write(data / f"{split}.jsonl", [{**r, "cleaning_status": "consensus"} for r in ROWS])
    rows = gsm8k.hub_rows("test", str(data), None, cache_dir=cache)
    assert rows == [{**r, "cleaning_status": "consensus"} for r in ROWS]
    real = datasets.load_dataset
    def local(name, config, split): assert (name, config) == ("openai/gsm8k", "main"); return real(str(data), split=split, cache_dir=cache)
    monkeypatch.setattr(datasets, "load_dataset", local)
    task = get_task("gsm8k", "full", "hub")
    assert task.size("train") == 20 and len(task.rows("test", 20, 0)) == 20 and "hub" in task.source


def test_no_network_is_one_line(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    for error in (ConnectionError("Couldn't reach 'openai/gsm8k' on the Hub\n(LocalEntryNotFoundError)"), OSError("offline"), FileNotFoundError("no such data set")):
        def fail(*a, **k): raise error
        monkeypatch.setattr(datasets, "load_dataset", fail)
        with pytest.raises(Unavailable, match="cannot reach the hub: openai/gsm8k .*use --data DIR") as e: get_task("gsm8k", "full", "hub").rows("test", 1, 0)
        assert "\n" not in str(e.value)


# By name

def test_names():
    assert "gsm8k" in task_names() and "task" not in task_names()
    with pytest.raises(ValueError, match="unknown task 'gsm9k': choose one of .*gsm8k"): get_task("gsm9k")
    with pytest.raises(ValueError, match="unknown engine 'nope': choose one of"): get_engine("nope")
    with pytest.raises(ValueError, match="unknown scale 'big': choose one of smoke, cpu, full"): get_task("gsm8k", "big")
    with pytest.raises(ValueError, match="unknown engine 'nope'"): get_task("gsm8k", "cpu").scale("cpu", "nope")


def test_looking_for_engines_imports_nothing_heavy():
    code = "import sys; from grpo_tutorials.tasks.task import *; engine_names(); get_task('gsm8k', 'full').scale('full'); print([m for m in ('jax', 'torch', 'transformers', 'datasets', 'tokenizers') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert out.strip() == "[]" and isinstance(engine_names(), list)


@pytest.mark.parametrize("scale", ["smoke", "cpu", "full"])
def test_presets(scale):
    task = get_task("gsm8k", scale, "embedded")
    s = task.scale(scale)
    assert s.name == scale and s.group_size >= 2 and task.default_engine == "tunix" and task.headline == "greedy"
    if scale == "full":
        assert (s.model, s.lora_rank, s.lora_alpha, s.learning_rate, s.beta, s.epsilon) == ("google/gemma-3-1b-it", 32, 32, 3e-6, 0.08, 0.2)
