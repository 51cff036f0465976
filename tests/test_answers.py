"The judge is right: every kind of case that broke one like it, all of GSM8K in every spelling, and whatever hypothesis thinks of."

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_tutorials.core import answers as A
from grpo_tutorials.core.answers import (
    LIMIT, TAGS, MathVerifier, Tags, answer_block, clean_solution, compare, completion_text, equal, equal_set, extract_answer, extract_number,
    gold, grade_number, normalize, parse_number, spell, strip_terminators, tail_length, until_eos, verify_math, well_formed,
)

settings.register_profile("calm", deadline=None, suppress_health_check=[HealthCheck.too_slow])   # a busy machine is no failure
settings.load_profile("calm")

ROOT = Path(__file__).resolve().parent.parent
GSM8K = Path(os.environ.get("GRPO_GSM8K_DIR") or Path(os.environ.get("GRPO_SHARED", ROOT.parent / "shared")) / "gsm8k")


def spelled(text):
    "A value written the way the cases write it."
    return None if text is None else parse_number(text)


def ask_nobody(g, p):
    raise AssertionError(f"math-verify was asked about {g} and {p}")


# ---- one number in a text (M01-M42, T15) and its siblings

@pytest.mark.parametrize("text, value", [
    ("He sold 48 jars, as planned.", 48),                                       # M01: a bare comma is no number
    ("He sold, in all, 48 jars, or so, as planned, ...", 48),
    ("The answer is 48, which he then gave, in part, away.", 48),               # M02
    ("Boxes: 3x4 layout, so 3 4", 4),                                           # M03: an unescaped dot
    ("12 and 3.4", Decimal("3.4")), ("so 7 8 9", 9), ("A4 paper, 12 sheets of A4", 12),
    (r"\boxed{$7{,}250}", 7250), (r"\boxed{1{,}234{,}567}", 1234567), (r"\boxed{\$7,\!250.00}", 7250), (r"\boxed{7\,250}", 7250),   # M05
    ("#### 42\n" + "thus it is consistent. " * 40, 42),                          # M12: no window
    ("<answer>42</answer>" + " thus it is consistent." * 2000, 42), (r"\boxed{42}" + " and 7 so on." * 2000, 42),
    ("Like the example: #### 10. Now mine: 6*7\n#### 42", 42),                  # M13: the last mark
    (r"like \boxed{10}, so \boxed{42}", 42), ("<answer>10</answer> no: <answer>42</answer>", 42),
    ("Final answer: **73**", 73), ("Final answer: *73*", 73), ("__73__ apples", 73), ("***73***", 73), ("`73`", 73), ("**73", 73), ("<b>73</b>", 73),  # M15
    ("<answer>4 10/3</answer>", None), ("<answer>1 3/2</answer>", None), ("<answer>2 0/3</answer>", None), ("it is 4 10/3", None),   # M17
    (r"\fbox{5}", 5), (r"\boxed{12", None), (r"\boxed", None), (r"\boxed 9", 9), (r"\boxed{}", None), (r"\boxed{\text{12}", None),   # M23
    (r"\boxed{3} then \boxed{\boxed{5}}", 5), (r"\boxed{\frac{1}{\frac{2}{3}}}", None), (r"\boxed{\{5\}}", 5),
    ("<answer>4", None), ("<answer></answer>", None), ("12 <answer>", None),
    ("４２", 42), ("１，２３４", 1234), ("＄５", 5), ("²", None),                   # M25
    ("①", None), ("Ⅳ", None), ("四", None), ("５０％", 50), ("１２．５", Decimal("12.5")), ("－７", -7), ("答えは４２です。", 42), ("٤٢", 42), ("𝟒𝟐", 42),
    ("1e3", 1000), ("2.5E2", 250), ("1e3 apples", 1000), ("1E+3", 1000), ("5e-1", Decimal("0.5")),                                # M26
    (r"2.5 \times 10^3", 2500), ("2.5 × 10³", 2500), ("2 x 10^{-3}", Decimal("0.002")), ("3*10^2", 300), ("10^3", None), ("5e", None),
    ("2 000", 2000), ("2\u00a0000", 2000), ("2\u202f000 km", 2000), ("2\u2009000", 2000), ("2 000 km", 2000), ("1 0 0 0", 0), ("20 00", 0),   # M30
    ("1 000 000", 1000000), ("1234 000", 0), ("1 0000", 0), ("2020 300", 300),
    ("nan", None), ("inf", None), ("-Infinity", None), ("1_000", None), ("0x1F", None), ("1_0_0", None), ("0b11", None), ("NaN5", None),  # M34
    (r"\$18 per day", 18), (r"**Answer: \$18 per day.**", 18), ("18 dollars/day", 18), ("$18/day", 18), ("18 USD", 18), ("USD 18", 18), ("€18", 18),   # M41
    (r"$N = \textbf{6}$", 6), (r"\mathbf{88.5}", Decimal("88.5")), (r"\text{7}", 7), (r"\mathrm{7}\text{ km}", 7), (r"\left(7\right)", 7),    # M42
    (r"\pm 7", None), (r"3 \cdot 7", None), (r"\sqrt{7}", None), (r"\sqrt 7", None), (r"x^{7}", None), ("√7", None), (r"\log5", None),
    ("profit is\n\n$200,000 - $130,000 = $70,000.", 70000),                     # T15
    ("so $5 - $12 = -$7.", -7), ("= −7", -7), ("16 - 3 - 4 = 9 eggs", 9),
    ("<reasoning>format is <answer>99</answer>, so</reasoning><answer>7</answer>", 7),   # T08
    ("<reasoning>thinking... <answer>3</answer>", 3),                            # T11
    ("<Reasoning>a</Reasoning><ANSWER>3</ANSWER>", None), ("<reasoning >a</reasoning ><answer >3</answer >", None),   # T12
    ("no tags at all", None), ("", None), ("   \n", None),                       # M39
    ("\x0crac12", None), ("\x0crac{1}{2}", None), ("\x08oxed{12}", None), ("\text{12}", None), ("5 \x0crac12", None), ("1\x002", None),   # M11
    ("9**9**9**9", None), (r"\boxed{10^{10^{9}}}", None), ("2^10", None), ("5!=120", 120),   # M33
    ("3-5", None), ("between 3 and 5", 5), ("at 5:30", None), ("on 5/4/2023", None), ("v1.2.3", None), ("192.168.0.1", None),
    ("#### Step 3: add\nso it is 12", 12), ("#### Answer: 12", 12), ("##### 3\n12", 12),
    ("#### 200 - 50 = 150", 150), ("####", None), ("#### none\n", None),
    ("\u200b4\u200b2", 42), ("the answer\u2014 42", 42),
])
def test_extract(text, value):
    assert extract_number(text) == value


