"A pod on one machine: processes that fail are named, batches that differ are refused, a slice is the same run as one device."
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

if os.environ.get("CI", "").lower() != "true": pytest.importorskip("tunix")
from grpo_tutorials.cluster import worker
from grpo_tutorials.cluster.rollcall import RollCall, free_port
from grpo_tutorials.cluster.simulate import (Slice, chip_map, chip_svg, environment, failures, parse_slice, run_in_slice,
                                             same_run, start, virtual_devices)
from grpo_tutorials.core.scale import Unavailable


MARK = f"GRPO_TESTED_BY={os.getpid()}"
os.environ.update([MARK.split("=")])           # what is started from here inherits it


def workers():
    "Processes of this package's worker that these tests started and that are alive."
    out = []
    for p in Path("/proc").glob("[0-9]*"):
        try: line, env = (p / "cmdline").read_bytes(), (p / "environ").read_bytes()
        except OSError: continue
        if b"grpo_tutorials.cluster.worker" in line and MARK.encode() in env.split(b"\0"): out.append(int(p.name))
    return out


@pytest.fixture(autouse=True)
def nobody_is_left_behind():
    before = set(workers())
    yield
    deadline = time.monotonic() + 5
    while set(workers()) - before and time.monotonic() < deadline: time.sleep(.05)
    assert not set(workers()) - before


# ---------------------------------------------------------------- the roll call, in threads

def play(*parts, **options):
    "What each part returned, or the error that it ended with."
    address, out = ("127.0.0.1", free_port()), [None] * len(parts)
    def one(rank):
        try:
            with RollCall(rank, len(parts), address, leave=False, **options) as roll: out[rank] = parts[rank](roll)
        except Exception as e: out[rank] = e
    threads = [threading.Thread(target=one, args=(r,), daemon=True) for r in range(len(parts)) if parts[r]]
    for t in threads: t.start()
    for t in threads: t.join(30)
    assert not any(t.is_alive() for t in threads), "a roll call never ended"
    return out


def test_a_process_that_is_stuck_before_a_barrier_is_named():
    def stuck(roll):
        time.sleep(1.5)
        roll.meet("step 3")
    began = time.monotonic()
    out = play(lambda roll: roll.meet("step 3", deadline=.5), stuck)
    assert isinstance(out[0], TimeoutError) and "process 1 did not come to 'step 3' within 0.5 s" in str(out[0])
    assert time.monotonic() - began < 15


def test_everybody_comes_and_sees_everybody():
    assert play(*[lambda roll: roll.meet("here", roll.rank * 2)] * 4) == [[0, 2, 4, 6]] * 4


def test_a_barrier_is_known_by_its_name_not_by_a_count():
    "One process asks for a word of its own more often: nobody waits for ever."
    def once(roll): return roll.meet("step 1")
    def twice(roll):
        roll.send(kind="beat", at="elsewhere")
        return roll.meet("step 1")
    assert play(once, twice) == [[None, None]] * 2
    out = play(lambda roll: roll.meet("a", deadline=.4), lambda roll: roll.meet("b", deadline=9))
    assert all(isinstance(e, TimeoutError) for e in out)


def test_the_start_has_a_limit_and_names_who_is_missing():
    out = play(lambda roll: roll.meet("step 1"), None, None, join=.4)
    assert isinstance(out[0], TimeoutError) and "processes 1 and 2 of 3 did not join within 0.4 s" in str(out[0])


def test_nobody_keeps_the_roll():
    with pytest.raises(TimeoutError, match="process 0 did not answer"): RollCall(1, 2, ("127.0.0.1", free_port()), join=.2)
    with pytest.raises(ValueError, match="process 2 of 2"): RollCall(2, 2, ("127.0.0.1", free_port()))


@pytest.mark.parametrize("values, odd", [(("a", "b"), "process 1 of 2 differs"), (("a", "b", "b"), "process 0 of 3 differs"), (("a", "b", "a", "c"), "processes 1 and 3 of 4 differ")])
def test_who_differs_is_named_by_everybody(values, odd):
    out = play(*[lambda roll, v=v: roll.same("the prompts of step 1", v) for v in values])
    assert all(isinstance(e, ValueError) and f"{odd} in the prompts of step 1" in str(e) for e in out)


def test_a_seed_from_the_clock_is_everybodys():
    assert len(set(play(*[lambda roll: roll.agree("the seed", time.time_ns() + roll.rank)] * 3))) == 1


def test_an_error_is_told_to_the_others_with_its_text():
    def broken(roll): raise KeyError("answer")
    out = play(lambda roll: roll.meet("step 1"), broken)
    assert "process 1 raised KeyError: 'answer'" in str(out[0]) and isinstance(out[1], KeyError)


# ---------------------------------------------------------------- slices

def test_slices_and_what_is_none():
    assert (Slice(4, 8).mesh, Slice(4, 8).sampler_mesh) == ((8, 2), (8, 2))
    assert Slice(1, 2).meshes() == dict(mesh=(1, 1), sampler_mesh=(1, 1)) and Slice(1, 1).meshes() == dict(mesh=(1, 1), sampler_mesh=(0, 0))
    for bad in ("", "4", "4x", "x8", "0x4", "-4x8", "4x8x2", "3x5"):
        with pytest.raises(ValueError, match="slice"): parse_slice(bad)


