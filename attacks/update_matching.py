"""Whole local updates: the attacker takes the client's K steps himself and matches what comes out.

    min over x of  mean over parameters l of ||theta_l(x; K) - theta_l - U_l||^2 / ||U_l||^2 + lambda TV(x)
where theta(x; K) are the networks after K steps on x by the client's optimiser from the broadcast networks, and U is the
observed change. The derivative goes through all steps. Labels and start: the update divided by -lr K is nearly a gradient,
from which `staged` makes labels and a first image.

Dimitrov et al.: Data Leakage in Federated Averaging, TMLR 2022, arXiv 2206.12395 (simulated epochs; here every step takes the
whole batch, as privbench/local_update.py has it); so does the `breaching` package. Private extractors: a random stand-in
takes the steps.

One step of Adam hides its gradient worse than its reputation: single precision tells g / (|g| + eps) from a sign for most
entries of an untrained LeNet, and it is taken back to g (`without_adam`; ours). Of several steps none is: entries change sign,
and U says little of the first gradient. There the simulated steps are all there is, and an image that they do not explain is
given up for grey.
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
from privbench.spec import SGD, Adam, Optimiser
from privbench.types import Artifact, Knowledge, LocalSteps, Parts, Reconstruction, Report, no_report

TRUSTED = 0.02  # relative error at which an entry of a gradient counts half
LOST = 0.2  # and above which it does not count
EXPLAINED = (
    1e-3  # objective below which an image explains an update by Adam; 4 of 12 images above it came closer than grey
)
TINY = 1e-40  # under Adam's root, which has no slope at 0


@dataclass(frozen=True)
class UpdateMatching:
    """The client's steps, simulated and differentiated."""

    steps: Count = 200
    weight: Weight = 3e-4  # lambda
    feature_steps: CountOrZero = 100  # of the first image
    start_steps: CountOrZero = 100

    needs: ClassVar[frozenset[str]] = frozenset({"update:classifier"})
    uses: ClassVar[frozenset[str]] = frozenset({"update:extractor"})
    knowledge: ClassVar[str] = "update"
    rung: ClassVar[str] = "L2"
    revision: ClassVar[int] = 1  # 1: under noise `staged`, from whose image it begins, is another

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """L-BFGS from the image that the update gives when it is taken for a gradient, and from grey: the lower end counts.

        Under Adam an end that does not explain the update (EXPLAINED) is given up for grey; loss and trace say how far it came.
        """
        assert artifact.local is not None, "the needs name an update"
        by_adam = isinstance(optimiser_of(artifact.local), Adam)
        artifact, trust = without_adam(artifact)
        local = artifact.local
        assert local is not None, "it is still an update"
        taken = with_steady_rows(as_gradient(artifact, local), trust)
        first = Staged(
            peel_iterations=0, feature_steps=self.feature_steps, steps=self.start_steps, starts=1
        ).reconstruct(taken, knowledge, seed, report)
        own = case.make(taken, seed)._replace(labels=first.labels)
        observed = {f"{p}/{n}": t.double() for p, net in artifact.updates.items() for n, t in net.items()}

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            change = local_change(own, x, data["labels"], local)
            weights = {n: data[f"trust {n}"] for n in observed}
            return relative_gap(change, data, weights) + self.weight * prior.total_variation(x)

        data = observed | {f"trust {n}": trust.get(n, torch.ones_like(t)) for n, t in observed.items()}
        data = {n: case.repeat(t, 2) for n, t in (data | {"labels": own.labels}).items()}
        start = torch.stack([first.images, case.plain_start(artifact, seed)], 1).flatten(0, 1)
        end = descend.lbfgs(objective, start, data, steps=self.steps, report=report, what="update matching")
        found = descend.reconstruction(end, 2, own.labels)
        hopeless = ~(found.loss < EXPLAINED) & by_adam
        return found._replace(
            images=torch.where(hopeless[:, None, None, None, None], case.grey_start(artifact), found.images),
            gradient_evaluations=end.evaluations * local.steps + first.gradient_evaluations,
        )


def without_adam(artifact: Artifact) -> tuple[Artifact, dict[str, Tensor]]:
    """One step of Adam as the step of SGD (rate 1) that it hides; how far each entry is to be trusted, [V, ...] in [0, 1] by name.

    From zero moments the step is -lr g / (|g| + eps), weight decay in g. It is no mere sign: 1 - |step| / lr = eps / (|g| + eps),
    which single precision still tells from 0 where |g| lies below about 1e-3; there g = eps u / (1 - |u|) with u = -step / lr.
    The error of u is that of storing theta in single precision, and of the few roundings of the step.
    Anything else (several steps, SGD, a defended update) comes back as it is, with an empty dict: trusted everywhere.
    """
    local = artifact.local
    setting = None if local is None else optimiser_of(local)
    if local is None or local.steps > 1 or not isinstance(setting, Adam) or artifact.defense.get("name") != "none":
        return artifact, {}
    updates: Parts = {}
    trust: dict[str, Tensor] = {}
    for part, net in artifact.updates.items():
        updates[part] = {}
        for name, step in net.items():
            theta, ulp = artifact.weights[part][name].double(), torch.finfo(step.dtype).eps
            u = -step.double() / setting.lr
            error = ulp * (theta.abs() / (4 * setting.lr) + 1)
            short = (1 - u.abs()).clamp_min(error.expand_as(u))  # eps / (|g| + eps)
            relative = error / short
            trust[f"{part}/{name}"] = torch.where(relative < LOST, 1 / (1 + (relative / TRUSTED).square()), 0.0)
            updates[part][name] = setting.weight_decay * theta - ADAM_EPS * u / short
    sgd = {"kind": "sgd", "lr": 1.0, "weight_decay": 0.0}
    return replace(artifact, updates=updates, local=LocalSteps(1, sgd)), trust


def with_steady_rows(taken: Artifact, trust: dict[str, Tensor]) -> Artifact:
    """The gradient with the rows of C's first layer scaled so that a least-squares h weighs each by its precision.

    Row j says h = dL/dW_j / d_j; with d_j scaled to 1 / (its relative error), sum_j d_j dL/dW_j / sum_j d_j^2 is the weighted mean.
    """
    w, gradient = trust.get("classifier/fc1.bias"), taken.gradients.get("classifier", {})
    if w is None:
        return taken
    scale = (w / (1 - w).clamp_min(TINY)).sqrt() / gradient["fc1.bias"].abs().clamp_min(TINY)
    rows = {"fc1.bias": gradient["fc1.bias"] * scale, "fc1.weight": gradient["fc1.weight"] * scale[..., None]}
    return replace(taken, gradients=taken.gradients | {"classifier": gradient | rows})


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
