"Sudoku: puzzles, the game, code out of answers, rewards in their order, and programs that try to be paid without solving."
import hashlib
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_tutorials.core import board as B
from grpo_tutorials.core.board import refusal, to_text
from grpo_tutorials.core.rewards import call_rewards, combine
from grpo_tutorials.core.sandbox import Job, Played, Sandbox, read_code
from grpo_tutorials.tasks import sudoku as S
from grpo_tutorials.tasks.sudoku import Referee, SudokuGame, blocks, count_solutions, extract_code, load, make_grade, make_rewards, make_rows, parse, puzzle, puzzles_of, solve
from grpo_tutorials.tasks.task import get_task, task_names

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("GRPO_SHARED", ROOT.parent / "shared"))
WIKIPEDIA = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
AGAINST_COUNTING = "..............3.85..1.2.......5.7.....4...1...9.......5......73..2.1........4...9"
HARD = {
    "17 givens": "000000010400000000020000000000050407008000300001090000300400200050100000000806000",
    "17 givens, hard": "4.....8.5.3..........7......2.....6.....8.4......1.......6.3.7.5..2.....1.4......",
    "Inkala": "8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4..",
    "against counting": AGAINST_COUNTING,
}


def cases(name):
    "The cases beside the clone: not there is said, and is a failure in CI."
    path = SHARED / "cases" / name
    if path.is_file(): return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"): pytest.fail(f"{name} is not beside the clone: set GRPO_SHARED")
    pytest.skip(f"no cases/{name} in ../shared or $GRPO_SHARED")


def fenced(code): return f"```python\n{code.strip()}\n```"
def program(*lines): return fenced("def strategy(board, initial):\n" + "\n".join("    " + line for line in lines))


def right(grid):
    "An independent look at a full grid: all 27 units hold 1 to 9."
    units = [list(r) for r in grid] + [list(c) for c in zip(*grid)] + [[grid[r + i][c + j] for i in range(3) for j in range(3)] for r in (0, 3, 6) for c in (0, 3, 6)]
    return all(sorted(u) == list(range(1, 10)) for u in units)


@pytest.fixture(scope="module")
def box():
    with Sandbox(timeout=1.0, workers=2) as b: yield b


# ---------------------------------------------------------------- solving

@pytest.mark.parametrize("name", HARD)
def test_hard_puzzles(name):
    grid = parse(HARD[name])
    answer = solve(grid)
    assert right(answer) and all(a in (0, b) for r, s in zip(grid, answer) for a, b in zip(r, s))
    assert count_solutions(grid) == 1 and grid == parse(HARD[name])


def test_every_answer_is_checked_by_other_code():
    for i in range(60):
        grid = puzzle(20 + i % 36, i)
        answer = solve(grid)
        assert right(answer) and all(a in (0, b) for r, s in zip(grid, answer) for a, b in zip(r, s))


