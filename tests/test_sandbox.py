"The sandbox holds: hostile programs of every kind that is known here, honest ones that must not notice, and accidents to its own processes."

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tutorials.core import sandbox as S
from grpo_tutorials.core import zygote as Z
from grpo_tutorials.core.board import refusal
from grpo_tutorials.core.sandbox import OUTCOMES, Job, Played, Sandbox, check, forbidden, imports, invalid, judge, read_code, replay, shared
from grpo_tutorials.core.scale import Unavailable

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("GRPO_SHARED", ROOT.parent / "shared"))
EMPTY = [[0]*9 for _ in range(9)]
PUZZLE = [[int(c) for c in line] for line in "530070000 600195000 098000060 800060003 400803001 700020006 060000280 000419005 000080079".split()]
HARD = [[int(c) for c in line] for line in "000700800 006000031 040002000 024070000 010030080 000060290 000800070 860000500 002006000".split()]
SOLVER = """
def strategy(board, initial):
    def fits(r, c):
        box = [board[r//3*3 + i][c//3*3 + j] for i in range(3) for j in range(3)]
        return [n for n in range(1, 10) if n not in board[r] and n not in box and all(board[i][c] != n for i in range(9))]
    r, c, n = min(((r, c, fits(r, c)) for r in range(9) for c in range(9) if board[r][c] == 0), key=lambda x: len(x[2]))
    return r, c, n[0]
"""
LOOP = "def strategy(board, initial):\n    while True: pass\n"
linux = pytest.mark.skipif(S.no_filter_here() is not None, reason=str(S.no_filter_here()))


def program(*lines): return "def strategy(board, initial):\n" + "".join(f"    {line}\n" for line in lines)


def collection(kind):
    "The strategies of a kind: ours, and those beside the clone."
    ours, theirs = ROOT / "tests/strategies" / kind, SHARED / "strategies" / kind
    return {p.stem: p.read_text() for folder in (ours, theirs) if folder.is_dir() for p in sorted(folder.glob("*.py"))}


def need_shared(path):
    "What is beside the clone: not there is said, and is a failure in CI."
    if path.exists(): return path
    if os.environ.get("CI", "").lower() in ("1", "true", "yes"): pytest.fail(f"{path.name} is not beside the clone: set GRPO_SHARED")
    pytest.skip(f"no {path.name} in ../shared or $GRPO_SHARED")


def descendants(pid):
    "The processes below one, by reading /proc."
    below = {}
    for p in Path("/proc").glob("[0-9]*"):
        try: below.setdefault(int((p / "stat").read_text().rpartition(")")[2].split()[1]), []).append(int(p.name))
        except (OSError, IndexError): pass
    found, look = [], [pid]
    while look: look += (more := below.get(look.pop(), [])); found += more
    return found


def running(pid):
    try: return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError: return False


def until(happens, seconds=30):
    end = time.monotonic() + seconds
    while not happens() and time.monotonic() < end: time.sleep(.02)
    return happens()


@pytest.fixture(scope="module")
def box():
    with Sandbox(.5) as b: yield b


@pytest.fixture(scope="module")
def open_box():
    "Plays forbidden programs too."
    with Sandbox(.5, gate=False) as b:
        if b.mode != "filter": pytest.skip(f"no filter here: {b.why}")
        yield b


# ---------------------------------------------------------------- hostile

def contained(played): return played.last_move != (9, 9, 9) and played.outcome in OUTCOMES and played.outcome not in ("solved", "sandbox_error", "unsupported")


def test_there_are_hostile_ones_of_our_own():
    assert len(list((ROOT / "tests/strategies/hostile").glob("*.py"))) >= 10
    need_shared(SHARED / "strategies")


@linux
def test_every_hostile_strategy_is_contained(open_box):
    before = set(Path("/tmp").iterdir())
    codes = collection("hostile")
    jobs = [Job(code, EMPTY) for code in codes.values()]
    games = dict(zip(codes, open_box.play(jobs)))
    again = dict(zip(codes, open_box.play(jobs)))           # what did the first leave behind?
    escaped = {name: p for games in (games, again) for name, p in games.items() if not contained(p)}
    assert not escaped
    assert all(len(p.detail) <= 200 and p.detail.isprintable() for p in games.values())
    assert open_box.play([Job(SOLVER, PUZZLE)])[0].outcome == "solved"
    assert not {p for p in set(Path("/tmp").iterdir()) - before if "sandbox_" in p.name or p.name == "canary"}
    assert EMPTY == [[0]*9 for _ in range(9)] and open_box.restarts == 0
    below = [d for z in open_box._pool.idle for d in descendants(z.process.pid) if running(d)]
    assert below == []                                      # no child is left


@linux
def test_what_they_say_of_their_end(open_box):
    want = {"r01_infinite_loop": "timeout", "r02_infinite_loop_catch_all": "timeout", "r05_memory_bomb_one_shot": "memory", "r15_sum_range_c_loop": "timeout", "r19_str_mult_repr": "memory",
            "r20_slow_generator_all": "timeout", "e23_ctypes_segfault": "crash", "e24_exit_builtin": "error", "h03_bool_float_str_moves": "bad_format", "h04_mutate_board": "wrong",
            "h10_negative_huge_moves": "wrong", "o01_forge_the_page": "wrong", "o02_unsay_confined": "crash", "o03_stop_the_clock": "timeout", "o08_patched_builtins": "bad_format", "o09_yes_man": "bad_format",
            "o10_frozen_time": "timeout", "o12_old_doors": "crash", "o13_after_the_end": "wrong", "o14_fighting_exception": "error"}
    codes = {name: code for name, code in collection("hostile").items() if name in want}
    games = dict(zip(codes, open_box.play([Job(code, EMPTY) for code in codes.values()])))
    assert {name: p.outcome for name, p in games.items()} == {name: want[name] for name in codes}


