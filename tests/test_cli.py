"""The command line: every mistake is one line on stderr with exit status 2, stdout holds only what was asked for, and a run can be stopped and resumed."""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_tutorials.cli import app

PROGRAM = [sys.executable, "-m", "grpo_tutorials"]
RIGHT = "<reasoning>6 times 7</reasoning><answer>42</answer>"


def call(*args, input=None, **env):
    "In this process: quick. A bug (any exception that is not an exit) is raised."
    r = CliRunner(env=env).invoke(app, [str(a) for a in args], input=input)
    if r.exception and not isinstance(r.exception, SystemExit): raise r.exception
    return r


def shell(*args, input=None, cwd=None, **env):
    "In a process of its own, as a person calls it."
    return subprocess.run([*PROGRAM, *map(str, args)], input=input, capture_output=True, text=True, cwd=cwd, env={**os.environ, "OMP_NUM_THREADS": "1", **env}, timeout=600)


def one_line(r, *words, status=2):
    "The rule of this house for errors."
    assert (r.exit_code if hasattr(r, "exit_code") else r.returncode) == status, r.stderr
    assert len(r.stderr.splitlines()) == 1 and r.stderr.startswith("error: ") and len(r.stderr) > 20, r.stderr
    assert "Traceback" not in r.stderr and not re.search(r"[╭│╰]", r.stderr)
    for w in words: assert w in r.stderr, f"{w!r} is not in {r.stderr!r}"


# ---------------------------------------------------------------- wrong calls

@pytest.mark.parametrize("args, words", [
    ("rnu", ["no such command 'rnu'", "run", "grade"]), ("--nope", ["no such option", "--help"]), ("template nope", ["no such command 'nope'", "render"]),
    ("run", ["missing argument 'TASK'"]), ("run chess", ["unknown task 'chess'", "gsm8k"]), ("run gsm8k extra", ["unexpected extra argument"]),
    ("run gsm8k --engine steam", ["unknown engine 'steam'", "tunix"]), ("run gsm8k --scale huge", ["unknown scale 'huge'", "smoke, cpu, full"]),
    ("run gsm8k --stepz 3", ["no such option: --stepz"]), ("run gsm8k --steps many", ["--steps"]), ("run gsm8k --steps", ["--steps"]), ("run gsm8k --steps -1", ["steps is -1"]),
    ("run gsm8k --group-size 1", ["group_size is 1", "at least 2"]), ("run gsm8k --learning-rate 0", ["learning_rate"]), ("run gsm8k --temperature 0", ["temperature"]),
    ("run gsm8k --eval-n 0", ["eval_n"]), ("run gsm8k --dtype int8", ["dtype is 'int8'"]), ("run gsm8k --seed -1", ["--seed"]), ("run gsm8k --schedule zigzag", ["schedule"]),
    ("run gsm8k --resume --force", ["choose one"]), ("run gsm8k --data no/such/folder", ["no data folder 'no/such/folder'"]), ("run gsm8k --out ''", ["--out"]),
    ("eval gsm8k", ["missing option '--model'"]), ("eval gsm8k --model no/such", ["no/such", "--model"]), ("eval gsm8k --model tiny --adapter no/such", ["no/such", "--adapter"]),
    ("eval gsm8k --model tiny --k 0", ["--k"]), ("eval gsm8k --model tiny --n 0", ["--n"]), ("eval chess --model tiny", ["unknown task 'chess'"]),
    ("grade chess", ["unknown task 'chess'", "gsm8k"]), ("doctor no/such/run", ["no/such/run"]), ("tiny build --task chess", ["chess"]),
    ("template render --chat-template no/such.jinja", ["no/such.jinja"]), ("template render --data-template no/such.json", ["no/such.json"]),
    ("template render --tokenizer no/such", ["no/such", "--tokenizer"]), ("template render --messages no/such.json", ["no/such.json", "--messages"]),
    ("template render --question ''", ["question"]), ("template render --messages - --question x", ["--messages", "--question"]),
])
def test_a_wrong_call_is_one_line(args, words, tmp_path, monkeypatch):
    import shlex
    monkeypatch.chdir(tmp_path)
    r = call(*shlex.split(args), input="[]")
    one_line(r, *words)
    assert r.stdout == "" and list(tmp_path.iterdir()) == []       # nothing was begun


