"""Stochastic rounding: within the largest entry, and right in the mean."""

import pytest
import torch

from defenses.quantize import Quantize


@pytest.mark.parametrize("bits", [2, 4, 16])
def test_no_entry_exceeds_the_largest(bits):
    """L |t| / s of the largest entry rounds to more than L for some scales."""
    rng = torch.Generator().manual_seed(0)
    tensors = {str(k): torch.rand(1, generator=rng) + 0.1 for k in range(4000)}
    sent = Quantize(bits).message({"part": tensors}, rng)["part"]
    # Back from levels by a product and a quotient in single precision.
    assert all(float(sent[name]) <= float(t) * (1 + 2**-22) for name, t in tensors.items())


def test_the_mean_over_draws_is_what_was_sent():
    rng = torch.Generator().manual_seed(0)
    t = torch.tensor([-1.0, -0.3, 0.0, 0.05, 0.7])
    draws = torch.stack([Quantize(3).message({"part": {"t": t}}, rng)["part"]["t"] for _ in range(4000)])
    # Of three levels above zero, each is at most 1/3 away: the standard error of a mean is below 0.003.
    torch.testing.assert_close(draws.mean(0), t, rtol=0, atol=0.012)
    assert set(draws.abs().mul(3).round().flatten().tolist()) <= {0.0, 1.0, 2.0, 3.0}