ODD = {      # more kinds, by how they end; none of them may come back with (9, 9, 9), the mark of an escape
    "error": ["raise SystemExit('x'*10**7)", "raise KeyboardInterrupt", "raise GeneratorExit", "raise BaseExceptionGroup('x', [SystemExit(), KeyboardInterrupt()])", "exit()", "input()", "help()",
        "import signal; signal.signal(signal.SIGPROF, signal.SIG_IGN); return (9, 9, 9)", "import signal; signal.set_wakeup_fd(1); return (9, 9, 9)", "import faulthandler; faulthandler.dump_traceback_later(1); return (9, 9, 9)",
        "import os; os.memfd_create('x'); return (9, 9, 9)", "import os; os.pidfd_open(os.getppid()); return (9, 9, 9)", "import os; os.posix_spawn('/bin/sh', ['sh'], {}); return (9, 9, 9)", "import os; os.execv('/bin/true', ['true'])",
        "import os; os.kill(-1, 9); return (9, 9, 9)", "import os; os.setuid(0); return (9, 9, 9)", "import os; os.chdir('/tmp'); return (9, 9, 9)", "import random; random._os.kill(random._os.getppid(), 9); return (9, 9, 9)",
        "import io; io.open_code('/etc/passwd'); return (9, 9, 9)", "import codecs; codecs.open('/etc/passwd'); return (9, 9, 9)", "open('/proc/self/mem', 'r+b'); return (9, 9, 9)", "open('/proc/self/environ'); return (9, 9, 9)",
        "import _socket; return (9, 9, 9)", "import socket; return (9, 9, 9)", "import _thread; _thread.start_new_thread(print, ()); return (9, 9, 9)", "import _posixsubprocess; return (9, 9, 9)", "import _testcapi; return (9, 9, 9)",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); return (9, 9, 9)", "import select; select.select([], [], [], 30); return (9, 9, 9)", "import ctypes; ctypes.CDLL('libz.so.1'); return (9, 9, 9)",
        "import mmap; x = [mmap.mmap(-1, 1 << 20) for _ in range(9999)]", "def f(): return f()\n    f()", "x = []\n    x = x + [x]\n    for _ in range(9**5): x = [x]\n    return repr(x)"],
    "bad_format": ["return (x for x in (0, 2, 4))", "yield (0, 2, 4)", "return range(3)", "return b'\\0\\2\\4'", "return {0: 0, 2: 2, 4: 4}", "return (0, 2, 4, 0)", "return (0j, 2, 4)", "return strategy", "x = [0, 2]\n    x.append(x)\n    return x",
        "from collections import namedtuple; return namedtuple('M', 'r c d')(0, 2, 4)", "from enum import IntEnum; return (0, 2, IntEnum('E', 'a b c d').d)", "from fractions import Fraction as F; return (F(0), F(2), F(4))",
        "import os; return tuple(os.environ)", "import builtins\n    builtins.type = lambda x: int\n    builtins.len = lambda x: 3\n    builtins.tuple = str\n    return [9, 9, 9, 9]",
        "import ctypes\n    for fd in range(3, 300):\n        if ctypes.CDLL(None).write(fd, bytes(3000), 3000) > 0: return (9, 9, 9)", "class M(type):\n        __name__ = property(lambda self: 5)\n    class R(metaclass=M): pass\n    return R()"],
    "crash": ["import ctypes; ctypes.string_at(0)", "import ctypes; ctypes.CDLL(None).abort()", "import ctypes; ctypes.CDLL(None).syscall(0x40000027); return (9, 9, 9)", "import sys; sys.addaudithook(lambda *a: 1/0); compile('1', '', 'eval')", "import sys; sys._getframe(1).f_locals['page'].close()",
        "import sys, os; sys._getframe(1).f_locals['page'][0] = 250; os._exit(0)", "class M(type):\n        __name__ = property(lambda self: 5)\n    class E(Exception, metaclass=M): pass\n    raise E"],
    "wrong": ["board[:] = []; initial.clear(); return (0, 2, 4)", "import sys; sys._getframe(1).f_locals['left'] = 0; sys._getframe(1).f_locals['board'][:] = [[5]*9]*9; return (9, 8, 9)", "return (10**30, 10**30, 10**5000)", "return (1 << 10**8, 0, 1)",
        "import sys, os; sys._getframe(1).f_locals['page'][0] = 1; os._exit(0)", "import sys, os; p = sys._getframe(1).f_locals['page']; p[0] = 2; p[8] = 7; p[9:33] = b'\\xff'*24; os._exit(0)"],
    "memory": ["return '%1000000000d' % 1", "return f'{1:>9999999999}'", "return [0]*10**9", "import decimal; decimal.getcontext().prec = 10**17; return str(decimal.Decimal(1)/3)", "return ('a'*10**6).replace('a', 'b'*10**6)"],
    "timeout": ["import re; re.match('(x+x+)+y', 'x'*60)", "return 7**10**9", "x = []\n    while True:\n        try: x.append({})\n        except BaseException: pass", "class E(Exception):\n        def __str__(self):\n            while True: pass\n    raise E",
        "class R:\n        def __repr__(self):\n            while True: pass\n    return R()", "class A:\n        def __del__(self): A()\n    A()", "import ctypes; L = ctypes.CDLL(None); L.prctl(1, 0, 0, 0, 0); L.setitimer(2, bytes(32), 0)\n    while True: pass"],
}


@linux
@pytest.mark.parametrize("outcome", ODD)
def test_more_kinds_of_hostile_programs(open_box, outcome):
    games = open_box.play([Job(program(x), PUZZLE) for x in ODD[outcome]])
    assert [(x, p.outcome) for x, p in zip(ODD[outcome], games) if p.outcome != outcome or p.last_move == (9, 9, 9)] == []
    assert all(len(p.detail) <= 200 and p.detail.isprintable() for p in games) and open_box.restarts == 0


