"""The committed receipts: what the pages say of them is what stands in them."""
import csv
import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"


def command():
    "scripts/receipts as a module: it has no ending."
    loader = importlib.machinery.SourceFileLoader("receipts", str(ROOT / "scripts" / "receipts"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("receipts", loader))
    loader.exec_module(module)
    return module


def rows(name): return list(csv.DictReader((RESULTS / name).open()))
def ends(name): return [r for r in rows(name) if r["phase"] != "train"]


@pytest.mark.parametrize("name", ["gsm8k_cpu.csv", "gsm8k_trl_cpu.csv", "sudoku_cpu.csv"])
def test_the_page_shows_the_table_of_the_file(name):
    page = (RESULTS / "README.md").read_text().splitlines()
    assert [line for line in command().table(rows(name)) if line not in page] == []


def test_sudoku_is_learned_by_every_seed_in_both_ways():
    "Three seeds of warm start and GRPO: from under .10 to .60 in 50 steps with all weights, to .55 in 70 with LoRA."
    found = ends("sudoku_cpu.csv")
    runs = {(int(b["lora_rank"]), int(b["seed"])): (b, a) for b, a in zip(found[::2], found[1::2])}
    assert set(runs) == {(rank, seed) for rank in (0, 32) for seed in (0, 1, 2)}
    for (rank, _), (before, after) in runs.items():
        assert (before["phase"], after["phase"]) == ("before", "after") and before["n"] == after["n"] == "256"
        assert 0 < float(before["sampled"]) < .10 and float(before["truncated"]) < 1 / 3
        assert float(after["sampled"]) >= (.55 if rank else .60) and int(after["step"]) <= (70 if rank else 50)
        assert float(after["sampled_low"]) > float(before["sampled_high"])
        assert all(r[k] for r in (before, after) for k in ("distinct", "truncated", "works")) and float(after["commonest"]) < .5      # no collapse to one program


def test_gsm8k_is_learned_on_both_engines():
    for name in ("gsm8k_cpu.csv", "gsm8k_trl_cpu.csv"):
        found = ends(name)
        assert len(found) == 6 and all(float(a["greedy_low"]) > float(b["greedy_high"]) for b, a in zip(found[::2], found[1::2]))


def test_every_engine_learns():
    "Whatever runs stand in the file, in the order before, training, after."
    runs = {}
    for r in rows("engines_cpu.csv"): runs.setdefault((r["task"], r["engine"], r["lora_rank"], r["seed"]), []).append(r)
    assert {engine for _, engine, _, _ in runs} == {"scratch", "tunix", "trl"} and {rank for task, _, rank, _ in runs if task == "sudoku"} == {"0"}
    for key, mine in runs.items():
        before, after = mine[0], mine[-1]
        assert [r["phase"] for r in mine] == ["before", *["train"] * int(after["step"]), "after"], key
        assert all(float(after[k + "_low"]) > float(before[k + "_high"]) for k in ("greedy", "sampled")), key


def test_every_step_has_its_row():
    for name in ("gsm8k_cpu.csv", "gsm8k_trl_cpu.csv", "sudoku_cpu.csv"):
        table = rows(name)
        for key in {(r["lora_rank"], r["seed"]) for r in table}:
            mine = [r for r in table if (r["lora_rank"], r["seed"]) == key]
            steps = [int(r["step"]) for r in mine]
            assert steps == [0, *range(1, steps[-1] + 1), steps[-1]] and all(r["distinct"] and r["truncated"] for r in mine[1:-1])
            assert all(mine[0][k] for k in ("date", "machine", "versions", "git", "seconds"))


def test_counting():
    m = command()
    said = lambda text, works, cheat, succeeds: dict(completion=text, rewards=dict(function_works=works, no_cheating=cheat, strategy_succeeds=succeeds))
    found = m.counted([said("a", 1, 1, 30), said("a", 1, 1, 30), said("b", 1, -20, 0), said("c", -2, -1, 0), said("d", None, None, None)])
    assert found == dict(distinct=4, commonest=.4, solved=.5, works=.5)
    assert m.counted([dict(completion="a", rewards=dict(answer=1.0))]) == dict(distinct=1, commonest=1)