@pytest.mark.parametrize("text, value", [
    ("12 percent", 12), ("x = 5", 5), ("5 = x", 5), ("x=5", 5), ("n = 2, 3", None), ("6*7 = 42", 42), ("Monday", None),     # M40
    ("5 cents", 5), ("5 seconds", 5), ("5 days", 5), ("5 square feet", 5), ("5 m^2", 5), ("5 m²", 5), ("5²", None), ("5 km/h", 5), ("90°", 90), (r"90^\circ", 90),
    ("-5", -5), ("−5", -5), ("–5", -5), ("‐5", -5), ("\u20115", -5), ("—5", None), ("- 5", -5), ("(-5)", -5), ("-(5)", -5), ("-$5", -5), ("$-5", -5), ("-US$5", -5),
    ("minus 5", -5), ("MINUS $5", -5), ("Rs. 1,00,000/-", 100_000), (r"\text{Answer: } 42", 42), ("$$42$$", 42), (r"\[ 42 \]", 42), ("-" + "(" * 30 + "5", -5), ("10 000,50", None), ("negative 5", -5), ("(5)", 5), ("+5", 5), ("+-5", None), ("--5", None), ("-(-5)", None), ("±5", None), (r"-\frac{1}{2}", Fraction(-1, 2)), (r"\frac{1}{-2}", Fraction(-1, 2)),
    ("1/2", Fraction(1, 2)), ("1 / 2", Fraction(1, 2)), ("1⁄2", Fraction(1, 2)), ("½", Fraction(1, 2)), ("2½", Fraction(5, 2)), ("-2½", Fraction(-5, 2)), ("2 and 1/2", Fraction(5, 2)),
    (r"2\frac{1}{2}", Fraction(5, 2)), (r"2\tfrac12", Fraction(5, 2)), ("1/0", None), ("0/5", 0), ("10/5", 2), ("1/2/3", None), (r"\frac{1}{2}3", None), ("1,000/3", Fraction(1000, 3)),
    ("5 million", 5_000_000), ("2.5 million dollars", 2_500_000), ("3 hundred thousand", 300_000), ("$20k", 20_000), ("$5M", 5_000_000), ("5M", None), ("5 thousandths", None), ("2 thirds", None),
    ("5 squared", None), ("2 and a half", None), ("5x", None), ("2π", None), (r"2\pi", None), ("5i", None), ("5 > 4", None), ("> 5", None), ("≥ 5", None), ("x ≠ 5", None),
    ("1,000", 1000), ("1,00,000", 100_000), ("12,34,567", 1234567), ("1'000", 1000), ("1’000", 1000), ("1,00", None), ("1,0000", None), ("0,500", None), ("1,5", None), ("1.234,56", None), (",5", None),
    ("007", 7), (".5", Decimal("0.5")), ("5.", 5), ("-.5", Decimal("-0.5")), ("5..", 5), ("0", 0), ("-0", 0), ("0.0", 0), ("00", 0),
    ("5 or 6", None), ("5, 6", None), ("5 6", None), ("5 to 6", None), ("5-6", None), ("5 feet 3 inches", None), ("5'3", None), ("10-year", 10), ("5:30", None), ("3:4", None),
    ("COVID-19", None), ("x1", None), ("y - 2", None), ("y + 2", None), ("half of 8", None), ("not 8", None), ("log 8", None), ("10% - 5%", None),
    ("5!", 5), ("5?", 5), ("“5”", 5), ("'5'", 5), ("[5]", 5), ("{5}", 5), ("5\n", 5), ("5\r\n", 5), ("The final answer is: 5.", 5), ("Total cost: $5", 5), ("5①", None), ("4️⃣", None), ("42 🎉", 42),
    ("twelve", None), ("1e999999999", Decimal("1e999999999")), ("1e9999999999", None), ("1e-999999999", Decimal("1e-999999999")),
])
def test_parse(text, value):
    assert parse_number(text) == value