def test_what_happens_as_a_program_is_loaded(box):
    decorated = [f"{head}\n{program('return (0, 2, 4)')}" for head in ("@property", "@str", "x = 1 / 0", "class A:\n    x = undefined", "def d(f): raise SystemExit\n@d")]
    assert {p.outcome for p in box.play([Job(c, PUZZLE) for c in decorated])} == {"error"}
    endless = ["@sum\n", "@(lambda f: sum(range(10**12)))\n", "class M(type):\n    @classmethod\n    def __prepare__(*a):\n        while True: pass\nclass A(metaclass=M): pass\n"]
    assert [p.outcome for p in box.play([Job(h + program("return (0, 2, 4)"), PUZZLE) for h in endless])] == ["error", "timeout", "timeout"]
    other = ["strategy = lambda board, initial: (0, 2, 4)", "class strategy:\n    def __new__(cls, b, i): return (0, 2, 4)", "from functools import partial\ndef f(x, b, i): return (0, 2, 4)\nstrategy = partial(f, 1)", "async " + program("return (0, 2, 4)")]
    assert {p.outcome for p in box.play([Job(c, PUZZLE) for c in other])} == {"invalid"}


@linux
def test_a_move_that_is_none_is_told_from_one(open_box):
    lines = ["class I(int): pass\n    return (I(0), I(2), I(4))", "class T(tuple): pass\n    return T((0, 2, 4))", "class L(list): pass\n    return L([0, 2, 4])"]
    assert all("no plain tuple of plain ints" in p.detail for p in open_box.play([Job(program(x), PUZZLE) for x in lines]))


def test_a_gate_labels_those_that_reach_out(box):
    codes = collection("hostile")
    games = dict(zip(codes, box.play([Job(code, EMPTY) for code in codes.values()])))
    assert all(contained(p) for p in games.values())
    labelled = {name for name, p in games.items() if p.outcome == "forbidden"}
    assert {name for name in codes if name[0] == "e"} - {"e24_exit_builtin"} <= labelled
    assert not labelled & {"r01_infinite_loop", "r05_memory_bomb_one_shot", "h03_bool_float_str_moves"}       # bad, and no cheats
    assert all(p.seconds == 0 and not p.moves for name, p in games.items() if name in labelled)


@linux
def test_limits_alone_are_less_and_are_only_had_by_name():
    "What the filter is for: without it a program can reach what needs no descriptor."
    with Sandbox(.5, gate=False, layers=("limits", "user"), grace=.5) as bare:
        codes = collection("hostile")
        games = dict(zip(codes, bare.play([Job(code, EMPTY) for code in codes.values()])))
        assert games["o05_paths_without_descriptors"].last_move == (9, 9, 9)
        assert games["e09_write_file"].last_move != (9, 9, 9)                   # no descriptor left
        assert bare.play([Job(SOLVER, PUZZLE)])[0].outcome == "solved"
        below = [d for z in bare._pool.idle for d in descendants(z.process.pid) if running(d)]
        assert below == []
    with pytest.raises(ValueError): Sandbox(fallback="hope")


# ---------------------------------------------------------------- honest

def plain(code, board):
    "The moves of a strategy under plain Python."
    names = {"__name__": "strategy"}
    exec(compile(code, "<strategy>", "exec"), names)
    board, initial, moves = [line[:] for line in board], [line[:] for line in board], []
    while any(0 in line for line in board):
        try: move = names["strategy"]([line[:] for line in board], [line[:] for line in initial])
        except Exception: break
        if type(move) not in (tuple, list) or len(move) != 3 or refusal(board, *move): break
        board[move[0]][move[1]] = move[2]
        moves.append(tuple(move))
    return tuple(moves)


def same(played, code, board):
    moves = plain(code, board)
    full = len(moves) == sum(line.count(0) for line in board)
    return played.moves == moves and (played.outcome == "solved") == full


def test_every_benign_strategy_plays_as_under_plain_python(box):
    need_shared(SHARED / "strategies/benign")
    if box.mode != "filter": pytest.skip(f"no filter here: {box.why}")
    codes = collection("benign")
    assert len(codes) >= 18
    for board in (EMPTY, PUZZLE, HARD):
        for (name, code), played in zip(codes.items(), box.play([Job(code, board) for code in codes.values()])):
            assert forbidden(code) is None and invalid(code) is None, name
            assert same(played, code, board), (name, played)


@linux
def test_every_harmless_module_can_be_imported(box):
    for name in Z.HARMLESS:
        head = "from __future__ import annotations\n" if name == "__future__" else f"import {name}\n"
        played = box.play([Job(head + program("return (0, 2, 4)"), PUZZLE, max_moves=1)])[0]
        assert played.moves == ((0, 2, 4),), (name, played)


@linux
def test_what_python_loads_late_is_there(box):
    lines = ['"\\N{BULLET}"', '"é".encode("latin-1")', 'import datetime; datetime.datetime.strptime("2026", "%Y")', 'print("é", flush=True)', "import re; re.compile('[a-z]+', re.I)",
             "from dataclasses import dataclass", "import typing; typing.NamedTuple('T', [('a', int)])", "import statistics; statistics.stdev([1, 2, 4])", "import decimal; decimal.Decimal(2).sqrt()",
             "import random; random.shuffle([1, 2]); random.Random().random()", "import json; json.dumps({'a': [1.5]})", "import copy; copy.deepcopy({1: [2]})", "import enum; enum.Enum('E', 'a b')",
             "import time; time.time(), time.perf_counter()", "f'{1234567:,} {3.14159:.2f} {5:>3}'", "sorted({'b', 'a'}, key=str.lower)", "x = 1\n    def f():\n        nonlocal x\n        x += 1\n    f()", "assert True"]
    for line, played in zip(lines, box.play([Job(program(line, "return (0, 2, 4)"), PUZZLE, max_moves=1) for line in lines])):
        assert played.moves == ((0, 2, 4),), (line, played)
    code = "from __future__ import annotations\nfrom dataclasses import dataclass, field\nfrom typing import ClassVar\n@dataclass(order=True)\nclass Cell:\n    r: int\n    c: ClassVar[int] = 2\n    d: list[int] = field(default_factory=list)\n" + program("return (Cell(0).r, Cell.c, 4)")
    assert box.play([Job(code, PUZZLE, max_moves=1)])[0].moves == ((0, 2, 4),)


