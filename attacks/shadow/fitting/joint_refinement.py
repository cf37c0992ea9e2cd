"""A client's extractor and the images behind its uploads, found together from a surrogate that nearly explains them.

    min over theta, z_1 .. z_n of
        sum_i ||phi E_theta(x(z_i)) - phi h_i||^2 / (tau^2 + nu_i) + ||(theta - theta_0) / rho||^2 + sum_i ||z_i||^2
phi, nu and rho are those of calibration.py, x(z) and its prior those of attacks/features/inversion.py; theta_0 is
the surrogate. This is twice the negative logarithm of the posterior of both. There the images are known. Here they are not, and all
uploads of a client, which have one extractor, say what it is: LeNet-5's has 2,572 or 2,872 numbers, an upload gives 400 equations,
and its image, under the prior, takes far fewer numbers than it has pixels.

Descending on both from unrelated networks fails: many extractors explain a few uploads by improbable images. From an aligned
surrogate the next minimum is nearer to the truth (docs/appendix/tuning.md). A wide prior of theta lets the extractor explain all
and leaves the images at their class's mean; a narrow one lets the images explain the surrogate's errors.

Blind deconvolution has this form (Levin, Weiss, Durand, Freeman: Understanding and Evaluating Blind Deconvolution Algorithms, CVPR
2009), and UnSplit (attacks/unsplit.py) does it without priors. The descents of all clients and surrogates are one batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.common import batched, lbfgs, training_cache
from attacks.features import inversion
from attacks.features.inversion import ClassPrior, Extractors
from attacks.shadow import alignment, recipes, shadow_federation
from attacks.shadow.fitting import calibration
from attacks.shadow.fitting.calibration import Calibration, Pairs
from attacks.shadow.fitting.chain import Uploads
from attacks.shadow.recipes import Recipe
from attacks.shadow.settings import JointSettings
from attacks.shadow.shadow_federation import ServerView
from privbench.tensors import Params
from privbench.types import Knowledge, Progress, no_progress

TAU = 0.1  # relative to the spread of phi h; of noised features, in their own unit


def joint(settings: JointSettings) -> Recipe:
    """Refined extractors of each client, each from an aligned surrogate; validated on shadow clients with as many uploads."""

    def extractors(view: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
        return from_aligned(settings, view, seed, knowledge)

    return Recipe(
        "joint",
        extractors,
        recipes.shadow_of(settings, as_many_victims=True),
        recipes.validation_settings(settings, JointSettings),
        recipes.moment_shift,
        by_logits=True,
    )


def from_aligned(settings: JointSettings, view: ServerView, seed: int, knowledge: Knowledge) -> Extractors:
    """`starts` refined extractors of every client, at most as many as it has folds of victims."""
    aligned = alignment.from_plain(settings, view, seed, knowledge)
    rows = {k: torch.nonzero(view.client == k)[:, 0] for k in view.clients}
    starts = {
        k: _distinct([aligned[v][0] for v in view.victim[of].tolist()])[: settings.starts] for k, of in rows.items()
    }
    owners = [k for k, each in starts.items() for _ in each]

    def make() -> dict[str, Tensor]:
        how = Calibration(view.model, view.noise is None, settings.scale, settings.joint_steps)
        prior = inversion.learned(view.auxiliary, view.model.classes, view.h)
        uploads = {k: uploads_of(view, of) for k, of in rows.items()}
        flat = [one for each in starts.values() for one in each]
        ends = recipes.packed(refined(how, prior, flat, [uploads[k] for k in owners]))
        return {name: t.to(view.auxiliary.images) for name, t in ends.items()}

    trained = training_cache.cached(
        knowledge.cache,
        f"joint-{view.name}",
        {"seed": seed, "starts": settings.starts, "joint_steps": settings.joint_steps, "scale": settings.scale},
        [*recipes.depends_on(view), *(one[n] for each in starts.values() for one in each for n in sorted(one))],
        make,
        view.h.device,
    )
    ends = recipes.unpacked(trained, len(owners))
    return shadow_federation.of_clients(
        view, {k: [end for end, owner in zip(ends, owners, strict=True) if owner == k] for k in rows}
    )


def uploads_of(view: ServerView, rows: Tensor) -> Uploads:
    """Some rows of what a server sees."""
    one = shadow_federation.select(view, rows)
    nothing = one.h.new_zeros(len(rows), *view.auxiliary.images.shape[1:])
    return Uploads(calibration.pairs(nothing, one.h, one.known, one.noise, view.model, TAU), one.labels)


def _distinct(networks: Sequence[Params]) -> list[Params]:
    """Each network once, in order."""
    return list({id(one): one for one in networks}.values())


def refined(
    how: Calibration,
    prior: ClassPrior,
    starts: Sequence[Params],
    each: Sequence[Uploads],
    progress: Progress = no_progress,
) -> list[Params]:
    """The extractor of each problem, from its start and the uploads of its client, of which clients may have unequal numbers."""
    net, through, names = how.model.net("extractor"), calibration.phi(how), list(starts[0])
    like, side = prior.means, prior.gaussian.variance.shape
    most = max(len(one.labels) for one in each)
    padded = [_padded(one, most) for one in each]
    weights, mean, rho = calibration.prior_of(how, starts, like)
    laid = batched.EndToEnd(mean.shape[1:], (most, like.shape[1]))
    data = {
        "theta": mean,
        "rho": rho,
        "mean": torch.stack([prior.means[one.labels] for one in padded]),
        "target": torch.stack([one.pairs.target for one in padded]),
        "precision": torch.stack([one.pairs.precision for one in padded]),
    }

    def objective(v: Tensor, one: batched.Data) -> Tensor:
        unit, z = laid.split(v)
        params = dict(zip(names, weights.split(one["theta"] + one["rho"] * unit), strict=True))
        x = ((one["mean"] + prior.gaussian.root(z) + 1) / 2).view(most, *side)
        gap = (through(net.apply(params, {}, x, train=False)[0]) - one["target"]).square() * one["precision"]
        return gap.sum() + v.square().sum()

    start = like.new_zeros(len(padded), mean.shape[1] + most * like.shape[1])
    end = lbfgs.minimise(objective, start, data, steps=how.steps, progress=progress, what="images and extractors")
    return calibration.networks(names, weights, mean + rho * end.x[:, : mean.shape[1]])


def _padded(one: Uploads, size: int) -> Uploads:
    """The same with as many uploads as others have; those that are added say nothing."""
    missing = size - len(one.labels)

    def more(t: Tensor) -> Tensor:
        return torch.cat([t, t.new_zeros(missing, *t.shape[1:])])

    return Uploads(Pairs(*map(more, one.pairs)), more(one.labels))