def brute(grid, limit):
    "Count solutions by trying everything, cell after cell."
    g = [list(r) for r in grid]
    try: r, c = next((r, c) for r in range(9) for c in range(9) if not g[r][c])
    except StopIteration: return 1
    total = 0
    for n in range(1, 10):
        if n in g[r] or any(row[c] == n for row in g) or any(n in row[c // 3 * 3:c // 3 * 3 + 3] for row in g[r // 3 * 3:r // 3 * 3 + 3]): continue
        g[r][c] = n
        total += brute(g, limit - total)
        if total >= limit: break
        g[r][c] = 0
    return total


@pytest.mark.parametrize("seed", range(12))
def test_counting_agrees_with_trying_everything(seed):
    rng = random.Random(seed)
    grid = puzzle(38, seed)
    for k in rng.sample([k for k in range(81) if grid[k // 9][k % 9]], 6): grid[k // 9][k % 9] = 0       # now there may be several
    assert count_solutions(grid, 50) == brute(grid, 50)
    r, c = next((r, c) for r in range(9) for c in range(9) if not grid[r][c])
    for n in range(1, 10):                                                                # and with one more digit, none
        if B.clash(grid, r, c, n) is None:
            grid[r][c] = n
            assert count_solutions(grid, 9) == brute(grid, 9) and (solve(grid) is None) == (count_solutions(grid) == 0)
            grid[r][c] = 0


def test_contradictions_end_at_once():
    twice = [[1, 1] + [0] * 7] + [[0] * 9 for _ in range(8)]
    assert solve(twice) is None
    with pytest.raises(ValueError, match="two 1s in one row"): count_solutions(twice)
    full_row_blocked = parse("123456780" + "000000009" + "0" * 63)                     # nothing fits the last cell of the first row
    assert solve(full_row_blocked) is None


def test_a_search_has_an_end():
    with pytest.raises(S.Undecided, match="no answer after 2000 positions"): solve(parse(".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."), budget=2000)
    s, empty, _ = S._started(parse(AGAINST_COUNTING), 1, 10)
    before = list(s.rows), list(s.columns), list(s.boxes)
    with pytest.raises(S.Undecided): S.fill(s, empty)
    assert (s.rows, s.columns, s.boxes) == before                                         # as it was found, also when it gives up


@pytest.mark.parametrize("bad", [None, 3, [[0] * 9] * 8, [[0] * 8] * 9, [[0] * 9] * 8 + [[0] * 10], [[10] + [0] * 8] + [[0] * 9] * 8, [[-1] + [0] * 8] + [[0] * 9] * 8, [["1"] + [0] * 8] + [[0] * 9] * 8, [[True] + [0] * 8] + [[0] * 9] * 8, [[1.0] + [0] * 8] + [[0] * 9] * 8])
def test_what_is_no_board(bad):
    with pytest.raises(ValueError): solve(bad)
    with pytest.raises(ValueError): count_solutions(bad)


def test_parsing():
    assert parse("0" * 80 + "9")[8][8] == 9                                               # the 81st cell too
    assert parse(WIKIPEDIA) == parse("\n".join(WIKIPEDIA[i:i + 9] for i in range(0, 81, 9)))
    for n in (0, 80, 82, 162):
        with pytest.raises(ValueError, match=f"has {n} cells"): parse("0" * n)
    for strange in ("x", "-", "|", "²", "٣"):
        with pytest.raises(ValueError, match="is no cell"): parse("0" * 80 + strange)


# ---------------------------------------------------------------- making

@pytest.mark.parametrize("difficulty", [0, 1, 20, 30, 40, 47, 50, 55])
def test_one_solution_and_as_many_holes_as_asked(difficulty):
    for seed in range(40 if difficulty < 55 else 15):
        grid = puzzle(difficulty, seed)
        assert to_text(grid).count("0") == difficulty and count_solutions(grid) == 1


def test_the_same_on_every_platform():
    "Golden hashes; and another process with another hash seed makes the same."
    digest = lambda d, n: hashlib.sha256("".join(to_text(puzzle(d, i)) for i in range(n)).encode()).hexdigest()[:16]
    want = {(30, 20): "8c9a4725238f1b18", (40, 50): "8d4488f099329d72", (55, 5): "1d28b9cda37632a9"}
    assert {k: digest(*k) for k in want} == want
    code = "from grpo_tutorials.tasks.sudoku import puzzle; from grpo_tutorials.core.board import to_text; import hashlib; print(hashlib.sha256(''.join(to_text(puzzle(40, i)) for i in range(50)).encode()).hexdigest()[:16])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": "77"})
    assert out.stdout.strip() == want[40, 50]


@pytest.mark.parametrize("difficulty", [-5, -1, 56, 81, 90, 3.5, 40.0, True, False, None, "40", 10**30])
def test_other_difficulties_raise(difficulty):
    for make in (lambda: puzzle(difficulty), lambda: SudokuGame(difficulty), lambda: S.make_rows("train", 1, difficulty=difficulty)):
        with pytest.raises(ValueError, match="from 0 to 55"): make()


def test_work_is_bounded():
    "Counted in positions and not in seconds: at 40 nearly nothing, at 55 a few thousand."
    work = {40: [], 55: []}
    class Counting(S.Search):
        def __setattr__(self, k, v):
            if k == "work" and v: work[difficulty].append(1)
            super().__setattr__(k, v)
    for difficulty, seeds in ((40, 60), (55, 10)):
        totals = []
        for seed in range(seeds):
            rng, work[difficulty] = random.Random(f"work {seed}"), []
            grid = S.full_grid(rng)
            S.Search, kept = Counting, S.Search
            try: S.dig(rng, grid, difficulty)
            finally: S.Search = kept
            totals.append(len(work[difficulty]))
        assert statistics.median(totals) < (1_000 if difficulty == 40 else 6_000) and max(totals) < (5_000 if difficulty == 40 else 20_000)


# ---------------------------------------------------------------- the game

def test_the_interface_of_the_seed():
    g = SudokuGame(difficulty=30, seed=42)
    assert g.state() == "ongoing" and g.moves() == 0 and g.board() == g.initial_board() == puzzle(30, 42)
    assert "difficulty=30, seed=42" in repr(g)
    answer = solve(g.board())
    holes = [(r, c) for r in range(9) for c in range(9) if not g.board()[r][c]]
    for i, (r, c) in enumerate(holes):
        assert g.state() == "ongoing" and g.place_number(r, c, answer[r][c]) is True and g.moves() == i + 1
    assert g.state() == "success" and g.board() == answer and g.initial_board() == puzzle(30, 42)
    assert g.place_number(0, 0, 1) is False and g.state() == "success" and g.moves() == 30


def test_any_completion_by_the_rules_wins():
    "Two solutions: either wins, whatever grid the puzzle came from."
    grid = parse(WIKIPEDIA)
    answer = solve(grid)
    two = [[0 if (r, c) in {(r, c) for r in range(9) for c in range(9) if answer[r][c] in (1, 2)} else n for c, n in enumerate(row)] for r, row in enumerate(answer)]
    assert count_solutions(two) == 2
    swapped = [[{1: 2, 2: 1}.get(n, n) for n in row] for row in answer]
    for final in (answer, swapped):
        g = SudokuGame.of(two)
        for r in range(9):
            for c in range(9):
                if not two[r][c]: assert g.place_number(r, c, final[r][c])
        assert g.state() == "success" and g.board() == final


class Yes(int):
    "Equal to everything, and between any two numbers."
    __eq__ = __le__ = __ge__ = __lt__ = __gt__ = lambda self, other: True
    __hash__ = int.__hash__


@pytest.mark.parametrize("move", [(9, 1, 5), (1, 9, 5), (-1, 0, 5), (0, 0, 0), (0, 0, 10), (0, 0, -3), (10**5000, 0, 1), (0, 0, 10**5000), (True, 0, 1), (0, False, 1), (0, 0, True),
                                  (0.0, 0, 1), ("0", 0, 1), (None, 0, 1), (Yes(0), 0, 1), (0, 0, Yes(1)), ([0], 0, 1)], ids=range(17))
def test_what_is_no_move(move):
    g = SudokuGame.of("0" * 81)
    assert g.place_number(*move) is False and g.state() == "failed" and g.moves() == 0 and len(g.message()) < 80
    assert g.place_number(4, 4, 4) is False and g.state() == "failed" and g.board() == [[0] * 9] * 9      # and stays lost
    assert g.pretty() and g.pretty(colors=False) and g._repr_html_()


def test_one_way_to_count():
    g = SudokuGame.of("0" * 81)
    g.place_number(9, 1, 5)
    assert g.message() == "rows and columns are 0..8"
    assert SudokuGame.of("0" * 81).place_number(0, 1, 7) and "(0, 1)" in refusal(parse("07" + "0" * 79), 0, 1, 3)       # printed as it is called


def test_copies_in_and_out():
    grid = parse(WIKIPEDIA)
    g = SudokuGame.of(grid)
    grid[0][2] = 9
    for get in (g.board, g.initial_board):
        mine = get()
        mine[0][2] = 9
        mine[1].append(5)
        assert get()[0][2] == 0 and len(get()[1]) == 9
    assert puzzle(40, 3) is not puzzle(40, 3) and puzzle(40, 3)[0] is not puzzle(40, 3)[0]
    SudokuGame(40, 3).place_number(*next((r, c, n) for r in range(9) for c in range(9) for n in range(1, 10) if refusal(puzzle(40, 3), r, c, n) is None))
    assert SudokuGame(40, 3).board() == puzzle(40, 3)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.tuples(st.integers(-2, 10), st.integers(-2, 10), st.integers(-2, 11)), max_size=30))
def test_a_game_by_other_code(seed, moves):
    "The same moves through a referee that looks at all 27 units after each."
    g, mine, lost = SudokuGame(40, seed % 50), puzzle(40, seed % 50), False
    for r, c, n in moves:
        ok = not lost and 0 <= r <= 8 and 0 <= c <= 8 and 1 <= n <= 9 and mine[r][c] == 0
        if ok:
            mine[r][c] = n
            units = [mine[r], [row[c] for row in mine], [mine[r // 3 * 3 + i][c // 3 * 3 + j] for i in range(3) for j in range(3)]]
            if any(u.count(n) > 1 for u in units): ok, mine[r][c] = False, 0
        assert g.place_number(r, c, n) is ok
        lost = lost or not ok
    assert g.board() == mine and g.state() == ("failed" if lost else "ongoing")


def test_views():
    g = SudokuGame(30, 42)
    plain, coloured = g.pretty(colors=False), g.pretty()
    assert re.sub("\x1b\\[[0-9]+m", "", coloured) == plain and "\x1b" not in plain
    assert len(plain.splitlines()) == 13 and {len(line) for line in plain.splitlines()} == {25}
    digits = "".join(c for c in plain if c in "123456789.")
    assert digits.replace(".", "0") == to_text(g.board())
    html = g._repr_html_()
    assert html.count("<td") == 81 and "<script" not in html and "http" not in html and "30 cells" not in html
    assert "&lt;b&gt;" in B.board_html(g.board(), g.initial_board(), caption="<b>")
    for odd in ((9, 9, 9), (True, 0, 1), None): assert "<s>" not in B.board_html(g.board(), g.initial_board(), refused=odd)


# ---------------------------------------------------------------- code out of an answer

NL, TAB = "\n", "\t"
BODY = "def strategy(board, initial):\n    return (0, 0, 1)"


@pytest.mark.parametrize("text,code", [
    ("```python\ndef strategy(board, initial):\n    s = '''```'''\n    return (0,0,1)\n```", "def strategy(board, initial):\n    s = '''```'''\n    return (0,0,1)"),
    ('```python\ndef strategy(board, initial):\n    """\n    use ``` and ~~~ freely\n    """\n    return (0,0,1)\n```', 'def strategy(board, initial):\n    """\n    use ``` and ~~~ freely\n    """\n    return (0,0,1)'),
    ("```def strategy(board, initial): return (0,0,1)\n```", "def strategy(board, initial): return (0,0,1)"),
    ("```\nimport math\n```", "import math"),
    (f"~~~python\n{BODY}\n~~~", BODY), (f"~~~~ python\n```\n{BODY}\n~~~~", f"```\n{BODY}"), (f"````python\n{BODY}\n````", BODY), (f"```python\n{BODY}\n`````", BODY),
    ("````md\n```python\nx=1\n```\n````", None), (f"```json\n{BODY}\n```", None), (BODY, None), ("", None), (f"    ```python\n{BODY}", None),
    (f"```python\n{BODY}", BODY), (f"```Python\n{BODY}\n```", BODY), (f"```py title=\"a b\" {{.x}}\n{BODY}\n```", BODY), (f"```python x = 1\n{BODY}\n```", f"python x = 1\n{BODY}"), (f"```{{.python}}\n{BODY}\n```", BODY), (f"   ```python  \n{BODY}\n   ```  ", BODY),
    (f"```python\r\n{BODY}\r\n```\r\n".replace("\n    ", "\r\n    "), BODY), (f"```\n\n\n{BODY}\n\n\n```", BODY),
    (f"Use `x` and ``y``.\n```python\n{BODY}\n```", BODY), ("```python\nx = 1\n```\n" + f"```python\n{BODY}\n```\n```python\nprint(strategy(b, i))\n```", BODY),
    (f"```python\n{BODY}\n```\nor better\n```python\n{BODY[:-2]}2)\n```", f"{BODY[:-2]}2)"),
    (f"```python\ndef helper(x):\n    return x\n\n{BODY}\n```", f"def helper(x):\n    return x\n\n{BODY}"), (f"```python\n# the default def\n{BODY}\n```", f"# the default def\n{BODY}"),
    (f"```python\nimport numpy\n{BODY}\n```", f"import numpy\n{BODY}"), (f"```python\n{BODY}\nThis fills cells → done\n```", f"{BODY}\nThis fills cells → done"),
    (f"```python:solve.py\n{BODY}\n```", BODY), (f"```Python,ignore title=x\n{BODY}\n```", BODY), (f"```c:solve.py\n{BODY}\n```", f"c:solve.py\n{BODY}"), (f"```python\u00a0\n{BODY}\n```", BODY), (f"\ufeff```python\n{BODY}\n```", BODY),
    (f"- so:\n\n  ```python\n  {BODY.replace(NL, NL + '  ')}\n  ```\n", BODY), (f"```python\n\t{BODY.replace(NL, NL + TAB)}\n```", BODY),
])
def test_extraction(text, code):
    assert extract_code(text) == code
    assert extract_code([{"role": "assistant", "content": text}]) == code


@pytest.mark.parametrize("head", ["(board: list, initial: list) -> tuple", "(board,initial)", "( board , initial )", "(board: 'list[list[int]]', initial=None)", "(b, i, /)", "(*args)", "(board, initial, *, k=1)"])
def test_signatures(head):
    text = f"```python\ndef strategy{head}:\n    return (0, 0, 1)\n```"
    assert read_code(extract_code(text)).invalid is None


FENCELESS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="`~\r"), max_size=30), max_size=8).map("\n".join)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("`~ \n\r\tdefstrategy(board,initial):return'\"#\\01é🙂\0"), max_size=120))
@example("```")
@example("~~~~\n```")
def test_extraction_never_raises(text):
    for x in (text, f"```python\n{text}", f"~~~\n{text}\n~~~", f"{fenced(BODY)}\n{text}"): assert extract_code(x) is None or isinstance(extract_code(x), str)