@linux
def test_the_same_program_plays_the_same_game_every_time():
    code = "import random\n" + program("words = {str(i) + w for i, w in enumerate('the order of a set of strings is that of their hashes'.split())}", "random.seed(''.join(words))",
        "cells = [(r, c) for r in range(9) for c in range(9) if not board[r][c]]", "r, c = random.choice(cells)", "return r, c, random.randint(1, 9)")
    unseeded = "import random\n" + program("return random.choice([(r, c, n) for r in range(9) for c in range(9) for n in range(1, 10) if not board[r][c]])")
    games = []
    for _ in range(2):
        with Sandbox(1, workers=2) as b: games += b.play([Job(code + f"# {i}", EMPTY) for i in range(4)] + [Job(unseeded + f"# {i}", EMPTY) for i in range(4)])
    assert len({g.last_move for g in games[0:4] + games[8:12]}) == 1
    assert len({(g.moves, g.last_move) for g in games[4:8] + games[12:16]}) == 1 and games[4].moves


# ---------------------------------------------------------------- the cases

def cases():
    path = SHARED / "cases/sandbox.jsonl"
    return {c["id"]: c for c in map(json.loads, path.read_text().splitlines())} if path.exists() else {}


RUN = {      # the cases that are about running code: what is played, and what may come of it
    "X09": ("def strategy(board, initial):\n    return (0,0,1)\nopen('pwned','w').write('x')\n", {"forbidden", "invalid"}),
    "X10": (program("().__class__.__base__.__subclasses__()", "return (0, 0, 1)"), {"forbidden", "wrong"}),
    "X13": ("def strategy(board, initial):\n    while True:\n        try:\n            pass\n        except BaseException:\n            pass", {"timeout"}),
    "X15": (LOOP, {"timeout"}),
    "X16": (program("sum(range(10**11))"), {"timeout"}),
    "X18": (program("print('x'*200000)", "return (0, 0, 1)"), {"wrong"}),
    "X19": (program("import os", "os.fork()", "import time", "time.sleep(60)"), {"forbidden", "error"}),
    "X20": (program("class T(tuple):", "    __eq__ = lambda self, other: True", "return T((0, 0, 1))"), {"bad_format"}),
    "X22": (program("import time", "time.sleep(60)"), {"error", "timeout"}),
    "X24": (program("return (0, 0, 10**5000)"), {"wrong"}),
    "X25": ("def strategy(board, initial):\n    return (0,0,1)\nThis fills cells → done", {"invalid"}),
    "X27": (program("print.__globals__"), {"forbidden", "error"}),
}
READ = {     # those that are about reading it: each is not allowed
    "X08": ["import os\ndef strategy(board, initial):\n    return (0,0,1)"],
    "X11": [program(x) for x in ("import os", "from signal import alarm", "__import__('numpy')", "import importlib")],
    "X26": [program(x) for x in ("getattr(board, '__cl'+'ass__')", "'{0.__class__}'.format(board)", "type.__dict__")],
}
ELSEWHERE = {"X02", "X04", "X06", "X07", "X12", "X23"}      # taking code out of a text, totals: tests of the task; X12 below


def test_every_case_has_its_test():
    need_shared(SHARED / "cases/sandbox.jsonl")
    assert set(cases()) <= RUN.keys() | READ.keys() | ELSEWHERE


@pytest.mark.parametrize("id", RUN)
def test_case_run(id, box, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, outcomes = RUN[id]
    played = box.play([Job(code, PUZZLE)])[0]
    assert played.outcome in outcomes and played.valid_moves == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("id", [x for x in RUN if x not in ("X09", "X25")])
@linux
def test_case_run_without_the_gate(id, open_box, tmp_path):
    played = open_box.play([Job(RUN[id][0], EMPTY, max_moves=1)])[0]
    assert played.outcome not in ("sandbox_error", "solved") and played.outcome in OUTCOMES


@pytest.mark.parametrize("id", READ)
def test_case_read(id):
    assert all(forbidden(code) for code in READ[id])
    if id == "X08": assert imports(READ[id][0]) == ["os"]


def test_defaults_recursion_and_helpers_work(box):           # X12
    codes = ["def strategy(board, initial, k=4): return (0, 2, k)", "def strategy(b, i):\n    return (0, 2, 4) if i is None else strategy(b, None)", "def help(): return 0, 2, 4\ndef strategy(board, initial): return help()",
             "D = 4\nclass A:\n    def move(self): return [0, 2, D]\ndef strategy(board: list, initial: list) -> tuple:\n    return A().move()", "def strategy(*boards): return (0, 2, 4)"]
    assert [p.moves for p in box.play([Job(c, PUZZLE, max_moves=1) for c in codes])] == [((0, 2, 4),)]*5


# ---------------------------------------------------------------- reading

@pytest.mark.parametrize("line", ["import os.path", "from os import path", "import math, os", "import xml.etree", "import numpy as np", "from .helpers import solve", "from random import _os", "import builtins",
    "__builtins__['open']", "exec('x = 1')", "compile('1', '', 'eval')", "().__class__.__mro__[1]", "(lambda: 0).__globals__", "(lambda: 0).__code__", "print.__self__", "x.__reduce__()", "getattr(x, 'a' + f())",
    "getattr(x, f'__{n}__')", "setattr(x, '__dict__', 1)", "x = '{.__globals__}'", "f'{x.__class__}'", "e.__traceback__.tb_frame", "object.__getattribute__(x, 'a')", "__loader__", "importlib.import_module('os')", "import typing; typing.sys",
    "import typing as t; u = t; u.sys", "import collections; collections.abc.sys", "from re import enum; enum.sys", "import copy; [copy][0].os", "import statistics; statistics.random._os", "g = getattr; g(x, 'a')", "list(map(getattr, [x], ['a']))",
    "import operator; operator.attrgetter('__class__')(x)", "import operator; operator.attrgetter('__cl' + 'ass__.mro')(x)", "import operator; operator.methodcaller(f())(x)", "from operator import attrgetter as a", "globals()['__buil' + 'tins__']",
    "('{0.__cl' + 'ass__}').format(x)", "x = 'a' + '__glo' + 'bals__' + 'b'", "__import__('o' + 's')", "i = __import__"])
def test_forbidden_wherever_it_stands(line):
    for code in (program(line), program("def f():", "    class A:", f"        x = lambda: 0; {line}"), program("try:", f"    {line}", "except Exception: pass", "return (0, 0, 1)")): assert forbidden(code), code


@pytest.mark.parametrize("line", ["import math", "import collections.abc as abc", "from itertools import product, combinations", "x = super().__init__", "x = self._x", "x = a.__class__.__name__", "x = type(a).__name__",
    "x = self.__class__(1)", "self.__dict__.update(a=1)", "x = f.__name__, f.__doc__", "open = [1]; open.append(2)", "x = getattr(cell, 'row', None)", "setattr(self, name, 1)", "x = 'os sys __init__ __main__'",
    "print('import os')", "x = input", "global cache", "x = [].__len__()", "x = dict.fromkeys('ab')", "class A:\n        __slots__ = ('a',)\n        def __eq__(self, other): return self.__class__ is other.__class__", "x = vars, dir, globals",
    "import time, copy, string, heapq, bisect, functools, random, re", "import calendar, difflib, keyword, unicodedata, warnings", "import operator; x = operator.attrgetter('row', 'col.n'), operator.methodcaller('count', n)", "self.os = 1; x = self.os",
    "node.sys = [1]; x = node.sys", "x = cell.signal, cell.io", "x = '_' + '_' + n", "getattr = dict.get; x = getattr", "import collections; x = collections.namedtuple('P', 'a')._fields"])
def test_not_forbidden(line): assert forbidden(program(line)) is None


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda b: b.decode("latin-1")) | st.lists(st.sampled_from("def strategy(board, initial):|\n|    |return|(|)|[|'''|:|import os|lambda|f'{|\\|@|0x|\0|\ud800|".split("|")), max_size=40).map(" ".join))
@settings(deadline=None)
def test_reading_never_raises(code):
    source = read_code(code)
    assert source.invalid is None or isinstance(source.invalid, str)


