"""Clipping: against a plain loop, over all parts at once, of images that are there alone."""

import math

import pytest
import torch

from defenses.common import clipping
from privbench.seeds import stream

B, BOUND = 5, 0.8


def gradients() -> dict[str, dict[str, torch.Tensor]]:
    """Of five images over two parts: a matrix, a vector and a scalar; the first are longer than the bound, the last shorter."""
    rng = stream(0, "clipping")
    scale = torch.tensor([3.0, 2.0, 1.0, 0.1, 0.01])

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(B, *shape, generator=rng) * scale.view(B, *(1,) * len(shape))

    return {"extractor": {"weight": drawn(3, 2), "bias": drawn(2)}, "classifier": {"scale": drawn()}}


def loop(bound: float, rows: list[int]) -> dict[str, dict[str, torch.Tensor]]:
    """sum_b g_b / max(1, ||g_b|| / C), one image after another."""
    each = gradients()
    total = {part: {n: torch.zeros_like(t[0]) for n, t in params.items()} for part, params in each.items()}
    for b in rows:
        norm = math.sqrt(sum(float(t[b].square().sum()) for params in each.values() for t in params.values()))
        for part, params in each.items():
            for n, t in params.items():
                total[part][n] += t[b] / max(1.0, norm / bound)
    return total


@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4], [1, 4], []])
def test_clipping_per_image_equals_a_loop(rows):
    taken = torch.tensor([b in rows for b in range(B)])
    torch.testing.assert_close(clipping.clipped_sum(gradients(), taken, BOUND), loop(BOUND, rows))


def test_one_norm_runs_over_all_parts():
    each = gradients()
    norms = clipping.norms(clipping_of_single := {p: {n: t[:1] for n, t in net.items()} for p, net in each.items()})
    apart = [clipping.norms({part: net}) for part, net in clipping_of_single.items()]
    assert float(norms) == pytest.approx(math.hypot(*map(float, apart)))
    whole = clipping.clipped({p: {n: t[0] for n, t in net.items()} for p, net in each.items()}, BOUND)
    norm = math.sqrt(sum(float(t.square().sum()) for net in whole.values() for t in net.values()))
    assert norm == pytest.approx(BOUND, rel=1e-6)


def test_an_image_whose_gradient_is_not_finite_adds_nothing():
    each = gradients()
    each["extractor"]["bias"][1, 0] = math.nan
    each["classifier"]["scale"][2] = math.inf
    total = clipping.clipped_sum(each, torch.ones(B, dtype=torch.bool), BOUND)
    torch.testing.assert_close(total, loop(BOUND, [0, 3, 4]))


def test_a_gradient_of_zeros_stays_zero():
    zeros = {"classifier": {"bias": torch.zeros(2, 3)}}
    assert not clipping.clipped_sum(zeros, torch.ones(2, dtype=torch.bool), BOUND)["classifier"]["bias"].any()


def test_noise_is_drawn_by_part_and_parameter_in_order_and_has_its_standard_deviation():
    zeros = {"extractor": {"a": torch.zeros(2)}, "classifier": {"b": torch.zeros(60000)}}
    noisy = clipping.noised(zeros, 0.3, stream(1, "noise"))
    rng = stream(1, "noise")
    assert torch.equal(noisy["extractor"]["a"], 0.3 * torch.randn(2, generator=rng))
    noise = noisy["classifier"]["b"]
    # Of 60,000 draws the deviation is known to 0.3%: 4 standard errors.
    assert float(noise.std()) == pytest.approx(0.3, rel=4 / math.sqrt(2 * 60000))
    assert abs(float(noise.mean())) < 4 * 0.3 / math.sqrt(60000)


def test_a_message_is_clipped_where_it_lies():
    """Clients' networks may lie on a GPU; `meta` tensors lie on no processor."""
    message = {"classifier": {"weight": torch.ones(3, 2, device="meta")}}
    assert clipping.clipped(message, 1.0)["classifier"]["weight"].device.type == "meta"