@settings(max_examples=200, deadline=None)
@given(FENCELESS, FENCELESS, st.sampled_from(["```", "````", "~~~", "~~~~~"]), st.sampled_from(["", "python", "py", "Python3"]))
def test_a_block_comes_out_as_it_went_in(code, prose, fence, tag):
    found = blocks(f"{prose}\n{fence}{tag}\n{code}\n{fence}\n{prose}")
    assert found == [(tag.lower(), code.strip("\n"))]


def test_long_and_deep_texts_are_read_quickly_or_not_at_all():
    for text in ("```" + " " * 50_000 + "x", "```python" + " {}" * 500 + " !", '```python' + ' a="b"' * 500 + " !", "```" + "`~" * 20_000, "```{" + "{" * 20_000, "```a" + " b=" * 20_000): blocks(f"{text}\n{BODY}\n```")
    for code in ("-" * 19_000 + "1", "(" * 9_000, "1+" * 9_500 + "1", "x" + "[0]" * 6_000, "lambda:" * 2_000 + "1", "\n" * 200_000, "`" * 100_000, "```\n" * 20_000):
        extract_code(fenced(code))


# ---------------------------------------------------------------- rewards

class Told:
    "A sandbox that says what it is told."
    def __init__(self, *played): self.played, self.asked = played, 0
    def play(self, jobs):
        jobs = list(jobs)
        self.asked += len(jobs)
        return [self.played[i % len(self.played)] for i in range(len(jobs))]


