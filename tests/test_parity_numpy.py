"""Our losses against the formulas, written once more token by token in plain Python, and JAX against numpy in float64.

One id for each loss type."""

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import OPTIONS, SETTINGS, batch, reference, same, seeds, spreads

import grpo_tutorials.core.losses as L


def by_the_book(b, loss_type, max_length, epsilon=.2, epsilon_high=None, delta=None, beta=0.0, kl_ratio=False):
    "Sums over rows and tokens, nothing clever."
    rows, high = len(b["logp"]), epsilon if epsilon_high is None else epsilon_high
    total, tokens = [], 0
    for logp, old, ref, mask, a in zip(b["logp"].tolist(), b["old"].tolist(), b["ref"].tolist(), b["mask"].tolist(), b["advantages"].tolist()):
        on = [t for t, m in enumerate(mask) if m]
        gap = {t: max(min(logp[t] - old[t], 20), -20) for t in on}
        whole, parts = sum(gap.values()), []
        for t in on:
            rho = math.exp(whole / len(on)) if loss_type in ("gspo", "luspo") else math.exp(gap[t])
            if loss_type == "cispo": one = -min(rho, epsilon_high) * a * logp[t]
            elif loss_type == "sapo":
                tau = 1.0 if a > 0 else 1.05
                one = -4 / tau / (1 + math.exp(min(-tau * (rho - 1), 700))) * a
            elif loss_type == "vespo":
                k, lam = (2, 3) if a >= 0 else (3, 2)
                w = math.exp(max(min(whole, 20), math.log(1e-8)))
                one = -math.exp(max(lam + k * math.log(w) - lam * w, -700)) * a * logp[t]
            else:
                free = rho if delta is None else min(rho, delta)
                one = -min(free * a, max(min(rho, 1 + high), 1 - epsilon) * a)
            d = max(min(logp[t] - ref[t], 20), -20)
            parts.append(one + beta * (math.exp(-d) + d - 1) * (rho if kl_ratio else 1))
        tokens += len(on)
        total.append(sum(parts) / max(len(on), 1) if loss_type in ("grpo", "gspo", "sapo") else sum(parts))
    if loss_type in ("grpo", "gspo", "sapo", "luspo"): return sum(total) / rows
    return sum(total) / (rows * max_length if loss_type == "dr_grpo" else max(tokens, 1))


@pytest.mark.parametrize("loss_type", OPTIONS)
def test_by_the_book(loss_type):
    @settings(max_examples=40, **SETTINGS)
    @given(seed=seeds, rows=st.integers(1, 7), width=st.integers(1, 9), spread=spreads, options=st.sampled_from(OPTIONS[loss_type]))
    def check(seed, rows, width, spread, options):
        b = {k: v.astype(np.float64) for k, v in batch(seed, rows, width, spread).items()}
        value, size = reference(b, loss_type, options, width + 2)
        same(value, by_the_book(b, loss_type, width + 2, **options), size, loss_type, 1e-11)
    check()


@pytest.mark.parametrize("loss_type", OPTIONS)
def test_jax_in_float32(loss_type):
    jax = pytest.importorskip("jax", reason="needs the [tunix] extra") if not os.environ.get("CI") else __import__("jax")
    options = OPTIONS[loss_type][-1]
    loss = jax.jit(lambda logp, old, advantages, mask, ref: L.grpo_loss(logp, old, advantages, mask, ref, loss_type=loss_type, max_length=8, **options)[0])

    @settings(max_examples=25, **SETTINGS)
    @given(seed=seeds, spread=spreads, lengths=st.lists(st.integers(0, 8), min_size=5, max_size=5))
    def check(seed, spread, lengths):
        b = batch(seed, 5, 8, spread)
        b["mask"] = (np.arange(8) < np.array(lengths)[:, None]).astype(np.int32)
        want, size = reference(b, loss_type, options, 8)
        same(loss(*(b[k] for k in ("logp", "old", "advantages", "mask", "ref"))), want, size, loss_type)
    check()


@pytest.mark.parametrize("loss_type", OPTIONS)
def test_in_parts_as_at_once(loss_type):
    "The divisor of the whole update makes the parts add up, whatever their sizes."
    @settings(max_examples=25, **SETTINGS)
    @given(seed=seeds, rows=st.integers(2, 9), width=st.integers(1, 6), cuts=st.lists(st.integers(1, 8), max_size=4), options=st.sampled_from(OPTIONS[loss_type]))
    def check(seed, rows, width, cuts, options):
        b = batch(seed, rows, width)
        by, whole = L.divisor(b["mask"], loss_type, width), reference(b, loss_type, options, width)
        parts = [L.grpo_loss(b["logp"][i], b["old"][i], b["advantages"][i], b["mask"][i], b["ref"][i], loss_type=loss_type, divide_by=by, **options)[0]
                 for i in np.split(np.arange(rows), sorted(min(c, rows) for c in cuts))]
        same(sum(parts), whole[0], whole[1], loss_type, 1e-11)
    check()


def test_any_dimensions_before_the_tokens():
    b = batch(5, 6, 4)
    more = {k: v.reshape(2, 3, *v.shape[1:]) for k, v in b.items()}
    for loss_type, settings_ in OPTIONS.items():
        for options in settings_:
            flat, told = L.grpo_loss(b["logp"], b["old"], b["advantages"], b["mask"], b["ref"], loss_type=loss_type, max_length=4, **options)
            deep, also = L.grpo_loss(more["logp"], more["old"], more["advantages"], more["mask"], more["ref"], loss_type=loss_type, max_length=4, **options)
            same(deep, flat, tolerance=1e-12)
            for k in told: same(also[k], told[k], tolerance=1e-12)
            wide = np.broadcast_to(b["advantages"][:, None], b["mask"].shape)                     # one advantage for each token
            same(L.grpo_loss(b["logp"], b["old"], wide, b["mask"], b["ref"], loss_type=loss_type, max_length=4, **options)[0], flat, tolerance=1e-12)