# ---- equality

@pytest.mark.parametrize("g, p, same", [
    *[("29", p, True) for p in ["$29.00", "29.", "29.0", "$29", "29 dollars", " 29 "]],                                   # M06
    *[("1/2", p, True) for p in [r"\frac12", r"\frac{1}{2}", r"\dfrac12", r"\tfrac{1}{2}", "0.5", "2/4", "½"]], ("1/2", "\x0crac12", False), ("12", "\x0crac12", False),   # M11
    ("2", "2 2/3", False), ("8/3", "2 2/3", True), ("2/3", "2 2/3", False), ("3", "2 2/3", False), ("8/3", r"2\frac{2}{3}", True),   # M16
    ("50", "50%", True), ("50", "50 percent", True), ("50", r"50\%", True), ("0.5", "50%", False), ("50%", "0.5", True), ("50%", "50", True), ("50%", "1/2", True), ("50%", "5", False),  # M27
    ("0.0000001", "0.0000002", False), ("0.333333", "1/3", True), ("1/3", "0.333333", True), ("1000000", "1000001", False),   # M38
    ("2/3", "0.666667", True), ("2/3", "0.666666", True), ("2/3", "0.666668", False), ("1/3", "0.33", False), ("1/8", "0.125001", False), ("-1/3", "0.333333", False),
    ("123456789012345678901234567890", "123456789012345678901234567891", False), ("0.1", "0.1000000000000000055511151231257827", False),
    ("9" * 5000, "9" * 5000, True), ("9" * 5000, "9" * 4999 + "8", False), ("9" * 5000, "9" * 5000 + ".0", True),        # M32
    ("1e999999999", "1e999999999", True), ("1e999999999", "1e999999998", False), ("1" + "0" * 5000, "1e5000", True),
    ("nan", "nan", False), ("inf", "inf", False), ("", "", False), ("Monday", "Monday", False), ("-5", "5", False), ("1,000", "1", False),
    (29, "29.00", True), (29.0, "29", True), (Fraction(1, 2), "0.5", True), (Decimal("2.5"), "2.50", True), (True, "1", False), (None, "1", False), (float("nan"), "5", False), (Decimal("NaN"), "5", False),
])
def test_equal(g, p, same):
    assert equal(g, p) is same


@pytest.mark.parametrize("g, p, same", [
    (["11", "12"], "12", False), (["11", "12"], "11", False), (["11", "12"], "11 and 12", True), (["11", "12"], "12, 11", True), (["11", "12"], "11,12", True),   # M19
    (["11", "12"], r"\{12, 11\}", True), (["11", "12"], "$11$ and $12$", True), (["11", "12"], "11, 12, 13", False), (["11", "12"], ["12", "11"], True), ("1331 and 1728", "1728", False),
    (["100", "200"], "100,200", True), (["100200"], "100,200", True), (["1,331", "1,728"], "1,331 and 1,728", True), (["1/2"], "0.5", True), ([], "", False), (["1"], "x", False),
    (["2", "-2"], "x = 2 or x = -2", True), ([11, 12], "12; 11", True),
])
def test_equal_set(g, p, same):
    assert equal_set(g, p) is same


