"""DLG, the plain form of gradient matching (FedCG Eq. 7).

The objective is min over x~ of || grad L_cls(x) - grad L_cls(x~) ||^2, from noise, by L-BFGS or Adam.

Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019, arXiv 1906.08935. Eq. 7 has x~ alone under the minimum, so the label
is taken as given: recovered in closed form. DLG's own form, which descends on a soft label softmax(l) too, is
labels="descended". Deviation: the arithmetic is double precision and the start uniform; start="normal" is the authors'. FedCG
does not say where its descent starts nor when it ends; on LeNet-5 start="grey" decides more than any other change to it. The study
`papers-attack` varies what that paper leaves open, and `--preset paper` takes what came nearest to its printed PSNR
(docs/results/papers-attack.md). Where the method keeps E private
(FedSplit), theta is C alone and x~ goes through a randomly initialised surrogate E~, as in FedCG's comparison. Where it keeps C
private (FedPer), theta is E alone, C is a random surrogate, and the labels, which nothing shows then, are descended on unless
they are declared known.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from torch import Tensor

from attacks.common import batched, bottleneck, gradient_distance, optimisers, problem
from attacks.common.batched import Data, Descent, EndToEnd, Objective
from attacks.common.data_fit import REPRESENTATION
from attacks.common.problem import InversionProblem
from privbench.hyperparameters import Count, Positive
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class DLG:
    """Squared distance of gradients from noise, Eq. 7 and nothing else (Zhu et al., NeurIPS 2019; FedCG Eq. 7)."""

    steps: Count = 300
    restarts: Count = 1
    optimiser: optimisers.Optimiser = "lbfgs"
    lr: Positive = 0.05  # of Adam
    labels: Literal["recovered", "descended"] = "recovered"  # "descended" as DLG's authors have it
    start: problem.Start = "noise"  # with "grey" and labels recovered all restarts are one

    needs: ClassVar[frozenset[str]] = frozenset({"gradient"})
    knowledge: ClassVar[str] = "gradient"
    rung: ClassVar[str] = "L1"
    knows: ClassVar[frozenset[str]] = REPRESENTATION
    # Of what FedCG leaves open, `paper` takes what came nearest to the PSNR that it prints (docs/results/papers-attack.md).
    presets: ClassVar[Presets] = {
        "smoke": {"steps": 5}, "quick": {"steps": 150}, "quick-slow": {"steps": 100}, "paper": {"start": "grey", "steps": 1000},
    }  # fmt: skip

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Descends from `start`; of several restarts the one with the lowest Eq. 7."""
        posed = problem.make(artifact, seed, needs_labels=False)
        if self.labels == "descended" or bool((posed.labels < 0).any()):
            return self._with_labels(artifact, posed, seed, progress)
        restarts = 1 if self.start == "grey" else self.restarts

        def objective(x: Tensor, data: Data) -> Tensor:
            return equation_7(posed, x, data["labels"], data)

        start = problem.starts(artifact, self.start, restarts, seed)
        end = self._descend(posed, objective, start, problem.data(posed, restarts), progress)
        return batched.reconstruction(end, restarts, posed.labels)

    def _with_labels(
        self, artifact: Artifact, posed: InversionProblem, seed: int, progress: Progress
    ) -> Reconstruction:
        """Images and label logits descend together."""
        images, classes = problem.starts(artifact, self.start, self.restarts, seed), artifact.model.classes
        logits = problem.draws(artifact, (artifact.batch_size, classes), self.restarts, seed, "soft labels")
        both = EndToEnd(images.shape[1:], logits.shape[1:])

        def objective(joined: Tensor, data: Data) -> Tensor:
            x, soft = both.split(joined)
            return equation_7(posed, x, soft.softmax(1), data)

        end = self._descend(posed, objective, both.joined(images, logits), problem.data(posed, self.restarts), progress)
        joined, loss, trace, restart = batched.best_restart(end, self.restarts)
        x, soft = both.split(joined)
        return Reconstruction(x, soft.argmax(2), loss, trace, restart, end.evaluations)

    def _descend(
        self, posed: InversionProblem, objective: Objective, start: Tensor, data: Data, progress: Progress
    ) -> Descent:
        descend = partial(
            optimisers.minimise, self.optimiser, steps=self.steps, lr=self.lr, progress=progress, what="DLG"
        )
        return bottleneck.minimise(posed.model, objective, start, data, descend)


def equation_7(posed: InversionProblem, x: Tensor, y: Tensor, data: Data) -> Tensor:
    """|| grad L_cls(x) - G ||^2 of one victim; y [B] are classes or [B, Y] probabilities."""
    observed = problem.observed_of(posed, data)
    return gradient_distance.squared_distance(gradient_distance.gradient_products(posed, x, y, observed))
