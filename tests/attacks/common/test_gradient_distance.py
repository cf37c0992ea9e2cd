"""Eq. 7 and Eq. 8 against values computed by hand."""

import pytest
import torch
import torch.nn.functional as F

from attacks.common import gradient_distance, priors, problem
from attacks.common.batched import each_of
from tests.builders.small_artifacts import (
    artifact,
    error_of_squared_distance,
    logits,
    networks,
    problem_of,
    smooth_images,
)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("parts", [("extractor", "classifier"), ("classifier",)])
def test_equation_7_equals_an_explicit_sum_over_all_parameters(batch, parts):
    true, foreign = networks(0), {p: {n: t.double() for n, t in net.items()} for p, net in networks(1).items()}
    y = torch.arange(batch)
    x, x_true = torch.rand(2, batch, 1, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    gradients = []
    for images in (x, x_true):
        params = {p: {n: t.double().requires_grad_() for n, t in net.items()} for p, net in true.items()}
        F.cross_entropy(logits(params, images)[0], y).backward()
        gradients.append({f"{p}/{n}": t.grad for p in parts for n, t in params[p].items()})
    by_hand = sum(((gradients[0][name] - gradients[1][name]) ** 2).sum().item() for name in gradients[0])
    weights = {p: {n: t.double() for n, t in net.items()} for p, net in true.items()}
    products = gradient_distance.gradient_products(problem_of(weights), x, y, gradients[1])
    assert set(products) == set(gradients[1])
    assert gradient_distance.squared_distance(products).item() == pytest.approx(
        by_hand, rel=0, abs=error_of_squared_distance(products)
    )
    whole = sum((g**2).sum().item() for g in gradients[1].values())
    assert gradient_distance.relative_distance(products).item() == pytest.approx(by_hand / whole, rel=1e-9)
    larger = {n: gradient_distance.Products(*(64 * t for t in p)) for n, p in products.items()}
    assert gradient_distance.relative_distance(larger).item() == pytest.approx(by_hand / whole, rel=1e-9)
    scaled = [((gradients[0][n] - g) ** 2).sum() / (g**2).sum() for n, g in gradients[1].items()]
    assert gradient_distance.layer_scaled_distance(products).item() == pytest.approx(
        float(sum(scaled)) / len(scaled), rel=1e-9
    )
    a, b = (torch.cat([g[n].flatten() for n in gradients[1]]) for g in gradients)
    assert gradient_distance.cosine_distance(products).item() == pytest.approx(
        1 - float(a @ b / a.norm() / b.norm()), rel=1e-9
    )
    other = gradient_distance.squared_distance(
        gradient_distance.gradient_products(problem_of(foreign), x, y, gradients[1])
    )
    assert other.item() != pytest.approx(by_hand, rel=1e-3)


def test_the_true_image_has_distance_zero():
    params, x, y = networks(), smooth_images(1), torch.tensor([4])
    leaves = {p: {n: t.double().requires_grad_() for n, t in net.items()} for p, net in params.items()}
    F.cross_entropy(logits(leaves, x.double())[0], y).backward()
    observed = {f"{p}/{n}": t.grad for p, net in leaves.items() for n, t in net.items()}
    weights = {p: {n: t.detach() for n, t in net.items()} for p, net in leaves.items()}
    true, other = (
        gradient_distance.gradient_products(problem_of(weights), image, y, observed)
        for image in (x.double(), 1 - x.double())
    )
    assert abs(gradient_distance.squared_distance(true).item()) < error_of_squared_distance(true)
    assert gradient_distance.squared_distance(other).item() > 1e6 * error_of_squared_distance(other)


@pytest.mark.parametrize("restarts", [1, 2])
def test_observed_norms_summed_once_are_those_summed_at_every_evaluation(restarts):
    """Bit for bit, of three one-image victims and in every product of Eq. 7."""
    x = smooth_images(3)
    posed = problem.make(artifact(x, torch.tensor([3, 1, 4])), 0)
    data, images = problem.data(posed, restarts), problem.repeat(x.double()[:, None], restarts) * 0.9

    def products(observed_of):
        def of_one(image, known):
            terms = gradient_distance.gradient_products(posed, image, known["labels"], observed_of(known))
            return torch.stack([torch.stack(p) for p in terms.values()])

        return each_of(of_one)(images, data)

    handed_in = products(lambda known: problem.observed_of(posed, known))
    summed = products(lambda known: {name: known[name] for name in posed.observed})
    assert handed_in.shape == (3 * restarts, len(posed.observed), 3)
    assert torch.equal(handed_in, summed)
    for name, t in posed.observed.items():
        # Of positive terms, whose sum in another order is off by one rounding a term at most: threads take parts of their own.
        rounding = t[0].numel() * torch.finfo(t.dtype).eps
        assert float(data[problem.squared(name)][0]) == pytest.approx(float(t[0].square().sum()), rel=rounding)


def test_observed_norms_are_the_same_bits_on_any_number_of_threads():
    """Of one victim too: torch splits a single long sum among its threads."""
    posed, before = problem.make(artifact(smooth_images(1), torch.tensor([3])), 0), torch.get_num_threads()
    rng = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1, 120, 400, generator=rng, dtype=torch.float64) for _ in range(16)]
    norms = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            norms.append([problem.data(posed._replace(observed={"w": t}))[problem.squared("w")] for t in drawn])
    finally:
        torch.set_num_threads(before)
    assert norms[0][0].shape == (1,)
    assert norms[0] == norms[1] == norms[2]


def test_the_statistics_term_of_equation_8_by_hand():
    features = torch.tensor([[[[1.0, 3.0]], [[0.0, 0.0]]], [[[5.0, 7.0]], [[0.0, 4.0]]]])  # [2, 2, 1, 2]
    mean, variance = torch.tensor([3.0, 1.0]), torch.tensor([4.0, 2.0])
    # channel 0: values 1 3 5 7, mean 4, variance 5; channel 1: values 0 0 0 4, mean 1, variance 3
    assert gradient_distance.statistics_distance(features, mean, variance).item() == pytest.approx(
        (4 - 3) ** 2 + (5 - 4) ** 2 + 0 + (3 - 2) ** 2
    )


def test_feature_distance_is_relative_to_the_spread():
    target = torch.tensor([1.0, 3.0])
    assert gradient_distance.feature_distance(target + torch.tensor([0.0, 1.0]), target).item() == pytest.approx(1 / 2)


def test_priors_by_hand():
    x = torch.tensor([[[[0.0, 1.0], [0.0, 3.0]]]])
    assert priors.total_variation(x).item() == pytest.approx((1 + 9) / 2 + (0 + 4) / 2)
    assert priors.l2(x).item() == pytest.approx((0.25 * 3 + 6.25) / 4)