def total(sandbox, text=fenced(BODY), **columns): return combine(call_rewards(make_rewards(Referee(sandbox=sandbox)), [text], columns))[0]


def test_totals_are_ordered():
    "Solved > some moves, more of them better > an illegal first move > breaking down > no program > cheating."
    ladder = [total(Told(Played("solved", 40)))]
    ladder += [total(Told(Played(o, k))) for k in range(80, 0, -1) for o in ("wrong",)]
    ladder += [total(Told(Played("wrong", 0)))]
    down = {o: total(Told(Played(o, k))) for o in ("timeout", "memory", "crash", "error") for k in (0, 39)}
    assert set(down.values()) == {-0.5}
    ladder += [-0.5, total(Told(Played("invalid"))), total(Told(Played("invalid")), "no program"), total(Told(Played("forbidden")))]
    assert ladder[0] == 32 and ladder[-4:] == [-0.5, -2.5, -3, -19] and ladder[81] == 0 and ladder[80] == 2.2
    assert all(a > b for a, b in itertools.pairwise(ladder))
    for k in range(0, 81): assert total(Told(Played("bad_format", k))) == total(Told(Played("wrong", k)))


def test_every_outcome_of_the_sandbox_has_its_points():
    from grpo_tutorials.core.sandbox import OUTCOMES
    assert set(OUTCOMES) == set(S.POINTS) - {"unloadable"} | set(S.UNJUDGED)


def test_group_members_play_the_same_puzzle():
    "The same program in all slots: equal rewards, also for a program that throws dice (G28)."
    task = get_task("sudoku", "cpu")
    dice = program("import random", "e = [(r, c) for r in range(9) for c in range(9) if not board[r][c]]", "return (*random.choice(e), random.randint(1, 9))")
    for row in task.rows("train", 3, 5):
        totals = combine(call_rewards(task.rewards, [dice] * 6, {k: [v] * 6 for k, v in row.items()}))
        assert len(set(totals)) == 1
    assert task.rows("train", 9, 5)[:3] == task.rows("train", 3, 5) and task.rows("train", 3, 6) != task.rows("train", 3, 5)


