"""The strong attack with the gradient alone: closed forms first, then features, then gradients.

    1. h of a one-image batch in closed form (attacks/features.py).
    2. Feature inversion: min over x of ||E(x) - h||^2 / spread(h) + lambda_h TV(x), from a grey start.
    3. Gradient matching: min over x of mean over parameters of ||g(x) - G||^2 / ||G||^2 + lambda_g TV(x), from where 2 ended
       and from a grey start; the attacker keeps the end with the lower objective.
Step 2 carries a trained network over the plateaus at which a random start sticks; step 3 adds what only the other layers'
gradients tell. Where E is private, step 2 runs through a randomly initialised stand-in and step 3 is left out: without E the
classifier's gradient says no more than h and the label do. Weights were chosen on images disjoint from all victims
(docs/tuning_attacks.md).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks import case, descend, features, match, prior
from attacks.case import Case
from privbench.types import Artifact, Knowledge, Reconstruction, Report, no_report


@dataclass(frozen=True)
class Staged:
    """Closed form, feature inversion, gradient matching."""

    feature_steps: int = 200
    steps: int = 300
    feature_weight: float = 1.0  # lambda_h of step 2
    weight: float = 1e-2  # lambda_g of step 3
    edges: bool = False  # whether the prior of step 3 is the edge-preserving one
    stand_in_weight: float = 100.0  # lambda_h where E is a stand-in: a hopeless inversion should end plain, not noisy

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier"})
    knowledge: ClassVar[str] = "gradient"

    def reconstruct(self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report) -> Reconstruction:
        """All victims through all stages."""
        own = case.make(artifact, seed)
        grey = case.grey_start(artifact)
        h = features.closed_form(artifact)
        ends = []
        if h is not None:
            ends.append(self._invert(own, h, grey, report))
        if own.extractor_known:
            ends = [self._match(own, start, report) for start in [*(end.x for end in ends), grey]]
        elif not ends:
            ends = [self._match(own, grey, report)]
        return _lowest(ends, own.labels)

    def _invert(self, own: Case, h: Tensor, start: Tensor, report: Report) -> descend.Descent:
        weight = self.feature_weight if own.extractor_known else self.stand_in_weight

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            gap = match.feature_distance(case.features(own, x)[0], data["h"])
            return gap + weight * prior.total_variation(x)

        return descend.lbfgs(objective, start, {"h": h}, steps=self.feature_steps, report=report, what="feature inversion")

    def _match(self, own: Case, start: Tensor, report: Report) -> descend.Descent:
        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            observed = {name: data[name] for name in own.observed}
            products = match.gradient_products(own.model, own.weights, x, data["labels"], observed)
            return match.layer_scaled_distance(products, own.noise) + self.weight * variation(x)

        variation = prior.edge_variation if self.edges else prior.total_variation
        data = own.observed | {"labels": own.labels}
        return descend.lbfgs(objective, start, data, steps=self.steps, report=report, what="gradient matching")


def _lowest(ends: list[descend.Descent], known: Tensor) -> Reconstruction:
    """Each victim's end with the lowest objective of the attacker's."""
    losses = torch.stack([end.loss for end in ends]).nan_to_num(nan=torch.inf)
    index = losses.argmin(0)
    rows = torch.arange(len(index), device=index.device)
    x = torch.stack([end.x for end in ends])[index, rows]
    loss = torch.stack([end.loss for end in ends])[index, rows]
    trace = torch.stack([end.trace for end in ends])[index, rows]
    return Reconstruction(x, known, loss, trace, index, sum(end.evaluations for end in ends))
