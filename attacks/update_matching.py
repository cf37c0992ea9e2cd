"""Whole local updates: the attacker simulates the client's K steps and matches their result.

    min over x of  mean over parameters l of ||theta_l(x; K) - theta_l - U_l||^2 / ||U_l||^2 + lambda TV(x)
where theta(x; K) are the networks after K steps on x by the client's optimiser from the broadcast networks, and U is the
observed change. The derivative goes through all steps. Labels and start: the update divided by -lr K is nearly a gradient,
from which `staged` makes labels and a first image.

Under noise of known variance v in U (attacks/common/updates.py) and with E known, what is descended on is twice the negative
logarithm of the posterior, as in attacks/features/map_estimate.py, with the same prior of photographs:
    min over z of  sum over parameters l of ||theta_l(x; K) - theta_l - U_l||^2 / v + ||z||^2,   2x - 1 = Sigma^(1/2) z

A client with more data than one step takes (`--batch-size 32 --local-batch 16`) sends the update of all of it, and all of it is
reconstructed. Which images a step took is secret; the attacker's own steps take the mean over all of them, which is what a
mini-batch's gradient is in expectation, and what its steps add up to where they are small.

Dimitrov et al.: Data Leakage in Federated Averaging, TMLR 2022, arXiv 2206.12395 (simulated epochs; here every step takes the
whole batch, as privbench/observation/local_update.py has it); so does the `breaching` package. Private extractors: a random
surrogate takes the steps.

One step of Adam hides its gradient poorly, and is taken back to it (attacks/common/updates.py). Of several steps
none is: entries change sign, and U says little of the first gradient. There the simulated steps are all there is, and an image
that they do not explain is given up for grey.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from attacks.common import descend, priors, problem, updates
from attacks.common.problem import InversionProblem
from attacks.common.updates import noise_variance
from attacks.features import map_estimate
from attacks.staged import Staged, of_photographs
from privbench.hyperparameters import Count, CountOrZero, Weight
from privbench.observation.local_update import optimiser_of
from privbench.spec import SGD, Adam, Optimiser
from privbench.tensors import Parts
from privbench.training.engine import ADAM_EPS
from privbench.types import Artifact, Knowledge, LocalSteps, Outcome, Presets, Progress, Reconstruction, no_progress

EXPLAINED = (
    1e-3  # objective below which an image explains an update by Adam; 4 of 12 images above it came closer than grey
)
TINY = 1e-40  # under Adam's root, which has no slope at 0


@dataclass(frozen=True)
class UpdateMatching:
    """The client's local steps, simulated, until their change of the networks matches (Dimitrov et al., TMLR 2022)."""

    steps: Count = 200
    weight: Weight = 3e-4  # lambda
    feature_steps: CountOrZero = 100  # of the first image
    start_steps: CountOrZero = 100

    needs: ClassVar[frozenset[str]] = frozenset({"update:classifier"})
    uses: ClassVar[frozenset[str]] = frozenset({"update:extractor"})
    knowledge: ClassVar[str] = "update"
    rung: ClassVar[str] = "L2"
    presets: ClassVar[Presets] = {
        "smoke": {"steps": 5, "feature_steps": 5, "start_steps": 5},
        "quick": {"steps": 60},
        "quick-resnet18": {"steps": 20, "start_steps": 50},
    }
    revision: ClassVar[int] = (
        2  # 1: under noise `staged`, from whose image it begins, is another; 2: the noise's likelihood
    )

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """L-BFGS from the image that the update gives when it is taken for a gradient, and from grey: the lower end counts.

        Under Adam an end that does not explain the update (EXPLAINED) is given up for grey; loss and trace say how far it came.
        """
        assert artifact.local is not None, "the needs name an update"
        by_adam = isinstance(optimiser_of(artifact.local), Adam)
        artifact, trust = updates.without_adam(artifact)
        local = artifact.local
        assert local is not None, "it is still an update"
        taken = updates.with_steady_rows(updates.as_gradient(artifact, local), trust)
        first = Staged(
            peel_iterations=0, feature_steps=self.feature_steps, steps=self.start_steps, starts=1
        ).reconstruct(taken, knowledge, seed, progress)
        own = problem.make(taken, seed)._replace(labels=first.labels)
        observed = {f"{p}/{n}": t.double() for p, net in artifact.updates.items() for n, t in net.items()}
        variance = noise_variance(artifact)
        if variance and own.extractor_known:
            return self._most_probable(artifact, own, observed, variance, first, progress)

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            change = local_change(own, x, data["labels"], local)
            weights = {n: data[f"trust {n}"] for n in observed}
            return relative_gap(change, data, weights) + self.weight * priors.total_variation(x)

        data = observed | {f"trust {n}": trust.get(n, torch.ones_like(t)) for n, t in observed.items()}
        data = {n: problem.repeat(t, 2) for n, t in (data | {"labels": own.labels}).items()}
        start = torch.stack([first.images, problem.plain_start(artifact, seed)], 1).flatten(0, 1)
        end = descend.lbfgs(objective, start, data, steps=self.steps, progress=progress, what="update matching")
        found = descend.reconstruction(end, 2, own.labels)
        hopeless = ~(found.loss < EXPLAINED) & by_adam
        return found._replace(
            images=torch.where(hopeless[:, None, None, None, None], problem.grey_start(artifact), found.images),
            outcome=hopeless.long() * Outcome.GAVE_UP,
            gradient_evaluations=end.evaluations * local.steps + first.gradient_evaluations,
        )

    def _most_probable(
        self,
        artifact: Artifact,
        own: InversionProblem,
        observed: dict[str, Tensor],
        variance: float,
        first: Reconstruction,
        progress: Progress,
    ) -> Reconstruction:
        """L-BFGS on the posterior, from the image that the update gives when it is taken for a gradient, and from grey."""
        local, prior = artifact.local, of_photographs(artifact, own)
        assert local is not None, "the needs name an update"
        gaussian = prior.gaussian

        def objective(z: Tensor, data: dict[str, Tensor]) -> Tensor:
            change = local_change(own, map_estimate.image(gaussian, z, data["mean"]), data["labels"], local)
            gaps = [(change[n] - data[n]).square().sum() for n in observed]
            return torch.stack(gaps).sum() / variance + z.square().sum()

        begun = torch.stack([gaussian.whitened(2 * x.flatten(1).to(prior.mean) - 1) for x in first.images])
        start = torch.stack([begun, torch.zeros_like(begun)], 1).flatten(0, 1)
        data = observed | {"labels": own.labels, "mean": prior.mean}
        data = {n: problem.repeat(t, 2) for n, t in data.items()}
        end = descend.lbfgs(objective, start, data, steps=self.steps, progress=progress, what="update matching")
        z, loss, trace, restart = descend.best_restart(end, 2)
        x = torch.stack([map_estimate.image(gaussian, *one) for one in zip(z, prior.mean, strict=True)])
        spent = end.evaluations * local.steps + first.gradient_evaluations
        return Reconstruction(x, own.labels, loss, trace, restart, spent)


def local_change(own: InversionProblem, x: Tensor, y: Tensor, local: LocalSteps) -> dict[str, Tensor]:
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


def relative_gap(change: dict[str, Tensor], observed: dict[str, Tensor], trust: dict[str, Tensor]) -> Tensor:
    """Mean over parameters of ||change - U||^2 / ||U||^2; entries count by `trust`, and a parameter by its mean of that."""
    gaps, shares = [], []
    for n, w in trust.items():
        gaps.append((w * (change[n] - observed[n]).square()).sum() / (w * observed[n].square()).sum().clamp_min(1e-300))
        shares.append(w.mean())
    share = torch.stack(shares)
    return (torch.stack(gaps) * share).sum() / share.sum()


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
