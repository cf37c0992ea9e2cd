"""A client's extractor and the images behind its uploads, found together from a surrogate that nearly explains them.

The objective stands in extractor_descent.py; theta_0 is the surrogate, and no image is known. All uploads of a client, which have
one extractor, say what it is: LeNet-5's has 2,572 or 2,872 numbers, an upload gives 400 equations, and its image, under the prior,
takes far fewer numbers than it has pixels.

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

from attacks.common import training_cache
from attacks.features import inversion
from attacks.features.inversion import ClassPrior, Extractors
from attacks.shadow import alignment, recipes, shadow_federation
from attacks.shadow.fitting import calibration, extractor_descent
from attacks.shadow.fitting.extractor_descent import Calibration, Unknown, Uploads
from attacks.shadow.recipes import Recipe
from attacks.shadow.settings import JointSettings
from attacks.shadow.shadow_federation import ServerView
from privbench.tensors import Params
from privbench.types import Knowledge, Progress, no_progress


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
        uploads = {k: calibration.uploads_of(view, of) for k, of in rows.items()}
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
    known = [extractor_descent.nothing_known(one.pairs) for one in each]
    return extractor_descent.most_probable(how, starts, known, Unknown(prior, each), progress, "images and extractors")
