"""FedCG's own attack, Eq. 8: Eq. 7 over the classifier plus matching of the generator's feature statistics.

    min over x~ of  || grad_C L_cls(x) - grad_C L_cls(x~) ||^2
                    + alpha sum_c ( (mean E~(x~)_c - mu_c)^2 + (var E~(x~)_c - sigma_c^2)^2 )
E~ is randomly initialised because E is unknown; mu_c and sigma_c^2 are the mean and variance per channel of what the
victim's uploaded generator G_i makes of the victim's label. The paper gives neither alpha, start, optimiser nor iterations: here
1, uniform noise, L-BFGS and 300, and in `--preset paper` the start and the steps of `dlg` there. The study `papers-attack` varies
them. The paper compares a variance with a standard deviation; here like is compared with like.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attacks.common import batched, gradient_distance, optimisers, problem
from attacks.dlg import DLG
from attacks.features.generator_statistics import statistics
from privbench.hyperparameters import Count, Positive, Weight
from privbench.types import Artifact, Knowledge, Presets, Progress, Reconstruction, no_progress


@dataclass(frozen=True)
class FeatureStatistics:
    """Eq. 7 over the classifier + the feature statistics of the uploaded generator (FedCG Eq. 8)."""

    steps: Count = 300
    restarts: Count = 1
    alpha: Weight = 1.0
    optimiser: optimisers.Optimiser = "lbfgs"
    lr: Positive = 0.05  # of Adam
    start: problem.Start = "noise"  # with "grey" all restarts are one

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "upload:generator"})
    knowledge: ClassVar[str] = "gradient + generator"
    rung: ClassVar[str] = "L1"
    presets: ClassVar[Presets] = DLG.presets

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, progress: Progress = no_progress
    ) -> Reconstruction:
        """Descends from `start`; of several restarts the one with the lowest Eq. 8."""
        posed = problem.make(artifact, seed)
        mean, variance = statistics(artifact, posed.labels, seed)

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            gap = gradient_distance.squared_distance(gradient_distance.candidate_products(posed, x, data))
            h = problem.features(posed, x)
            return gap + self.alpha * gradient_distance.statistics_distance(h, data["mean"], data["variance"])

        restarts = 1 if self.start == "grey" else self.restarts
        moments = {"mean": problem.repeat(mean, restarts), "variance": problem.repeat(variance, restarts)}
        start, data = problem.starts(artifact, self.start, restarts, seed), problem.data(posed, restarts) | moments
        end = optimisers.minimise(
            self.optimiser, objective, start, data, steps=self.steps, lr=self.lr, progress=progress, what="Eq. 8"
        )
        return batched.reconstruction(end, restarts, posed.labels)