def test_the_environment_keeps_other_flags():
    flags = environment(4, {"XLA_FLAGS": "--xla_force_host_platform_device_count=9 --xla_cpu_enable_fast_math=false"})["XLA_FLAGS"].split()
    assert flags == ["--xla_cpu_enable_fast_math=false", "--xla_force_host_platform_device_count=4"]


def test_too_late_is_an_error():
    import jax
    with pytest.raises(Unavailable, match="devices are needed"): virtual_devices(jax.device_count() + 1)


def test_the_map_shows_every_chip_once():
    held = {p: dict(mesh={a: 2, "tp": 2}, devices=list(range(o, o + 4)), bytes=100, bytes_each=25, tensors=[]) for p, a, o in (("trainer", "fsdp", 0), ("sampler", "dp", 4))}
    chips = [c for row in chip_map(Slice(2, 4), held) for c in row]
    assert [c["part"] for c in chips] == ["trainer"] * 4 + ["sampler"] * 4
    assert [c["at"] for c in chips[:4]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert chip_svg(Slice(2, 4), held).count("<rect") == 8


# ---------------------------------------------------------------- pieces of a checkpoint

def test_a_checkpoint_in_parts_is_whole_again_or_an_error(tmp_path):
    import jax
    state = dict(w=jax.numpy.arange(12.).reshape(3, 4), n=jax.numpy.array(5))
    worker.save(tmp_path, state, 0)
    worker.save(tmp_path, {"n": state["n"]}, 1)             # a counter that both hold counts once
    back = worker.gather(tmp_path, {k: v.shape for k, v in state.items()})
    np.testing.assert_array_equal(back["w"], state["w"])
    with pytest.raises(ValueError, match="lacks a part of v"): worker.gather(tmp_path, {k: v.shape for k, v in state.items()} | dict(v=(2, 2)))
    with pytest.raises(ValueError, match="does not have"): worker.gather(tmp_path, dict(w=(3, 4)))


# ---------------------------------------------------------------- real processes

def test_one_training_over_two_processes():
    a, b = start("least_squares", processes=2, devices=2, steps=3)
    assert a.status == b.status == 0, (a, b)
    assert a.result["losses"] == b.result["losses"] and a.result["losses"][-1] < a.result["losses"][0] and a.result["devices"] == 4
    (alone,) = start("least_squares", processes=1, devices=4, steps=3)
    np.testing.assert_allclose(alone.result["losses"], a.result["losses"], rtol=1e-6)


@pytest.mark.parametrize("kind, rank, says", [("kill", 1, "process 1 is gone"), ("kill", 0, "process 0 is gone"), ("raise", 1, "process 1 raised ValueError"),
                                              ("hang", 1, "process 1 did not come to 'step 3'"), ("stuck", 1, "within 6 s of 'step 3': process 1 is at worker.py"), ("freeze", 0, "process 0 has been silent")])
def test_the_others_end_with_a_line_that_names_the_one_that_failed(kind, rank, says):
    (row,) = failures(kinds=(kind,), ranks=(rank,), deadline=6.0)
    assert row["named"] and says in row["line"], row


def test_another_batch_is_refused_by_all():
    ended = start("grpo", processes=2, devices=1, task="gsm8k", steps=1, fail=[1, 1, "batch"])
    for e in ended: assert e.status == 1 and "process 1 of 2 differs in the prompts of step 1" in e.line, e


def test_what_the_parent_started_dies_with_it(tmp_path):
    code = f"from grpo_tutorials.cluster.simulate import start; start('least_squares', 2, 1, steps=3, fail=[1, 2, 'hang'], deadline=300, folder={str(tmp_path)!r})"
    p = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (tmp_path / "failed").exists():
        assert p.poll() is None and time.monotonic() < deadline
        time.sleep(.05)
    p.send_signal(signal.SIGKILL)
    p.wait()                                # the fixture looks for what is left


def test_a_run_on_a_slice_is_the_run_on_one_device(tmp_path):
    options = ("--scale", "smoke", "--steps", "2", "--eval-n", "8")
    wide, one = (run_in_slice("openmath", parse_slice(s), tmp_path / s, *options) for s in ("2x4", "1x1"))
    same = same_run(wide, one)
    assert same["completions"] == same["rewards"] == same["samples"] > 0
    assert same["loss"] < 5e-7 and same["kl"] < 5e-7
    summary, held = (json.loads((wide / f).read_text()) for f in ("summary.json", "slice.json"))
    assert [x["difference"] for x in summary["syncs"]] == [0.0, 0.0]
    assert not set(held["trainer"]["devices"]) & set(held["sampler"]["devices"])
    assert held["trainer"]["bytes_each"] < held["sampler"]["bytes_each"] < held["sampler"]["bytes"]
    assert "syncs" not in json.loads((one / "summary.json").read_text())
