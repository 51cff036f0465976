"""The doctor and the report never fall over a record, whatever is in it, and say 'learned' exactly when the intervals part."""
import json
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from grpo_tutorials.core import doctor, report, runs
from grpo_tutorials.core.doctor import RULES, Record, diagnose, verdict
from grpo_tutorials.core.evaluate import Counts, Evaluation, wilson

number = st.one_of(st.none(), st.just(0.0), st.just(1.0), st.floats(-1e6, 1e6), st.floats(allow_nan=True))
line = st.dictionaries(st.sampled_from([*runs.METRICS, "rewards/a", "rewards/b"]), number, max_size=8)
text = st.one_of(st.text(max_size=60), st.sampled_from(["<answer>4</answer>", "</pre><script>alert(1)</script>", "\x00\x1b[31m", "\u202eabc", "&lt;b&gt;"]))
sample = st.fixed_dictionaries(dict(step=st.integers(0, 9), phase=st.sampled_from(runs.PHASES), prompt=st.one_of(text, st.lists(st.fixed_dictionaries(dict(role=st.just("user"), content=text)), max_size=2)),
                                    completion=text, rewards=st.dictionaries(text, number, max_size=2), total=number, advantage=number),
                               optional=dict(outcome=st.one_of(st.none(), st.sampled_from(["strict", "lenient", "wrong", "unjudged", "solved", "<i>"])), kind=text, answer=text, decoding=st.just("greedy")))
counts = st.integers(1, 600).flatmap(lambda n: st.tuples(*[st.integers(0, n)] * 3).map(lambda c: Counts(n, *c)))
evaluation = st.builds(lambda g, s, k: Evaluation(g.n, g, s, kinds=dict(k)).as_dict(), counts, counts, st.dictionaries(text.filter(bool), st.tuples(counts, counts), max_size=2))
summary = st.one_of(st.none(), st.just({}), st.just(dict(before=None, after={})), st.fixed_dictionaries(dict(before=evaluation, after=evaluation)), st.fixed_dictionaries(dict(before=evaluation)))
adapter = st.one_of(st.none(), st.just(dict(matrices=0, zero=0)), st.just(dict(matrices=3, zero=3)), st.just(dict(matrices=3, zero=1)))


@settings(max_examples=200, deadline=None)
@given(lines=st.lists(line, max_size=30), summary=summary, adapter=adapter, steps=st.one_of(st.none(), st.integers(0, 99)))
def test_any_record_gets_an_answer(lines, summary, adapter, steps):
    record = Record(dict(steps=steps), [runs.metrics_line(i, m) for i, m in enumerate(lines, 1)], summary, adapter)
    found = diagnose(record)
    assert found and all(f.evidence and f.mend and "\n" not in f.evidence for f in found)
    assert [f.severity for f in found] == sorted((f.severity for f in found), key=("fail", "warn", "ok").index)
    assert "\n" not in verdict(record) and len(verdict(record)) < 500
    assert ("NaN" in [f.name for f in found]) == any(m.get("nonfinite") for m in record.metrics)


@settings(max_examples=200, deadline=None)
@given(n=st.integers(1, 2000), a=st.floats(0, 1), b=st.floats(0, 1))
def test_learned_means_that_the_intervals_do_not_touch(n, a, b):
    k1, k2 = round(a * n), round(b * n)
    sides = [Evaluation(n, Counts(n, k, k, n)).as_dict() for k in (k1, k2)]
    said = verdict(Record({}, [], dict(before=sides[0], after=sides[1])))
    (lo1, hi1), (lo2, hi2) = ([round(x, 4) for x in wilson(k, n)] for k in (k1, k2))
    assert said.startswith("learned") == (lo2 > hi1)
    assert said.startswith("got worse") == (hi2 < lo1)


def test_every_rule_is_a_row_with_a_name_of_its_own():
    assert len({r.name for r in RULES}) == len(RULES)
    assert all(r.severity in ("ok", "warn", "fail") and r.mend and callable(r.look) for r in RULES)
    more = [*RULES, doctor.Rule("seed is 7", "warn", lambda r: "seed 7" if r.config.get("seed") == 7 else None, "take another")]
    assert [f.name for f in diagnose(Record(dict(seed=7)), more)][-1] == "seed is 7"


def test_an_adapter_written_by_safetensors(tmp_path):
    st_numpy = pytest.importorskip("safetensors.numpy", reason="safetensors comes with the [tunix] extra")
    import numpy as np
    A, B = np.ones((4, 2), "f4"), np.zeros((2, 4), "f4")
    for name, b, zero in (("zero", B, 1), ("minus", -B, 1), ("tiny", B + 1e-38, 0), ("half", B.astype("f2"), 1), ("double", B.astype("f8"), 1)):
        (tmp_path / name).mkdir()
        st_numpy.save_file({"base_model.model.q.lora_A.weight": A, "base_model.model.q.lora_B.weight": b}, tmp_path / name / "adapter_model.safetensors")
        assert doctor.adapter_stats(tmp_path / name) == dict(matrices=1, zero=zero), name


class Check(HTMLParser):
    "Every tag that opens closes; nothing runs, nothing is fetched."
    def __init__(self):
        super().__init__()
        self.stack = []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "iframe", "img", "link", "object") and not any(k in ("src", "href") or k.startswith("on") for k, _ in attrs)
        if tag not in ("meta", "path", "circle"): self.stack.append(tag)

    def handle_startendtag(self, tag, attrs): pass

    def handle_endtag(self, tag): assert self.stack.pop() == tag


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lines=st.lists(line, max_size=14), samples=st.lists(sample, max_size=12), summary=summary, task=text)
def test_any_run_has_a_page(tmp_path_factory, lines, samples, summary, task):
    with runs.Run.open(tmp_path_factory.mktemp("page") / "run", dict(task=task, engine="tunix", scale="cpu", seed=0, steps=9)) as run:
        for i, m in enumerate(lines, 1): run.metrics(i, **m)
        for s in samples: run.sample(**s)
        if summary is not None: runs.write(run.path / "summary.json", runs.dumps(summary))
        check = Check()
        check.feed(report.write_report(run).read_text(encoding="utf-8", errors="strict"))
    assert check.stack == []


def test_curves_of_a_long_run_stay_small(tmp_path):
    with runs.Run.open(tmp_path / "run", dict(task="t", engine="e", scale="full", seed=0, steps=4000)) as run:
        text = "".join(runs.dumps(runs.metrics_line(i, dict(reward=i / 4000, reward_std=.5, kl=.1, truncated=0.0))) + "\n" for i in range(1, 4001))
        runs.write(run.path / "metrics.jsonl", text)
        assert len(report.page(run)) < 100_000


def test_a_verdict_in_the_summary_is_the_doctor_s(tmp_path):
    with runs.Run.open(tmp_path / "run", dict(task="t", engine="e", scale="cpu", seed=0, steps=2)) as run:
        for i in (1, 2): run.metrics(i, reward=i, silent_groups=0.)
        (run.path / "adapter").mkdir()
        runs.write(run.path / "adapter" / "adapter_model.safetensors", zero_adapter())
        run.finish(dict(before=Evaluation(64, Counts(64, 20, 20, 64)), after=Evaluation(64, Counts(64, 20, 20, 64)), steps=2))
        assert run.summary["verdict"] == verdict(Record.load(run.path))
        assert "likely cause: adapter all zero" in run.summary["verdict"]


def zero_adapter():
    head = json.dumps({"q.lora_B.weight": dict(dtype="F32", shape=[2], data_offsets=[0, 8])}).encode()
    return len(head).to_bytes(8, "little") + head + bytes(8)
