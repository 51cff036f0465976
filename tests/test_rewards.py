"The four rewards pay what the public notebook pays, without its faults; calling and combining lose nothing."

import asyncio
import math
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_tutorials.core.answers import TAGS, Tags, equal, grade_number
from grpo_tutorials.core.rewards import REWARDS, answer_check, call_rewards, combine, format_approximate, format_exact, number_check, with_tags


settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])   # a busy machine is no failure
settings.load_profile("calm")


def say(answer):
    return f"<reasoning>so it is</reasoning><answer>{answer}</answer>"


def points(completion, gold="40"):
    return [f([completion], answer=[gold])[0] for f in REWARDS]


@pytest.mark.parametrize("completion, expected", [
    (say("40"), [3, 2.5, 3, 1.5]),                                               # the best: 10
    (say(" 40 "), [3, 2.5, 3, 1.5]),                                             # the public 1.5 for a space is 3 here
    *[(say(x), [3, 2.5, 3, 1.5]) for x in ["$40.00", "**40**", r"\boxed{40}", "40 apples", "+40", "４０", "x = 40", "40."]],
    *[(say(x), [3, 2.5, 0.5, 0]) for x in ["44", "36", "41", "39.5", "$44"]],
    *[(say(x), [3, 2.5, 0.25, 0]) for x in ["48", "32", "45"]],
    *[(say(x), [3, 2.5, -1, 0]) for x in ["49", "31", "-40", "−40", "4,000", "0", "1e999999999"]],
    *[(say(x), [3, 2.5, -0.5, 0]) for x in ["many", "40 or 41", "nan", "8*5", "4_0", "²"]],
    (say("She has 40 left"), [3, 2.5, -0.5, 1.5]),
    (say(""), [0, 2.5, -0.5, 0]),
    (say("40") + " Bye.", [0, 2.5, 0, 0]),                                       # text after the tag earns nothing
    (say("40") + "\nBye 40.", [0, 2.5, 0, 0]),
    (say("40") + "<end_of_turn>", [3, 2.5, 3, 1.5]),
    (say("40") + say("41"), [0, -1.5, 0, 0]),                                    # several answers earn nothing
    ("<reasoning>a</reasoning><answer>41</answer><answer>40</answer>", [0, 0.5, 0, 0]),
    ("<reasoning>like <answer>9</answer></reasoning><answer>40</answer>", [0, 0.5, 3, 1.5]),
    ("<reasoning>thinking <answer>40</answer>", [0, 1.5, 3, 1.5]),
    ("<answer>40</answer>", [0, -0.5, 3, 1.5]),
    ("<answer>40", [0, -1.5, 0, 0]),
    (say("40").upper(), [0, -2.5, 0, 0]),
    ("Sure. " + say("40"), [0, 1.5, 3, 1.5]),
    ("\n" + say("40"), [3, 2.5, 3, 1.5]),
    ("The answer is 40.", [0, -2.5, 0, 0]),
    ("", [0, -2.5, 0, 0]),
    ("x<reasoning><answer>1</answer></reasoning><reasoning></reasoning><answer>13</answer>", [0, -2.5, -1, 0]),   # the worst: -3.5
])
def test_points(completion, expected):
    assert points(completion) == expected
    assert points([{"role": "assistant", "content": completion}], "8*5=40\n#### 40") == expected


@pytest.mark.parametrize("gold, spelling, right", [("1,000", "1000", True), ("1000", "1,000", True), ("1000", "1", False), ("1", "1,000", False), ("-5", "-5", True), ("-5", "5", False), ("5", "-5", False), ("0", "0.0", True), ("0.5", "1/2", True), ("9" * 5000, "9" * 5000, True), ("9" * 5000, "9" * 4999 + "8", False)])
def test_the_public_faults(gold, spelling, right):
    assert number_check([say(spelling)], answer=[gold]) == [1.5 if right else 0]
    assert (answer_check([say(spelling)], answer=[gold]) == [3]) == right


