"""The posterior of a client's extractor, of known pixels' errors and of unknown images, against a plain loop."""

import pytest
import torch

from attacks.features import inversion
from attacks.shadow.fitting import calibration, extractor_descent
from attacks.shadow.fitting.extractor_descent import Calibration, Unknown, Uploads
from tests.builders.small_artifacts import MODEL, images_like_the_victims, networks, smooth_images

X = smooth_images(5).double()
Y = torch.arange(5)
PRIOR = inversion.learned(images_like_the_victims(), 10, X)
START = networks(1)["extractor"]
NET = MODEL.net("extractor")
NU = 0.01


def features(x):
    return NET.apply({n: t.double() for n, t in networks(0)["extractor"].items()}, {}, x, train=False)[0]


def gap(params, x, h, tau, exact):
    """||phi E(x) - phi h||^2 / (tau^2 + nu) of one image, as the module's docstring writes it."""
    ours, theirs = NET.apply(params, {}, x[None], train=False)[0][0], h
    if exact:
        ours, theirs = torch.logit(ours), torch.logit(theirs)
        return ((ours - theirs) / tau).square().sum() / theirs.flatten().var()
    return (ours - theirs).square().sum() / (tau**2 + NU)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("known", "error", "unknown"),
    [((0, 1), 0.0, ()), ((0, 1), 0.1, ()), ((), 0.0, (2, 3, 4)), ((0, 1), 0.0, (2, 3, 4)), ((0, 1), 0.1, (2, 3, 4))],
)
def test_the_first_step_goes_down_the_objective_as_a_plain_loop_writes_it(exact, known, error, unknown):
    how, h = Calibration(MODEL, exact, 0.5, 1, error), features(X)
    noise = None if exact else torch.full((5,), NU, dtype=torch.float64)

    def pairs(rows, tau):
        rows = list(rows)
        return calibration.pairs(X[rows], h[rows], None, None if exact else noise[rows], MODEL, tau)

    others = Unknown(PRIOR, [Uploads(pairs(unknown, calibration.TAU_OF_UNKNOWN), Y[list(unknown)])])
    (end,) = extractor_descent.most_probable(how, [START], [pairs(known, calibration.TAU)], others if unknown else None)

    unit = {n: torch.zeros_like(t, dtype=torch.float64).requires_grad_() for n, t in START.items()}
    rho = {n: how.scale * t.double().square().mean().sqrt() for n, t in START.items()}
    params = {n: START[n].double() + rho[n] * unit[n] for n in START}
    # At e = 0 and z = 0 the terms of both are zero, and so are their derivatives by theta.
    total = torch.zeros((), dtype=torch.float64)
    for i in known:
        total = total + gap(params, X[i], h[i], calibration.TAU, exact)
    for j in unknown:
        mean = ((PRIOR.means[Y[j]] + 1) / 2).view(PRIOR.gaussian.variance.shape)
        total = total + gap(params, mean, h[j], calibration.TAU_OF_UNKNOWN, exact)
    total.backward()
    down = torch.cat([-unit[n].grad.flatten() for n in START])
    moved = torch.cat([((end[n] - START[n].double()) / rho[n]).flatten() for n in START])
    torch.testing.assert_close(moved / moved.norm(), down / down.norm(), rtol=0, atol=1e-9)
