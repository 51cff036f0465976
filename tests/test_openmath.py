"openmath against MaxText's own reward and evaluation code, against `datasets`, and against a judge that hangs."
import importlib.util
import json
import multiprocessing.pool  # noqa: F401  (their module names it in an annotation)
import os
import re
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from grpo_tutorials.core.answers import TAGS, MathVerifier, compare, equal
from grpo_tutorials.core.chat import encode_prompt, load_tokenizer
from grpo_tutorials.core.rewards import call_rewards, combine
from grpo_tutorials.core.scale import override
from grpo_tutorials.core.training import fitting_rows, training_rows
from grpo_tutorials.tasks import openmath as om

ROOT = Path(__file__).parents[1]


def missing(what: str):
    "Skip, saying so; in CI a missing reference is a failure."
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"): pytest.fail(f"CI needs {what}")
    pytest.skip(f"not here: {what}")


def stand_in(name: str, **attributes) -> ModuleType:
    module = ModuleType(name)
    for k, v in attributes.items(): setattr(module, k, v)
    return module


@pytest.fixture(scope="module")
def theirs():
    "MaxText's utils_rl and evaluate_rl, loaded by path: what they import and these tests do not use is replaced by empty modules."
    found = importlib.util.find_spec("maxtext")
    if found is None: missing("maxtext: pip install --no-deps --ignore-requires-python maxtext==0.2.5")
    pytest.importorskip("math_verify", reason="math-verify is not installed (extra [math])")
    place = Path(next(iter(found.submodule_search_locations))) / "trainers" / "post_train" / "rl"
    said = stand_in("maxtext.utils.max_logging", log=lambda *a: None, warning=lambda *a: None)
    empty = {"optax": stand_in("optax", GradientTransformation=object), "etils": stand_in("etils", epath=None), "tqdm.auto": stand_in("tqdm.auto", tqdm=iter),
             "tunix.rl.agentic.parser.chat_template_parser": stand_in("p", parser=SimpleNamespace(DefaultChatTemplateParser=object)),
             "tunix.rl.rollout.base_rollout": stand_in("b", RolloutConfig=object),
             "maxtext": stand_in("maxtext"), "maxtext.utils": stand_in("maxtext.utils", max_logging=said), "maxtext.utils.max_logging": said}
    for name in ("tunix", "tunix.rl", "tunix.rl.agentic", "tunix.rl.agentic.parser", "tunix.rl.rollout", "maxtext.trainers", "maxtext.trainers.post_train", "maxtext.trainers.post_train.rl"):
        empty.setdefault(name, stand_in(name, __path__=[]))
    before = {k: sys.modules.get(k) for k in empty}
    loaded = {}
    sys.modules.update(empty)
    try:
        for name in ("math_verify_pool", "utils_rl", "evaluate_rl"):
            full = f"maxtext.trainers.post_train.rl.{name}"
            spec = importlib.util.spec_from_file_location(full, place / f"{name}.py")
            sys.modules[full] = loaded[name] = importlib.util.module_from_spec(spec)
            before[full] = None
            spec.loader.exec_module(loaded[name])
            setattr(sys.modules["maxtext.trainers.post_train.rl"], name, loaded[name])
    finally:
        for k, v in before.items():
            if v is None: sys.modules.pop(k, None)
            else: sys.modules[k] = v
    pool = loaded["math_verify_pool"]

    def one_after_the_other(config, items, scores, **_):
        "Their worker function, without their processes."
        for i, golds, predictions in items:
            if pool.verify_math_worker(golds, predictions) > 0: scores[i] = max(scores[i], config.reward_exact_answer)
        return scores
    loaded["utils_rl"].math_verify_pool = one_after_the_other
    loaded["config"] = config(place.parents[2] / "configs" / "post_train" / "rl.yml")
    return SimpleNamespace(**loaded)


def config(file: Path) -> SimpleNamespace:
    "The numbers and tags of rl.yml."
    text = file.read_text()
    found = dict(re.findall(r"^(reward_\w+|penalty_\w+|\w+_token):\s*([^#\n]+?)\s*(?:#.*)?$", text, re.M))
    values = {k: v.strip("'\"") if k.endswith("_token") else float(v) for k, v in found.items() if k.endswith("_token") or re.fullmatch(r"-?[\d.]+", v)}
    return SimpleNamespace(**values, debug=False, eval_mode="pass")


