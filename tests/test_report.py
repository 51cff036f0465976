"""The report of a run whose task shows a picture: programs beside their boards, in plain sight and as plain text."""
import dataclasses
import json
import re
from html.parser import HTMLParser

import pytest

from grpo_tutorials.core import report
from grpo_tutorials.core.evaluate import evaluate
from grpo_tutorials.core.runs import Run
from grpo_tutorials.core.sandbox import Played, shared
from grpo_tutorials.core.training import Judge, step_metrics
from grpo_tutorials.tasks.sudoku import Referee, make_grade, make_rewards, strategies
from grpo_tutorials.tasks.task import get_task

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>"
GOOD = next(s.text for s in strategies(500) if (s.plan, s.rules, s.slip, s.fence) == ("fewest", "all", "", "python"))
BAD = ["```python\ndef strategy(board, initial):\n    raise ValueError('" + EVIL + "')\n```", "```python\ndef strategy(board, initial):\n    return (0, 0, 7)\n```", EVIL]


class Page(HTMLParser):
    "Well-formed, and nothing in it runs or fetches anything."
    void = {"meta", "path", "circle"}
    def __init__(self, text):
        super().__init__()
        self.open, self.boards, self.text = [], [], []
        self.feed(text)
        assert self.open == []
    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "img", "iframe", "object", "link") and not any(k in ("src", "href") or k.startswith("on") for k, _ in attrs)
        if tag not in self.void: self.open.append(tag)
        if tag == "table" and dict(attrs).get("aria-label", "").startswith("sudoku board"): self.boards.append(dict(attrs)["aria-label"])
    def handle_startendtag(self, tag, attrs): pass
    def handle_endtag(self, tag): assert self.open.pop() == tag
    def handle_data(self, data): self.text.append(data)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    "A run of sudoku that nobody trained: bad programs before, a good one after."
    task = get_task("sudoku", scale="smoke")
    rows = task.rows("test", 6, 0)
    with Run.open(tmp_path_factory.mktemp("report")/"run", dict(task="sudoku", engine="trl", scale=task.scale("smoke"), seed=0)) as run:
        def judge(phase, step, write):
            found, samples = evaluate(task, rows, lambda prompts, greedy, seed: [write(i) for i in range(len(prompts))], 0)
            for s in samples: run.sample(step, phase, **s)
            return found.as_dict() | dict(distinct=len({s["completion"] for s in samples}), truncated=0.)
        before = judge("before", 0, lambda i: BAD[i % 3])
        for step in (1, 2): run.metrics(step, reward=step, reward_std=40., silent_groups=0., truncated=0., **{"reward/max": 32., "reward/min": -3., "samples/unjudged": step - 1., "samples/distinct": .5})
        after = judge("after", 2, lambda i: GOOD)
        run.finish(dict(before=before, after=after))
    return run


def test_programs_stand_beside_their_boards(finished):
    text = (finished.path/"report.html").read_text()
    page = Page(text)
    shown = " ".join(page.text)
    assert len(page.boards) == 12 and page.boards.count("sudoku board, 81 of 81 cells filled") == 6
    assert "solved in 40 valid moves" in shown and "raised an exception: ValueError" in shown and "no program that can be played" in shown and "lost after 0 valid moves" in shown
    assert "The question, the same for all" in shown and [int(n) for n in re.findall(r"held-out problem (\d)", shown)] != []
    assert "Share solved (sampled)" in shown or "share solved (sampled)" in shown
    assert "different texts among 6 samples" in shown and "samples cut off" in shown
    assert "prefers-color-scheme:dark" in text and "Silent: all of a group earned the same" in shown


def test_nothing_a_program_wrote_is_html(finished):
    "As text it is there, as a tag nowhere."
    page = Page((finished.path/"report.html").read_text())
    assert EVIL in "".join(page.text)


