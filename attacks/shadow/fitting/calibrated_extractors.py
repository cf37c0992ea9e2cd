"""Each attacked client's extractor from images of it that the attacker knows, and victims inverted through it.

Features of known images are read off their uploads in closed form, as the victims' are. Which upload is of which image is known
(types.KnownImages). Of a batch it is known of which images together: its features are separated first
(attacks/features/per_image.py) and paired with its images by label and by what they show (calibration.py). The fit and its error
are those of calibration.py. By default it is from a random start, which needs no other knowledge. The initial extractor and a
surrogate are the other choices; after training neither gains significantly over a random start (one seed, docs/appendix/tuning.md).
The victims' uploads refine the fit where that serves the known images (refinement.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from attacks.common import batched, closed_form
from attacks.features import inversion, per_image
from attacks.features.inversion import ClassPrior
from attacks.features.learned_prior import plug_and_play
from attacks.features.learned_prior.plug_and_play import PluggedIn, Pulled
from attacks.shadow import recipes, selection, shadow_federation
from attacks.shadow.fitting import calibration, extractor_descent, held_out, refinement
from attacks.shadow.fitting.calibration import Fit
from attacks.shadow.fitting.extractor_descent import Calibration, Pairs
from attacks.shadow.settings import SurrogateSettings
from attacks.shadow.shadow_federation import ServerView
from privbench.errors import UserError
from privbench.seeds import stream
from privbench.tensors import Params
from privbench.types import Knowledge, KnownImages, Outcome, Progress, Reconstruction

Start = Literal["random", "initial", "surrogate"]


def starts_of(start: Start, view: ServerView, knowledge: Knowledge, seed: int) -> list[Params]:
    """The mean of each attacked client's prior: an extractor drawn at random, the initial one, or a surrogate.

    The surrogate is the first of those that the attack `surrogate` trains by default.
    """
    if start == "random":
        return random_starts(view, view.clients, seed)
    if start == "initial":
        assert knowledge.initial is not None, "the needs of this setting name the initial networks"
        one = knowledge.initial.params["extractor"]
    else:
        trained = recipes.trained_alone(SurrogateSettings(), view, seed, knowledge)
        one = trained[min(trained)][0]
    return [{n: t.to(view.h.device) for n, t in one.items()} for _ in view.clients]


def random_starts(view: ServerView, clients: list[int], seed: int) -> list[Params]:
    """The mean of each client's prior: an extractor as clients draw them, of its own."""
    net, device = view.model.net("extractor"), view.h.device
    return [
        {n: t.to(device) for n, t in net.init(stream(seed, "attacker", "calibrated", "start", k))[0].items()}
        for k in clients
    ]


def from_known(
    how: Calibration,
    refine_steps: int,
    starts: list[Params],
    view: ServerView,
    known: KnownImages,
    knowledge: Knowledge,
    seed: int,
    progress: Progress,
) -> dict[int, Fit]:
    """The fit of every attacked client, from its start.

    All errors are inf where nothing of one client is known, or no batch of known images can be separated.
    """
    clients = view.clients
    images = known.images.to(view.h)
    rows = {k: torch.nonzero(known.seen.client == k)[:, 0] for k in clients}
    if not all(len(r) for r in rows.values()):
        return {k: Fit(start, math.inf) for k, start in zip(clients, starts, strict=True)}
    seen = per_image.of_kept(known.seen, knowledge, seed, progress)
    if seen is None:
        return {k: Fit(start, math.inf) for k, start in zip(clients, starts, strict=True)}
    read = closed_form.with_noise(seen)
    if read is None:
        raise UserError("the features of known images are not shown by their uploads; try --attack staged")
    of_single, noise = read
    labels = known.seen.labels
    assert labels is not None, "known images come with their labels"
    assert seen.labels is not None, "known images come with their labels"
    upload = torch.arange(len(images), device=images.device)[:, None].expand(images.shape[:2]).flatten()
    groups, seen_groups = (upload * view.model.classes + y.flatten() for y in (labels, seen.labels))
    flat, owner = images.flatten(0, 1), seen.client

    def paired(extractors: list[Params], *, unambiguous: bool) -> list[Pairs]:
        each = []
        for params, k in zip(extractors, clients, strict=True):
            of_client = torch.nonzero(owner == k)[:, 0]
            h = of_single.h[of_client]
            mask = None if of_single.known is None else of_single.known[of_client]
            nu = None if noise is None else noise[of_client]
            whole = calibration.pairs(flat[of_client], h, mask, nu, view.model)
            thought = calibration.features(how, params, whole.images)
            order = calibration.assigned(
                thought.flatten(1), whole.target.flatten(1), groups[of_client], seen_groups[of_client]
            )
            target, precision = whole.target[order], whole.precision[order] * (order >= 0)[:, None, None, None]
            only = calibration.alone(groups[of_client])
            if unambiguous and bool(only.any()):
                precision = precision * only[:, None, None, None]
            each.append(Pairs(whole.images, target, precision, whole.noise[order]))
        return each

    each = paired(starts, unambiguous=True)
    if known.seen.batch_size > 1:
        each = paired(extractor_descent.most_probable(how, starts, each, progress=progress), unambiguous=False)
    prior = inversion.learned(view.auxiliary, view.model.classes, view.h)
    by_client = [labels.flatten()[owner == k] for k in clients]
    fits = held_out.trusted(
        how, prior, refinement.kinds(how, refine_steps, prior, starts, each, by_client, view, progress),
        each, by_client, progress,
    )  # fmt: skip
    return dict(zip(clients, fits, strict=True))