def test_no_shared_random_state(box):
    random.seed(7)
    before = random.getstate()
    rewards = make_rewards(Referee(sandbox=box))
    a = call_rewards(rewards, [fenced(BODY)] * 2, dict(puzzle_seed=[[3]] * 2))
    assert random.getstate() == before
    random.seed(8)
    assert call_rewards(make_rewards(Referee(sandbox=box)), [fenced(BODY)] * 2, dict(puzzle_seed=[[3]] * 2)) == a


def test_a_failing_sandbox_is_no_score():
    "None and a count (G31); the others of the group keep theirs; it is tried again in the next batch."
    flaky = Told(Played("sandbox_error", detail="no room"), Played("solved", 40))
    referee = Referee(sandbox=flaky)
    rewards = make_rewards(referee)
    totals = combine(call_rewards(rewards, [fenced(BODY), fenced(BODY[:-2] + "2)")], {}))
    assert sorted(totals, key=str) == [32, None] and referee.infra_errors == 1 and flaky.asked == 2       # three rewards, one game each
    call_rewards(rewards, ["another batch"], {})
    again = combine(call_rewards(rewards, [fenced(BODY), fenced(BODY[:-2] + "2)")], {}))
    assert flaky.asked == 4 and None in again
    assert total(Told(Played("unsupported"))) is None
    g = make_grade(Referee(sandbox=Told(Played("sandbox_error"))))(fenced(BODY), {})
    assert g.strict is None and g.lenient is None


def test_several_puzzles_are_a_mean():
    referee = Referee(sandbox=Told(Played("solved", 40), Played("wrong", 10)))
    assert combine(call_rewards(make_rewards(referee), [fenced(BODY)], dict(puzzle_seed=[[1, 2]]))) == [2 + (30 + 2) / 2]
    row = dict(puzzle_seed=[1, 2])
    assert make_grade(referee)(fenced(BODY), row).strict is False                        # all of them, or it is not solved
    assert make_grade(Referee(sandbox=Told(Played("solved", 40))))(fenced(BODY), row).strict is True


def test_memory_is_bounded_and_used():
    told = Told(Played("wrong", 3))
    referee = Referee(sandbox=told, remember=10)
    texts = [fenced(f"{BODY}\n# {i}") for i in range(25)]
    call_rewards(make_rewards(referee), texts, dict(puzzle_seed=[[0]] * 25))
    assert told.asked == 25 and len(referee._games) == 10
    call_rewards(make_rewards(referee), texts[-10:], dict(puzzle_seed=[[0]] * 10))
    assert told.asked <= 35


def test_from_any_thread(box):
    referee, out = Referee(sandbox=box), []
    rewards = make_rewards(referee)
    work = lambda i: out.append(combine(call_rewards(rewards, [program(f"return (0, 0, {i})"), program("return None")], dict(puzzle_seed=[[i]] * 2))))
    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 9)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert len(out) == 8 and all(len(t) == 2 and None not in t for t in out)


@pytest.mark.parametrize("columns,message", [
    (dict(puzzle=["123"]), "3 cells"), (dict(puzzle_seed=[[0]], difficulty=[90]), "from 0 to 55"), (dict(puzzle_seed=[["a"]]), "whole number"), (dict(puzzle_seed=[1, 2]), "2 values for 1"), (dict(puzzle=["11" + "0" * 79]), "two 1s"),
])
def test_bad_columns_raise(columns, message):
    with pytest.raises((ValueError, RuntimeError), match=message): make_rewards(Referee(sandbox=Told(Played("wrong"))))[2]([fenced(BODY)], **columns)


@pytest.mark.parametrize("row", [dict(puzzle=x) for x in (5, False, {"a": 1}, [None], [[None]], [[]] * 9, [1] * 9, ["1"] * 9, [[0] * 9] * 8 + [3], [[0.0] * 9] * 9, list(range(81)), "", "0" * 80, [])]
    + [dict(puzzle_seed=x) for x in ("", "x", False, True, 0.0, 1.5, {}, [], [[1]], float("nan"))] + [dict(difficulty=x) for x in (56, -1, "40", 40.0, True)])
def test_a_row_that_names_no_puzzle_raises_one_line(row):
    with pytest.raises(ValueError) as e: puzzles_of(row)
    assert "\n" not in str(e.value)
    from grpo_tutorials.cli import grade_lines
    with pytest.raises(ValueError, match="^line 1: "): next(grade_lines(load("smoke"), [json.dumps(dict(row, completion=fenced(BODY))).encode()]))


def test_columns_may_be_arrays(box):
    works = make_rewards(Referee(sandbox=box))[0]
    assert works([fenced(BODY), ""], puzzle_seed=np.array([1, 2])) == works([fenced(BODY), ""], puzzle_seed=[1, 2]) == [1.0, -2.0]
    with pytest.raises(ValueError, match="2 values for 1"): works([""], puzzle_seed=np.array([1, 2]))


def test_every_completion_has_its_puzzle():
    for completions, puzzles in ((["a", "b"], [["0" * 81]]), (["a"], [[]])):
        with pytest.raises(ValueError, match="at least one for each"): Referee().verdicts(completions, puzzles)
    with pytest.raises(ValueError, match="at least 1 puzzle"): make_rows("train", 1, each=0)
    for text in (None, 5, b"0" * 81, ["0" * 81]):
        with pytest.raises(ValueError, match="is a string"): parse(text)


