"""Extractors fitted to images whose features are known, and features paired with images."""

import itertools
import math

import pytest
import torch

from attacks.shadow.fitting import calibration, extractor_descent
from attacks.shadow.fitting.extractor_descent import Calibration
from tests.builders.small_artifacts import MODEL, networks, smooth_images

X = smooth_images(20).double()
HOW = Calibration(MODEL, exact=True, scale=1.0, steps=60)
START = networks(1)["extractor"]


def features(seed, x):
    params = {n: t.double() for n, t in networks(seed)["extractor"].items()}
    return MODEL.net("extractor").apply(params, {}, x, train=False)[0]


def pairs(seed, count):
    return calibration.pairs(X[:count], features(seed, X[:count]), None, None, MODEL)


def error(params, seed, rows):
    """Relative root mean square error of the logit features of some images."""
    whole = calibration.pairs(X[rows], features(seed, X[rows]), None, None, MODEL)
    gap = calibration.features(HOW, params, whole.images) - whole.target
    return float((gap.square() * whole.precision).mean().sqrt() * calibration.TAU)


def test_every_known_image_brings_the_extractor_nearer():
    rows = slice(12, 20)
    made = {k: extractor_descent.most_probable(HOW, [START], [pairs(0, k)])[0] for k in (2, 6, 12)}
    ends = [error(START, 0, rows), *(error(params, 0, rows) for params in made.values())]
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] < 0.5 * ends[0]


def test_the_error_on_images_left_out_tells_that_on_others():
    told = calibration.held_out(HOW, [START], [pairs(0, 12)])[0].error
    (params,) = extractor_descent.most_probable(HOW, [START], [pairs(0, 12)])
    # Told by fits to nine images, of one to twelve, on eight others: the same order of size.
    assert error(params, 0, slice(12, 20)) / 3 < told < 10 * error(params, 0, slice(12, 20))


def test_one_image_tells_how_wrong_the_start_is_and_none_tells_nothing():
    one = calibration.held_out(HOW, [START], [pairs(0, 1)])[0].error
    assert one == pytest.approx(error(START, 0, slice(0, 1)))
    assert calibration.held_out(HOW, [START], [pairs(0, 0)])[0].error == math.inf


def test_clients_fitted_together_end_as_alone():
    starts, each = [START, networks(2)["extractor"]], [pairs(0, 4), pairs(3, 4)]
    how = HOW._replace(steps=4)
    together = extractor_descent.most_probable(how, starts, each)
    for start, one, params in zip(starts, each, together, strict=True):
        (alone,) = extractor_descent.most_probable(how, [start], [one])
        for name, t in params.items():
            torch.testing.assert_close(t, alone[name], atol=1e-7, rtol=1e-5)


