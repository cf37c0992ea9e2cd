"""DLG, the plain form of gradient matching (FedCG Eq. 7).

The objective is min over x~ of || grad L_cls(x) - grad L_cls(x~) ||^2, from a random start, by L-BFGS or Adam.

Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019, arXiv 1906.08935. Deviations: labels are recovered in closed form
(iDLG) instead of descended on, and the arithmetic is double precision. Where the method keeps E private (FedSplit), theta is
C alone and x~ goes through a randomly initialised stand-in E~, as in FedCG's comparison.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from attacks import case, descend, match
from privbench.errors import UserError
from privbench.types import Artifact, Knowledge, Reconstruction, Report, no_report


@dataclass(frozen=True)
class DLG:
    """Eq. 7 and nothing else."""

    steps: int = 300
    restarts: int = 1
    optimiser: str = "lbfgs"  # or "adam"
    lr: float = 0.05  # of Adam

    def __post_init__(self) -> None:
        """Refuses an unknown optimiser."""
        if self.optimiser not in ("lbfgs", "adam"):
            raise UserError(f"DLG descends by 'lbfgs' or 'adam', but optimiser={self.optimiser} was given")

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier"})
    knowledge: ClassVar[str] = "gradient"
    rung: ClassVar[str] = "L1"

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """L-BFGS from uniform noise; of several restarts the one with the lowest Eq. 7."""
        own = case.make(artifact, seed)

        def objective(x: Tensor, data: dict[str, Tensor]) -> Tensor:
            observed = {name: data[name] for name in own.observed}
            return match.squared_distance(match.gradient_products(own, x, data["labels"], observed))

        start = case.random_start(artifact, self.restarts, seed)
        data = {name: case.repeat(t, self.restarts) for name, t in own.observed.items()}
        data["labels"] = case.repeat(own.labels, self.restarts)
        if self.optimiser == "adam":
            end = descend.adam(objective, start, data, steps=self.steps, lr=self.lr, report=report, what="DLG")
        else:
            end = descend.lbfgs(objective, start, data, steps=self.steps, report=report, what="DLG")
        x, loss, trace, restart = descend.best_restart(end, self.restarts)
        return Reconstruction(x, own.labels, loss, trace, restart, end.evaluations)