def test_a_program_on_the_command_line(tmp_path, monkeypatch):
    from grpo_tutorials import cli
    for name, says in ((tmp_path, "is a folder"), (tmp_path / "none.py", "no file"), ("/dev/zero", "more than 1,000,000 bytes"), ("", "no file ''")):
        with pytest.raises((ValueError, FileNotFoundError), match=says): cli.read_program(str(name))
    monkeypatch.setattr(sys, "stdin", None)                 # closed by the caller
    assert cli.read_program("-") == ""
    with pytest.raises(ValueError, match="no lines"): next(cli.grade_lines(load("smoke"), cli.stdin()))


def test_message_lists_and_strings_are_worth_the_same(box):
    rewards = make_rewards(Referee(sandbox=box))
    text = program("return (0, 0, 1)")
    assert call_rewards(rewards, [text], {}) == call_rewards(rewards, [[{"role": "assistant", "content": text}]], {})


# ---------------------------------------------------------------- paid without solving?

HACKS = {
    "an int that equals everything": "class Y(int):\n    __eq__ = __le__ = __ge__ = lambda a, b: True\n    __hash__ = int.__hash__\ndef strategy(board, initial):\n    return (Y(0), Y(0), Y(1))",
    "an int that is always in range": "class Y(int):\n    def __index__(self): return 5\n    def __int__(self): return 5\ndef strategy(board, initial):\n    return (Y(99), 0, 1)",
    "a tuple that claims three": "class T(tuple):\n    def __len__(self): return 3\n    def __iter__(self): return iter((0, 0, 1))\ndef strategy(board, initial):\n    return T()",
    "a class that calls itself equal to tuple": "class M(type):\n    def __eq__(self, other): return True\n    __hash__ = type.__hash__\nclass T(metaclass=M):\n    def __len__(self): return 3\n    def __iter__(self): return iter((0, 0, 1))\n    def __getitem__(self, i): return (0, 0, 1)[i]\ndef strategy(board, initial):\n    return T()",
    "True as a digit": "def strategy(board, initial):\n    return (False, False, True)",
    "the board is filled in place": "def strategy(board, initial):\n    for r in board: r[:] = [1, 2, 3, 4, 5, 6, 7, 8, 9]\n    for r in initial: r[:] = [0] * 9\n    return (0, 0, 1)",
    "a board kept from the last call": "kept = []\ndef strategy(board, initial):\n    kept.append((board, initial))\n    for b, i in kept:\n        for r in b + i: r[:] = [0] * 9\n    return (8, 8, 9)",
    "frozen time": "import time\ndef strategy(board, initial):\n    time.time = time.monotonic = time.process_time = lambda: 0.0\n    while True: pass",
    "patched builtins": "import builtins\nbuiltins.len = lambda x: 3\nbuiltins.type = lambda x: int\nbuiltins.all = builtins.any = lambda x: True\ndef strategy(board, initial):\n    return (0, 0, 1)",
    "patched builtins, another way": "def strategy(board, initial):\n    b = print.__self__\n    b.type = b.isinstance = lambda *a: True\n    b.len = lambda x: 3\n    b.range = lambda *a: [0]\n    return (0, 0, 1)",
    "the caller's frame, by an exception": "def strategy(board, initial):\n    try: 1 / 0\n    except Exception as e: f = e.__traceback__.tb_frame.f_back\n    while f:\n        for v in list(f.f_locals.values()):\n            if isinstance(v, list) and len(v) == 9 and v is not board and v is not initial:\n                for r in v: r[:] = [0] * 9\n        f = f.f_back\n    return (0, 0, 1)",
    "the caller's frame, by a generator": "def strategy(board, initial):\n    g = (g.gi_frame.f_back for _ in [1])\n    f = next(g)\n    while f: f.f_globals.clear(); f = f.f_back\n    return (0, 0, 1)",
    "the answer in sys.modules": "import sys\ndef strategy(board, initial):\n    s = sys.modules.get('grpo_tutorials.tasks.sudoku')\n    a = s.solve(board)\n    r, c = next((r, c) for r in range(9) for c in range(9) if not board[r][c])\n    return (r, c, a[r][c])",
    "the game through gc": "import gc\ndef strategy(board, initial):\n    for o in gc.get_objects():\n        if type(o).__name__ == 'SudokuGame': o._state = 'success'\n    return (9, 9, 9)",
    "a trace function": "import sys\ndef strategy(board, initial):\n    sys.settrace(lambda *a: None)\n    return (9, 9, 9)",
    "exit with success": "import os\ndef strategy(board, initial):\n    os._exit(0)",
    "raise SystemExit": "def strategy(board, initial):\n    raise SystemExit(0)",
    "never at the top": "while True: pass\ndef strategy(board, initial):\n    return (0, 0, 1)",
    "a sleeper": "import time\ndef strategy(board, initial):\n    time.sleep(3600)",
    "a score in the source": "# outcome: solved\ndef strategy(board, initial):\n    '''30.0'''\n    return 'solved'",
    "a strategy that is not one": "strategy = lambda board, initial: (0, 0, 1)",
}


