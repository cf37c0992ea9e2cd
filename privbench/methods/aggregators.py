"""What a server that holds generators and classifiers does after the weighted average: nothing, KD, or crossed KD.

    ave   the average alone
    kd    FedCG's distillation of the clients' ensemble (FedCG Eq. 5-6)
    kdc   FedMD-CG's crossed distillation with label counts (FedMD-CG Eq. 10-11)

All draw z ~ N(0, I); kd draws y ~ Uniform{classes}, kdc draws y^ ~ p(y). The student runs in train mode (so its classifier
drops features where there is dropout, the same in all terms of a step), the clients' networks in eval mode.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.errors import UserError
from privbench.methods.base import (
    ClassByCount,
    Draw,
    FrozenPass,
    Loss,
    MiniBatch,
    Nets,
    Normal,
    Phase,
    RoundClock,
    Stage,
    UniformClass,
    classifier_draws,
)

AGGREGATORS = ("ave", "kd", "kdc")
CROSSED = ("kl1", "kl2", "kl3")  # the terms of kdc
STUDENT = ("generator", "classifier")


def checked(aggregator: str) -> None:
    """UserError for an unknown aggregator."""
    if aggregator not in AGGREGATORS:
        raise UserError(f"unknown aggregator '{aggregator}'; known: {', '.join(AGGREGATORS)}")


def phases(aggregator: str, terms: Sequence[str] = CROSSED) -> tuple[Phase, ...]:
    """The server's stages over (G_g, C_g); `terms` are those of kdc."""
    if aggregator == "ave":
        return ()
    y: Draw = UniformClass() if aggregator == "kd" else ClassByCount()
    draws = {"z": Normal(), "y": y} | classifier_draws()
    loss: Loss = distillation_loss
    frozen: FrozenPass = ensemble_logits
    if aggregator == "kdc":
        loss, frozen = partial(crossed_distillation_loss, terms=terms), clients_features
    stage = Stage("distillation", STUDENT, loss, "server", draws, frozen=(frozen,))
    return (Phase((stage,), "server_steps"),)


def weighted(teachers: Sequence[Tensor], weights: Tensor) -> Tensor:
    """sum_i w_i t_i: logits t_i [B, Y], weights [K] -> [B, Y]."""
    return torch.stack([w * t for w, t in zip(weights, teachers, strict=True)]).sum(0)


def ensemble_divergence(student: Tensor, ensemble: Tensor) -> Tensor:
    """KL( softmax(e) || softmax(s) ), mean over the batch: logits s of the student and e of the ensemble, each [B, Y]."""
    return F.kl_div(student.log_softmax(1), ensemble.softmax(1), reduction="batchmean")


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL( softmax(p) || softmax(q) ) = sum p log(p/q) of each sample: logits [B, Y] -> [B]."""
    log_p = p.log_softmax(1)
    return (log_p.exp() * (log_p - q.log_softmax(1))).sum(1)


def distillation_loss(nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
    """L_KL = KL(P_c || P_s), P_c = softmax(sum_i w_i C_i(G_i(z,y))) (FedCG Eq. 5-6)."""
    student = nets.classifier(nets.generator(batch.noise["z"], batch.noise["y"]), batch.drawn())
    return ensemble_divergence(student, batch.passed(ensemble_logits, nets))  # (6)


def ensemble_logits(nets: Nets, batch: MiniBatch) -> Tensor:
    """sum_i w_i C_i(G_i(z, y)) (FedCG Eq. 5): [B, Y]."""
    z, y = batch.noise["z"], batch.noise["y"]
    return weighted([client.classifier(client.generator(z, y)) for client in nets.clients], nets.weights)  # (5)


def clients_features(nets: Nets, batch: MiniBatch) -> Tensor:
    """G_i(z, y) of each of K clients: [B, K, c, s, s]."""
    return torch.stack([client.generator(batch.noise["z"], batch.noise["y"]) for client in nets.clients], 1)


def crossed_distillation_loss(
    nets: Nets, batch: MiniBatch, clock: RoundClock, *, terms: Sequence[str] = CROSSED
) -> Tensor:
    """L_kl1 + L_kl2 + L_kl3 (FedMD-CG Eq. 10-11), each sum_i tau_{i,y} KL(. || C_i(G_i(z,y))), mean over the batch.

    kl1 crosses nothing: C(G); kl2 trains C on the clients' features: C(G_i); kl3 trains G against their classifiers: C_i(G).
    tau_{i,y} = n_i^y / sum_j n_j^y.
    """
    z, y, drawn = batch.noise["z"], batch.noise["y"], batch.drawn()
    tau = nets.counts[:, y] / nets.counts.sum(0)[y].clamp_min(1)  # [K, B]
    h = nets.generator(z, y)
    total = torch.zeros_like(tau[0])
    h_of_clients = batch.passed(clients_features, nets).unbind(1)
    for tau_i, client, h_i in zip(tau, nets.clients, h_of_clients, strict=True):
        with torch.no_grad():
            teacher = client.classifier(h_i)
        if "kl1" in terms:
            total = total + tau_i * divergence(nets.classifier(h, drawn), teacher)  # (10)
        if "kl2" in terms:
            total = total + tau_i * divergence(nets.classifier(h_i, drawn), teacher)  # (11)
        if "kl3" in terms:
            total = total + tau_i * divergence(client.classifier(h), teacher)  # (11)
    return total.mean()
