"""Intervals against their definitions and the published tables, pass@k against counting, evaluate against an oracle."""
import itertools
import json
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from grpo_tutorials.core import evaluate as ev
from grpo_tutorials.core.evaluate import Counts, Evaluation


@settings(max_examples=300, deadline=None)
@given(n=st.integers(1, 5000), data=st.data())
def test_wilson_ends_are_where_the_score_test_just_rejects(n, data):
    k = data.draw(st.integers(0, n))
    lo, hi = ev.wilson(k, n)
    assert 0 <= lo <= k / n <= hi <= 1
    for p in (lo, hi):
        if 1e-9 < p < 1 - 1e-9: assert abs(k / n - p) == pytest.approx(ev.Z * math.sqrt(p * (1 - p) / n), rel=1e-6, abs=1e-9)
    assert ev.wilson(n - k, n) == pytest.approx((1 - hi, 1 - lo), abs=1e-12)


def test_wilson_covers_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    for n, p in ((64, .5), (64, .05), (512, .9)):
        k, times = np.unique(rng.binomial(n, p, 20_000), return_counts=True)
        hit = sum(t for k, t in zip(k.tolist(), times.tolist()) if ev.wilson(k, n)[0] <= p <= ev.wilson(k, n)[1])
        assert .93 < hit / 20_000 < .98


@pytest.mark.parametrize("k1,n1,k2,n2,interval", [       # Newcombe 1998, table II, method 10 (the first group minus the second)
    (56, 70, 48, 80, (.0524, .3339)), (9, 10, 3, 10, (.1705, .8090)), (6, 7, 2, 7, (.0582, .8062)), (5, 56, 0, 29, (-.0381, .1926)),
    (0, 10, 0, 20, (-.1611, .2775)), (0, 10, 0, 10, (-.2775, .2775)), (10, 10, 0, 20, (.6791, 1.)), (10, 10, 0, 10, (.6075, 1.))])
def test_newcombe_s_own_examples(k1, n1, k2, n2, interval):
    assert ev.difference(k2, n2, k1, n1) == pytest.approx(interval, abs=5e-5)


def test_pass_at_k_counts_subsets():
    for n in range(1, 8):
        for c, k in itertools.product(range(n + 1), range(1, n + 1)):
            tries = [1] * c + [0] * (n - c)
            picks = list(itertools.combinations(tries, k))
            assert ev.pass_at_k(n, c, k) == pytest.approx(sum(map(any, picks)) / len(picks))


def test_student_s_quantiles():
    for df, t in enumerate(ev.T975, 1):
        x = np.tan(np.linspace(0, np.arctan(t), 200_001))       # integrate the density from 0 to t
        density = math.gamma((df + 1) / 2) / math.sqrt(df * math.pi) / math.gamma(df / 2) * (1 + x**2 / df) ** (-(df + 1) / 2)
        assert .5 + np.trapezoid(density, x) == pytest.approx(.975, abs=2e-5)


def test_shared_problems_widen_the_interval():
    rng = np.random.default_rng(0)
    skill = rng.choice([.05, .95], 200)
    right = rng.binomial(8, skill).tolist()
    n = ev.effective_n(right, 8)
    assert 200 <= n < 320                                                    # 1600 tries know little more than 200
    independent = rng.binomial(8, .5, 200).tolist()
    assert ev.effective_n(independent, 8) > 1100


def grade(text, row):
    strict, lenient, form = text.split(",")
    return SimpleNamespace(strict=strict == "1", lenient=lenient == "1", format=form == "1", extracted=None)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), k=st.integers(1, 5), chunk=st.sampled_from([None, 1, 3, 7, 100]), headline=st.sampled_from(["greedy", "sampled"]), seed=st.integers(0, 99))
