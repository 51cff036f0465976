"What the tests of every engine do with runs: start them, interrupt them, read what they left."
import json
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_tutorials.core.answers import Grade
from grpo_tutorials.core.runs import Run
from grpo_tutorials.models.lora import read_tensors


def runner(engine, task, scale):
    "`run` for an engine's module, with a task and a scale of its own."
    name = engine.__name__.rpartition(".")[2]

    def run(path, scale=scale, stop=None, resume=False, task=task, seed=0, **more):
        "A run that is interrupted after `stop` steps, if any; its summary, or None."
        with Run.open(path, dict(task=task.name, engine=name, scale=scale, seed=seed), resume=resume) as r:
            r.say = lambda text: None
            def listen(stage, done, total):
                if stage == "train" and done == stop: raise KeyboardInterrupt
            r.listeners.append(listen)
            try: return engine.train(task, scale, r, seed=seed, resume=resume, **more)
            except KeyboardInterrupt: return None
    return run


def adapter(path: Path): return read_tensors(path / "adapter" / "adapter_model.safetensors")
def lines(path: Path, name: str): return [json.loads(x) for x in (path / name).read_text().splitlines()]


def start_without_a_winner(run, task, scale, path: Path) -> None:
    "At cpu scale a task judged by its samples stops before it trains where nobody wins, and goes on when told to."
    hopeless = replace(task, headline="sampled", grade=lambda text, row: Grade(None, True, False, False))
    small = replace(scale, name="cpu", model="tiny", max_completion_length=28, steps=1, eval_n=8)
    with pytest.raises(ValueError, match="nothing to reinforce: none of 128 samples is right"): run(path / "stops", small, task=hopeless)
    assert run(path / "goes on", small, task=hopeless, force=True)["steps"] == 1