def their_points(theirs, completion: str, gold: str) -> list[float]:
    "What their three functions give, in the order in which they are summed."
    how = dict(prompts=[""], completions=[completion], tmvp_config=theirs.config)
    u = theirs.utils_rl
    return [u.match_format_exactly(**how)[0], u.match_format_approximately(**how)[0], u.check_numbers(answer=[json.dumps([gold, gold])], question=["Q"], **how)[0]]


def our_points(completion: str, gold: str) -> list[float | None]:
    return [f([completion], answer=[gold])[0] for f in om.REWARDS]


def whole(answer: str, reasoning: str = "so") -> str: return f"<reasoning>{reasoning}</reasoning><answer>{answer}</answer>"


MEASURED = [   # of facts: gold 4
    (whole("4"), 1.1), (whole(r"\frac{8}{2}"), 1.1), (whole("4 dollars"), 1.1), (whole("x=4"), 1.1), (whole("4") * 2, 1.1), ("<reasoning>a</reasoning>" + whole("4"), 1.1),
    (r"\boxed{4}", 1.0), ("<answer>4</answer>", 1.0), (whole("5"), 0.1), ("It is 4.", 0.0), ("", 0.0),
]
SAME = [   # (gold, completion): the same points from both
    *(("4", c) for c, _ in MEASURED),
    ("4", whole(r"\boxed{4}")), ("4", whole(r"so \boxed{3}, no, \boxed{4}")), ("4", r"\boxed{3} and then <answer>4</answer>"), ("4", r"<answer>3</answer> or \boxed{4}"), ("4", r"I get $\boxed{4}$."),
    ("4", r"\boxed{\text{four}}"), ("4", r"\boxed{4"), ("4", r"\boxed 4"), ("4", "<answer>4"), ("4", "<answer></answer>"), ("4", "<answer> </answer>"), ("4", whole("4\n")), ("4", whole("4.0")), ("4", whole("$4$")),
    ("4", "<reasoning>a<answer>4</answer></reasoning>"), ("4", "<answer>4</answer><reasoning>late</reasoning>"), ("4", whole("3") + whole("4")), ("4", whole("4") + whole("3")),
    ("4", "before " + whole("4") + " after"), ("4", "<reasoning></reasoning><answer>4</answer>"),
    (r"\frac{1}{2}", whole(r"\frac{1}{2}")), (r"\frac{1}{2}", whole(r"\dfrac{2}{4}")), (r"\frac{1}{2}", whole("0.5")), (r"\frac{1}{2}", whole("1/2")), (r"\frac{1}{2}", whole(r"\boxed{\frac{1}{2}}")), (r"\frac{1}{2}", whole(r"\frac{2}{1}")),
    (r"2\sqrt{3}", whole(r"2\sqrt{3}")), (r"2\sqrt{3}", whole(r"\sqrt{12}")), (r"2\sqrt{3}", whole(r"3\sqrt{2}")), ("x^{2}", whole("x^2")), (r"\pi", whole(r"\pi")), (r"\pi", whole("3")),
    ("(1, 2)", whole("(1,2)")), ("(1, 2)", whole("(2,1)")), ("1,000", whole("1000")), ("-3", whole("-3")), ("-3", whole("3")), ("12", whole("12 cm")), ("90", whole(r"90^\circ")), (r"\frac{7}{11}", whole(r"\frac{7}{22}")),
    *((g, whole(a)) for g, a in [("-4", "−4"), ("4", "４"), ("18", r"\$18 per day"), ("1000", "1e3"), ("5:30", "5"), ("2", "2 2/3"), (r"\frac{8}{3}", "2 2/3"), ("50", "50%"), ("50%", "50"), ("50%", "0.5"),
                                 ("4", "y=4"), ("3,4", "3"), (r"\{1,2\}", r"\{2,1\}"), ("[1,2)", "[1,2]"), ("5!", "120"), ("5!", "5"), ("Tuesday", "tuesday"), (r"\text{Tuesday}", "Tuesday"), ("12 cm", "12 m"),
                                 ("6", "2*3"), ("3/4", "0.75"), ("-1/2", r"\frac{-1}{2}"), ("4", "4 apples and 3 pears"), ("a+b", "b+a"), ("7", "7."), ("0", "-0"), (r"(-\infty, 2)", r"(-\infty,2)")]),
]