@pytest.mark.parametrize("g, p, same", [
    ("[1,2]", "(1,2)", False), ("(1,2]", "(1,2)", False), ("(1,2)", "(1, 2)", True), ("[1,2)", "[1, 2)", True), (r"\left[1,2\right]", "[1,2]", True), ("(1,2)", r"\{1,2\}", False),   # M36
    (r"[1,2]\cup[3,4]", r"[1,2] \cup [3,4)", False), (r"[1,2]\cup[3,4]", r"[3,4]\cup[1,2]", True), ("(1,2,3)", "(1,2)", False), ("(1,2)", "(2,1)", False),
    (r"\pm 5", "5", False), ("5", r"\pm 5", False), (r"\pm 5", "-5", False), (r"\pm 5", "5, -5", True), (r"\pm 5", r"\pm 5", True), ("n=2,3,4", "n=1,2,3", False), ("n=2,3,4", "n=2,3", False),   # M37
    ("n=2,3,4", "4, 3, 2", True), ("x=5", "5", True), ("x=5", "y=5", False), ("5", "2+3=5", True), ("6", "2+3=5", False), ("5", "5=6", False),
    ("8/3", "2 2/3", True), ("2", "2 2/3", False), ("1000", "1e3", True), ("50", r"50\%", True), ("0.5", r"50\%", False), ("18", r"\$18 \text{ per day}", True), ("-7", "−7", True), ("5", "5:30", False),
    ("1", "9**9**9**9", False), ("1", "10^{10^{9}}", False), ("10^{10^{9}}", "10^{10^{9}}", True), ("Monday", "Monday", True), ("Monday", "Tuesday", False), ("", "", False), ("5", "", False),
    (r"\text{east}", "east", True), ("x" * 2000, "y" * 2000, False),
])
def test_decided_without_a_worker(g, p, same):
    assert compare(g, p, ask_nobody) is same


# ---- golds and solutions

@pytest.mark.parametrize("text, value", [
    ("a #### 5 b\n#### 8\n\n", 8), ("#### 1,042", 1042), ("#### -10", -10), ("#### $5.00", 5), ("42", 42), ("None", None), ("#### None", None), ("", None), ("He has 5 and 6", None), ("He has 5 ####", None), (42, 42), (None, None), (2.5, Decimal("2.5")),
])
def test_gold(text, value):                                                      # M14, D06
    assert gold(text) == value


def test_clean_solution():                                                       # D04
    assert clean_solution("He pays 80*2=$<<80*2=160>>160.\n#### 160") == ("He pays 80*2=$160.", "160")
    assert clean_solution("<<1+1=2>>2 and <<2*2=4>>4\n#### 1,004\n") == ("2 and 4", "1,004")
    assert clean_solution("no mark") == ("no mark", None)


def test_normalize():                                                            # M40
    assert [normalize(t) for t in ["Monday", "12 percent", "x = 5", "5 = x"]] == ["Monday", "12", "5", "5"]
    assert [spell(x) for x in [1000, Decimal("2.5"), Fraction(8, 3), Decimal("1e999999999"), None]] == ["1000", "2.5", "8/3", "1E+999999999", None]


# ---- form

RIGHT = "<reasoning>6*7</reasoning><answer>42</answer>"

@pytest.mark.parametrize("text, formed", [
    ("<reasoning>\nline 1\nline 2\n</reasoning>\n<answer>\n4\n</answer>", True),                                        # T01
    ("<reasoning>a</reasoning><reasoning>b</reasoning><answer>4</answer>", False),                                      # T02
    ("<reasoning>a</reasoning><reasoning>b</reasoning><answer>c</answer>", False), ("<reasoning>a</reasoning> <answer>1</answer><answer>2</answer>", False),   # T03
    ("x<reasoning>a</reasoning><answer>1</answer>", False), ("<reasoning>a</reasoning>chat<answer>1</answer>", False), ("<reasoning>a</reasoning>\n<answer>1</answer>\n", True),
    *[(f"<reasoning>a</reasoning><answer>1</answer>{end}", True) for end in ["<end_of_turn>", "<turn|>", "<eos>", "<end_of_turn>\n", "<eos><pad><pad>", "<|im_end|>"]],       # T04
    ("<reasoning>format is <answer>99</answer>, so</reasoning><answer>7</answer>", False),                              # T08
    ("<reasoning>thinking... <answer>3</answer>", False),                                                               # T11
    ("<Reasoning>a</Reasoning><ANSWER>3</ANSWER>", False), ("<reasoning >a</reasoning ><answer >3</answer >", False),    # T12
    ("<answer>3</answer><reasoning>a</reasoning>", False), ("<reasoning></reasoning><answer>3</answer>", False), ("<reasoning> \n</reasoning><answer>3</answer>", False),   # T13
    ("<reasoning>a</reasoning><answer></answer>", False), ("<reasoning>a<answer>3</answer></reasoning>", False), (RIGHT + " ok", False), ("</answer>", False), ("", False),
])
def test_form(text, formed):
    assert well_formed(text) is formed
    assert well_formed([{"role": "assistant", "content": text}]) is formed