def test_the_traceback_is_there_for_those_who_ask(tmp_path):
    r = shell("run", "chess", GRPO_DEBUG="1")
    assert r.returncode != 0 and "Traceback" in r.stderr and "unknown task 'chess'" in r.stderr
    one_line(shell("run", "chess"))


def test_help_and_version():
    assert call("--version").stdout.startswith("grpo-tutorials ")
    commands = ["run", "eval", "grade", "template", "doctor", "tiny"]
    for args in ([], ["--help"]):
        r = call(*args)
        assert r.exit_code == 0 and all(re.search(rf"^  {c} ", r.stdout, re.M) for c in commands)
    for args in (["run"], ["eval"], ["grade"], ["template", "render"], ["doctor"], ["tiny", "build"]):
        r = call(*args, "--help")
        assert r.exit_code == 0 and f"grpo-tutorials {' '.join(args)}" in r.stdout.partition("Usage")[2].partition("\n")[2], "no example"
        assert max(map(len, r.stdout.splitlines())) <= 80
    for group in ("template", "tiny"): assert "Commands:" in call(group).stdout and call(group).exit_code == 0


@pytest.mark.parametrize("command", [[sys.executable, "-m", "grpo_tutorials"], [shutil.which("grpo-tutorials", path=Path(sys.executable).parent)]])
def test_both_ways_to_call_it_are_light(command):
    if not command[0]: pytest.skip("there is no console script beside this Python: the package is not installed")
    code = "import sys, grpo_tutorials.cli; print(sorted({'torch', 'jax', 'matplotlib', 'rich', 'transformers', 'datasets', 'tunix'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
    r = subprocess.run([*command, "--version"], capture_output=True, text=True)
    assert r.returncode == 0 and r.stdout.startswith("grpo-tutorials ") and r.stderr == ""


# ---------------------------------------------------------------- data

def data_folder(path, train='{"question": "1+1?", "answer": "#### 2"}\n', test='{"question": "1+2?", "answer": "#### 3"}\n'):
    path.mkdir()
    for name, text in (("train", train), ("test", test)):
        if text is not None: (path/f"{name}.jsonl").write_text(text)
    return path


@pytest.mark.parametrize("files, words", [
    (dict(train=None, test=None), ["train.jsonl"]), (dict(train=""), ["train", "no rows"]), (dict(test="\n\n"), ["test", "no rows"]),
    (dict(train='{"question": "1+1?", "answer": "#### 2"}\n{"question": \n'), ["train.jsonl", "2"]), (dict(test='["a"]\n'), ["test.jsonl", "1"]),
    (dict(test='{"question": "1+2?"}\n'), ["test.jsonl", "answer"]), (dict(train='{"question": "1+1?", "answer": "none"}\n'), ["train", "answer"]),
])
def test_a_data_folder_that_cannot_be_used(files, words, tmp_path):
    one_line(call("run", "gsm8k", "--scale", "smoke", "--data", data_folder(tmp_path/"data", **files), "--out", tmp_path/"out"), *words)
    assert not (tmp_path/"out").exists()


# ---------------------------------------------------------------- grade

def grade(*rows, **kwargs): return call("grade", "gsm8k", input="".join(r if isinstance(r, str) else json.dumps(r) + "\n" for r in rows), **kwargs)


def test_grades_come_one_a_line_in_order_with_the_promised_keys():
    answers = ["6 * 7 = 42\n#### 42", "42", 42, 42.0, "42.00", "$42", "41", 41]
    r = grade(*(dict(completion=RIGHT, answer=a) for a in answers))
    out = [json.loads(line) for line in r.stdout.splitlines()]
    assert [g["strict"] for g in out] == [True] * 6 + [False] * 2 and all(g["format"] for g in out)
    assert all(set(g) == {"extracted", "format", "strict", "lenient", "rewards", "total"} for g in out)
    assert all(g["total"] == pytest.approx(sum(v for v in g["rewards"].values() if v is not None)) for g in out) and out[0]["total"] > out[6]["total"]
    assert (r.exit_code, r.stderr) == (0, "")