def test_problems_of_one_prompt_are_told_apart(finished):
    found = report.pairs(finished.read_samples(), "sampled")
    assert sorted(a["row"] for a, _ in found) == list(range(6)) and all(a["row"] == b["row"] for a, b in found)


def test_the_band_ends_at_what_was_earned(finished):
    (line,) = report.lines_of(finished.read_metrics(), report.PANELS[0])
    assert line.high == [32., 32.] and line.low == [-3., -3.]


def test_what_nobody_judged_is_counted_and_said(finished):
    assert finished.summary["unjudged"] == 1
    assert "1 completions in 1 training steps" in (finished.path/"report.html").read_text()


def test_no_legend_covers_a_line(finished):
    "In every panel the legend stands above the axes, and inside the figure."
    fig = report.plot_curves(finished)
    fig.canvas.draw()
    keys = [ax.get_legend() for ax in fig.axes if ax.get_legend()]
    assert keys
    for key in keys:
        box = key.get_window_extent()
        assert box.y0 >= key.axes.get_window_extent().y1 - 1 and box.x1 <= fig.bbox.x1 and box.y1 <= fig.bbox.y1


@pytest.mark.parametrize("damage", [dict(board="12"), dict(board=None), dict(refused=["<b>"]), dict(picture="other"), dict(picture=None), dict(words=["<b>"])], ids=str)
def test_a_damaged_picture_leaves_a_page(finished, damage):
    shown = dict(words="w", picture="board", board="0" * 81, initial="0" * 81, refused=None) | damage
    Page(report.picture(json.loads(json.dumps(shown))))


def test_older_runs_have_a_page_too(finished):
    "Samples without row and shown, metrics without the new names."
    old = [{k: v for k, v in s.items() if k not in ("row", "shown")} for s in finished.read_samples()]
    assert len(report.pairs(old, "sampled")) == 1
    Page(report.html_pairs(report.pairs(old, "sampled")))
    assert report.lines_of([dict(step=1, reward=1., reward_std=2.)], report.PANELS[0])[0].high == [3.]


class Flaky:
    "A sandbox that fails for programs with a mark in them."
    def play(self, jobs):
        real = iter(shared(1.0).play([j for j in jobs if "#mark" not in j.code]))
        return [Played("sandbox_error", detail="no room for another process") if "#mark" in j.code else next(real) for j in jobs]


def test_a_sandbox_that_failed_is_counted_and_is_never_a_score():
    "In the step's line and in the evaluation; the means are those of the others."
    task, lost = get_task("sudoku", scale="smoke"), GOOD.replace("```python\n", "```python\n#mark\n")
    rows = task.rows("test", 4, 0)
    judge = Judge(make_rewards(Referee(sandbox=Flaky())), rows)
    judge([GOOD, lost, BAD[1], lost], [0, 0, 0, 0])
    line = step_metrics(judge.table, judge.totals, [9] * 4, [False] * 4, 4, [GOOD, lost, BAD[1], lost])
    assert judge.totals[1] is judge.totals[3] is None and line["samples/unjudged"] == 2 and line["reward"] == (32 + judge.totals[2]) / 2 and line["samples/distinct"] == .75
    found, samples = evaluate(dataclasses.replace(task, grade=make_grade(Referee(sandbox=Flaky()))), rows, lambda prompts, greedy, seed: [GOOD, lost, BAD[1], lost], 0)
    d = found.as_dict()
    assert (d["unjudged"], d["sampled"], d["measure"]) == (4, .5, "share solved") and [s["outcome"] for s in samples[:4]] == ["strict", "unjudged", "wrong", "unjudged"]
    assert "could not be judged, the sandbox failed" in samples[1]["shown"]["words"]


def test_half_a_surrogate_pair_does_not_stop_the_page():
    from grpo_tutorials.core.report import completion, esc, picture
    for shown in (esc("a\ud800b\udfff"), completion("\udc80 <script>"), picture(dict(words="\ud83d"))): assert "\ufffd" in shown.encode().decode() and "<script" not in shown