@pytest.mark.parametrize("tags", [Tags("[R]", "[/R]", "(A)", "(/A)"), Tags("^+", "+^", ".*", "*."), Tags("<a>", "<a><b>", "\\d", "$"), Tags("think", "/think", "ans", "/ans")])
def test_other_tags(tags):                                                       # T13
    a, b, c, d = tags
    text = f"{a} 6 times 7 {b} {c} 42 {d}"
    grade = grade_number(text, "42", tags)
    assert (grade.format, grade.strict, grade.lenient, grade.extracted) == (True, True, True, "42")
    assert not well_formed(text.upper().replace("6", "6 \n") + d, tags)
    assert not well_formed(RIGHT, tags)


def test_tail():                                                                 # T06
    assert tail_length("<reasoning>wwwwwwwwww</reasoning><answer>1</answer>") == 0
    assert tail_length("<answer>1</answer>\n\nbye") == 3
    assert tail_length("no closing tag at all") == 0


def test_ends():                                                                 # T04, T07
    assert until_eos([11, 12, 1, 13, 14], [1]) == [11, 12]
    assert until_eos([11, 106, 1], {1, 106}) == [11]
    assert until_eos([11, 12], [1]) == [11, 12]
    assert strip_terminators("<answer>1</answer><end_of_turn>\n<start_of_turn>user\n<answer>2</answer>") == "<answer>1</answer>"
    assert strip_terminators("<pad><pad>a<eos>") == "a"


def test_shapes():
    assert completion_text([{"role": "user", "content": "no"}, {"role": "assistant", "content": "yes"}]) == "yes"
    assert completion_text([{"role": "assistant", "content": None}]) == ""
    assert completion_text([]) == ""
    with pytest.raises(ValueError, match="string or a list of messages"): completion_text(5)
    with pytest.raises(ValueError, match="cannot be told apart"): Tags(answer_end="<answer>")


# ---- grades

@pytest.mark.parametrize("completion, answer, form, strict, lenient", [
    ("The answer is 48, which he then gave, in part, away.", "48", False, False, True),                                  # M02
    ("Maybe 12? I did not finish", "12", False, False, True),                                                           # M20
    ("<answer>14</answer> (see step 4, 24 and 40)", "4", False, False, False),                                          # M21
    ("<answer>" + "9" * 5000 + "</answer>", "7", False, False, False), (f"<reasoning>a</reasoning><answer>{'9' * 5000}</answer>", "9" * 5000, True, True, True),   # M32
    (r"<answer>9**9**9**9</answer> and \boxed{10^{10^{9}}}", "1", False, False, False), ("<answer>9**9**9**9</answer>", "9", False, False, False),   # M33
    *[(f"<answer>{x}</answer>", "5", False, False, False) for x in ["nan", "inf", "-Infinity", "1_000"]], ("<answer>1_000</answer>", "1000", False, False, False),   # M34
    (r"\boxed{\frac{1}{3}}", "1/3", False, False, True),                                                                # M35
    ("<answer>-1000000</answer>", "-1000000", False, False, True), ("no tags at all", "-1000000", False, False, False),   # M39
    ("<reasoning>thinking... <answer>3</answer>", "3", False, False, True),                                             # T11
    ("<Reasoning>a</Reasoning><ANSWER>3</ANSWER>", "3", False, False, False), ("<reasoning >a</reasoning ><answer >3</answer >", "3", False, False, False),   # T12
    *[(f"<reasoning>a</reasoning><answer>{x}</answer>", "1042", True, True, True) for x in ["1042", "1,042", "$1,042.00", "**1042**", r"\boxed{1042}", "1042 apples", " 1042. ", "x = 1042", "１０４２"]],
    ("<reasoning>a</reasoning><answer>She has 1042 left</answer>", "1042", True, False, True),
    *[(f"<reasoning>a</reasoning><answer>{x}</answer>", "12", True, False, False) for x in ["11 or 12", "12, 13", "12 13", "3*4", "-12", "12:30", "twelve"]],
    (RIGHT + RIGHT, "42", False, False, True), (RIGHT + " Bye 7", "42", False, False, True), ("<reasoning>6*7 = 42</reasoning>", "42", False, False, True), ("<reasoning>6*7 = 42</reasoning><answer>4", "4", False, False, False),
])
def test_grade(completion, answer, form, strict, lenient):
    grade = grade_number(completion, answer)
    assert (grade.format, grade.strict, grade.lenient) == (form, strict, lenient)
    assert grade == grade_number([{"role": "assistant", "content": completion}], f"because\n#### {answer}")