@pytest.mark.parametrize("gate", [True, False], ids=["as played", "without the label"])
@pytest.mark.parametrize("name", HACKS)
def test_nothing_is_paid_but_moves(name, gate):
    "No hack earns more than its legal moves do; without the label, where it really runs, neither."
    with Sandbox(timeout=0.3, workers=1, gate=gate) as box:
        referee = Referee(sandbox=box)
        row = dict(puzzle_seed=[[4]], difficulty=[40])
        t = combine(call_rewards(make_rewards(referee), [fenced(HACKS[name])], row))[0]
        p = next(iter(referee._games.values()))
        honest = combine(call_rewards(make_rewards(referee), [S.strategies(500)[next(i for i, s in enumerate(S.strategies(500)) if (s.plan, s.rules, s.slip, s.fence) == ("single", "all", "", "python"))].text], row))[0]
    assert p.outcome != "solved" and t <= 2 + S.PER_MOVE * p.valid_moves + 1e-9 and p.valid_moves <= 1
    assert honest == 32                                                                   # the next program is judged as ever


def test_a_program_that_solves_may_not_cheat_as_well():
    able = extract_code(next(s.text for s in S.strategies(500) if (s.plan, s.rules, s.slip, s.fence) == ("single", "all", "", "python")))
    with Sandbox(workers=1) as box:
        rewards = make_rewards(Referee(sandbox=box))
        for head in ("import os\n", "import numpy as np\n", "from ctypes import *\n", "import subprocess, math\n"):
            for code in (head + able, able.replace("initial):\n", "initial):\n    " + head, 1)):
                assert combine(call_rewards(rewards, [fenced(code)], {})) == [-19]
        for head in ("import math\n", "from collections import Counter\n", "import itertools, random\n"):
            assert combine(call_rewards(rewards, [fenced(head + able)], {})) == [32]


def test_strategies_beside_the_clone(box):
    "Every hostile one through the rewards: contained, and never paid for solving; every benign one above nothing."
    folder = SHARED / "strategies"
    if not folder.is_dir():
        if os.environ.get("CI", "").lower() in ("1", "true", "yes"): pytest.fail("no strategies beside the clone: set GRPO_SHARED")
        pytest.skip("no strategies in ../shared or $GRPO_SHARED")
    for kind in ("hostile", "benign"):
        codes = {p.stem: p.read_text() for p in sorted((folder / kind).glob("*.py"))}
        totals = dict(zip(codes, combine(call_rewards(make_rewards(Referee(sandbox=box)), list(map(fenced, codes.values())), dict(puzzle_seed=[[1]] * len(codes))))))
        for name, t in totals.items(): assert (t <= 2.2 if kind == "hostile" else t > 2 or t in (-0.5, -19)), (name, t)


# ---------------------------------------------------------------- the task

def test_it_is_a_task():
    assert "sudoku" in task_names()
    for scale in ("smoke", "cpu", "full"):
        task = get_task("sudoku", scale)
        assert task.headline == "sampled" and task.default_engine == "trl" and [f.__name__ for f in task.rewards] == ["function_works", "no_cheating", "strategy_succeeds"]
        s = task.scale(scale, "trl")
        assert s.group_size >= 8 and s.completions_per_step % max(s.micro_batch, 1) == 0
    full = get_task("sudoku", "full").scale("full", "trl")
    assert (full.lora_rank, full.lora_alpha, full.learning_rate, full.weight_decay, full.schedule, full.optim, full.steps) == (32, 64, 5e-5, 0.001, "linear", "adamw_8bit", 60)
    assert (full.epsilon, full.epsilon_high, full.delta, full.loss_type, full.mask_truncated, full.max_prompt_length + full.max_completion_length) == (0.2, 0.28, 1.5, "bnpo", True, 4096)
    cpu = get_task("sudoku", "cpu")
    assert (cpu.scale("cpu").lora_rank, cpu.scale("cpu").steps, cpu.scale("cpu", lora_rank=32).steps, cpu.scale("cpu", lora_rank=32).lora_alpha, cpu.scale("cpu", lora_rank=32).beta, cpu.scale("cpu", lora_rank=32).temperature) == (0, 50, 70, 64, 0, 0.9)


def test_train_and_test_never_meet():
    sides = {s: set() for s in ("train", "test")}
    for split, seeds in sides.items():
        for seed in range(20): seeds |= {x for r in S.make_rows(split, 200, seed, each=2) for x in r["puzzle_seed"]}
    assert not sides["train"] & sides["test"]
    grids = {s: {to_text(puzzle(40, x)) for x in sorted(seeds)[:700]} for s, seeds in sides.items()}
    assert not grids["train"] & grids["test"] and [len(g) for g in grids.values()] == [700, 700]
    for split in ("train", "test"):
        rows = S.make_rows(split, 500, 3, each=3)
        assert len({x for r in rows for x in r["puzzle_seed"]}) == 1500                   # no puzzle twice


@pytest.mark.parametrize("bad,message", [(dict(split="dev", n=1), "train or test"), (dict(split="train", n=0), "at least 1")])
def test_bad_rows(bad, message):
    with pytest.raises(ValueError, match=message): S.make_rows(**bad)


def test_the_prompt_says_what_is_judged():
    for word in ("strategy(board, initial)", "row, column, digit", "0", "3x3", "no imports", "inside strategy", "fenced block"): assert word in S.PROMPT
    seed = SHARED / "seeds"
    if seed.is_dir():
        theirs = " ".join(next(seed.glob("004*")).read_text(encoding="utf-8").split())
        for line in S.PROMPT.split("\n"): assert line not in theirs


# ---------------------------------------------------------------- the school

