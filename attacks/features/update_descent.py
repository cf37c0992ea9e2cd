"""Descents on the image whose simulated local steps change the networks as a client's update did (attacks/update_matching.py).

Two of their starts are layerwise inversions of what stands for the gradient (`layerwise_images`). An update divided by its rate is
no exact gradient: theta is stored in single precision, and later steps are taken elsewhere. With the errors of single precision
layerwise inversion explains that, too, and ends in noise. How large the errors are depends on the rate, the steps and the networks.

FACTORS were chosen on four training digits, on a network of seed 6 that others had trained and on an untrained one, for 1, 5 and 20
steps of SGD. Steps of Adam leave too little of the gradient for any factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.common import batched, closed_form, data_fit, lbfgs, priors, problem, updates
from attacks.common.batched import Data, Descent, Objective
from attacks.common.data_fit import DataFit
from attacks.common.problem import WEIGHTS, InversionProblem
from attacks.features import layerwise, map_estimate
from attacks.features.map_estimate import ImagePrior
from privbench.types import Artifact, LocalSteps, Progress, Reconstruction

FACTORS = (1000.0, 3000.0)  # on the errors of single precision


@dataclass(frozen=True)
class UpdateDescent:
    """The observed change U [V, ...] by "<part>/<parameter>", the local steps behind it, and L-BFGS from several starts.

    `statistics` is the change of running statistics, on which no defence acts.
    """

    posed: InversionProblem
    local: LocalSteps
    observed: Data
    statistics: Data
    fit: DataFit
    steps: int
    progress: Progress

    def matched(self, starts: Sequence[Tensor], trust: Data, weight: float) -> Reconstruction:
        """min over x of the relative gap + `weight` TV(x), from images [V, B, C, H, W]; `trust` says how far to trust entries."""

        def objective(x: Tensor, data: Data) -> Tensor:
            change = updates.local_change(self.posed, x, data["labels"], self.local, data.get(WEIGHTS), data)
            sent, target = data_fit.compared(self.fit, {n: change[n] for n in self.observed}, data)
            sent = {**sent, **{n: change[n] for n in self.statistics}}
            target = {**target, **{n: data[n] for n in self.statistics}}
            weights = {n: data[f"trust {n}"] for n in sent}
            return updates.relative_gap(sent, target, weights) + weight * priors.total_variation(x)

        every = {n: trust.get(n, torch.ones_like(t)) for n, t in self.observed.items()}
        more = {f"trust {n}": t for n, t in (every | updates.trust_in(self.statistics)).items()}
        end, labels = self._descend(objective, starts, more), self.posed.labels
        return batched.reconstruction(end, len(starts), labels)._replace(gradient_evaluations=self._spent(end))

    def most_probable(self, first: Tensor, prior: ImagePrior, variance: float) -> Reconstruction:
        """min over z of ||change - U||^2 / v + ||z||^2, from images [V, B, C, H, W] and from mu; v is the noise's `variance`."""
        gaussian = prior.gaussian

        def objective(z: Tensor, data: Data) -> Tensor:
            x = map_estimate.image(gaussian, z, data["mean"])
            change = updates.local_change(self.posed, x, data["labels"], self.local, data.get(WEIGHTS), data)
            sent, target = data_fit.compared(self.fit, {n: change[n] for n in self.observed}, data)
            gaps = [(sent[n] - target[n]).square().sum() for n in self.observed]
            return torch.stack(gaps).sum() / variance + z.square().sum()

        z = torch.stack([gaussian.whitened(2 * x.flatten(1).to(prior.mean) - 1) for x in first])
        starts = (z, torch.zeros_like(z))
        end = self._descend(objective, starts, {"mean": prior.mean})
        z, loss, trace, restart = batched.best_restart(end, len(starts))
        x = torch.stack([map_estimate.image(gaussian, *one) for one in zip(z, prior.mean, strict=True)])
        return Reconstruction(x, self.posed.labels, loss, trace, restart, self._spent(end))

    def _descend(self, objective: Objective, starts: Sequence[Tensor], more: Data) -> Descent:
        start = torch.stack(list(starts), 1).flatten(0, 1)
        data = self.observed | self.statistics | more | {"labels": self.posed.labels}
        data |= {name: t for name, t in self.posed.observed.items() if name == WEIGHTS}
        data |= updates.shown_draws(self.posed, self.local)
        return lbfgs.minimise(
            objective, start, {n: problem.repeat(t, len(starts)) for n, t in data.items()},
            steps=self.steps, progress=self.progress, what="update matching",
        )  # fmt: skip

    def _spent(self, end: Descent) -> int:
        """Gradients of the networks' loss: one for every simulated step."""
        return end.evaluations * self.local.steps


def layerwise_images(
    gradients: Artifact, posed: InversionProblem, iterations: int, progress: Progress
) -> tuple[list[Tensor], int]:
    """(images [V, 1, C, H, W] under each of FACTORS, gradients taken); none where layerwise inversion does not apply.

    It applies to one image per update, of one client, without a defence but rounding, through a LeNet-5 whose extractor is known.
    """
    plain = posed.fit == data_fit.PLAIN and not posed.variance and gradients.member_weights is None
    if not plain or not posed.extractor_known or gradients.model.backbone != "lenet5" or not iterations:
        return [], 0
    features = closed_form.of_single(gradients)
    if features is None or features.known is not None:
        return [], 0
    gaussian = priors.natural(*priors.square(gradients.image_shape), priors.PIXEL_STEP, priors.CHROMA, features.h)
    ends = [layerwise.invert(posed, features.h, gaussian, iterations, progress, factor=factor) for factor in FACTORS]
    return [end.x for end in ends], sum(end.evaluations for end in ends)
