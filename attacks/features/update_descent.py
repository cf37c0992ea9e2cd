"""Descents on the image whose simulated local steps change the networks as a client's update did (attacks/update_matching.py)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.common import batched, data_fit, lbfgs, priors, problem, updates
from attacks.common.batched import Data, Descent, Objective
from attacks.common.data_fit import DataFit
from attacks.common.problem import WEIGHTS, InversionProblem
from attacks.features import map_estimate
from attacks.features.map_estimate import ImagePrior
from privbench.types import LocalSteps, Progress, Reconstruction

STARTS = 2  # of every victim: its first image, and grey


@dataclass(frozen=True)
class UpdateDescent:
    """The observed change U [V, ...] by "<part>/<parameter>", the local steps behind it, and L-BFGS from two starts."""

    posed: InversionProblem
    local: LocalSteps
    observed: Data
    fit: DataFit
    steps: int
    progress: Progress

    def matched(self, first: Tensor, grey: Tensor, trust: Data, weight: float) -> Reconstruction:
        """min over x of the relative gap + `weight` TV(x), from images [V, B, C, H, W]; `trust` says how far to trust entries."""

        def objective(x: Tensor, data: Data) -> Tensor:
            change = updates.local_change(self.posed, x, data["labels"], self.local, data.get(WEIGHTS))
            weights = {n: data[f"trust {n}"] for n in self.observed}
            sent, target = data_fit.compared(self.fit, {n: change[n] for n in self.observed}, data)
            return updates.relative_gap(sent, target, weights) + weight * priors.total_variation(x)

        more = {f"trust {n}": trust.get(n, torch.ones_like(t)) for n, t in self.observed.items()}
        end = self._descend(objective, first, grey, more)
        return batched.reconstruction(end, STARTS, self.posed.labels)._replace(gradient_evaluations=self._spent(end))

    def most_probable(self, first: Tensor, prior: ImagePrior, variance: float) -> Reconstruction:
        """min over z of ||change - U||^2 / v + ||z||^2, from images [V, B, C, H, W] and from mu; v is the noise's `variance`."""
        gaussian = prior.gaussian

        def objective(z: Tensor, data: Data) -> Tensor:
            x = map_estimate.image(gaussian, z, data["mean"])
            change = updates.local_change(self.posed, x, data["labels"], self.local, data.get(WEIGHTS))
            sent, target = data_fit.compared(self.fit, {n: change[n] for n in self.observed}, data)
            gaps = [(sent[n] - target[n]).square().sum() for n in self.observed]
            return torch.stack(gaps).sum() / variance + z.square().sum()

        z = torch.stack([gaussian.whitened(2 * x.flatten(1).to(prior.mean) - 1) for x in first])
        end = self._descend(objective, z, torch.zeros_like(z), {"mean": prior.mean})
        z, loss, trace, restart = batched.best_restart(end, STARTS)
        x = torch.stack([map_estimate.image(gaussian, *one) for one in zip(z, prior.mean, strict=True)])
        return Reconstruction(x, self.posed.labels, loss, trace, restart, self._spent(end))

    def _descend(self, objective: Objective, first: Tensor, plain: Tensor, more: Data) -> Descent:
        start = torch.stack([first, plain], 1).flatten(0, 1)
        data = self.observed | more | {"labels": self.posed.labels}
        data |= {name: t for name, t in self.posed.observed.items() if name == WEIGHTS}
        return lbfgs.minimise(
            objective, start, {n: problem.repeat(t, STARTS) for n, t in data.items()},
            steps=self.steps, progress=self.progress, what="update matching",
        )  # fmt: skip

    def _spent(self, end: Descent) -> int:
        """Gradients of the networks' loss: one for every simulated step."""
        return end.evaluations * self.local.steps