def test_the_school_is_the_same_everywhere_and_mixed(box):
    school = S.strategies(1000, 0)
    assert hashlib.sha256("\0".join(s.text for s in school[:200]).encode()).hexdigest()[:16] == "af835fb24af0889a"
    assert S.strategies(100, 0) == school[:100] and S.strategies(100, 1) != school[:100]
    assert len({s.text for s in school}) > 850
    assert {s.plan for s in school} == set(S.PLANS) == set(S.PLAN) and {s.rules for s in school} == set(S.RULES) and {s.slip for s in school} == set(S.SLIPS)
    some = school[:400]
    played = box.play([Job(extract_code(s.text) or "", puzzle(40, 5 + i % 40)) for i, s in enumerate(some)])
    by = Counter(p.outcome for p in played)
    assert 0.05 < by["solved"] / 400 < 0.16 and by["sandbox_error"] == 0 and by["timeout"] < 8
    good = [p.outcome == "solved" for s, p in zip(some, played) if s.rules == "all" and not s.slip and s.fence == "python" and s.plan in ("single", "hidden", "fewest", "shortest")]
    assert statistics.mean(good) > 0.5
    blind = [p.valid_moves for s, p in zip(some, played) if s.plan == "blind"]
    assert statistics.mean(blind) < 1.5


@pytest.mark.parametrize("plan", ["first", "single", "hidden", "fewest", "shortest", "search"])
def test_a_plan_without_slips(plan, box):
    "How many of 25 puzzles the flawless version of each plan solves."
    code = next(s for s in S.strategies(6000, 2) if s.plan == plan and s.rules == "all" and not s.slip and s.fence == "python" and ("given" not in s.text) and "initial[" not in s.text
                and ("> len(" not in s.text and "moves[-1]" not in s.text) and (plan != "search" or ("\n" + " " * 20 + "return False" in s.text and "] = 0\n" in s.text)))
    played = box.play([Job(extract_code(code.text), puzzle(40, 900 + i)) for i in range(25)])
    solved = sum(p.outcome == "solved" for p in played)
    assert solved <= 6 if plan == "first" else solved >= 20


# ---------------------------------------------------------------- the cases beside the clone

def test_cases_are_all_looked_at():
    "Each case's own input, through the function that it names."
    done = set()
    for case in cases("sudoku.jsonl"):
        i, want, done = case["input"], case["expected"], done | {case["id"]}
        if case["id"] == "S03": assert solve([[1, 1] + [0] * 7] + [[0] * 9] * 8) is want["result"]
        elif case["id"] == "S07":
            g = SudokuGame(40, 1)
            assert g.place_number(*i["args"]) is want["accepted"] and g.message() == want["message_says"]
        elif case["id"] == "S09":
            g = SudokuGame(40, 1)
            g.place_number(9, 0, 1)
            free = next((r, c, n) for r in range(9) for c in range(9) for n in range(1, 10) if refusal(g.board(), r, c, n) is None)
            assert g.place_number(*free) is want["second_accepted"] and g.state() == want["state"]
        elif case["id"] == "S10":
            for d, raises in zip(i["difficulty"], want["raises"]):
                try: puzzle(d, 0)
                except ValueError: assert raises, d
                else: assert not raises, d
        elif case["id"] == "S11": assert parse("0" * 80 + "9")[8][8] == want["cell_8_8"]
        elif case["id"] == "S14": assert [puzzle(i["difficulty"], s) for s in range(i["n"])] == [puzzle(i["difficulty"], s) for s in range(i["n"])]
    assert {"S03", "S07", "S08", "S09", "S10", "S11", "S12", "S13", "S14"} >= done        # S08, S12, S13: above, by the kind
    for case in cases("sandbox.jsonl"):
        i, want = case["input"], case["expected"]
        if i["call"] == "extract_code":
            texts = i.get("texts") or ([i["text"]] if "text" in i else [f"```python\n{d}\n    return (0, 0, 1)\n```" for d in i["defs"]])
            codes = [extract_code(t) for t in texts]
            if "codes" in want: assert all(c is None if w is None else c and c.startswith(w.rstrip(".")) for c, w in zip(codes, want["codes"])), case["id"]
            if want.get("code_compiles"): compile(codes[0], "case", "exec")
            if "accepted" in want: assert [read_code(c).invalid is None for c in codes] == want["accepted"]
        if i["call"] == "check_imports":
            found = [read_code(c).forbidden for c in i.get("codes") or [extract_code(i["text"])]]
            allowed = want["allowed"] if isinstance(want["allowed"], list) else [want["allowed"]]
            assert [f is None for f in found] == allowed, case["id"]


def test_the_totals_of_the_case(box):
    "X23, through the sandbox: a hang, an illegal first move, an import that solves, and nothing."
    able = extract_code(next(s.text for s in S.strategies(500) if (s.plan, s.rules, s.slip, s.fence) == ("single", "all", "", "python")))
    texts = [fenced(able), program("e = [(r, c) for r in range(9) for c in range(9) if not board[r][c]]", "if len(e) < 40: return None", "r, c = e[0]", "return (r, c, next(n for n in range(1, 10) if n not in board[r] and all(x[c] != n for x in board) and n not in [board[r // 3 * 3 + i][c // 3 * 3 + j] for i in range(3) for j in range(3)]))"),
             program("return (9, 9, 9)"), program("while True: pass"), "prose", fenced("import numpy\n" + able)]
    totals = combine(call_rewards(make_rewards(Referee(sandbox=box)), texts, dict(puzzle_seed=[[1]] * 6)))
    assert totals == [32, 2.2, 0, -0.5, -3, -19]
