"""FedProx: FedAvg with a proximal term that holds every client near the broadcast.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020, arXiv 1812.06127.
Eq. 2. FedCG searches mu over {0.001, 0.01, 0.1, 1} and reports the best: `privbench search --method fedprox` does that on
validation accuracy. Deviations: a fixed number of epochs at every client (no stragglers, no gamma-inexactness), all clients
in every round. Batch-norm statistics are no parameters and are left out of the distance.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from privbench.methods.base import (
    Method,
    MiniBatch,
    Nets,
    Phase,
    RoundClock,
    Stage,
    at_least,
    classification_loss,
    classifier_draws,
    proximal_term,
)

BOTH = ("extractor", "classifier")


@dataclass(frozen=True)
class FedProx(Method):
    """As FedAvg, with a proximal term mu that holds clients near the broadcast (Li et al., MLSys 2020)."""

    mu: float = 0.01

    paper: ClassVar[str] = "Li et al., MLSys 2020, arXiv 1812.06127"
    parts: ClassVar[tuple[str, ...]] = BOTH
    shared_parts: ClassVar[tuple[str, ...]] = BOTH

    def __post_init__(self) -> None:
        """ValueError for a negative mu."""
        at_least(0, mu=self.mu)

    @property
    def proximal(self) -> float:
        """Of Eq. 2."""
        return self.mu

    def client(self) -> tuple[Phase, ...]:
        """h_i over E_i and C_i."""
        return (Phase((Stage("task", BOTH, self.task_loss, "task", classifier_draws()),), "local_epochs"),)

    def task_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """h_i = L_cls + mu/2 ||theta - theta_g||^2 (Eq. 2), theta = (E_i, C_i)."""
        return classification_loss(nets, batch, clock) + proximal_term(nets.params, nets.received.params, self.mu)