def test_negative_and_zero_golds_have_the_right_neighbours():
    assert answer_check([say(x) for x in ("-44", "-36", "-48", "-49", "40")], answer=["-40"] * 5) == [0.5, 0.5, 0.25, -1, -1]
    assert answer_check([say("0.001")], answer=["0"]) == [-1]


def test_what_is_not_judged_is_none():
    texts = [say("40")] * 4
    golds = ["40", "None", None, "#### see above"]
    assert answer_check(texts, answer=golds) == [3, None, None, None]
    assert number_check(texts, answer=golds) == [1.5, None, None, None]
    assert answer_check(texts) == [None] * 4
    assert format_exact(texts, answer=golds) == [3] * 4 and format_approximate(texts) == [2.5] * 4
    with pytest.raises(ValueError, match="3 answers for 4 completions"): answer_check(texts, answer=golds[:3])


def test_columns_do_not_disturb():
    columns = dict(prompts=["p"], completion_ids=[[1]], cleaning_status=["ok"], tags=["x"], trainer_state=object())
    assert [f(completions=[say("40")], answer=["40"], **columns) for f in REWARDS] == [[3], [2.5], [3], [1.5]]


@pytest.mark.parametrize("tags", [Tags("[R]", "[/R]", "(A)", "(/A)"), Tags(".*", "+", "(?:", "^$")])
def test_other_tags_keep_the_names(tags):
    a, b, c, d = tags
    own = [with_tags(f, tags) for f in REWARDS]
    assert [f.__name__ for f in own] == ["format_exact", "format_approximate", "answer_check", "number_check"]
    assert [f([f"{a}so{b}{c}40{d}"], answer=["40"])[0] for f in own] == [3, 2.5, 3, 1.5]
    assert [f([say("40")], answer=["40"])[0] for f in own] == [0, -2.5, 0, 0]
    with pytest.raises(ValueError, match="choose one of format_exact"): with_tags(combine, tags)


# ---- calling

def test_only_what_a_reward_accepts():                                           # G24
    def documented(prompts, completions): return [len(p) for p in prompts]
    def greedy(completions, **kwargs): return [len(kwargs)] * len(completions)
    def keyword(completions, *, answer): return [float(a) for a in answer]
    columns = dict(prompts=["a", "bb"], answer=["1", "2"], cleaning_status=["ok", "ok"], mode="train")
    assert call_rewards([documented, greedy, keyword], ["x", "y"], columns) == {"documented": [1, 2], "greedy": [4, 4], "keyword": [1, 2]}


def test_what_cannot_be_called_says_so_first():
    called = []
    def fine(completions): called.append(1); return [0]
    def wants(completions, board): return [0]
    with pytest.raises(ValueError, match="reward wants needs board: the columns are answer, completions"): call_rewards([fine, wants], ["x"], dict(answer=["1"]))
    assert not called
    with pytest.raises(ValueError, match="share a name"): call_rewards([fine, fine], ["x"], {})
    with pytest.raises(ValueError, match="column answer has 1 values for 2 completions: repeat each row"): call_rewards([fine], ["x", "y"], dict(answer=["1"]))


def make_async(delays, values, log=None):
    async def judge(completions):
        async def one(d, v):
            await asyncio.sleep(d)
            return v
        if log is not None: log.append(threading.current_thread())
        return await asyncio.gather(*(one(d, v) for d, v in zip(delays, values)))
    return judge


def test_async_rewards_keep_their_order():                                       # G25
    judge = make_async([.03, .01, .02], [1, 2, 3])
    assert call_rewards([judge], ["a", "b", "c"], {}) == {"judge": [1, 2, 3]}
    async def inside():                                                          # as in a notebook, whose loop already runs
        return call_rewards([judge, format_exact], ["a", "b", say("4")], {})
    assert asyncio.run(inside()) == {"judge": [1, 2, 3], "format_exact": [0, 0, 3]}
    slow, fast = make_async([.05], [1]), make_async([0], [2])
    slow.__name__, fast.__name__ = "slow", "fast"
    assert list(call_rewards([slow, fast], ["a"], {}).items()) == [("slow", [1]), ("fast", [2])]


