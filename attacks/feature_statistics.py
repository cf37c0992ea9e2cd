"""FedCG's own attack, Eq. 8: Eq. 7 over the classifier plus matching of the generator's feature statistics.

    min over x~ of  || grad_C L_cls(x) - grad_C L_cls(x~) ||^2
                    + alpha sum_c ( (mean E~(x~)_c - mu_c)^2 + (var E~(x~)_c - sigma_c^2)^2 )
E~ is randomly initialised because E is unknown; mu_c and sigma_c^2 are the mean and variance per channel of what the
victim's uploaded generator G_i makes of the victim's label. The paper gives neither alpha, start, optimiser nor iterations: here
1, uniform noise, L-BFGS and 300; the study `papers-attack` varies them. It compares a variance with a standard deviation; here
like is compared with like.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.common import descend, gradient_distance, problem
from privbench.hyperparameters import Count, Positive, Weight
from privbench.seeds import stream
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress

DRAWS = 256  # generator samples behind mu and sigma


@dataclass(frozen=True)
class FeatureStatistics:
    """Eq. 7 over the classifier + the feature statistics of the uploaded generator (FedCG Eq. 8)."""

    steps: Count = 300
    restarts: Count = 1
    alpha: Weight = 1.0
    optimiser: descend.Optimiser = "lbfgs"
    lr: Positive = 0.05  # of Adam
    start: problem.Start = "noise"  # with "grey" all restarts are one

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "upload:generator"})
    knowledge: ClassVar[str] = "gradient + generator"
    rung: ClassVar[str] = "L1"
    presets: ClassVar[Presets] = {"smoke": {"steps": 5}, "quick": {"steps": 150}, "quick-resnet18": {"steps": 100}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Descends from `start`; of several restarts the one with the lowest Eq. 8."""
        own = problem.make(artifact, seed)
        mean, variance = statistics(artifact, own.labels, seed)

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            products = gradient_distance.gradient_products(own, x, data["labels"], problem.observed_of(own, data))
            gap = gradient_distance.squared_distance(products)
            return gap + self.alpha * gradient_distance.statistics_distance(
                problem.features(own, x), data["mean"], data["variance"]
            )

        restarts = 1 if self.start == "grey" else self.restarts
        start = problem.starts(artifact, self.start, restarts, seed)
        moments = {"mean": mean, "variance": variance}
        data = problem.data(own, restarts) | {n: problem.repeat(t, restarts) for n, t in moments.items()}
        end = descend.by(
            self.optimiser, objective, start, data, steps=self.steps, lr=self.lr, progress=progress, what="Eq. 8"
        )
        return descend.reconstruction(end, restarts, own.labels)


def statistics(artifact: Artifact, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """(mu, sigma^2) of the victim's generator given its labels, each [V, c], in eval mode; equal questions are asked once."""
    known: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
    keys = [(k, *sorted(own)) for k, own in zip(artifact.client.tolist(), labels.tolist(), strict=True)]
    for key in keys:
        if key not in known:
            known[key] = _statistics(artifact, key[0], key[1:], seed)
    return torch.stack([known[key][0] for key in keys]), torch.stack([known[key][1] for key in keys])


def _statistics(artifact: Artifact, client: int, classes: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor]:
    device = artifact.client.device
    params = {n: t[client] for n, t in artifact.uploads["generator"].items()}
    buffers = {n: t[client] for n, t in artifact.upload_buffers["generator"].items()}
    y = torch.tensor(classes, device=device).repeat_interleave(DRAWS)
    z = torch.randn(len(y), artifact.model.noise_dim, generator=stream(seed, "attacker", "generator", client, *classes))
    with torch.no_grad():
        h, _ = artifact.model.net("generator").apply(params, buffers, z.to(device), y, train=False)
    channels = h.double().transpose(0, 1).flatten(1)
    return channels.mean(1), channels.var(1, unbiased=False)
