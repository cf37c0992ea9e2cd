"""The learned decoder paints images of every size."""

import pytest
import torch

from attacks.shadow import learned_decoder
from privbench.seeds import stream


@pytest.mark.parametrize("side", [28, 32, 36, 60, 64])
def test_an_answer_has_the_shape_of_the_image_whatever_its_side(side):
    like, h = torch.zeros(2, 3, side, side), torch.rand(2, 4, 5, 5)
    params = learned_decoder.init(4, 10, (3, side, side), stream(0, "decoder"))
    params["conv2.weight"] += torch.randn(params["conv2.weight"].shape, generator=stream(1, "decoder"))
    params |= {"mean": torch.zeros(4, 1, 1), "spread": torch.ones(4, 1, 1)}
    made = learned_decoder.decode(params, h, torch.tensor([0, 7]), 10, like)
    assert made.shape == like.shape
    # The last rows and columns are painted as the first are.
    assert (made[:, :, -1].abs() > 0).any()
    assert (made[..., -1].abs() > 0).any()