@pytest.mark.parametrize("completion, total", MEASURED)
def test_the_measured_totals(completion, total): assert sum(our_points(completion, "4")) == pytest.approx(total)


def test_the_points_are_those_of_rl_yml(theirs):
    c, p = theirs.config, om.POINTS
    assert (p.exact_format, p.partial_format, p.no_format, p.answer, p.no_answer) == (c.reward_exact_format_match, c.reward_partial_format_match, c.penalty_incorrect_format, c.reward_exact_answer, c.penalty_incorrect_answer)
    assert c.reward_white_space_format_match == c.reward_exact_answer, "an answer with spaces around it is worth the same"
    assert (c.reasoning_start_token, c.reasoning_end_token, c.solution_start_token, c.solution_end_token) == tuple(TAGS)


@pytest.mark.parametrize("gold, completion", SAME)
def test_the_same_points_as_their_code(theirs, gold, completion): assert our_points(completion, gold) == their_points(theirs, completion, gold)


DIFFERENT = [   # (gold, completion, theirs, ours, why ours stands)
    ("x^2+2x+1", whole("(x+1)^2"), 0.1, 1.1, "a formula with a power is compared as it is written there, here by value"),
    ("(x-1)(x+1)", whole("x^2-1"), 0.1, 1.1, "the same"),
    ("1024", whole("2^{10}"), 0.1, 1.1, "the same"),
    ("3,4", whole("4,3"), 0.1, 1.1, "two solutions have no order"),
    ("2 or 3", whole("3 or 2"), 0.1, 1.1, "the same in words"),
    ("1 000", whole("1000"), 0.1, 1.1, "a space between thousands"),
    ("1.5 million", whole("1500000"), 0.1, 1.1, "a million in words"),
    ("0.5", whole("50%"), 1.1, 0.1, "a percent sign is read as the unit of a 50, unless the gold has it"),
    ("x=4", whole("y=4"), 1.1, 0.1, "another unknown"),
    ("4", whole("1") + "<end_of_turn>\n<start_of_turn>user\nNo.<end_of_turn>\n<start_of_turn>model\n" + whole("4"), 1.1, 0.1,
     "what is said behind the end of the turn is not the answer, and nothing stops this recipe's sampler there"),
]


@pytest.mark.parametrize("gold, completion, their_total, our_total, why", DIFFERENT, ids=[d[4][:30] for d in DIFFERENT])
def test_listed_differences(theirs, gold, completion, their_total, our_total, why):
    assert sum(our_points(completion, gold)) == pytest.approx(our_total), why
    assert sum(their_points(theirs, completion, gold)) == pytest.approx(their_total), "the reference has changed: look at this difference again"


def test_the_same_points_on_every_demonstration(theirs):
    for d in om.demonstrations(150, seed=5):
        p = next(p for p in om.problems() if p.text in d["prompt"][0]["content"])
        assert our_points(d["completion"], p.answer) == their_points(theirs, d["completion"], p.answer), d


def test_final_answers_are_read_as_theirs_are(theirs):
    for _, text in SAME:
        ours = om.final_answer(text)
        assert (theirs.utils_rl.FALLBACK_ANSWER if ours is None else ours) == theirs.utils_rl.extract_answer(text, theirs.config), text


def their_score(theirs, completions, gold, mode):
    theirs.config.eval_mode = mode
    return tuple(float(x) for x in theirs.evaluate_rl.score_responses(theirs.config, "Q", completions, [gold]))


def our_score(completions, gold, mode):
    s = om.score(completions, gold, mode)
    return tuple(float(x) for x in (s.correct, s.partial, s.format))


ONE = ["10", "9", "11", "8.9", "11.2", r"\frac{20}{2}", "ten", "-10", r"\boxed{9.5}", "10.5 cm"]