def test_a_gold_that_cannot_be_read_is_an_error():
    for answer in ("None", "#### None", "", None, "see above"):
        with pytest.raises(ValueError, match="drop the row"): grade_number(RIGHT, answer)


def test_the_answer_as_written():
    assert extract_answer(r"<answer> \frac{\sqrt{3}}{2} </answer>") == r"\frac{\sqrt{3}}{2}"
    assert extract_answer("so it is 1,000.") == "1000"
    assert extract_answer("<answer>4") is None
    assert answer_block(RIGHT + RIGHT) is None


# ---- GSM8K, whole

def solutions():
    "All 8792 solutions, or a skip that says so; CI must have them."
    files = [GSM8K / "train.jsonl", GSM8K / "test.jsonl"]
    if not all(f.is_file() for f in files):
        assert os.environ.get("CI", "").lower() not in ("1", "true"), f"CI must run on the real data: no train.jsonl and test.jsonl in {GSM8K}"
        pytest.skip(f"GSM8K is not at {GSM8K}: set GRPO_GSM8K_DIR to the folder with train.jsonl and test.jsonl")
    return [json.loads(line)["answer"] for f in files for line in f.open(encoding="utf-8")]


DRESS = {
    "plain": "{}".format, "dollar": lambda s: "-$" + s[1:] if s[0] == "-" else "$" + s, "dot": "{}.".format, "cents": lambda s: s + ".00", "unit": "{} apples".format, "percent sign": "{}%".format,
    "bold": "**{}**".format, "box": r"\boxed{{{}}}".format, "tex comma": lambda s: s.replace(",", "{,}"), "tex thin space": lambda s: s.replace(",", r"\,"), "full width": lambda s: s.translate({i: i + 0xFEE0 for i in range(0x21, 0x7F)}),
    "minus sign": lambda s: s.replace("-", "−"), "plus": lambda s: s if s[0] == "-" else "+" + s, "space": lambda s: s.replace(",", "\u202f"), "italic": "*{}*".format, "text": r"\text{{{}}}".format, "math": "${}$".format, "label": "Answer: {}".format, "equation": "x = {}".format,
}


def test_every_gold_in_every_dress():
    "Each gold as written, in each dress, with and without commas, and in random pairs of dresses."
    golds = {clean_solution(s)[1] for s in solutions()}
    rng = random.Random(0)
    for text in sorted(golds):
        value = int(text.replace(",", ""))
        assert gold(text) == gold(f"so\n#### {text}") == value
        for base in {text, str(value), f"{value:,}"}:
            dressed = {name: f(base) for name, f in DRESS.items()}
            for a, b in [(rng.choice(list(DRESS)), rng.choice(list(DRESS))) for _ in range(6)]:
                if (a, b) in SENSIBLE: dressed[f"{a}, {b}"] = DRESS[b](DRESS[a](base))
            for name, spelling in dressed.items():
                assert parse_number(spelling) == value, (name, spelling)
                assert grade_number(f"<reasoning>so</reasoning><answer>{spelling}</answer>", text).strict, (name, spelling)
                assert extract_number(f"First 12, then 7.\nSo it is {spelling}") == value, (name, spelling)
                assert not equal(str(value + 1), spelling), (name, spelling)


INNER = ["dollar", "cents", "tex comma", "full width", "minus sign", "plus", "space", "tex thin space"]
OUTER = ["dot", "unit", "bold", "box", "italic", "text", "label"]
SENSIBLE = {(a, b) for a in INNER for b in OUTER} | {("box", "math"), ("bold", "dot"), ("unit", "bold"), ("box", "dot"), ("unit", "dot"), ("dollar", "cents"), ("tex comma", "cents"), ("tex comma", "dollar"), ("full width", "cents")}


