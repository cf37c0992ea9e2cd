"""Calibrated extractors refined by uploads of images that nobody knows."""

import pytest
import torch

from attacks.features import inversion
from attacks.shadow.fitting import calibration, extractor_descent, held_out, refinement
from attacks.shadow.fitting.extractor_descent import Calibration, Pairs, Uploads
from tests.builders.small_artifacts import MODEL, images_like_the_victims, networks, smooth_images

X = smooth_images(20).double()
Y = torch.arange(20) % 10
HOW = Calibration(MODEL, exact=True, scale=1.0, steps=60)
PRIOR = inversion.learned(images_like_the_victims(), 10, X)
START = networks(1)["extractor"]
KNOWN, SENT, FRESH = slice(0, 3), slice(3, 15), slice(15, 20)


def features(x):
    return MODEL.net("extractor").apply(
        {n: t.double() for n, t in networks(0)["extractor"].items()}, {}, x, train=False
    )[0]


def pairs(rows, tau=calibration.TAU, noise=None):
    nu = None if noise is None else torch.full((len(X[rows]),), noise, dtype=torch.float64)
    return calibration.pairs(X[rows], features(X[rows]), None, nu, MODEL, tau)


def sent():
    """Without the images themselves."""
    one = pairs(SENT, calibration.TAU_OF_UNKNOWN)
    return Uploads(one._replace(images=torch.zeros_like(one.images)), Y[SENT])


def error(params, rows):
    """Root mean square error of the logit features of some images, relative to their spread."""
    whole = pairs(rows)
    gap = calibration.features(HOW, params, whole.images) - whole.target
    return float((gap.square() * whole.precision).mean().sqrt() * calibration.TAU)


def candidates():
    fits = calibration.calibrated(HOW, [START], [pairs(KNOWN)])
    return fits, refinement.refined(HOW, PRIOR, fits, [pairs(KNOWN)], [Y[KNOWN]], [sent()])


def test_uploads_of_unknown_images_bring_a_fit_to_three_known_ones_nearer():
    (fit,), (better,) = candidates()
    # On images of which nothing was seen.
    assert error(better.params, FRESH) < 0.8 * error(fit.params, FRESH)


def test_what_a_refinement_is_worth_is_measured_on_images_that_it_did_not_see():
    """Its fits without an image do not change where that image does, as long as the features that were sent of it stay."""
    fits = calibration.calibrated(HOW._replace(steps=5), [START], [pairs(KNOWN)])
    how, other = HOW._replace(steps=5), pairs(KNOWN)
    other = other._replace(images=other.images.clone())
    other.images[1] = 1 - other.images[1]
    ends = [refinement.refined(how, PRIOR, fits, [one], [Y[KNOWN]], [sent()])[0] for one in (pairs(KNOWN), other)]
    same = [torch.equal(ends[0].without.fits[1][n], ends[1].without.fits[1][n]) for n in START]
    changed = [torch.equal(ends[0].without.fits[0][n], ends[1].without.fits[0][n]) for n in START]
    assert all(same)
    assert not any(changed)
    assert ends[0].without.error != ends[1].without.error


def test_features_of_an_image_left_out_count_as_those_of_the_other_uploads():
    for noise in (None, 0.01):
        nothing = Pairs(*(t[:0] for t in pairs(KNOWN)))
        joined = refinement.with_left_out(
            Uploads(nothing, Y[:0]),
            pairs(KNOWN, noise=noise),
            Y[KNOWN],
            torch.tensor([True, False, True]),
            exact=noise is None,
        )
        expected = pairs([0, 2], calibration.TAU_OF_UNKNOWN, noise)
        torch.testing.assert_close(joined.pairs.target, expected.target)
        torch.testing.assert_close(joined.pairs.precision, expected.precision, rtol=1e-9, atol=0)
        assert not joined.pairs.images.any()
        assert joined.labels.tolist() == [0, 2]


def test_the_better_of_two_kinds_of_fit_is_taken_and_of_equals_the_first():
    good, bad = [calibration.calibrated(HOW._replace(steps=steps), [START], [pairs(SENT)])[0] for steps in (60, 1)]

    def chosen(*kinds):
        return held_out.trusted(HOW, PRIOR, [[one] for one in kinds], [pairs(SENT)], [Y[SENT]], lambda *_: None)[0]

    assert chosen(bad, good).params is good.params
    assert chosen(good, bad).params is good.params
    copy = good._replace(params=dict(good.params))
    assert chosen(good, copy).params is good.params


def test_without_steps_or_images_there_is_the_fit_alone():
    view = None
    assert len(refinement.kinds(HOW, 0, PRIOR, [START], [pairs(KNOWN)], [Y[KNOWN]], view)) == 1
    nothing = extractor_descent.nothing_known(pairs(KNOWN))
    assert len(refinement.kinds(HOW, 5, PRIOR, [START], [nothing], [Y[:0]], view)) == 1


def test_clients_refined_together_end_as_alone():
    how = HOW._replace(steps=4)
    starts, each, labels = [START, networks(2)["extractor"]], [pairs(KNOWN), pairs(slice(15, 18))], [Y[KNOWN], Y[15:18]]
    fits = calibration.calibrated(how, starts, each)
    fewer = Uploads(Pairs(*(t[:5] for t in sent().pairs)), sent().labels[:5])
    uploads = [sent(), fewer]
    together = refinement.refined(how, PRIOR, fits, each, labels, uploads)
    for k, one in enumerate(together):
        (alone,) = refinement.refined(how, PRIOR, [fits[k]], [each[k]], [labels[k]], [uploads[k]])
        for name, t in one.params.items():
            torch.testing.assert_close(t, alone.params[name], atol=1e-7, rtol=1e-5)
        assert one.without.error == pytest.approx(alone.without.error, rel=1e-5)
