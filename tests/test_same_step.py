"From the same weights, prompts, completions and rewards, scratch, Tunix and TRL take the same step."
import dataclasses
import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
if os.environ.get("CI", "").lower() != "true":
    for module in ("jax", "torch", "trl", "tunix"): pytest.importorskip(module)


@pytest.fixture(scope="module")
def page():
    "What nbs/engines/03_same_step.ipynb defines: a step of each engine, from the engine's own code. Its last cells are left to it."
    names = {}
    for cell in json.loads((ROOT / "nbs/engines/03_same_step.ipynb").read_text())["cells"]:
        code = "".join(cell["source"])
        if cell["cell_type"] == "code" and "found" not in code: exec(compile(code, "03_same_step.ipynb", "exec"), names)
    assert {"three", "make_rows", "make_factors"} <= set(names)
    return names


CASES = {      # the page itself: a later step, `grpo`
    "first step, tokens averaged, another temperature": (dict(loss_type="bnpo", temperature=0.7), False),
    "later step, constant divisor, wider upwards, no reference": (dict(loss_type="dr_grpo", epsilon=0.1, epsilon_high=0.3, beta=0.0), True),
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_step(page, case):
    changes, moved = CASES[case]
    scale = dataclasses.replace(page["scale"], **changes)
    found = page["three"](scale, page["make_rows"](scale), page["make_factors"](scale), moved)
    ours, tunix, trl = found["loss"]
    assert tunix == pytest.approx(ours, rel=1e-4, abs=1e-6) and trl == pytest.approx(ours, rel=1e-4, abs=1e-6)
    assert max(found["gap"]) < 1e-4
    assert found["told"]["clip_fraction"] > .05 if moved else found["told"]["clip_fraction"] == 0
