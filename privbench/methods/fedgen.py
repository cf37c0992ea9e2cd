"""FedGen on FedSplit: the server trains a generator of features on the clients' classifiers and sends it to them.

Zhu, Hong, Zhou: Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021, arXiv 2105.10056; in the
form that FedCG compares with (its section 5 and reference implementation): clients share C alone and never train G. Inside
FedMD-CG's comparison it has that paper's generator (`gan = "dense"`, z of 128); inside NFL-CGAN's CNN, dropout.

    client:  L = L_cls + `weight` CE(C_i(G_g(z,y)), y)                                        G_g frozen
    server:  C_g <- sum_i w_i C_i;   L = CE( sum_i w_i C_i(G_g(z,y)), y ) + `diversity` L_div   over G_g alone

Readings of silent points: y ~ Uniform{classes} in both (the original draws the server's from uploaded label counts); the
client's term begins in round 2, as in the original's code, because G_g is untrained in round 1; both weights are 1 and do
not decay. Deviations: G is FedCG's convolutional generator; L_div is FedCG's mode-seeking ratio over the two halves of a
batch, as in its reference implementation, not the original's exp(-distance). G_g runs in train mode while it is trained.

`observe_loss` says which gradient a server is taken to see of a victim batch. "task": that of the client's whole loss, with as
many imitated features as images. "classification": that of L_cls alone. No attacker learns more from the former: the other
term depends on the broadcast networks and the client's draws alone, so that an attacker who has the gradient of L_cls can add
such a term himself. The default is the upper bound, for no method should be credited with what an attacker merely fails to
subtract.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from privbench.methods.base import (
    Draw,
    Method,
    MiniBatch,
    Nets,
    Normal,
    ObservedLoss,
    Phase,
    RoundClock,
    Stage,
    UniformClass,
    at_least,
    classification_loss,
    classifier_draws,
    cross_entropy_stage,
)
from privbench.methods.fedcg import mode_seeking

DRAWS: dict[str, Draw] = {"z": Normal(), "y": UniformClass()}


@dataclass(frozen=True)
class FedGen(Method):
    """Shares C; the server averages it, trains a G of its own and sends both (Zhu et al., ICML 2021)."""

    weight: float = 1.0
    diversity: float = 1.0
    gan: str = "conv"  # or "dense"
    observe_loss: ObservedLoss = "classification"

    paper: ClassVar[str] = "Zhu et al., ICML 2021, arXiv 2105.10056"
    parts: ClassVar[tuple[str, ...]] = ("extractor", "classifier")
    shared_parts: ClassVar[tuple[str, ...]] = ("classifier",)
    serves: ClassVar[tuple[str, ...]] = ("generator",)

    def networks(self, backbone: str) -> dict[str, Any]:
        """The kind of G, and the dropout."""
        return super().networks(backbone) | {"gan": self.gan}

    def __post_init__(self) -> None:
        """ValueError for a negative weight."""
        at_least(0, weight=self.weight, diversity=self.diversity)

    def client(self) -> tuple[Phase, ...]:
        """The classification network, with imitated features beside the real ones."""
        draws = DRAWS | classifier_draws("kept", "kept_imitated")
        return (
            Phase(
                (Stage("task", self.parts, self.task_loss, "task", draws, frozen=(received_features,)),), "local_epochs"
            ),
        )

    def server(self) -> tuple[Phase, ...]:
        """The generator, so that the ensemble names its features rightly."""
        stage = Stage("generator", ("generator",), self.generator_loss, "server", DRAWS)
        return (Phase((stage,), "server_steps"),)

    def observed(self) -> Stage:
        """L_cls, or the client's whole loss."""
        return super().observed() if self.observe_loss == "task" else cross_entropy_stage().stages[0]

    def imitated(self, clock: RoundClock) -> int:
        """One from round 2 on, where the whole loss is observed."""
        return int(self.observe_loss == "task" and self.weight > 0 and clock.round > 1)

    def task_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """L_cls + weight CE(C_i(G_g(z,y)), y)."""
        l_cls = classification_loss(nets, batch, clock)
        if clock.round == 1:
            return l_cls
        imitated = nets.classifier(batch.passed(received_features, nets), batch.drawn("kept_imitated"))
        return l_cls + self.weight * F.cross_entropy(imitated, batch.noise["y"])

    def generator_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """CE( sum_i w_i C_i(G_g(z,y)), y ) + diversity L_div."""
        z, y = batch.noise["z"], batch.noise["y"]
        h = nets.generator(z, y)
        logits = sum(w * client.classifier(h) for w, client in zip(nets.weights, nets.clients, strict=True))
        return F.cross_entropy(logits, y) + self.diversity * mode_seeking(z, h)


def received_features(nets: Nets, batch: MiniBatch) -> Tensor:
    """G_g(z, y) of the broadcast, y drawn: [B, c, s, s]."""
    return nets.received.generator(batch.noise["z"], batch.noise["y"])
