"""FedDF: the server distils the ensemble of the clients into their average, on public images without labels.

Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020, arXiv 2006.07242.

As FedCG's reference implementation runs it, where it differs from the paper:
- The teacher is the softmax of the w_i-weighted sum of the clients' logits; the paper takes their plain mean.
- Adam at 3e-4 and a fixed number of steps (FedCG: 2,000 of batch 16, its 32,000 public images once), no early stopping on a
  server validation set. Where there are fewer public images they are gone through again, in a new order.
- The teachers run in eval mode, the student in train mode. The public images are not augmented; both texts are silent.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from privbench.methods.aggregators import ensemble_divergence, weighted
from privbench.methods.base import (
    Method,
    MiniBatch,
    Nets,
    Phase,
    RoundClock,
    Stage,
    classifier_draws,
    cross_entropy_stage,
)

BOTH = ("extractor", "classifier")


@dataclass(frozen=True)
class FedDF(Method):
    """Shares E and C; the server averages them, then distils the clients on public images (Lin et al., NeurIPS 2020)."""

    paper: ClassVar[str] = "Lin et al., NeurIPS 2020, arXiv 2006.07242"
    parts: ClassVar[tuple[str, ...]] = BOTH
    shared_parts: ClassVar[tuple[str, ...]] = BOTH

    def client(self) -> tuple[Phase, ...]:
        """L_cls over E_i and C_i."""
        return (cross_entropy_stage(),)

    def server(self) -> tuple[Phase, ...]:
        """Ensemble distillation on public images."""
        stage = Stage(
            "distillation", BOTH, self.distillation_loss, "server", classifier_draws(), frozen=(ensemble_logits,)
        )
        return (Phase((stage,), "server_steps", public=True),)

    def distillation_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """KL( softmax(sum_i w_i C_i(E_i(x))) || softmax(C(E(x))) )."""
        student = nets.classifier(nets.extractor(batch.images), batch.drawn())
        return ensemble_divergence(student, batch.passed(ensemble_logits, nets))


def ensemble_logits(nets: Nets, batch: MiniBatch) -> Tensor:
    """sum_i w_i C_i(E_i(x)): [B, Y]."""
    return weighted([client.classifier(client.extractor(batch.images)) for client in nets.clients], nets.weights)
