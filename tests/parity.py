"What the parity tests share: batches of every shape and mask, our loss in each library, and what counts as equal."

import numpy as np
from hypothesis import HealthCheck
from hypothesis import strategies as st

from grpo_tutorials.core.losses import LOSSES, token_losses, token_weights

TOLERANCE = 1e-5     # relative, in float32
SETTINGS = dict(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))

# Each loss type with the settings that make its branches matter.
OPTIONS = {
    "grpo": [{}, dict(epsilon_high=.28, delta=1.4, beta=.1, kl_ratio=True), dict(epsilon=.1, beta=.04)],
    "bnpo": [{}, dict(epsilon=.3, epsilon_high=.1, delta=1.2, beta=.2, kl_ratio=True)],
    "dapo": [dict(epsilon_high=.28), dict(delta=1.5, beta=.1, kl_ratio=True)],
    "dr_grpo": [{}, dict(epsilon_high=.4, beta=.05)],
    "gspo": [dict(epsilon=.05, epsilon_high=.06), dict(delta=1.3, beta=.1, kl_ratio=True)],
    "luspo": [{}, dict(epsilon=.1, delta=1.3, beta=.1, kl_ratio=True)],
    "cispo": [dict(epsilon_high=1.1), dict(epsilon_high=5.0, beta=.1, kl_ratio=True)],
    "sapo": [{}, dict(beta=.1, kl_ratio=True)],
    "vespo": [{}, dict(beta=.1, kl_ratio=True)],
}
assert set(OPTIONS) == set(LOSSES)


def batch(seed, rows, width, spread=.3, empty=.2):
    "Log-probabilities now, then and of the reference, advantages and a mask with uneven lengths, some of them 0; float32."
    rng = np.random.default_rng(seed)
    now = -rng.gamma(1.0, 1.0, (rows, width))
    near = lambda: np.minimum(now + rng.normal(0, spread, now.shape), 0)
    lengths = np.where(rng.random(rows) < empty, 0, rng.integers(1, width + 1, rows))
    out = dict(logp=now, old=near(), ref=near(), advantages=rng.normal(size=rows) * (rng.random(rows) > .15))
    return {k: v.astype(np.float32) for k, v in out.items()} | dict(mask=(np.arange(width) < lengths[:, None]).astype(np.int32))


seeds, spreads = st.integers(0, 2**31), st.sampled_from([0.0, .1, .5, 3.0])


def reference(b, loss_type, options, max_length):
    "Our loss in numpy and float64, and how large its terms are (what a difference is measured by)."
    losses, _ = token_losses(*(b[k].astype(np.float64) for k in ("logp", "old", "advantages")), b["mask"], b["ref"].astype(np.float64), loss_type=loss_type, **options)
    weights = token_weights(b["mask"], loss_type, max_length)
    return (losses * weights).sum(), np.abs(losses * weights).sum()


def same(a, b, size=None, what="", tolerance=TOLERANCE):
    "Equal within the tolerance of the largest number there is."
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape, f"{what}: {a.shape} and {b.shape}"
    assert np.isfinite(a).all() and np.isfinite(b).all(), f"{what}: not finite"
    size = max(float(np.abs(b).max(initial=0)), size or 0.0)
    assert np.abs(a - b).max(initial=0) <= tolerance * size + 1e-10, f"{what}: {np.abs(a - b).max()} apart, of {size}"