@pytest.mark.parametrize("mode", om.MODES)
@pytest.mark.parametrize("gold", ["10", "-10", r"\frac{1}{2}", "1"])
def test_scores_of_one_try(theirs, mode, gold):
    for a in ONE + [r"\frac{11}{20}", "0.46", "0"]:
        for text in (whole(a), f"<answer>{a}</answer>", f"It is {a}."): assert our_score([text], gold, mode) == their_score(theirs, [text], gold, mode), (text, gold)


def test_scores_of_several_tries(theirs):
    for tries in ([whole("10"), whole("9"), whole("3")], [whole("3"), whole("3"), whole("10")], [whole("10")] * 3, ["<answer>10</answer>", whole("10"), whole("2")]):
        assert our_score(tries, "10", "pass_at_1") == pytest.approx(their_score(theirs, tries, "10", "pass_at_1"))
        assert our_score(tries, "10", "maj") == their_score(theirs, tries, "10", "maj")


def test_two_differences_in_how_tries_are_made_one(theirs):
    "Theirs forgets a right try when a later one is wrong and no try has everything; and counts 1/2 and 0.5 as two opinions."
    tries = ["<answer>10</answer>", whole("3")]
    assert their_score(theirs, tries, "10", "pass") == (0, 0, 1) and our_score(tries, "10", "pass") == (1, 1, 1)
    votes = [whole("1/2"), whole("0.5"), whole("7"), whole("7"), whole(r"\frac{1}{2}")]
    assert their_score(theirs, votes, "0.5", "maj")[0] == 0 and our_score(votes, "0.5", "maj")[0] == 1


def test_the_split_is_that_of_datasets():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    for n in (2, 19, 20, 21, 100, 1003, 12_000):
        d = datasets.Dataset.from_dict({"i": list(range(n))}).train_test_split(test_size=0.05, seed=42)
        train, test = om.split_rows(n)
        assert (d["train"]["i"][:], d["test"]["i"][:]) == (train, test)