def test_every_solution():
    "Every solution is its own right completion: cleaned, wrapped in the tags, graded strict; and wrong against its neighbour's gold."
    texts = solutions()
    assert len(texts) == 7473 + 1319
    for text, other in zip(texts, texts[1:] + texts[:1]):
        steps, answer = clean_solution(text)
        assert "<<" not in steps and ">>" not in steps and "####" not in steps
        completion = f"<reasoning>{steps}</reasoning>\n<answer>{answer}</answer>"
        grade = grade_number(completion, text)
        assert grade.format and grade.strict and grade.lenient and grade.extracted == str(gold(text))
        assert grade_number(text, text).lenient and not grade_number(text, text).strict
        assert grade_number(completion, other).strict == (gold(text) == gold(other))


# ---- whatever hypothesis thinks of

def write(number, commas):
    return f"{number:,}" if commas else str(number)


numbers = st.one_of(st.integers(-10**12, 10**12), st.integers(), st.decimals(allow_nan=False, allow_infinity=False, places=3), st.fractions(max_denominator=1000))


@given(numbers)
def test_a_spelled_number_comes_back(number):
    value = parse_number(spell(number if not isinstance(number, Fraction) or number.denominator > 1 else number.numerator))
    assert value == number and equal(number, spell(value)) and parse_number(f"**${spell(abs(number))}**") == abs(number)


@given(st.integers(-10**15, 10**15), st.booleans(), st.sampled_from(sorted(DRESS)))
def test_dressed_integers(number, commas, dress):
    assert parse_number(DRESS[dress](write(number, commas))) == number


@given(st.integers(1, 999), st.integers(1, 999), st.integers(2, 999))
def test_mixed_numbers(whole, top, bottom):
    for text in (f"{whole} {top}/{bottom}", rf"{whole}\frac{{{top}}}{{{bottom}}}"):
        assert parse_number(text) == (whole + Fraction(top, bottom) if top < bottom else None)


PIECES = ["<reasoning>", "</reasoning>", "<answer>", "</answer>", "#### ", r"\boxed{", "}", "{", "$", "**", "5", "42", "1,000", " ", "\n", "-", "=", ".", "/", r"\frac", "x", "^", "%", "½", "²", "−", "\x0c", "\u200b", "４", "<eos>", "apples", "e9", "\\", "(", ")"]
junk = st.one_of(st.text(), st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=3)), max_size=40).map("".join))


@given(junk, st.sampled_from(["42", "5", "1,000", "-5", "1/2", "50%"]))
@settings(max_examples=500)
def test_a_grade_never_raises_and_strict_implies_the_rest(text, answer):
    grade = grade_number(text, answer)
    assert not grade.strict or (grade.format and grade.lenient)
    assert grade.format == well_formed(text) and (not grade.lenient or grade.extracted is not None)
    assert grade.lenient == equal(answer, grade.extracted or "") or "%" in text + answer
    number = extract_number(text)
    assert number is None or (parse_number(spell(number)) == number and equal(number, number))


@given(junk)
@settings(max_examples=300)
def test_no_text_raises(text):
    for f in (parse_number, extract_number, extract_answer, gold, normalize, clean_solution, strip_terminators, tail_length, answer_block): f(text)
    equal(text, text), equal_set(text, text), compare(text, "5", lambda g, p: None), compare(text, text, lambda g, p: None)


@given(st.one_of(junk, st.builds(lambda f, n: f(f"{n:,}"), st.sampled_from(list(DRESS.values())), st.integers(-10**6, 10**6))))
def test_the_short_cuts_change_nothing(text):
    "The fast path and the skipped rules are speed, not policy."
    quick = A.read_number(text), extract_number(text)
    with mock.patch.object(A, "_FAST", re.compile("(?!)")), mock.patch.object(A, "_DRESSED", re.compile("")):
        assert (A.read_number(text), extract_number(text)) == quick


@given(junk, junk)
def test_equality_is_symmetric_without_percent(a, b):
    if "%" not in (a + b).translate(A._FOLDS) and not any(w in a + b for w in ("percent", "per cent", "pct")):
        assert equal(a, b) == equal(b, a)


@given(st.sampled_from(PIECES + ["9,", "9 ", "9.", "9*", "a9\n", "* ", "_ ", "1 1/2 ", "the ", "\\,", "2×10^3 ", "}{", "a: "]), st.sampled_from(["{}", "<answer>{}</answer>", "#### {}", "\\boxed{{{}}}", "9{}", "{}9", "\n{}\n"]))
@settings(max_examples=150)
def test_long_and_hostile(piece, frame):
    "20,000 characters of one thing: nothing raises, and nothing backtracks (a quadratic pattern would take minutes here)."
    text = frame.format((piece * LIMIT)[:LIMIT - len(frame)])
    assert isinstance(grade_number(text, "7").lenient, bool)
    parse_number(text), gold(text), normalize(text), equal(text, text), equal_set(text, text), compare(text, "7", ask_nobody)