def test_strict_and_lenient_and_messages():
    words = "It is 42."
    out = [json.loads(x) for x in grade(dict(completion=words, answer="42"), dict(completion=[{"role": "assistant", "content": RIGHT}], answer="42"), dict(completion="", answer="42")).stdout.splitlines()]
    assert [(g["format"], g["strict"], g["lenient"]) for g in out] == [(False, False, True), (True, True, True), (False, False, False)]
    assert out[2]["extracted"] is None


def test_text_of_every_kind_goes_through():
    odd = ["４２", "42\u2028", "\ud800 42", "42 \x00", "é½ 42", RIGHT + "\u202e"]
    r = grade(*(dict(completion=c, answer="42") for c in odd))
    assert r.exit_code == 0 and len(r.stdout.splitlines()) == len(odd)
    done = subprocess.run([*PROGRAM, "grade", "gsm8k"], input=json.dumps(dict(completion="１２ ½", answer="12")), capture_output=True, text=True, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")


def test_byte_order_mark_and_blank_lines_are_no_rows():
    good = json.dumps(dict(completion=RIGHT, answer="42"))
    r = grade(f"\ufeff{good}\n\n   \n{good}")
    assert r.exit_code == 0 and len(r.stdout.splitlines()) == 2


@pytest.mark.parametrize("bad, words", [
    ('{"completion": "42"', ["not JSON"]), ("42", ["JSON object"]), ("[1]", ["JSON object"]), ("null", ["JSON object"]), ('"a"', ["JSON object"]), ('{"answer": "42"}', ["'completion'", "answer"]),
    ('{"completion": "42"}', ["'answer'"]), ('{"completion": 42, "answer": "42"}', ["completion"]), ('{"completion": null, "answer": "42"}', ["completion"]),
    ('{"completion": "42", "answer": null}', ["answer"]), ('{"completion": "42", "answer": ""}', ["answer"]), ('{"completion": "42", "answer": "no number"}', ["answer"]),
    ('{"completion": "42", "answer": [42]}', ["answer"]), ('{"completion": "42", "answer": true}', ["answer"]), ('{"completion": "42", "answer": NaN}', ["answer"]),
    ("[" * 100_000, ["not JSON"]), ('{"completion": "42", "answer": ' + "9" * 5000 + "}", [""]),
])
def test_a_line_that_cannot_be_graded_is_named_after_the_good_ones_went_out(bad, words):
    good = dict(completion=RIGHT, answer="42")
    r = grade(good, good, "\n", bad + "\n", good)
    one_line(r, "line 4", *words)
    assert len(r.stdout.splitlines()) == 2


def test_bytes_that_are_no_text(tmp_path):
    r = CliRunner().invoke(app, ["grade", "gsm8k"], input=b'{"completion": "\xff", "answer": "1"}\n')
    one_line(r, "line 1", "not JSON")


def test_nothing_in_is_not_nothing_wrong():
    for nothing in ("", "\n \n"): one_line(grade(nothing), "no lines", "completion")


def test_grades_are_flushed_as_they_come():
    p = subprocess.Popen([*PROGRAM, "grade", "gsm8k"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(2):
            p.stdin.write(json.dumps(dict(completion=RIGHT, answer="42")) + "\n")
            p.stdin.flush()
            assert json.loads(p.stdout.readline())["strict"]      # would wait for ever if it were held back
    finally:
        p.stdin.close()
        assert p.wait(60) == 0
        p.stdout.close()


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    rows = tmp_path/"rows.jsonl"
    rows.write_text((json.dumps(dict(completion=RIGHT, answer="42")) + "\n") * 3000)
    with open(rows) as f, subprocess.Popen([*PROGRAM, "grade", "gsm8k"], stdin=f, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        p.stdout.readline()
        p.stdout.close()
        assert p.stderr.read() == "" and p.wait(60) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_one_line():
    rows = (json.dumps(dict(completion=RIGHT, answer="42")) + "\n") * 3
    with open("/dev/full", "w") as full:
        one_line(subprocess.run([*PROGRAM, "grade", "gsm8k"], input=rows, stdout=full, stderr=subprocess.PIPE, text=True), "No space left")


# ---------------------------------------------------------------- template

def test_a_prompt_is_shown_as_the_model_gets_it(tmp_path):
    talk = tmp_path/"talk.json"
    talk.write_text(json.dumps([{"role": "user", "content": "What is {x} + \\frac{1}{2}?"}]))
    want = "<bos><start_of_turn>user\nWhat is {x} + \\frac{1}{2}?<end_of_turn>\n<start_of_turn>model\n"
    assert call("template", "render", "--messages", talk).stdout == want
    assert call("template", "render", "--messages", "-", input=json.dumps(dict(messages=json.loads(talk.read_text())))).stdout == want
    wrapped = call("template", "render", "--messages", talk, "--data-template", "gsm8k_rl").stdout
    assert "{x} + \\frac{1}{2}" in wrapped and "<reasoning>" in wrapped and wrapped.count("<bos>") == 1
    mine = tmp_path/"mine.json"
    mine.write_text(json.dumps(dict(SYSTEM_PROMPT="", TEMPLATE="Q: {question}")))
    assert call("template", "render", "--question", "1+1?", "--data-template", mine).stdout == want.replace("What is {x} + \\frac{1}{2}?", "Q: 1+1?")


def test_a_tokenizer_brings_its_template_and_gives_ids():
    pytest.importorskip("tokenizers")
    from grpo_tutorials.core.chat import load_tokenizer
    from grpo_tutorials.models.tiny import checkpoint
    folder = checkpoint("gsm8k")
    out = json.loads(call("template", "render", "--tokenizer", folder, "--question", "1+1?", "--data-template", "word_problems", "--json").stdout)
    tok = load_tokenizer(folder)
    assert tok.decode(out["tokens"]) == out["text"] and out["tokens"].count(tok.bos_id()) == 1
    assert "tokens" not in json.loads(call("template", "render", "--question", "1+1?", "--json").stdout)


@pytest.mark.parametrize("text, words", [
    ("[]", ["messages"]), ("{}", ["messages"]), ("3", ["messages"]), ("[1", ["not JSON"]), ('[{"role": "user"}]', ["content"]), ('[{"role": "king", "content": "x"}]', ["king"]),
    ('[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]', ["user"]),
])
def test_messages_that_cannot_be_rendered(text, words):
    one_line(call("template", "render", "--messages", "-", input=text), *words)


def test_a_template_file_that_is_none(tmp_path):
    for name, text, option in (("a.json", "{}", "--chat-template"), ("b.jinja", "{% if %}", "--chat-template"), ("c.json", '{"SYSTEM_PROMPT": ""}', "--data-template"),
                               ("d.json", "not json", "--data-template"), ("e.json", '{"SYSTEM_PROMPT": "", "TEMPLATE": "no slot"}', "--data-template")):
        (tmp_path/name).write_text(text)
        one_line(call("template", "render", option, tmp_path/name), name)


# ---------------------------------------------------------------- run: the folder, the progress, the end

# The command line itself, with an engine that trains nothing but keeps every promise of one.
STAND_IN = """
import sys, time, types
import grpo_tutorials.core.report as report
import grpo_tutorials.tasks.task as tasks
from grpo_tutorials.cli import main
from grpo_tutorials.core.evaluate import evaluate

report.write_curves = report.write_report = lambda run: (run.path/"report.html").touch()      # drawing is tested elsewhere, and slow

def train(task, scale, run, seed=0, resume=False, force=False):
    saved = run.latest_checkpoint() if resume else None
    done = saved[0] if saved else 0
    run.trim(done)
    rows = task.rows("test", scale.eval_n, 0)
    judged = lambda i: evaluate(task, rows, lambda prompts, greedy, seed: ["<reasoning>x</reasoning><answer>7</answer>"] * len(prompts), seed + i)[0]
    run.event("load", 1, 1)
    before = judged(0)
    run.event("evaluate before", len(rows), len(rows))
    for step in range(done + 1, scale.steps + 1):
        time.sleep(DELAY)
        if FAIL: raise ValueError("it fell over: pick it up")
        run.metrics(step, reward=1.0 + step)
        with run.checkpoint(step) as folder: (folder/"state").touch()
        run.event("train", step, scale.steps)
    run.event("evaluate after", len(rows), len(rows))
    return run.finish(dict(before=before, after=judged(1)))

tasks.get_engine = lambda name: types.SimpleNamespace(train=train)
if __name__ == "__main__": main()
"""


@pytest.fixture
def program(tmp_path):
    "A command to call, as a person would call grpo-tutorials."
    def make(delay=0.0, fail=False):
        file = tmp_path/f"program-{delay}-{fail}.py"
        file.write_text(STAND_IN.replace("DELAY", repr(delay)).replace("FAIL", repr(fail)))
        return [sys.executable, str(file)]
    return make


def ended(command, *args, cwd=None, **env):
    return subprocess.run([*command, *map(str, args)], capture_output=True, text=True, cwd=cwd, env={**os.environ, **env}, timeout=300)


SMOKE = ("run", "gsm8k", "--scale", "smoke", "--eval-n", "8")


def steps_of(folder): return [json.loads(line)["step"] for line in (Path(folder)/"metrics.jsonl").read_text().splitlines()]


def wait_for_step(process, folder, n):
    until = time.monotonic() + 120
    while not ((folder/"metrics.jsonl").exists() and len((folder/"metrics.jsonl").read_text().splitlines()) >= n):
        assert process.poll() is None and time.monotonic() < until, "the run ended, or hangs"
        time.sleep(0.02)


def test_a_run_says_what_it_does_and_what_came_of_it(program, tmp_path):
    r = ended(program(), *SMOKE, cwd=tmp_path)
    assert r.returncode == 0, r.stderr
    for words in ("scale smoke", "model   tiny", "This is not GSM8K", "8 held-out problems", "greedy accuracy", "sampled accuracy", "by kind of problem", "report: runs/gsm8k-tunix-smoke-seed0/report.html"):
        assert words in r.stdout, words
    assert (tmp_path/"runs/gsm8k-tunix-smoke-seed0/report.html").exists()
    assert len(r.stderr.splitlines()) < 12 and "train: 4/4" in r.stderr and "reward 5.00" in r.stderr      # a few lines, not one a step of a long run
    assert "\x1b" not in r.stdout + r.stderr
    again = ended(program(), *SMOKE, cwd=tmp_path)
    assert "runs/gsm8k-tunix-smoke-seed0-2/report.html" in again.stdout


def test_json_is_one_object_and_nothing_else(program, tmp_path):
    r = ended(program(), *SMOKE, "--out", tmp_path/"r", "--json")
    s = json.loads(r.stdout)
    assert len(r.stdout.splitlines()) == 1 and {"task", "engine", "scale", "seed", "steps", "before", "after", "verdict", "path"} <= set(s)
    assert s["path"] == str(tmp_path/"r") and "This is not GSM8K" in r.stderr and "train: 4/4" in r.stderr


def test_a_finished_run_says_so_and_more_steps_go_on(program, tmp_path):
    out = ("--out", tmp_path/"r")
    assert ended(program(), *SMOKE, *out).returncode == 0
    one_line_last(ended(program(), *SMOKE, *out), "already holds a run", "--resume", "--force")
    r = ended(program(fail=True), *SMOKE, *out, "--resume")                    # nothing is trained, so nothing can fail
    assert r.returncode == 0 and "is finished (4 steps)" in r.stdout and "greedy accuracy" in r.stdout
    assert ended(program(), *SMOKE, *out, "--resume", "--steps", "6").returncode == 0
    assert steps_of(tmp_path/"r") == [1, 2, 3, 4, 5, 6]
    one_line_last(ended(program(), *SMOKE, *out, "--resume", "--steps", "8", "--learning-rate", "1"), "learning_rate", "--out")
    assert ended(program(), *SMOKE, *out, "--force").returncode == 0
    assert steps_of(tmp_path/"r") == [1, 2, 3, 4] and steps_of(tmp_path/"r.old-1") == [1, 2, 3, 4, 5, 6]


def one_line_last(r, *words):
    "An error after the introduction: still one line, the only one on stderr."
    assert r.returncode == 2 and len(r.stderr.splitlines()) == 1 and r.stderr.startswith("error: "), r.stderr
    for w in words: assert w in r.stderr


def test_resume_without_out_takes_the_newest_and_starts_where_there_is_none(program, tmp_path):
    assert ended(program(), *SMOKE, "--resume", cwd=tmp_path).returncode == 0
    assert ended(program(), *SMOKE, cwd=tmp_path).returncode == 0
    r = ended(program(), *SMOKE, "--resume", "--steps", "5", cwd=tmp_path)
    assert r.returncode == 0 and steps_of(tmp_path/"runs/gsm8k-tunix-smoke-seed0-2") == [1, 2, 3, 4, 5] and len(list((tmp_path/"runs").iterdir())) == 2


@pytest.mark.skipif(os.name == "nt", reason="signals as here are POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_nothing_is_lost(number, program, tmp_path):
    import shlex
    folder = tmp_path/"a run"
    p = subprocess.Popen([*program(0.2), *SMOKE, "--steps", "60", "--out", str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_step(p, folder, 3)
    one_line_last(ended(program(), *SMOKE, "--steps", "60", "--out", folder, "--resume"), "in use", "--out")      # by the process that still runs
    p.send_signal(number)
    out, err = p.communicate(timeout=60)
    last = err.splitlines()[-1]
    assert p.returncode == 2 and last.startswith("error: interrupted") and "Traceback" not in err and not (folder/"lock").exists()
    done = steps_of(folder)
    assert done == list(range(1, len(done) + 1)) and 3 <= len(done) < 60
    go_on = shlex.split(last.partition("grpo-tutorials ")[2])
    assert go_on[0] == "run" and "--resume" in go_on
    r = ended(program(), *go_on)
    assert r.returncode == 0 and steps_of(folder) == list(range(1, 61)), r.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals as here are POSIX")
def test_the_lock_of_a_dead_owner_is_ignored(program, tmp_path):
    folder = tmp_path/"r"
    p = subprocess.Popen([*program(0.2), *SMOKE, "--steps", "30", "--out", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_step(p, folder, 2)
    p.kill()
    p.wait()
    assert (folder/"lock").exists()
    r = ended(program(), *SMOKE, "--steps", "30", "--out", folder, "--resume")
    assert r.returncode == 0 and steps_of(folder) == list(range(1, 31)), r.stderr


def test_a_run_that_fails_before_it_wrote_anything_leaves_no_folder(program, tmp_path):
    r = ended(program(fail=True), *SMOKE, "--out", tmp_path/"r")
    assert r.returncode == 2 and r.stderr.splitlines()[-1] == "error: it fell over: pick it up" and not (tmp_path/"r").exists()
    (tmp_path/"file").write_text("mine")
    one_line_last(ended(program(), *SMOKE, "--out", tmp_path/"file"), "is a file")
    (tmp_path/"mine").mkdir()
    (tmp_path/"mine/thesis.txt").write_text("mine")
    for how in ((), ("--force",), ("--resume",)): one_line_last(ended(program(), *SMOKE, "--out", tmp_path/"mine", *how), "holds files but no run")
    assert (tmp_path/"mine/thesis.txt").read_text() == "mine" and [p.name for p in (tmp_path/"mine").iterdir()] == ["thesis.txt"]


def on_a_terminal(command, *args, columns=80, **env):
    "What a terminal of this width receives."
    pty = pytest.importorskip("pty")
    import fcntl, struct, termios
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CI")}
    p = subprocess.Popen([*command, *map(str, args)], stdin=slave, stdout=slave, stderr=slave, env={**clean, "TERM": "xterm-256color", **env})
    os.close(slave)
    got = b""
    while True:
        try: part = os.read(master, 65536)
        except OSError: break          # Linux says EIO when the last writer is gone
        if not part: break
        got += part
    os.close(master)
    assert p.wait(120) == 0, got.decode()
    return got.decode()


@pytest.mark.parametrize("columns", [120, 80, 40])
def test_a_terminal_of_any_width(columns, program, tmp_path):
    text = on_a_terminal(program(0.05), *SMOKE, "--out", tmp_path/"r", columns=columns)
    assert "\x1b[" in text and "Traceback" not in text
    seen = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    for words in ("load", "evaluate before", "4/4", "evaluate after", "greedy accuracy", "report: "): assert words in seen, words
    assert ("before (95%)" in seen) == (columns >= 80)      # on a narrow one the numbers stay, their intervals go
    assert max(len(line) for line in re.split(r"[\r\n]+", seen) if "report:" not in line) <= columns


def test_no_colour_where_none_is_wanted(program, tmp_path):
    coloured = on_a_terminal(program(), *SMOKE, "--out", tmp_path/"a")
    plain = on_a_terminal(program(), *SMOKE, "--out", tmp_path/"b", NO_COLOR="1")
    colour = re.compile(r"\x1b\[[0-9;]*3[0-9](;|m)")
    assert colour.search(coloured) and not colour.search(plain)
    dumb = on_a_terminal(program(), *SMOKE, "--out", tmp_path/"c", TERM="dumb")
    assert "\x1b" not in dumb and "train: 4/4" in dumb


# ---------------------------------------------------------------- doctor

def test_doctor_takes_the_newest_and_fails_where_something_failed(program, tmp_path, monkeypatch):
    for seed in (1, 2): assert ended(program(), *SMOKE, "--seed", seed, cwd=tmp_path).returncode == 0
    monkeypatch.chdir(tmp_path)
    r = call("doctor")
    assert r.exit_code in (0, 1) and "seed2" in r.stdout.splitlines()[0]
    assert " ".join(r.stdout.split()).count("held-out problems") == 1       # a sentence is said once
    d = json.loads(call("doctor", "runs/gsm8k-tunix-smoke-seed1", "--json").stdout)
    assert d["path"].endswith("seed1") and {"name", "severity", "evidence", "mend"} == set(d["findings"][0])
    assert (r.exit_code == 1) == any(f["severity"] == "fail" for f in json.loads(call("doctor", "--json").stdout)["findings"])
    metrics = tmp_path/"runs/gsm8k-tunix-smoke-seed1/metrics.jsonl"
    lines = [json.loads(x) for x in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(x | dict(silent_groups=1.0)) + "\n" for x in lines))
    bad = call("doctor", "runs/gsm8k-tunix-smoke-seed1")
    assert bad.exit_code == 1 and "all groups silent" in bad.stdout and bad.stderr == ""
    metrics.write_text("{broken\n{}\n")
    one_line(call("doctor", "runs/gsm8k-tunix-smoke-seed1"), "metrics.jsonl", "line 1")
    monkeypatch.chdir(tmp_path/"runs")
    one_line(call("doctor"), "runs")


# ---------------------------------------------------------------- the real engine

@pytest.fixture(scope="module")
def real(tmp_path_factory):
    "A short run with Tunix, and the calls that need it, in one process: importing and compiling happens once."
    pytest.importorskip("tunix")
    from grpo_tutorials.models.tiny import checkpoint
    root, shipped = tmp_path_factory.mktemp("real"), checkpoint("gsm8k")
    run = ["run", "gsm8k", "--scale", "smoke", "--steps", "2", "--eval-n", "16", "--out", root/"run"]
    calls = {"run": [*run, "--json"], "again": run, "finished": [*run, "--resume"], "long prompt": [*run[:-1], root/"long", "--max-prompt-length", "8"],
             "eval": ["eval", "gsm8k", "--scale", "smoke", "--model", "tiny", "--n", "16", "--k", "2", "--json"],
             "eval adapter": ["eval", "gsm8k", "--scale", "smoke", "--model", shipped, "--adapter", root/"run/adapter", "--n", "16", "--json"],
             "no accelerator": ["run", "gsm8k", "--scale", "full", "--data", "embedded", "--out", root/"full"],
             "unknown model": ["run", "gsm8k", "--scale", "smoke", "--model", "./no-such-model", "--out", root/"unknown"]}
    for name, missing in (("no tokenizer", "tokenizer.json"), ("no weights", "model.safetensors"), ("no template", "chat_template.jinja"), ("no config", "config.json")):
        shutil.copytree(shipped, root/name)
        (root/name/missing).unlink()
        if name == "no template":
            config = json.loads((root/name/"tokenizer_config.json").read_text())
            (root/name/"tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "chat_template"}))
        calls[name] = ["run", "gsm8k", "--scale", "smoke", "--model", root/name, "--out", root/f"{name} run"]
    code = """
import json, sys
from typer.testing import CliRunner
from grpo_tutorials.cli import app
for name, args in json.load(sys.stdin).items():
    r = CliRunner().invoke(app, args)
    bug = "" if r.exception is None or isinstance(r.exception, SystemExit) else repr(r.exception)
    print(json.dumps([name, r.exit_code, r.stdout, r.stderr + bug]), flush=True)
"""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps({k: [str(a) for a in v] for k, v in calls.items()}), capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stderr
    return root, {name: subprocess.CompletedProcess(name, *rest) for name, *rest in (json.loads(x) for x in done.stdout.splitlines() if x.startswith('["'))}


def test_a_real_run_and_its_adapter(real):
    root, r = real
    s = json.loads(r["run"].stdout)
    assert s["steps"] == 2 and s["before"]["n"] == s["after"]["n"] == 16 and "train: 2/2" in r["run"].stderr, r["run"].stderr
    assert {p.name for p in (root/"run").iterdir()} >= {"config.json", "metrics.jsonl", "samples.jsonl", "summary.json", "curves.png", "report.html", "checkpoints", "adapter"}
    assert json.loads((root/"run/config.json").read_text())["command"][:3] == ["grpo-tutorials", "run", "gsm8k"]
    one_line_last(r["again"], "already holds a run")
    assert r["finished"].returncode == 0 and "is finished (2 steps)" in r["finished"].stdout
    assert len(r["run"].stderr.splitlines()) < 15, "libraries talk into the progress"


def test_eval_measures_the_same_as_the_run(real):
    root, r = real
    s, base, tuned = (json.loads(r[k].stdout) for k in ("run", "eval", "eval adapter"))
    assert base["greedy"] == s["before"]["greedy"] and tuned["greedy"] == s["after"]["greedy"]
    assert {"pass@1", "pass@2", "ci95", "sampled_ci95", "data"} <= set(base) and base["pass@1"] <= base["pass@2"]


@pytest.mark.parametrize("name, words", [
    ("no tokenizer", ["tokenizer"]), ("no weights", ["safetensors"]), ("no template", ["chat template"]), ("no config", ["config.json"]), ("unknown model", ["no-such-model", "--model"]),
    ("long prompt", ["--max-prompt-length"]), ("no accelerator", ["accelerator", "--scale cpu"]),
])
def test_what_cannot_be_trained_is_one_line_and_leaves_no_folder(name, words, real):
    root, r = real
    error = r[name].stderr.splitlines()[-1]
    assert r[name].returncode == 2 and error.startswith("error: ") and "Traceback" not in r[name].stderr, r[name].stderr
    for w in words: assert w in error, error
    assert not any((root/f).exists() for f in (f"{name} run", "unknown", "long", "full"))


@pytest.mark.skipif(os.name == "nt", reason="signals as here are POSIX")
def test_ctrl_c_while_jax_works(tmp_path):
    pytest.importorskip("tunix")
    folder = tmp_path/"r"
    p = subprocess.Popen([*PROGRAM, "run", "gsm8k", "--scale", "smoke", "--steps", "200", "--eval-n", "16", "--out", str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                         env={**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"})
    wait_for_step(p, folder, 3)
    p.send_signal(signal.SIGINT)
    err = p.communicate(timeout=120)[1]
    assert p.returncode == 2 and err.splitlines()[-1].startswith("error: interrupted") and "Traceback" not in err, err
    assert not (folder/"lock").exists() and (folder/"checkpoints/step-000002/complete").exists()


def test_a_missing_extra_is_one_line(tmp_path):
    code = "import sys; sys.modules['tunix'] = sys.modules['jax'] = sys.modules['torch'] = None\nfrom grpo_tutorials.cli import main; main()"
    for args, extra in ((["run", "gsm8k", "--out", str(tmp_path/"r")], "tunix"), (["eval", "gsm8k", "--model", "tiny"], "tunix"), (["tiny", "build", "--out", str(tmp_path/"t")], "trl")):
        r = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
        assert r.returncode == 2 and r.stderr.splitlines()[-1].startswith(f"error: needs: pip install 'grpo_tutorials[{extra}]'"), r.stderr
    assert list(tmp_path.iterdir()) == []