@pytest.mark.parametrize("code", ["(" * 20_000, "[" * 199, "-" * 15_000 + "1", "1" + "+1" * 9_900, "a" + ".a" * 9_000, "if a: pass\n" + "elif a: pass\n" * 1_500, "f(" * 6_000, "lambda:" * 2_500 + "1", "x = " * 4_900 + "1", "9" * 19_000, "'" * 19_999, "not " * 4_900 + "1"])
def test_a_text_that_is_hard_to_read_is_invalid_or_read(code): assert isinstance(read_code(code), S.Source)


def test_a_name_of_a_thousand_pieces_is_read_too():
    for n in (2, 900, 2400):
        for call in ("getattr(board, {})", "__import__({})", "x = {}"):
            assert isinstance(read_code(program(call.format(" + ".join(["''"] * n)))), S.Source)
    assert forbidden(program(f"getattr(board, {' + '.join(['0'.join(chr(39)*2)]*900)})"))


def test_reading_in_many_threads_leaves_the_warnings_alone():
    import warnings
    with warnings.catch_warnings():
        before = list(warnings.filters)
        threads = [threading.Thread(target=lambda k=k: [read_code(program(f"x = '\\d', {k}, {i}")) for i in range(60)]) for k in range(8)]
        for t in threads: t.start()
        for t in threads: t.join()
        assert warnings.filters == before


# ---------------------------------------------------------------- judging

@given(st.lists(st.tuples(*[st.integers(-1, 10)]*3), max_size=60))
@settings(deadline=None)
def test_the_childs_rules_are_the_boards(moves):
    board = [line[:] for line in PUZZLE]
    for move in moves:
        assert Z.allowed(board, *move) == (refusal(board, *move) is None)
        if Z.allowed(board, *move): board[move[0]][move[1]] = move[2]
    told = replay(PUZZLE, moves)
    assert all(Z.allowed(replay(PUZZLE, told.kept[:i]).board, *move) for i, move in enumerate(told.kept))


@given(st.binary(min_size=Z.PAGE, max_size=Z.PAGE), st.sampled_from([0, 256, 9, 11, 27, 24, 31, 6]), st.sampled_from([0, ord("R"), ord("S"), ord("?")]), st.booleans(), st.integers(0, 8))
@settings(deadline=None, max_examples=300)
def test_no_page_makes_solved_of_what_is_not(page, status, late, ready, label):
    page = bytes([label]) + page[1:]
    setup = bytes([ready]) + page[:Z.SETUP - 1]
    played = judge(Job(SOLVER, PUZZLE), Z.ANSWER.pack(status, .1, .1, late, setup, page))
    if played is None: return
    assert played.outcome in OUTCOMES and (played.outcome == "sandbox_error") == (not ready)
    assert played.outcome != "solved" or len(played.moves) == 51
    json.dumps(played.as_dict())
    assert played.detail.isprintable()


def test_a_page_with_a_whole_game_in_it_is_that_game():
    with Sandbox(1) as b: moves = b.play([Job(SOLVER, PUZZLE)])[0].moves
    page = bytearray(Z.PAGE)
    page[Z.LABEL], page[Z.MOVES:Z.MOVES + 153] = Z.DONE, bytes(sum(map(list, moves), []))
    answer = lambda status: Z.ANSWER.pack(status, .1, .1, 0, b"\1" + bytes(Z.SETUP - 1), bytes(page))
    assert judge(Job(SOLVER, PUZZLE), answer(0)).outcome == "solved"
    assert judge(Job(SOLVER, PUZZLE), answer(signal.SIGPROF)).outcome == "timeout"        # it filled the board, and then went on for ever
    assert judge(Job(SOLVER, EMPTY), answer(0)).outcome == "wrong"


# ---------------------------------------------------------------- accidents