def test_a_written_table_is_read_by_datasets_too(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    file = om.write_table(tmp_path / "a", 120)
    assert file.read_bytes() == om.write_table(tmp_path / "b", 120).read_bytes(), "the same numbers, the same file"
    rows = datasets.load_dataset("parquet", data_files={"train": str(file)}, split="train", cache_dir=str(tmp_path / "cache")).to_list()
    assert rows == om.synthetic(120) and list(rows[0]) == ["problem", "generated_solution", "expected_answer", "problem_source"]


def test_the_synthetic_table_is_right():
    rows, made = om.synthetic(), om.problems()
    assert len({r["problem"] for r in rows}) == om.SIZE and max(Counter(p.kind for p in made).values()) == om.SIZE // len(om.KINDS)
    for r, p in zip(rows, made):
        assert equal(r["expected_answer"], str(om.value(p.text))) and om.last_box(r["generated_solution"]) == r["expected_answer"]
        for step in p.steps + (p.wrong[0] if p.wrong else ()):
            left, result = step.split(" = ")
            assert eval(left) == int(result), p                       # three tokens of our own making
        assert p.wrong is None or not equal(p.wrong[1], p.answer), "a misconception that comes out right teaches nothing"
    text = json.dumps(rows)
    assert all(x in text for x in ("\\\\frac{", "\\\\boxed{", "^{2}", "\\\\{"))


def test_nothing_held_out_was_shown():
    task = om.load("cpu")
    held = {r["question"] for r in task.rows("test", task.size("test"), 0)}
    assert len(held) == 600 and not held & {r["question"] for r in task.rows("train", None, 3)}
    for d in om.demonstrations(3000, seed=9): assert d["prompt"][0]["content"].split("\n\n")[1] not in held


def test_problems_that_stand_on_both_sides_are_taken_out(tmp_path):
    rows = om.synthetic(100)
    table = om.Table(lambda: rows * 5, om.load_data_template("openmathinstruct2_rl"))
    with pytest.raises(ValueError, match="stand in the training part too"): table("test", 1)
    table = om.Table(lambda: rows + rows[:50], om.load_data_template("openmathinstruct2_rl"))
    known = {r["question"] for r in table("train")}
    assert table.left_out["known"] > 0 and not known & {r["question"] for r in table("test")}


def test_long_prompts_are_left_out():
    task = om.load("cpu")
    tok = load_tokenizer(ROOT / "grpo_tutorials" / "models" / "checkpoints" / "gsm8k")
    lengths = sorted(len(encode_prompt(r["prompt"], tok)) for r in task.rows("test", 30, 0))
    scale = override(task.scale("cpu"), max_prompt_length=lengths[15], eval_n=20, steps=2, prompts_per_step=8)
    held = fitting_rows(task, "test", 20, 0, scale, tok)
    assert len(held) == 20 and max(len(encode_prompt(r["prompt"], tok)) for r in held) <= lengths[15]
    assert len(training_rows(task, scale, 0, tok)) == 16 and fitting_rows(task, "test", 10, 0, scale, tok) == held[:10]
    with pytest.raises(ValueError, match="give a larger --max-prompt-length"): fitting_rows(task, "test", 1, 0, override(scale, max_prompt_length=3), tok)


def test_a_judge_that_hangs_is_no_zero(monkeypatch):
    pytest.importorskip("math_verify", reason="math-verify is not installed (extra [math])")
    judge = MathVerifier()
    ask = lambda g, p, t=0.0: judge(g, p, t)                            # no time at all: nobody can answer
    verdicts = om.Verdicts(judge=lambda gold, pred: compare(gold, pred, ask))
    monkeypatch.setattr(om, "VERDICTS", verdicts)
    hard, easy = whole(r"\int_0^1 x^2 dx + \sqrt{5}"), whole("3")
    assert om.number_check([hard, easy, whole(r"2 + \sqrt{2}"), "nothing"], answer=[r"\sqrt{7} + 1", "3", r"2 + \sqrt{2}", "3"]) == [None, 1.0, 1.0, 0.0]
    assert (verdicts.asked, verdicts.unsure) == (4, 1)
    g = om.grade(hard, dict(answer=r"\sqrt{7} + 1"))
    assert g.strict is None and g.lenient is None and verdicts.unsure == 2
    table = call_rewards(om.REWARDS, [hard], dict(answer=[r"\sqrt{7} + 1"]))
    assert table["number_check"] == [None] and combine(table) == [0.1], "what was judged still counts"
    s = om.score([hard, whole(r"1 + \sqrt{7}")], r"\sqrt{7} + 1", "pass_at_1", om.Verdicts(judge=lambda g, p: None if "int" in p else True))
    assert s.correct == 1.0 and om.summarize([om.score([hard], r"\sqrt{7} + 1", "maj", verdicts)])["unjudged"] == 1
    judge.close()


def test_the_recipe_s_numbers():
    full = om.SCALES["full"]
    assert (full.prompts_per_step, full.steps, full.group_size, full.learning_rate, full.beta, full.epsilon) == (128, 500, 8, 1e-6, 0.05, 0.2)
    assert (full.max_prompt_length, full.max_prompt_length + full.max_completion_length, full.temperature, full.top_k, full.top_p) == (512, 4096, 0.8, 50, 0.95)
    assert (full.model, full.mesh, full.max_grad_norm, full.save_steps, full.eval_n) == ("google/gemma-4-E4B", (8, 2), 1.0, 25, 5 * 128)


def test_bad_data_is_one_line(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for make, error, why in [(lambda d: None, FileNotFoundError, "no .parquet file"), (lambda d: (d / "a.parquet").write_bytes(b"PAR1"), ValueError, "not a Parquet file"),
                             (lambda d: pq.write_table(pa.table({"question": ["a"], "answer": ["1"]}), d / "a.parquet"), ValueError, "no column problem"),
                             (lambda d: pq.write_table(pa.table({"problem": [None] * 30, "expected_answer": ["1"] * 30, "problem_source": ["m"] * 30}), d / "a.parquet"), ValueError, "rows")]:
        d = tmp_path / why.replace(" ", "_")
        d.mkdir()
        make(d)
        with pytest.raises(error, match=why) as e: om.load("cpu", str(d))
        assert "\n" not in str(e.value)
    with pytest.raises(FileNotFoundError, match="no data folder"): om.load("cpu", str(tmp_path / "nowhere"))


def test_the_checkpoint_is_a_base_model_as_the_recipe_finds_one():
    from grpo_tutorials.core.chat import render_prompt
    from grpo_tutorials.core.lint import lint
    from grpo_tutorials.models import tiny
    folder, task = tiny.checkpoint("openmath"), om.load("cpu")
    c, made, scale = tiny.model_config(folder), tiny.verify(folder), om.SCALES["cpu"]
    assert sum(f.stat().st_size for f in folder.iterdir()) < 3e6 and made["parameters"] < 1.1e6
    assert (c["model_type"], c["num_key_value_heads"], c["vocab_size"] % 16, c["num_kv_shared_layers"]) == ("gemma4_text", 2, 0, 2) and c["hidden_size_per_layer_input"] > 0
    assert not tiny.has_template(folder) and load_tokenizer(folder).eos_ids == (1,)
    row = task.rows("test", 1, 0)[0]
    with pytest.raises(ValueError, match="--chat-template"): render_prompt(row["prompt"], load_tokenizer(folder))
    with pytest.raises(FileNotFoundError, match="it is a base model"): tiny.check_model(folder)
    tok = load_tokenizer(folder, scale.chat_template)
    assert len(tok) == c["vocab_size"] and len(tok.encode("<start_of_turn>")) == 7 and len(tok.encode("<|turn>")) == 1
    assert max(len(encode_prompt(r["prompt"], tok)) for r in task.rows("test", 200, 0)) <= scale.max_prompt_length
    longest = max(len(tok.encode(om.tagged(*way))) for p in om.problems()[:3000] for way in [(p.steps, p.answer), p.wrong] if way)
    assert longest < scale.max_completion_length
    found = {f.name: f.severity for f in lint(tok, None, "openmathinstruct2_rl")}
    assert found["markers are tokens"] == found["the end stops"] == "warn" and "fail" not in found.values()
    kinds = made["measured"]["kinds"]
    assert made["measured"]["sampled"] > 0.3 and kinds["synthetic_function"]["greedy"] < 0.2 < kinds["synthetic_product"]["greedy"]


# ---------------------------------------------------------------- odd golds and files

def test_a_gold_that_json_has_as_a_number_is_one_and_what_is_none_is_said():
    from grpo_tutorials.tasks.openmath import grade, number_check
    done = "<reasoning>x</reasoning><answer>4</answer>"
    for gold in ("4", 4, 4.0): assert grade(done, dict(answer=gold)).strict and number_check([done], [gold]) == [1.0]
    for gold in (None, "", " ", True, [4], {"a": 4}, float("nan")):
        with pytest.raises(ValueError, match="give the gold answer"): grade(done, dict(answer=gold))
    assert number_check([done], [None]) == [None] and number_check([done, done], 4) == [1.0, 1.0]


def test_a_factorial_of_three_digits_is_not_its_number():
    from grpo_tutorials.tasks.openmath import judge
    assert [judge(g, p) for g, p in (("100", "100!"), ("100!", "100!"), ("3", "3!"), ("6", "3!"))] == [False, True, False, True]


def test_a_table_that_cannot_be_used_names_the_file_or_the_kind(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    from grpo_tutorials.tasks.openmath import load, write_table
    columns = dict(problem=[f"Problem {i}?" for i in range(60)], expected_answer=[str(i) for i in range(60)], problem_source=["s"] * 60)
    def folder(name, **other):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table(columns | other), tmp_path / name / "a.parquet")
        return tmp_path / name
    broken = folder("broken") / "a.parquet"
    data = bytearray(broken.read_bytes())
    data[100:160] = bytes(x ^ 255 for x in data[100:160])
    broken.write_bytes(data)
    twice = folder("twice")
    pq.write_table(pa.table([["p"] * 9, ["q"] * 9, ["1"] * 9, ["s"] * 9], names=["problem", "problem", "expected_answer", "problem_source"]), twice / "a.parquet")
    for path, words in ((broken.parent, "a.parquet: cannot be read"), (twice, "a.parquet: cannot be read"), (folder("ints", expected_answer=list(range(60))), "expected_answer is int"), (folder("none", expected_answer=[None] * 60), "expected_answer is NoneType")):
        with pytest.raises(ValueError, match=words) as e: load("smoke", str(path))
        assert "\n" not in str(e.value)
    with pytest.raises(ValueError, match="is a file"): write_table(broken, 60)
