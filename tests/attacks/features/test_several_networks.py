"""Images that descend together, each through extractors of its own, end where each alone does."""

import pytest
import torch

from attacks.common import lbfgs
from attacks.features import several_networks
from privbench.seeds import stream
from tests.builders.small_artifacts import MODEL

NET = MODEL.net("extractor")


def extractor(seed):
    return NET.init(stream(seed, "extractor"))[0]


def squared_features(z, data, networks):
    """Pulls z to the start's features through the mean of the networks; nearly quadratic."""
    h = torch.stack([NET.apply(params, {}, z[None], train=False)[0][0] for params in networks]).mean(0)
    return (h - data["h"]).square().sum() * 100 + z.square().sum()


def descent(each, rows, steps=3):
    start = torch.rand(len(each), 1, 32, 32, generator=stream(0, "z"), dtype=torch.float64)
    h = torch.rand(len(each), *MODEL.feature_shape, generator=stream(0, "h"), dtype=torch.float64)
    return several_networks.minimise(
        squared_features, [each[row] for row in rows], start[rows], {"h": h[rows]}, steps=steps, what="test"
    )


def test_small_networks_descend_together_and_large_ones_with_their_like(monkeypatch):
    a, b = extractor(0), extractor(1)
    each = [[a], [b], [a], [b]]
    assert several_networks.together(each) == [[0, 1, 2, 3]]
    assert several_networks.together([[a], [a, b], [a]]) == [[0, 2], [1]]
    monkeypatch.setattr(several_networks, "SMALL", 100)
    assert several_networks.together(each) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("small", [several_networks.SMALL, 100], ids=["together", "with their like"])
def test_each_image_ends_where_it_does_alone(small, monkeypatch):
    monkeypatch.setattr(several_networks, "SMALL", small)
    nets = [extractor(seed) for seed in range(3)]
    each = [[nets[0], nets[1]], [nets[1], nets[2]], [nets[0], nets[1]], [nets[2], nets[0]]]
    together = descent(each, [0, 1, 2, 3])
    for row in range(4):
        alone = descent(each, [row])
        torch.testing.assert_close(together.x[row], alone.x[0], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(together.trace[row], alone.trace[0], rtol=1e-6, atol=1e-8)
    assert together.evaluations >= 4 * 4


def test_the_networks_are_those_of_the_problem():
    each = [[extractor(0)], [extractor(1)]]
    z = torch.rand(2, 1, 32, 32, generator=stream(0, "z"), dtype=torch.float64)
    h = torch.stack(
        [
            NET.apply({n: t.double() for n, t in one[0].items()}, {}, z[i][None], train=False)[0][0]
            for i, one in enumerate(each)
        ]
    )
    end = several_networks.minimise(
        lambda x, data, networks: (NET.apply(networks[0], {}, x[None], train=False)[0][0] - data["h"]).square().sum(),
        each, z, {"h": h}, steps=1, what="test",
    )  # fmt: skip
    assert end.loss.max() < 1e-20


def test_one_network_for_all_is_the_plain_descent():
    net = extractor(0)
    start = torch.rand(3, 1, 32, 32, generator=stream(0, "z"), dtype=torch.float64)
    h = torch.rand(3, *MODEL.feature_shape, generator=stream(0, "h"), dtype=torch.float64)
    ready = [{n: t.double() for n, t in net.items()}]
    plain = lbfgs.minimise(lambda z, data: squared_features(z, data, ready), start, {"h": h}, steps=3)
    assert torch.equal(descent([[net]] * 3, [0, 1, 2]).loss, plain.loss)