def test_the_error_that_is_told_leaves_out_the_noise_of_features():
    """Of the true extractor there is none, however noisy the features; of another one it is its own."""
    noise = torch.tensor([0.001, 0.1] * 6, dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    h = features(0, X[:12])
    noisy = h + noise.sqrt().view(-1, 1, 1, 1) * torch.randn(h.shape, generator=rng, dtype=torch.float64)
    pairs_of = calibration.pairs(X[:12], noisy, None, noise, MODEL)
    how = HOW._replace(exact=False)
    true, other = ({n: t.double() for n, t in networks(seed)["extractor"].items()} for seed in (0, 1))
    told = [calibration.judged(how, pairs_of, [params] * calibration.FOLDS).error for params in (true, other)]
    # The mean of 2,400 squared gaps of variance 0.001 has a standard deviation of 0.00003, which counts as if the error were 0.1.
    assert told[0] < 0.03
    between = (features(1, X[:12]) - h).square().mean().sqrt()
    assert told[1] == pytest.approx(float(between), rel=0.2)


@pytest.mark.parametrize("too_much", [1.0, 1.1])
def test_where_all_is_noise_no_extractor_is_judged_to_be_right(too_much):
    """Also where the variance that is said is a tenth above the noise."""
    noise = torch.full((12,), 4.0, dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    h = features(0, X[:12])
    noisy = h + noise.sqrt().view(-1, 1, 1, 1) * torch.randn(h.shape, generator=rng, dtype=torch.float64)
    pairs_of = calibration.pairs(X[:12], noisy, None, too_much * noise, MODEL)
    other = {n: t.double() for n, t in networks(1)["extractor"].items()}
    # Features in (0, 1) vary by less than 0.3.
    assert calibration.judged(HOW._replace(exact=False), pairs_of, [other] * calibration.FOLDS).error > 0.25


def test_pairs_count_as_their_extractor_and_their_features_are_wrong():
    noise = torch.tensor([0.0, 0.01], dtype=torch.float64)
    h = features(0, X[:2])
    noised = calibration.pairs(X[:2], h, None, noise, MODEL)
    for error in (0.001, 0.5):
        weighed = noised.precision[:, 0, 0, 0] * calibration.weights(noised, error, exact=False)
        torch.testing.assert_close(weighed, 1 / (error**2 + noise))
    exact = calibration.pairs(X[:2], h, None, None, MODEL)
    expected = torch.full((2,), (calibration.TAU / 0.5) ** 2, dtype=torch.float64)
    torch.testing.assert_close(calibration.weights(exact, 0.5, exact=True), expected)


def test_an_image_whose_features_are_not_finite_counts_for_nothing():
    h = features(0, X[:4])
    h[3] = torch.nan
    how = HOW._replace(steps=4)
    (params,) = extractor_descent.most_probable(how, [START], [calibration.pairs(X[:4], h, None, None, MODEL)])
    (without,) = extractor_descent.most_probable(how, [START], [pairs(0, 3)])
    for name, t in params.items():
        torch.testing.assert_close(t, without[name], atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("noise", [None, torch.full((4,), 0.01, dtype=torch.float64)])
@pytest.mark.parametrize("value", [0.0, 0.5, 0.7])
def test_an_image_whose_features_are_one_number_counts_for_nothing(value, noise):
    """As those are which an upload of zeros shows: it would be more precise than all others together."""
    h = features(0, X[:4])
    h[0] = value
    one = calibration.pairs(X[:4], h, None, noise, MODEL)
    assert (one.precision.flatten(1).amax(1) > 0).tolist() == [False, True, True, True]


def test_what_is_asked_of_a_fit_are_images_whose_features_are_known():
    """Rows 0 to 3 are the first of each fold; the features of 0, 1 and 2, and of 6, are not known."""
    h = features(0, X[:8])
    h[[0, 1, 2, 6]] = math.nan
    one = calibration.pairs(X[:8], h, None, None, MODEL)
    out = calibration.judged(HOW, one, [START] * calibration.FOLDS)
    assert out.rows == (4, 5, 2, 3)
    assert math.isfinite(out.error)
    nothing = calibration.pairs(X[:8], torch.full_like(h, math.nan), None, None, MODEL)
    assert calibration.judged(HOW, nothing, [START] * calibration.FOLDS).error == math.inf


def test_the_error_of_known_pixels_is_fitted_too():
    """A fit that knows of the error explains features of noisy images better than their noise lets one that does not."""
    noise = 0.1 * torch.randn(X[:6].shape, generator=torch.Generator().manual_seed(0)).double()
    whole = pairs(0, 6)._replace(images=X[:6] + noise)
    ends = [
        error(extractor_descent.most_probable(HOW._replace(pixel_error=s), [START], [whole])[0], 0, slice(12, 20))
        for s in (0.0, 0.1)
    ]
    assert ends[1] < ends[0]


def test_features_are_paired_within_their_group_at_the_least_cost():
    rng = torch.Generator().manual_seed(0)
    predicted, observed = torch.randn(6, 3, generator=rng), torch.randn(6, 3, generator=rng)
    groups, theirs = torch.tensor([0, 0, 0, 1, 1, 2]), torch.tensor([1, 0, 0, 2, 1, 0])
    rows = calibration.assigned(predicted, observed, groups, theirs)
    assert torch.equal(theirs[rows], groups)
    assert sorted(rows.tolist()) == list(range(6))

    def cost(order):
        return float((predicted - observed[list(order)]).square().sum())

    allowed = [p for p in itertools.permutations(range(6)) if torch.equal(theirs[list(p)], groups)]
    assert cost(rows.tolist()) == pytest.approx(min(map(cost, allowed)))
    assert calibration.alone(groups).tolist() == [False, False, False, False, False, True]
    assert calibration.assigned(predicted, observed[:1], groups, theirs[:1]).tolist().count(-1) == 5