@linux
def test_a_zygote_that_is_killed_is_replaced_and_its_program_played_again():
    with Sandbox(.5, workers=1) as b:
        pid = b._pool.idle[0].process.pid
        killer = threading.Thread(target=lambda: until(lambda: descendants(pid)) and os.kill(pid, signal.SIGKILL))
        killer.start()
        children = []
        watch = threading.Thread(target=lambda: until(lambda: children.extend(descendants(pid)) or children))
        watch.start()
        played = b.play([Job(LOOP, PUZZLE), Job(SOLVER, PUZZLE)])
        killer.join(), watch.join()
        assert [p.outcome for p in played] == ["timeout", "solved"]
        assert b.restarts == 1 and "killed" in b.notes[-1]
        assert until(lambda: not any(map(running, children)))                   # the child of the dead zygote died with it
        os.kill(b._pool.idle[0].process.pid, signal.SIGKILL)                    # between two batches
        assert b.play([Job(SOLVER, PUZZLE)])[0].outcome == "solved"


@linux
def test_a_zygote_that_is_killed_as_it_starts_is_replaced_too():
    with Sandbox(.5, workers=1) as b:
        make, killed = b._pool.make, []
        def short_lived():
            z = make()
            if len(killed) < 2: os.kill(z.process.pid, signal.SIGKILL); killed.append(z)
            return z
        b._pool.make = short_lived
        os.kill(b._pool.idle[0].process.pid, signal.SIGKILL)
        assert b.play([Job(SOLVER, PUZZLE)])[0].outcome == "solved" and b.restarts == 3
        b._pool.make = lambda: (z := make(), os.kill(z.process.pid, signal.SIGKILL))[0]         # and one that never starts is said
        os.kill(b._pool.idle[0].process.pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="did not start"): b.play([Job(SOLVER, PUZZLE)])
        b._pool.make = make
        assert b.play([Job(SOLVER, PUZZLE)])[0].outcome == "solved" and b._pool.live == 1


@linux
def test_a_zygote_that_is_killed_twice_gives_no_score():
    with Sandbox(20, workers=1) as b:
        stop = threading.Event()
        def kill():
            seen = set()
            while not stop.is_set():
                for z in descendants(os.getpid()):
                    if z not in seen and descendants(z) and z in {x.process.pid for x in made}: seen.add(z); os.kill(z, signal.SIGKILL)
                time.sleep(.01)
        made, make = list(b._pool.idle), b._pool.make
        b._pool.make = lambda: made.append(make()) or made[-1]
        killer = threading.Thread(target=kill)
        killer.start()
        played = b.play([Job(LOOP, PUZZLE)])[0]
        stop.set(), killer.join()
        assert (played.outcome, played.detail) == ("sandbox_error", "its zygote was killed twice")
        assert b.play([Job(SOLVER, PUZZLE)])[0].outcome == "solved"


@linux
def test_a_zygote_that_does_not_answer_is_replaced(monkeypatch):
    monkeypatch.setattr(S._Asking, "patience", .2)
    with Sandbox(.2, workers=1, grace=.2) as b:
        os.kill(b._pool.idle[0].process.pid, signal.SIGSTOP)
        assert b.play([Job(SOLVER, PUZZLE)])[0].outcome == "solved" and b.restarts == 1


@linux
def test_where_the_machine_is_starved_a_program_is_played_again_alone(monkeypatch):
    "At a deadline that comes too early the child is found running: it is not called slow."
    real, patience = Sandbox._request, []
    def hurried(self, job, more=1.0):
        patience.append(more)
        data = bytearray(real(self, job, more))
        if more == 1.0 or never: Z.REQUEST.pack_into(data, 0, len(data) - Z.REQUEST.size, 5.0, .1, 81)
        return bytes(data)
    monkeypatch.setattr(Sandbox, "_request", hurried)
    slow = program("for i in range(10**7): pass", "return (0, 0, 1)")
    with Sandbox(5, workers=2) as b:
        never = False
        played = b.play([Job(slow, PUZZLE), Job(SOLVER, PUZZLE)])
        assert [p.outcome for p in played] == ["wrong", "solved"] and 3.0 in patience
        never = True
        played = b.play([Job(slow, PUZZLE)])[0]
        assert played.outcome == "sandbox_error" and "busy" in played.detail


@linux
def test_threads_share_and_each_gets_its_own(box):
    codes = [program(f"return (0, 2, {d})") for d in (1, 2, 4)] * 8
    out = {}
    def ask(k): out[k] = [p.moves for p in box.play([Job(c + f"# {k}", PUZZLE, max_moves=1) for c in codes])]
    threads = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert set(map(str, out.values())) == {str([((0, 2, d),) for d in (1, 2, 4)] * 8)}


@linux
def test_an_interrupted_batch_leaves_a_sandbox_that_works():
    with Sandbox(30, workers=2) as b:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, .5)
        try:
            with pytest.raises(KeyboardInterrupt): b.play([Job(LOOP + f"# {i}", PUZZLE) for i in range(6)])
        finally: signal.signal(signal.SIGALRM, before)
        assert b.play([Job(SOLVER, PUZZLE)])[0].outcome == "solved"
        assert b._pool.live <= 2


@linux
def test_a_trainer_that_blocks_or_ignores_signals_does_not_disarm_the_timer():
    script = f"""
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGPROF, signal.SIGXCPU, signal.SIGCHLD}})
for s in (signal.SIGPROF, signal.SIGXCPU, signal.SIGCHLD): signal.signal(s, signal.SIG_IGN)
from grpo_tutorials.core.sandbox import Job, Sandbox
with Sandbox(.3) as b: print([p.outcome for p in b.play([Job({LOOP!r}, {PUZZLE}), Job({SOLVER!r}, {PUZZLE})])])
"""
    r = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert r.stdout.strip() == "['timeout', 'solved']", r.stderr


TRAINER = f"""
import os, sys, time
from grpo_tutorials.core.sandbox import Job, Sandbox
b = Sandbox(600, workers=2)
if "hold" in sys.argv and not os.fork():           # a data loader: it holds copies of the pipes, and outlives the trainer
    time.sleep(120); os._exit(0)
print(*[z.process.pid for z in b._pool.idle], flush=True)
b.play([Job({LOOP!r} + "# 1", {PUZZLE}), Job({LOOP!r} + "# 2", {PUZZLE})] if "idle" not in sys.argv else [])
time.sleep(120)
"""