def tau_of(view: ServerView, fits: dict[int, Fit]) -> torch.Tensor:
    """The tau [V] of every victim."""
    return torch.tensor([fits[int(k)].error for k in view.client], dtype=torch.float64).to(view.h)


def ended(
    view: ServerView, fits: dict[int, Fit], steps: int, progress: Progress, plugged: PluggedIn | None = None
) -> Reconstruction:
    """The reconstruction that `invert` gives; victims of fits that are worth nothing were given up."""
    end = invert(view, fits, steps, progress, plugged)
    outcome = torch.where(tau_of(view, fits).isinf(), int(Outcome.GAVE_UP), int(Outcome.RECONSTRUCTED))
    return batched.reconstruction(end, 1, view.labels[:, None])._replace(outcome=outcome)


def invert(
    view: ServerView, fits: dict[int, Fit], steps: int, progress: Progress, plugged: PluggedIn | None = None
) -> batched.Descent:
    """The images [V, 1, C, H, W] of victims through their clients' fits; the mean of the prior where a fit is worth nothing.

    With a denoiser `plugged` in, further descents follow, under a prior that it has a share of.
    """
    error = tau_of(view, fits)
    if bool(error.isinf().all()):
        return selection.class_means(view)
    nets = shadow_federation.of_clients(view, {k: [fit.params] for k, fit in fits.items()})
    variance = error.square() + (0 if view.noise is None else view.noise)
    prior = inversion.learned(view.auxiliary, view.model.classes, view.h)

    def descent(of: ServerView, under: ClassPrior) -> batched.Descent:
        return shadow_federation.by_extractors(
            of, under, nets, variance, exact=view.noise is None, steps=steps, progress=progress
        )

    end = descent(view, prior)
    return end if plugged is None else _denoised(view, prior, end, ~error.isinf(), plugged, descent)


def _denoised(
    view: ServerView, prior: ClassPrior, end: batched.Descent, worth: Tensor, plugged: PluggedIn,
    descent: Callable[[ServerView, ClassPrior], batched.Descent],
) -> batched.Descent:  # fmt: skip
    """Where the levels of plug_and_play.py end from `end`; victims that are not `worth` it [V] bool stay there."""
    usual = Pulled(shadow_federation.expected(view, prior.means), prior.gaussian)
    # Every victim has a mean of its own, which is that of its own class then.
    each = view._replace(labels=torch.arange(len(view.labels), device=view.labels.device), probability=None)
    last, spent = end, end.evaluations
    for sigma in plug_and_play.LEVELS:
        under = plug_and_play.pulled(plugged, usual, 2 * last.x.flatten(1) - 1, sigma)
        last = descent(each, ClassPrior(*under))
        spent += last.evaluations
    return batched.either(worth, last, end)._replace(evaluations=spent)
