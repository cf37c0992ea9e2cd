"""A client's extractor followed from round to round, by images that nobody knows and the server saw in every round.

    0. In the first observed round every client has the initial extractor E_0: its kept uploads are inverted through it.
    r. The features of round r are paired with these images, by label and by what E of the round before makes of the images
       (calibration.py). The extractor of round r is fitted to the pairs, with the prior about that of the round
       before, and how far it is trusted chosen on images left out (held_out.py). Then the images are found again,
       from their features of all rounds so far, each weighed by its extractor's tau:
           min over z of  sum over rounds ||phi E_r(x(z)) - phi h_r||^2 / (tau_r^2 + nu_r) + ||z||^2.
In the attacked round the victims' uploads refine the fit, where that serves the images left out (refinement.py).
The kept images are never the victims. Where fits do not explain the images that they were not given, the class mean is returned.
These images are the chain's own: of a start that is no client's it cannot tell, and follows what is not there.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attacks.common import batched, closed_form
from attacks.common import labels as labels_of
from attacks.features import inversion, several_networks
from attacks.features.inversion import ClassPrior
from attacks.shadow.fitting import calibration, extractor_descent, held_out, refinement
from attacks.shadow.fitting.calibration import Fit
from attacks.shadow.fitting.extractor_descent import Calibration, Pairs, Uploads, phi
from attacks.shadow.known_extractor import TAU
from attacks.shadow.shadow_federation import ServerView
from privbench.tensors import Params
from privbench.types import Artifact, Progress

UNKNOWN = 1.0  # the error of E_0, relative to the spread of features, where the first observed round is a later one


class Anchors(NamedTuple):
    """Images of a client as far as they have been found, with what was seen of them: one entry a round."""

    labels: Tensor  # [n]
    images: Tensor  # [n, C, H, W]
    z: Tensor  # [n, D], of which the images are made
    seen: tuple[Pairs, ...]  # in the order of the images
    fits: tuple[Fit, ...]


def uploads(seen: Artifact, clients: list[int]) -> list[Uploads] | None:
    """Of every client what the server read off its uploads of one image each; None where nothing shows features."""
    read = closed_form.with_noise(seen)
    if read is None:
        return None
    (of_single, noise), y = read, labels_of.recover(seen)[:, 0]
    each = []
    for k in clients:
        of_client = torch.nonzero(seen.client == k)[:, 0]
        h = of_single.h[of_client]
        mask = None if of_single.known is None else of_single.known[of_client]
        nothing = h.new_zeros(len(h), *seen.image_shape)
        each.append(
            Uploads(
                calibration.pairs(nothing, h, mask, None if noise is None else noise[of_client], seen.model),
                y[of_client],
            )
        )
    return each


def followed(
    how: Calibration,
    view: ServerView,
    rounds: list[tuple[int, list[Uploads]]],
    initial: Params,
    steps: int,
    again: int,
    refine_steps: int,
    progress: Progress,
) -> dict[int, Fit]:
    """Each attacked client's extractor of the last round, from the uploads of all of its `rounds` (ascending, with numbers).

    The kept images are found in `steps`, and in `again` of each later round, from where they were.
    """
    clients, prior = view.clients, inversion.learned(view.auxiliary, view.model.classes, view.h)
    number, first = rounds[0]
    start = Fit(initial, TAU if number == 0 else UNKNOWN)
    each = [
        Anchors(one.labels, one.pairs.images, torch.zeros_like(prior.means[one.labels]), (one.pairs,), (start,))
        for one in first
    ]
    each = _aligned(how, prior, each, steps, progress)
    for _, later in rounds[1:]:
        starts = [one.fits[-1].params for one in each]
        pairs = [
            _paired(how, one, params, seen, unambiguous=True)
            for one, params, seen in zip(each, starts, later, strict=True)
        ]
        extractors = extractor_descent.most_probable(how, starts, pairs, progress=progress)
        pairs = [
            _paired(how, one, params, seen, unambiguous=False)
            for one, params, seen in zip(each, extractors, later, strict=True)
        ]
        labels = [one.labels for one in each]
        # The view has the uploads of the last round alone.
        more = refine_steps if later is rounds[-1][1] else 0
        kinds = refinement.kinds(how, more, prior, starts, pairs, labels, view, progress)
        fits = held_out.trusted(how, prior, kinds, pairs, labels, progress)
        each = [
            one._replace(seen=(*one.seen, pair), fits=(*one.fits, fit))
            for one, pair, fit in zip(each, pairs, fits, strict=True)
        ]
        each = _aligned(how, prior, each, again, progress)
    return {k: one.fits[-1] for k, one in zip(clients, each, strict=True)}


def _paired(how: Calibration, anchors: Anchors, params: Params, seen: Uploads, *, unambiguous: bool) -> Pairs:
    """A round's features in the order of the anchors; with `unambiguous` only labels that stand once count, if any.

    An anchor that no round before has shown is no image that was found, and counts for nothing.
    """
    thought = calibration.features(how, params, anchors.images)
    order = calibration.assigned(thought.flatten(1), seen.pairs.target.flatten(1), anchors.labels, seen.labels)
    found = torch.stack([pairs.precision.flatten(1).any(1) for pairs in anchors.seen]).any(0)
    counts = (order >= 0) & found
    only = calibration.alone(anchors.labels) & counts
    counts = only if unambiguous and bool(only.any()) else counts
    precision = seen.pairs.precision[order] * counts[:, None, None, None]
    return Pairs(anchors.images, seen.pairs.target[order], precision, seen.pairs.noise[order])


def _aligned(how: Calibration, prior: ClassPrior, each: list[Anchors], steps: int, progress: Progress) -> list[Anchors]:
    """The anchors of all clients with the images that all rounds so far make most probable."""
    net, side = how.model.net("extractor"), prior.gaussian.variance.shape
    through = phi(how)

    def objective(z: Tensor, data: batched.Data, networks: list[Params]) -> Tensor:
        x = inversion.image(prior, z, data["mean"]).view(1, *side)
        rounds = zip(networks, data["target"], data["precision"], data["weight"], strict=True)
        gaps = [
            (through(net.apply(params, {}, x, train=False)[0][0]) - target).square() * precision * weight
            for params, target, precision, weight in rounds
        ]
        return torch.stack([gap.sum() for gap in gaps]).sum() + z.square().sum()

    def of_rounds(name: str) -> Tensor:
        return torch.cat([torch.stack([getattr(seen, name) for seen in one.seen], 1) for one in each])

    weights = [
        [calibration.weights(seen, fit.error, exact=how.exact) for seen, fit in zip(one.seen, one.fits, strict=True)]
        for one in each
    ]
    labels = torch.cat([one.labels for one in each])
    data = {
        "mean": prior.means[labels],
        "target": of_rounds("target"),
        "precision": of_rounds("precision"),
        # Each round's features count as its fit is wrong.
        "weight": torch.cat([torch.stack(rounds, 1) for rounds in weights]),
    }
    networks = [[fit.params for fit in one.fits] for one in each for _ in one.labels]
    start = torch.cat([one.z for one in each])
    end = several_networks.minimise(
        objective, networks, start, data, steps=steps, progress=progress, what="images of all rounds"
    )
    images, counts = inversion.images_of(prior, end.x, labels)[:, 0], [len(one.labels) for one in each]
    found = zip(each, images.split(counts), end.x.split(counts), strict=True)
    return [one._replace(images=x, z=z) for one, x, z in found]