@linux
@pytest.mark.parametrize("how", [[], ["idle"], ["hold"]])
def test_nothing_is_left_when_the_trainer_is_killed(how):
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, *how], stdout=subprocess.PIPE, text=True)
    zygotes = list(map(int, trainer.stdout.readline().split()))
    if "idle" not in how: assert until(lambda: all(descendants(z) for z in zygotes))
    below, others = zygotes + [d for z in zygotes for d in descendants(z)], descendants(trainer.pid)
    trainer.kill()
    trainer.wait()
    left = until(lambda: not any(map(running, below)))
    for pid in others:
        if running(pid): os.kill(pid, signal.SIGKILL)                           # the data loader that we made, and whatever failed to end
    assert left


@linux
def test_after_a_fork_each_has_its_own():
    script = f"""
import os
from grpo_tutorials.core.sandbox import Job, shared
job = Job({SOLVER!r}, {PUZZLE})
print(shared(1).play([job])[0].outcome, flush=True)
before = shared(1)
pid = os.fork()
print(shared(1).play([job])[0].outcome, (shared(1) is before) == (pid > 0), before.play([job])[0].outcome, flush=True)
if pid: print(os.waitpid(pid, 0)[1], shared(1).restarts, shared(1).play([job])[0].outcome)
else: before.close(); os._exit(0)
"""
    r = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60)
    assert sorted(r.stdout.splitlines()) == sorted(["solved", "solved True solved", "solved True solved", "0 0 solved"]), r.stderr


def test_a_closed_sandbox_opens_again_and_shared_is_one():
    b = Sandbox(1)
    b.close(), b.close()
    assert b.play([Job(SOLVER, PUZZLE)])[0].outcome == "solved"
    b.close()
    assert shared(1.0) is shared(1.0) and shared(1.0) is not shared(2.0)


@linux
def test_beside_jax_threads():
    pytest.importorskip("jax")
    script = f"""
import os, threading
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, jax.numpy as jnp
from grpo_tutorials.core.sandbox import Job, Sandbox
f = jax.jit(lambda x: (x @ x).sum())
out = []
with Sandbox(1) as b:
    t = threading.Thread(target=lambda: out.extend(b.play([Job({SOLVER!r} + f"# {{i}}", {PUZZLE}) for i in range(30)])))
    t.start()
    for i in range(20): f(jnp.ones((300, 300))).block_until_ready()
    t.join()
print({{p.outcome for p in out}}, len(out))
"""
    r = subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", script], capture_output=True, text=True, timeout=120)
    assert r.stdout.strip() == "{'solved'} 30", r.stderr


# ---------------------------------------------------------------- another user

def anyones_python():
    "An interpreter that any user may run."
    for p in (sys.executable, getattr(sys, "_base_executable", ""), "/usr/bin/python3", "/usr/local/bin/python3"):
        if not p or not Path(p).exists(): continue
        r = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", p, "-c", "import os, sys; print(sys.version_info >= (3, 11) and os.access(sys.executable, os.X_OK))"], capture_output=True, text=True, cwd="/")
        if r.stdout.strip() == "True": return p
    pytest.skip("no Python here that another user may run")


@linux
def test_as_an_ordinary_user():
    if os.getuid() != 0: pytest.skip("this is an ordinary user already: the other tests are this test")
    if not shutil.which("setpriv"): pytest.skip("no setpriv here")
    script = """
import json, sys
from grpo_tutorials.core.sandbox import Job, Sandbox, check
codes, board = json.load(sys.stdin)
with Sandbox(.5, gate=False) as b: games = [p.as_dict() for p in b.play([Job(c, board) for c in codes])]
print(json.dumps([b.mode, games, [x[:2] for x in check()]]))
"""
    hostile, benign = collection("hostile"), collection("benign")
    r = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", anyones_python(), "-c", script], input=json.dumps([[*hostile.values(), *benign.values(), SOLVER], PUZZLE]), cwd="/",
                       env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    mode, games, layers = json.loads(r.stdout)
    games = [Played(**(g | dict(moves=tuple(map(tuple, g["moves"])), last_move=g["last_move"] and tuple(g["last_move"])))) for g in games]
    assert mode == "filter" and games[-1].outcome == "solved"
    assert {name: p for name, p in zip(hostile, games) if not contained(p)} == {}
    assert [name for (name, code), p in zip(benign.items(), games[len(hostile):]) if not same(p, code, PUZZLE)] == []
    assert {name for name, holds in layers if holds is not True} == {"another user"}


# ---------------------------------------------------------------- without the filter

REFUSED = f"""
import ctypes, struct
libc = ctypes.CDLL(None)
steps = [(0x20, 0, 0, 0), (0x15, 4, 0, 317), (0x15, 0, 2, 157), (0x20, 0, 0, 16), (0x15, 1, 0, 22), (6, 0, 0, 0x7FFF0000), (6, 0, 0, 0x50016)]    # a container: seccomp() and prctl(PR_SET_SECCOMP) fail with EINVAL
text = b"".join(struct.pack("<HBBI", *s) for s in steps)
kept = ctypes.create_string_buffer(text, len(text))
head = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(kept)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, head, 0, 0) == 0
import sys
from grpo_tutorials.core import sandbox as S
from grpo_tutorials.core.sandbox import Job, Sandbox, check
job = Job({SOLVER!r}, {PUZZLE})
"""


