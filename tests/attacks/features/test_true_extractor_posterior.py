"""Noised gradients of the classifier, through the victim's own extractor: the whole gradient is fitted, not features of it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.common import labels
from attacks.features import inversion, map_estimate, true_extractor_posterior
from attacks.oracle import Oracle
from attacks.shadow import known_extractor, shadow_federation
from privbench.scoring.image_scores import psnr_db
from privbench.types import Knowledge, Networks, no_progress
from tests.builders.small_artifacts import MODEL, artifact, images_like_the_victims, logits, networks, smooth_images

C = ("classifier",)
BUFFERS = {"extractor": {}, "classifier": {}}
X, Y = smooth_images(4), torch.tensor([3, 0, 9, 5])
ATTACK = Oracle(steps=60)


def of(*seeds):
    """Knowledge of clients 0, 1, ... whose extractors are drawn from these seeds."""
    return Knowledge(images_like_the_victims(), oracle={k: Networks(networks(s), BUFFERS) for k, s in enumerate(seeds)})


def through_features(seen, known):
    """The images that features in closed form alone give, with the variance that the noise is said to give these."""
    view = shadow_federation.real(seen, known, 0, "test")
    nets = shadow_federation.of_clients(view, {k: [known.oracle[k].params["extractor"]] for k in view.clients})
    return known_extractor.invert(view, nets, ATTACK.steps, no_progress).x


def prior_of(seen, known):
    learned = inversion.learned(known.auxiliary, MODEL.classes, X.double())
    return map_estimate.mixture(learned, labels.probabilities(seen))


def mean_psnr(images):
    return float(psnr_db(images[:, 0], X).mean())


@pytest.mark.parametrize(("variance", "more"), [(1e-8, 1.0), (1e-6, 0.1)])
def test_the_whole_gradient_shows_more_than_the_features_that_noise_leaves(variance, more):
    seen, known = artifact(X, Y, C, noise=variance), of(0)
    found = ATTACK.reconstruct(seen, known, 0)
    assert mean_psnr(found.images) > mean_psnr(through_features(seen, known)) + more


def test_of_an_image_that_the_classifier_knows_well_noise_leaves_the_mean_of_the_prior():
    """The gradient is smaller than its noise, and its features in closed form are said to be unknown."""
    weights = networks()
    bias = weights["classifier"]["fc3.bias"].clone()
    bias[3] += 6
    # Features that follow the image, as those of a trained extractor do.
    weights = {
        "extractor": {n: 4 * t for n, t in weights["extractor"].items()},
        "classifier": weights["classifier"] | {"fc3.bias": bias},
    }
    seen = artifact(X, torch.full((4,), 3), C, noise=1e-3, weights=weights)
    known = replace(of(0), oracle={0: Networks(weights, BUFFERS)})
    mean = mean_psnr(((prior_of(seen, known).mean + 1) / 2).view(4, 1, *seen.image_shape))
    assert mean_psnr(ATTACK.reconstruct(seen, known, 0).images) > mean - 0.1
    assert mean_psnr(through_features(seen, known)) == pytest.approx(mean, abs=0.1)


def test_the_loss_is_that_of_the_gradient_and_of_the_prior_by_plain_autograd():
    variance = 1e-6
    seen, known = artifact(X, Y, C, noise=variance), of(0)
    found, prior = ATTACK.reconstruct(seen, known, 0), prior_of(seen, known)
    params = {
        part: {n: t.double().requires_grad_(part == "classifier") for n, t in net.items()}
        for part, net in networks().items()
    }
    for v in range(4):
        out, _ = logits(params, found.images[v].double())
        mine = torch.autograd.grad(F.cross_entropy(out, found.labels[v]), list(params["classifier"].values()))
        true = [seen.gradients["classifier"][n][v].double() for n in params["classifier"]]
        misfit = sum(float((a - b).square().sum()) for a, b in zip(mine, true, strict=True)) / variance
        z = prior.each()[v].whitened(2 * found.images[v].double().flatten(1) - 1 - prior.mean[v])
        # Single precision holds the pixels that come back to 1e-7; z multiplies that by at most 1e3.
        assert misfit + float(z.square().sum()) == pytest.approx(float(found.loss[v]), rel=1e-3)


def test_each_client_is_inverted_through_its_own_extractor_together_as_alone():
    each = [artifact(X[:2], Y[:2], C, noise=1e-6, weights=networks(s)) for s in (1, 2)]
    gradients = {
        n: torch.cat([one.gradients["classifier"][n] for one in each]) for n in each[0].gradients["classifier"]
    }
    # Interleaved, as victims are.
    rows = torch.tensor([0, 2, 1, 3])
    both = replace(
        each[0],
        weights={"classifier": networks(1)["classifier"]},
        gradients={"classifier": {n: t[rows] for n, t in gradients.items()}},
        client=torch.tensor([0, 1, 0, 1]),
    )
    known = of(1, 2)
    near = torch.full((4, 1, *both.image_shape), 0.5, dtype=torch.float64)
    together = true_extractor_posterior.most_probable(both, known.auxiliary, known.oracle, near, 20, 0, no_progress)
    for k in (0, 1):
        of_client = torch.nonzero(both.client == k)[:, 0]
        alone = true_extractor_posterior.most_probable(
            both.select(of_client), known.auxiliary, known.oracle, near[of_client], 20, 0, no_progress
        )
        torch.testing.assert_close(together.images[of_client], alone.images, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(together.loss[of_client], alone.loss)
    swapped = {0: known.oracle[1], 1: known.oracle[0]}
    wrong = true_extractor_posterior.most_probable(both, known.auxiliary, swapped, near, 20, 0, no_progress)
    assert (wrong.loss > together.loss).all()
