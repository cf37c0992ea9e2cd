"""Images behind noised gradients of C alone, given each client's own extractor: the most probable ones.

    min over z of ||g_C(E(x), y) - G_C||^2 / sigma^2 + ||z||^2      (attacks/features/map_estimate.py)
This uses more than features in closed form (attacks/common/closed_form.py), which take d = dL/db of C's first layer for anything.
Here d is what C makes of E(x) and y, so that a small gradient says that the image is one of many that C knows well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from attacks.common import batched, failed_uploads, labels, problem
from attacks.features import inversion, map_estimate
from privbench.types import Artifact, Batch, Networks, Progress, Reconstruction


def most_probable(
    artifact: Artifact,
    auxiliary: Batch,
    networks: Mapping[int, Networks],
    near: Tensor,
    steps: int,
    seed: int,
    progress: Progress,
) -> Reconstruction:
    """All victims of gradients of one image under noise of known variance, each through the extractor in its client's `networks`.

    Every descent starts twice, from the mean of the prior and from the images `near` [V, 1, C, H, W]; the more probable end counts,
    the first where `restart` is 0.
    """
    parts = []
    for k in sorted(set(artifact.client.tolist())):
        rows = torch.nonzero(artifact.client == k)[:, 0]
        own = _with(artifact.select(rows), networks[k])
        parts.append((rows, _of_client(own, auxiliary, near[rows], steps, seed, progress)))
    return failed_uploads.joined(parts)


def _with(artifact: Artifact, networks: Networks) -> Artifact:
    """The uploads of one client as those of a client whose extractor is broadcast."""
    part = "extractor"
    return replace(
        artifact,
        weights=artifact.weights | {part: networks.params[part]},
        buffers=artifact.buffers | {part: networks.buffers[part]},
    )


def _of_client(
    artifact: Artifact, auxiliary: Batch, near: Tensor, steps: int, seed: int, progress: Progress
) -> Reconstruction:
    posed = problem.make(artifact, seed)
    learned = inversion.learned(auxiliary, artifact.model.classes, next(iter(posed.observed.values())))
    prior = map_estimate.mixture(learned, labels.probabilities(artifact))
    descents = map_estimate.Descents(posed, prior, map_estimate.Steps(0, steps), progress)
    rows = torch.arange(artifact.victims, device=near.device)
    starts = (torch.zeros_like(prior.mean), prior.whitened(2 * near.to(prior.mean).flatten(2) - 1))
    first, other = (descents.at_once(z, rows) for z in starts)
    best, which = batched.lower(first, other), (other.loss < first.loss).long()
    return Reconstruction(prior.images(best.x), posed.labels, best.loss, best.trace, which, best.evaluations)