def refused(script):
    r = subprocess.run([sys.executable, "-c", REFUSED + script], capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    return r.stdout.strip().splitlines()


@linux
def test_where_the_kernel_refuses_the_filter_it_is_said_and_nothing_is_played_without():
    out = refused("""
for fallback in (None, "monty"):
    sys.modules["pydantic_monty"] = None
    try: Sandbox(1, fallback=fallback)
    except S.Unavailable as e: print(e)
with Sandbox(1, fallback="rlimits") as b: print(b.mode, b.why, b.notes, b.play([job])[0].outcome)
print([(x.name, x.holds) for x in check()])
""")
    assert "refused the filter" in out[0] and "fallback='monty'" in out[0] and "\n" not in out[0]
    assert "pip install 'grpo_tutorials[sandbox]'" in out[1] and "fallback='rlimits'" in out[1]
    assert out[2].startswith("rlimits") and "resource limits alone" in out[2] and out[2].endswith("solved")
    assert out[3] == "[('filter of system calls', False)]"


@linux
def test_where_the_kernel_refuses_the_filter_monty_plays():
    pytest.importorskip("pydantic_monty")
    out = refused("with Sandbox(1) as b: print(b.mode, b.notes, b.play([job])[0].outcome)\nprint({x.name: x.holds for x in check() if x.holds is False}, [x.name for x in check()][-1])")
    assert out[0].startswith("monty") and out[0].endswith("solved")
    assert out[1] == "{'filter of system calls': False} Monty"


@pytest.fixture(scope="module")
def monty():
    pytest.importorskip("pydantic_monty")
    real, S.no_filter_here = S.no_filter_here, lambda: "no filter, for this test"
    try: b = Sandbox(1, gate=False)
    finally: S.no_filter_here = real
    with b: yield b


def test_monty_contains_the_hostile(monty):
    codes = collection("hostile")
    for name, played in zip(codes, monty.play([Job(c, EMPTY) for c in codes.values()])):
        assert played.last_move != (9, 9, 9) and played.outcome in OUTCOMES and played.outcome not in ("solved", "sandbox_error"), (name, played)
    assert monty.play([Job(SOLVER, PUZZLE)])[0].outcome == "solved"


def test_monty_plays_the_honest_the_same_or_says_that_it_cannot(monty):
    codes = collection("benign")
    for board in (EMPTY, PUZZLE):
        for (name, code), played in zip(codes.items(), monty.play([Job(c, board) for c in codes.values()])):
            assert played.outcome in ("unsupported", "timeout") or same(played, code, board), (name, played)


@pytest.mark.parametrize("code, outcome", [(program("return (0, 0, 1)"), "wrong"), (program("return (0, 2, True)"), "bad_format"), (program("return board[9]"), "error"), (LOOP, "timeout"), (program("x = [0]*10**9", "return (0, 2, 4)"), "memory"),
    (program("yield 1"), "unsupported"), (program("return (0, 0, 10**5000)"), "wrong"), (program("return undefined"), "error"), (program("print('x'*2**21)", "return (0, 2, 4)"), "memory"), (program("import time; time.sleep(99)", "return (0, 0, 1)"), "wrong")])
def test_monty_names_the_end(monty, code, outcome): assert monty.play([Job(code, PUZZLE)])[0].outcome == outcome


# ---------------------------------------------------------------- layers

@linux
def test_every_layer_holds_and_no_canary_is_asleep():
    layers = check()
    assert len(layers) == len(S.CANARIES) and not [x for x in layers if x.holds is False]
    names = " ".join(x.name for x in layers)
    for word in ("filter", "interpreter", "process", "processor time", "memory", "replay", "descriptors", "user", "privileges", "parent", "deadline"): assert word in names


@linux
def test_a_canary_sings_where_its_layer_is_gone():
    with Sandbox(.5, gate=False, layers=()) as naked:
        rows = [r for r in S.CANARIES if r[0] in ("filter of system calls", "no new descriptors", "no new processes", "another user")]
        for name, _, tried, code in rows:
            if tried == "sleep for an hour": continue
            played = naked.play([Job(code, EMPTY)])[0]
            assert played.last_move == (9, 9, 9) or "timer" in tried and played.outcome == "wrong", (tried, played)


@pytest.mark.parametrize("wrong, says", [(dict(timeout=0), "above 0"), (dict(timeout=float("nan")), "above 0"), (dict(workers=0), "at least 1"), (dict(memory=8), "at least 64"), (dict(fallback="exec"), "choose"), (dict(layers=["walls"]), "unknown layer"),
    (dict(timeout="1"), "a number"), (dict(timeout=True), "a number"), (dict(workers=1.5), "a whole number"), (dict(workers="2"), "a whole number"), (dict(memory=64.5), "a whole number"), (dict(memory=None), "a whole number"), (dict(grace=-1), "at least 0"), (dict(grace=float("nan")), "at least 0"), (dict(grace="x"), "a number")])
def test_wrong_settings_are_one_line(wrong, says):
    with pytest.raises(ValueError, match=says): Sandbox(**wrong)


@pytest.mark.parametrize("board", [[], [[0]*9]*8, [[0]*8]*9, [[10] + [0]*8] + [[0]*9]*8, [[True] + [0]*8] + [[0]*9]*8, [[0.0]*9]*9, None, 5, "0"*81, [[0]*27]*3, [[0]*9]*8 + [5], [[1]*9]*9, [[1, 1] + [0]*7] + [[0]*9]*8])
def test_a_board_that_is_none_raises(box, board):
    with pytest.raises(ValueError, match="board"): box.play([Job(SOLVER, board)])
    if board is not None:
        with pytest.raises(ValueError, match="board"): box.play([Job(SOLVER, PUZZLE, board)])


@pytest.mark.parametrize("job, says", [(Job(SOLVER, PUZZLE, None, m), "max_moves") for m in (None, 1.5, "5", True)] + [(Job(c, PUZZLE), "a program is a string") for c in (None, 5, b"x", ["x"])])
def test_a_job_that_is_none_raises(box, job, says):
    with pytest.raises(ValueError, match=says): box.play([job])


def test_arguments_are_not_changed(box):
    board = [line[:] for line in PUZZLE]
    box.play([Job(SOLVER, board), Job(SOLVER, tuple(map(tuple, board)), board)])
    assert board == PUZZLE


def test_a_solved_board_needs_no_move(box):
    full = replay(PUZZLE, box.play([Job(SOLVER, PUZZLE)])[0].moves).board
    assert box.play([Job(SOLVER, full)])[0].outcome == "solved"