def test_errors_carry_the_name():
    def broken(completions): raise KeyError("gold")
    async def later(completions): raise ZeroDivisionError("no")
    with pytest.raises(RuntimeError, match="reward broken failed: KeyError"): call_rewards([broken], ["x"], {})
    with pytest.raises(RuntimeError, match="reward later failed: ZeroDivisionError"): call_rewards([later], ["x"], {})
    for bad, words in [([1, 2], "returned 2 values for 1 completions"), (1.0, "returned float"), ("1", "returned str"), ([float("nan")], "returned nan for completion 0"), ([float("inf")], "returned inf"), (["no"], "no number"), (None, "returned NoneType")]:
        def judge(completions): return bad
        with pytest.raises(ValueError, match=f"reward judge .*{words}"): call_rewards([judge], ["x"], {})


def test_other_shapes_of_reward():
    class Judge:
        def __call__(self, completions, answer): return [True] * len(completions)
    def generator(completions): return (None for _ in completions)
    assert call_rewards([Judge(), generator], ["x", "y"], dict(answer=["1", "2"])) == {"Judge": [1.0, 1.0], "generator": [None, None]}
    assert call_rewards([], ["x"], {}) == {} and call_rewards(list(REWARDS), [], {}) == {f.__name__: [] for f in REWARDS}


# ---- combining

def test_combine():                                                              # G07
    assert combine({"a": [1, None, 0], "b": [None, None, 2]}) == [1, None, 2]
    assert combine({"a": [None]}) == [None] and combine({}) == [] and combine({"a": [0.0, None]}) == [0.0, None]
    with pytest.raises(ValueError, match="a has 1, b has 2"): combine({"a": [1], "b": [1, 2]})


@given(st.lists(st.lists(st.one_of(st.none(), st.floats(-10, 10)), min_size=3, max_size=3), max_size=6))
def test_combine_counts_only_what_was_judged(rows):
    table = {name: [r[i] for r in rows] for i, name in enumerate("abc")}
    for total, row in zip(combine(table), rows, strict=True):
        judged = [x for x in row if x is not None]
        assert (total is None) == (not judged) and (not judged or math.isclose(total, sum(judged), abs_tol=1e-9))


# ---- whatever hypothesis thinks of

PIECES = [*TAGS, "40", "-40", "1,000", " ", "\n", "$", "**", "x", "so", "=", "<end_of_turn>", r"\boxed{40}"]
completions = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))


@given(completions, st.sampled_from(["40", "-40", "1,000", "0", "1/3"]))
@settings(max_examples=500)
def test_any_completion(text, gold):
    exact, approximate, answer, number = points(text, gold)
    grade = grade_number(text, gold)
    assert exact in (0, 3) and -2.5 <= approximate <= 2.5 and answer in (3, .5, .25, 0, -.5, -1) and number in (0, 1.5)
    assert -3.5 <= exact + approximate + answer + number <= 10
    assert (exact == 3) == grade.format and (exact != 3 or approximate == 2.5)
    assert (grade.strict == (exact == 3 and answer == 3)) and (answer != 3 or number == 1.5) and (number == 0 or grade.lenient)


@given(st.integers(-10**9, 10**9), st.integers(-10**9, 10**9))
def test_near_misses_by_exact_arithmetic(gold, pred):
    far = abs(pred - gold)
    expected = 3 if not far else .5 if 10 * far <= abs(gold) else .25 if 5 * far <= abs(gold) else -1
    assert answer_check([say(f"{pred:,}")], answer=[str(gold)]) == [expected]
    assert equal(gold, f"${pred:,}" if pred >= 0 else f"-${-pred:,}") == (not far)
