"""Whole local updates: the attacker takes the client's K steps himself and matches what comes out.

    min over x of  mean over parameters l of ||theta_l(x; K) - theta_l - U_l||^2 / ||U_l||^2 + lambda TV(x)
where theta(x; K) are the networks after K steps on x by the client's optimiser from the broadcast networks, and U is the
observed change. The derivative goes through all steps. Labels and start: the update divided by -lr K is nearly a gradient,
from which `staged` makes labels and a first image.

Dimitrov et al.: Data Leakage in Federated Averaging, TMLR 2022, arXiv 2206.12395 (simulated epochs; here every step takes the
whole batch, as privbench/local_update.py has it); so does the `breaching` package. Under Adam the first step has the size lr
whatever the gradient: U then says less, and labels of batches are an estimate. Private extractors: a random stand-in takes
the steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from attacks import case, descend, prior
from attacks.case import Case
from attacks.staged import Staged
from privbench.engine import ADAM_EPS
from privbench.local_update import optimiser_of
from privbench.settings import Count, CountOrZero, Weight
from privbench.spec import SGD, Optimiser
from privbench.types import Artifact, Knowledge, LocalSteps, Parts, Reconstruction, Report, no_report

TINY = 1e-40  # under Adam's root, which has no slope at 0


@dataclass(frozen=True)
class UpdateMatching:
    """The client's steps, simulated and differentiated."""

    steps: Count = 200
    weight: Weight = 3e-4  # lambda
    feature_steps: CountOrZero = 100  # of the first image
    start_steps: CountOrZero = 100

    needs: ClassVar[frozenset[str]] = frozenset({"update:classifier"})
    knowledge: ClassVar[str] = "update"
    rung: ClassVar[str] = "L2"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """L-BFGS from the image that the update gives when it is taken for a gradient, and from grey: the lower end counts."""
        local = artifact.local
        assert local is not None, "the needs name an update"
        taken = as_gradient(artifact, local)
        first = Staged(peel_iterations=0, feature_steps=self.feature_steps, steps=self.start_steps).reconstruct(
            taken, knowledge, seed, report
        )
        own = case.make(taken, seed)._replace(labels=first.labels)
        observed = {f"{p}/{n}": t.double() for p, net in artifact.updates.items() for n, t in net.items()}

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            change = local_change(own, x, data["labels"], local)
            return relative_gap(change, data, observed) + self.weight * prior.total_variation(x)

        data = {n: case.repeat(t, 2) for n, t in (observed | {"labels": own.labels}).items()}
        start = torch.stack([first.images, case.plain_start(artifact, seed)], 1).flatten(0, 1)
        end = descend.lbfgs(objective, start, data, steps=self.steps, report=report, what="update matching")
        found = descend.reconstruction(end, 2, own.labels)
        return found._replace(gradient_evaluations=end.evaluations * local.steps + first.gradient_evaluations)


def as_gradient(artifact: Artifact, local: LocalSteps) -> Artifact:
    """The update taken for one gradient: -U / (lr K). It is that for K = 1 and SGD, and near it for small steps.

    The defence is named "local steps", so that nothing about rank and signs is taken to be exact.
    """
    rate = optimiser_of(local).lr * local.steps
    gradients = {p: {n: -t / rate for n, t in net.items()} for p, net in artifact.updates.items()}
    variance = float(artifact.defense.get("variance", 0.0)) / rate**2
    defense = {"name": "local steps"} | ({"variance": variance} if variance else {})
    return replace(artifact, gradients=gradients, updates={}, local=None, defense=defense)


def local_change(own: Case, x: Tensor, y: Tensor, local: LocalSteps) -> dict[str, Tensor]:
    """Networks after the local steps on x [B, C, H, W], y [B] minus networks before, by "<part>/<parameter>"."""
    extractor, classifier = own.model.net("extractor"), own.model.net("classifier")

    def loss(params: Parts) -> Tensor:
        h, _ = extractor.apply(params["extractor"], own.buffers["extractor"], x, train=own.train)
        logits, _ = classifier.apply(params["classifier"], own.buffers["classifier"], h, train=own.train)
        return F.cross_entropy(logits, y)

    setting, params = optimiser_of(local), own.weights
    mean: dict[str, Tensor] = {}
    square: dict[str, Tensor] = {}
    for step in range(1, local.steps + 1):
        gradient = grad(loss)(params)
        params = {
            p: {
                n: t - _move(setting, gradient[p][n] + setting.weight_decay * t, f"{p}/{n}", mean, square, step)
                for n, t in net.items()
            }
            for p, net in params.items()
        }
    return {f"{p}/{n}": t - own.weights[p][n] for p, net in params.items() for n, t in net.items()}


def relative_gap(change: dict[str, Tensor], data: dict[str, Tensor], observed: dict[str, Tensor]) -> Tensor:
    """Mean over the observed parameters of ||change - U||^2 / ||U||^2."""
    gaps = [(change[n] - data[n]).square().sum() / data[n].square().sum().clamp_min(1e-300) for n in observed]
    return torch.stack(gaps).mean()


def _move(
    setting: Optimiser, gradient: Tensor, name: str, mean: dict[str, Tensor], square: dict[str, Tensor], step: int
) -> Tensor:
    """What one step subtracts from a parameter; Adam's moments are replaced in place."""
    if isinstance(setting, SGD):
        return setting.lr * gradient
    zero = torch.zeros_like(gradient)
    mean[name] = setting.beta1 * mean.get(name, zero) + (1 - setting.beta1) * gradient
    square[name] = setting.beta2 * square.get(name, zero) + (1 - setting.beta2) * gradient.square()
    root = (square[name] / (1 - setting.beta2**step) + TINY).sqrt() + ADAM_EPS
    return setting.lr * mean[name] / (1 - setting.beta1**step) / root