def test_evaluate_counts_what_a_loop_would(n, k, chunk, headline, seed):
    rng, wrote = random.Random(seed), []

    def generate(prompts, greedy, s):
        texts = [",".join(str(rng.randint(0, 1)) for _ in range(3)) for _ in prompts]
        wrote.extend((p, greedy, t) for p, t in zip(prompts, texts))
        return texts

    rows = [dict(prompt=[dict(role="user", content=str(i))], kind="ab"[i % 2]) for i in range(n)]
    e, samples = ev.evaluate(SimpleNamespace(grade=grade, headline=headline, rewards=()), rows, generate, seed, k=k, chunk=chunk)
    d = json.loads(json.dumps(e.as_dict()))
    assert [(s["prompt"], s["decoding"] == "greedy", s["completion"]) for s in samples] == wrote
    for mode, greedy in (("greedy", True), ("sampled", False)):
        mine = [t.split(",") for _, g, t in wrote if g == greedy]
        assert d[mode] == pytest.approx(sum(t[0] == "1" for t in mine) / len(mine), abs=1e-4)
        assert d[f"{mode}_ci95"][0] <= d[mode] + 1e-4 and d[mode] - 1e-4 <= d[f"{mode}_ci95"][1]
        if mode == headline:
            assert d["accuracy"] == d[mode] and d["ci95"] == d[f"{mode}_ci95"]
            assert [d["lenient"], d["format"]] == pytest.approx([sum(t[i] == "1" for t in mine) / len(mine) for i in (1, 2)], abs=1e-4)
    assert sum(kind["n"] for kind in d["kinds"].values()) == d["n"] == n
    if k > 1:
        solved = [any(t.startswith("1") for p, g, t in wrote if not g and p == r["prompt"]) for r in rows]
        assert d[f"pass@{k}"] == pytest.approx(sum(solved) / n, abs=1e-4)
    assert len(ev.table(d, d)) == 4 + len(d["kinds"]) and all(r["gain"] == 0 for r in ev.table(e, e))


def test_each_call_has_a_seed_of_its_own():
    seeds = []

    def generate(prompts, greedy, s):
        seeds.append(s)
        return ["0,0,0"] * len(prompts)

    rows, task = [dict(prompt=str(i)) for i in range(10)], SimpleNamespace(grade=grade, headline="greedy", rewards=())
    for seed in (0, 7): ev.evaluate(task, rows, generate, seed, k=3, chunk=4)
    assert len(set(seeds)) == len(seeds) == 24 and all(0 <= s < 2**31 for s in seeds)


def test_the_samples_carry_the_rewards_of_the_task():
    def length(completions, **columns): return [float(len(c)) for c in completions]
    def abstain(completions, answer, **columns): return [None if a == "0" else 1.0 for a in answer]
    task = SimpleNamespace(grade=grade, headline="greedy", rewards=(length, abstain))
    _, samples = ev.evaluate(task, [dict(prompt="q", answer=str(i)) for i in range(3)], lambda p, g, s: ["1,1,1"] * len(p), 0)
    assert samples[0]["rewards"] == dict(length=5.0, abstain=None) and samples[0]["total"] == 5.0
    assert samples[1]["rewards"] == dict(length=5.0, abstain=1.0) and samples[1]["total"] == 6.0


def test_a_table_of_dicts_says_what_a_table_of_evaluations_says():
    b, a = Evaluation(512, Counts(512, 200, 240, 300), Counts(512, 220, 250, 310)), Evaluation(512, Counts(512, 461, 470, 500), Counts(512, 400, 410, 480))
    for x, y in zip(ev.table(b, a), ev.table(json.loads(json.dumps(b.as_dict())), a.as_dict())): assert x == y


@pytest.mark.parametrize("call,words", [
    (lambda: ev.wilson(1, 0), "at least one"), (lambda: ev.wilson(-1, 3), "between 0 and n"), (lambda: ev.pass_at_k(3, 1, 0), "between 1"), (lambda: ev.pass_at_k(3, 4, 1), "between 0"),
    (lambda: ev.across([1.], "best"), "choose range or t"), (lambda: ev.across([1.], "t"), "two seeds")])
def test_errors_name_the_mend(call, words):
    with pytest.raises(ValueError, match=words): call()