def test_the_cut():
    assert parse_number("7" + " " * LIMIT) is None or parse_number("7" + " " * LIMIT) == 7
    assert parse_number("9" * (LIMIT + 1)) is None                                # not the number that its piece would be
    assert extract_number("9" * (LIMIT + 1)) is None
    assert extract_number("a " * LIMIT + "it is 42") == 42
    assert extract_number("<answer>42</answer>" + " chatter 7" * LIMIT) == 42


def test_no_floats_and_no_eval():
    for text in ("0.1", "1/3", "2.50", "1e3", "1e-3", "5 million", "½", "9" * 400):
        assert isinstance(parse_number(text), int | Fraction | Decimal)
    assert parse_number("0.1") + parse_number("0.2") == Decimal("0.3")


# ---- math-verify, in its own process

def test_formulas():
    assert verify_math(r"\frac{\sqrt{3}}{2}", r"\frac{1}{2}\sqrt{3}") is True
    assert verify_math(r"\sqrt{2}", r"\sqrt{3}") is False
    assert verify_math(r"[0,\sqrt{2}]", r"[0,2^{1/2}]") is True and verify_math(r"[0,\sqrt{2}]", r"(0,2^{1/2}]") is False
    assert verify_math(r"\pm\sqrt{2}", r"\sqrt{2}") is False and verify_math(r"\pm\sqrt{2}", r"-\sqrt{2}, \sqrt{2}") is True
    assert verify_math("4", r"\sqrt{16}") is True and verify_math("0.5", "2^{-1}") is True and verify_math("1.4142", r"\sqrt{2}") is False
    assert verify_math(r"\frac{8}{3}x", r"2\frac{2}{3}x") is True and verify_math("2x", r"2\frac{2}{3}x") is False
    assert verify_math("y=2x+1", "y=1+2x") is True and verify_math("x>5", "5<x") is True and verify_math("x>5", r"x \ge 5") is False


def test_any_thread_gets_the_same_answer():                                      # M35
    answers = {}
    def ask(i): answers[i] = (verify_math(r"\frac{\sqrt 2}{2}", r"\frac{1}{\sqrt 2}"), verify_math("1/3", r"\frac{1}{3}"), grade_number(r"\boxed{\frac{1}{3}}", "1/3").lenient)
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert answers == {i: (True, True, True) for i in range(4)}


@pytest.mark.skipif(sys.platform == "win32", reason="stops a process with SIGSTOP, which Windows lacks")
def test_a_stuck_worker_is_killed_and_replaced():
    verifier = MathVerifier()
    assert verifier("x+1", "1+x") is True
    first = verifier._worker.process
    first.send_signal(signal.SIGSTOP)
    assert verifier("x+1", "1+x", timeout=0.2) is None                            # not False
    assert first.poll() is not None
    assert verifier("x+1", "1+x") is True and verifier._worker.process.pid != first.pid
    verifier._worker.process.kill(); verifier._worker.process.wait()              # and one that died between questions
    assert verifier("x+1", "1+x") is True
    verifier.close()
    assert verifier("x+1", "1+x") is True
    verifier.close()


def test_a_worker_that_cannot_start_raises(monkeypatch):
    monkeypatch.setattr(sys, "executable", sys.executable + "-is-not-there")
    with pytest.raises((OSError, RuntimeError)): MathVerifier()("x+1", "1+x")


def test_without_math_verify_only_formulas_complain(monkeypatch):
    monkeypatch.setattr(A, "find_spec", lambda name: None)
    monkeypatch.setattr(A, "_VERIFIER", MathVerifier())
    assert verify_math("1,000", "$1000") is True and verify_math("[1,2]", "(1,2)") is False
    with pytest.raises(ImportError, match=r"^needs: pip install 'grpo_tutorials\[math\]'$"): verify_math(r"\sqrt{2}", r"\sqrt{3}")


def test_the_judge_is_light():
    "Grading imports neither sympy nor math-verify, nor any trainer."
    code = "import sys; from grpo_tutorials.core.answers import *; grade_number('<answer>1</answer>', '1'); print(sorted({'sympy', 'math_verify', 'torch', 'jax', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
