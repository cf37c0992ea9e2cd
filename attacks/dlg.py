"""DLG, the plain form of gradient matching (FedCG Eq. 7).

The objective is min over x~ of || grad L_cls(x) - grad L_cls(x~) ||^2, from noise, by L-BFGS or Adam.

Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019, arXiv 1906.08935. Eq. 7 has x~ alone under the minimum, so the label
is taken as given: recovered in closed form. DLG's own form, which descends on a soft label softmax(l) too, is
labels="descended". Deviation: the arithmetic is double precision and the start uniform; start="normal" is the authors'. FedCG
does not say where its descent starts; on LeNet-5 start="grey" decides more than any other change to it
(docs/appendix/attacks.md). The study `papers-attack` varies what that paper leaves open. Where the method keeps E private
(FedSplit), theta is C alone and x~ goes through a randomly initialised surrogate E~, as in FedCG's comparison. Where it keeps C
private (FedPer), theta is E alone, C is a random surrogate, and the labels, which nothing shows then, are descended on unless
they are declared known.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from attacks.common import descend, gradient_distance, problem
from attacks.common.problem import InversionProblem
from privbench.hyperparameters import Count, Positive
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class DLG:
    """Squared distance of gradients from noise, Eq. 7 and nothing else (Zhu et al., NeurIPS 2019; FedCG Eq. 7)."""

    steps: Count = 300
    restarts: Count = 1
    optimiser: descend.Optimiser = "lbfgs"
    lr: Positive = 0.05  # of Adam
    labels: Literal["recovered", "descended"] = "recovered"  # "descended" as DLG's authors have it
    start: problem.Start = "noise"  # with "grey" and labels recovered all restarts are one

    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})
    knowledge: ClassVar[str] = "gradient"
    rung: ClassVar[str] = "L1"
    presets: ClassVar[Presets] = {"smoke": {"steps": 5}, "quick": {"steps": 150}, "quick-resnet18": {"steps": 100}}

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Descends from `start`; of several restarts the one with the lowest Eq. 7."""
        own = problem.make(artifact, seed)
        if self.labels == "descended" or bool((own.labels < 0).any()):
            images = problem.starts(artifact, self.start, self.restarts, seed)
            return self._with_labels(artifact, own, images, seed, progress)
        restarts = 1 if self.start == "grey" else self.restarts

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            return equation_7(own, x, data["labels"], data)

        end = self._descend(
            objective, problem.starts(artifact, self.start, restarts, seed), problem.data(own, restarts), progress
        )
        return descend.reconstruction(end, restarts, own.labels)

    def _with_labels(
        self, artifact: Artifact, own: InversionProblem, images: Tensor, seed: int, progress: Progress
    ) -> Reconstruction:
        """Images and label logits descend together, laid end to end: [D + B Y]."""
        shape, classes = images.shape[1:], artifact.model.classes
        logits = problem.draws(artifact, (artifact.batch_size, classes), self.restarts, seed, "soft labels")

        def split(both: Tensor) -> tuple[Tensor, Tensor]:
            x, soft = both.split([shape.numel(), shape[0] * classes], -1)
            return x.unflatten(-1, shape), soft.unflatten(-1, (shape[0], classes))

        def objective(both: Tensor, data: dict[str, Tensor]) -> Tensor:
            x, soft = split(both)
            return equation_7(own, x, soft.softmax(1), data)

        start = torch.cat([images.flatten(1), logits.flatten(1)], 1)
        end = self._descend(objective, start, problem.data(own, self.restarts), progress)
        both, loss, trace, restart = descend.best_restart(end, self.restarts)
        x, soft = split(both)
        return Reconstruction(x, soft.argmax(2), loss, trace, restart, end.evaluations)

    def _descend(
        self, objective: descend.Objective, start: Tensor, data: descend.Data, progress: Progress
    ) -> descend.Descent:
        return descend.by(
            self.optimiser, objective, start, data, steps=self.steps, lr=self.lr, progress=progress, what="DLG"
        )


def equation_7(own: InversionProblem, x: Tensor, y: Tensor, data: dict[str, Tensor]) -> Tensor:
    """|| grad L_cls(x) - G ||^2 of one victim; y [B] are classes or [B, Y] probabilities."""
    return gradient_distance.squared_distance(
        gradient_distance.gradient_products(own, x, y, problem.observed_of(own, data))
    )
