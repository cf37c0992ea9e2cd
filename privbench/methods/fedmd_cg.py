"""FedMD-CG: two-stage distillation at the client, with a local generator, and crossed distillation at the server.

FedMD-CG, Eq. 1-11, in the notation of this suite: E_i, C_i the client's extractor and classifier (the paper's F_i and D_i), G_i its
generator, G the broadcast one. Clients also upload their label counts n_i^y, and the server sends their sum.

    client 1, over (E_i, C_i): CE(C_i(E_i(x)), y) + l1 CE(C_i(G(z^,y^)), y^) + l2 ||E_i(x) - G(z,y)||^2
                               + l3 KL(C_i(E_i(x)) || C_i(G(z,y)))            l1, l2, l3 = lambda ((r-1)/R)^d     (1-4)
    client 2, over G_i:        KL(C_i(G_i(z,y)) || C_i(E_i(x))) + l4 ||G_i(z,y) - E_i(x)||^2
                               + l5 CE(C_i(G_i(z,y)), y) + l6 L_div                                                (5-9)
    server, over (G, C):       weighted average, then kl1 + kl2 + kl3 (privbench/methods/aggregators.py)         (10-11)

`without` switches terms off by name, e.g. without=kl_local,kl2:
    cls, cls_global, mse_global, kl_global (1-4)    kl_local, mse_local, cls_local, div (5-9)    kl1, kl2, kl3 (10-11; kdc)
Of the two rows that Tables 3 and 9-11 have with AVE_agg, feature and logit level is aggregator=ave, and feature level only is
without=kl_global with it: of the three terms that G enters, it is the one that compares logits. CE on G's features has labels for
its target and stays. In the other reading of the tables, take without=cls_global,kl_global.

Readings of silent points:
- ||.||^2 is the element-wise mean squared error, as in FedCG's code.
- Gradients flow through both sides of every KL as far as their networks are trained.
- y^ ~ p(y) in every batch, y are the labels of x. CE on G's features draws z and y anew (Algorithm 1, line 10): z^ and y^; the two
  terms that compare with x share z. lambda4-6 do not ramp.
- L_div is L_div2 unless another is named (E.1). The pair sum runs over the whole batch, f = G_i(z,y). With the norms as printed
  (diversity_scale = "literal") its exponent is so large that L_div2 and its gradient are 0 in single precision, L_div0 and
  L_div1 below 1e-16. The default "mean" takes means over dimensions in place of norms, as FedGen's public code does, where the
  loss comes from: of |f_j - f_k| and of (z_j - z_k)^2.
  exp(||y_j - y_k||_1) is as printed in both.
- G and G_i start equal; the local generator is never overwritten. Counts travel with every upload and every broadcast.
`observe_loss` is FedGen's (privbench/methods/fedgen.py). l2 has no gradient over C. That of l1 does not depend on x. That of l3
does, through C_i(E_i(x)), which an attacker who has the features and the label of x can compute: so L_cls alone is an upper
bound wherever its gradient reveals these (one image, or images that can be separated, without noise); elsewhere this is not proven.
Deviation: the quick and smoke presets descend on the task by Adam instead of SGD (privbench/presets.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from privbench.errors import UserError
from privbench.methods import aggregators
from privbench.methods.aggregators import divergence
from privbench.methods.base import (
    ClassByCount,
    Draw,
    Method,
    MiniBatch,
    Nets,
    Normal,
    ObservedLoss,
    Phase,
    RoundClock,
    Stage,
    at_least,
    classifier_draws,
    cross_entropy_stage,
)
from privbench.methods.fedcg import received_features

TASK = ("cls", "cls_global", "mse_global", "kl_global")
LOCAL = ("kl_local", "mse_local", "cls_local", "div")
STAGES = (TASK, LOCAL, aggregators.CROSSED)
DiversityScale = Literal["mean", "literal"]


@dataclass(frozen=True)
class FedMDCG(Method):
    """Shares C, G and label counts; two distillations at the client, a crossed one at the server (Luo et al.)."""

    lambda1: float = 1.0
    lambda2: float = 1.0
    lambda3: float = 1.0
    lambda4: float = 1.0
    lambda5: float = 1.0
    lambda6: float = 1.0
    ramp_power: float = 1.0  # d
    diversity: int = 2  # which L_div: 0, 1 or 2
    diversity_scale: DiversityScale = "mean"  # over dimensions, or "literal": the norms as printed
    aggregator: str = "kdc"  # or "ave", "kd"
    without: str = ""  # names of loss terms, separated by commas
    observe_loss: ObservedLoss = "classification"

    paper: ClassVar[str] = "Luo et al.: FedMD-CG"
    parts: ClassVar[tuple[str, ...]] = ("extractor", "classifier", "generator")
    shared_parts: ClassVar[tuple[str, ...]] = ("classifier", "generator")
    keeps: ClassVar[tuple[str, ...]] = ("generator",)

    def __post_init__(self) -> None:
        """UserError for terms, an aggregator or a diversity loss that cannot be, ValueError for a negative weight or power.

        Terms cannot be left out when they are unknown, all that a stage has, or the server's under another aggregator than kdc.
        """
        aggregators.checked(self.aggregator)
        weights = (self.lambda1, self.lambda2, self.lambda3, self.lambda4, self.lambda5, self.lambda6)
        at_least(0, **{f"lambda{i}": weight for i, weight in enumerate(weights, 1)}, ramp_power=self.ramp_power)
        if self.diversity not in (0, 1, 2):
            raise UserError(f"diversity names the loss L_div 0, 1 or 2, but {self.diversity} was given")
        every = [term for stage in STAGES for term in stage]
        for term in self.off:
            if term not in every:
                raise UserError(f"FedMD-CG has no loss term '{term}'; known: {', '.join(every)}")
        of_the_server = [term for term in aggregators.CROSSED if term in self.off]
        if of_the_server and self.aggregator != "kdc":
            raise UserError(
                f"without={self.without} names {of_the_server[0]}, a term of the server's aggregator=kdc, but "
                f"aggregator={self.aggregator} was given; name client terms alone"
            )
        for stage in STAGES:
            if self.off.issuperset(stage):
                rest = ", ".join(stage)
                raise UserError(f"without={self.without} leaves a stage nothing to descend on; keep one of {rest}")

    @property
    def off(self) -> frozenset[str]:
        """The terms that are switched off."""
        return frozenset(term.strip() for term in self.without.split(",") if term.strip())

    @property
    def uploads_counts(self) -> bool:
        """For p(y) at the client and tau at the server."""
        return True

    def networks(self, backbone: str) -> dict[str, Any]:
        """The fully connected generator, and the dropout."""
        return super().networks(backbone) | {"gan": "dense"}

    def client(self) -> tuple[Phase, ...]:
        """The local model from the global generator, then the local generator from the local model."""
        drawn: dict[str, Draw] = {"z": Normal(), "z_hat": Normal(), "y": ClassByCount()}
        drawn |= classifier_draws("kept", "kept_imitated", "kept_resampled")
        frozen = (received_features,) if "cls_global" in self.off else (received_features, resampled_features)
        task = Stage("task", ("extractor", "classifier"), self.task_loss, "task", drawn, frozen=frozen)
        local = Stage("generator", ("generator",), self.generator_loss, "generator", {"z": Normal()})
        return Phase((task,), "local_epochs"), Phase((local,), "generator_epochs")

    def server(self) -> tuple[Phase, ...]:
        """Crossed distillation, unless another aggregator is set."""
        on = tuple(term for term in aggregators.CROSSED if term not in self.off)
        return aggregators.phases(self.aggregator, terms=on)

    def observed(self) -> Stage:
        """L_cls, or the client's whole loss."""
        return super().observed() if self.observe_loss == "task" else cross_entropy_stage().stages[0]

    def imitated(self, clock: RoundClock) -> int:
        """Those of l1 and l3 where the whole loss is observed."""
        weights = {"cls_global": self.lambda1, "kl_global": self.lambda3}
        on = sum(weight > 0 for term, weight in weights.items() if term not in self.off)
        return on if self.observe_loss == "task" and self.ramp(clock) > 0 else 0

    def notes(self) -> tuple[str, ...]:
        """Which L_div the local generators descend on."""
        of = {"mean": "means over dimensions", "literal": "norms as printed"}[self.diversity_scale]
        return () if "div" in self.off or not self.lambda6 else (f"FedMD-CG: L_div{self.diversity} of {of}",)

    def ramp(self, clock: RoundClock) -> float:
        """((r-1)/R)^d, which lambda1, lambda2 and lambda3 are multiplied with."""
        return float(((clock.round - 1) / clock.rounds) ** self.ramp_power)

    def task_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """L of the local model (Eq. 1-4)."""
        noise, y, ramp = batch.noise, batch.labels, self.ramp(clock)
        h, imitated = nets.extractor(batch.images), batch.passed(received_features, nets)
        logits = nets.classifier(h, batch.drawn())

        def cls_global() -> Tensor:
            resampled = batch.passed(resampled_features, nets)
            return F.cross_entropy(nets.classifier(resampled, batch.drawn("kept_resampled")), noise["y"])

        def kl_global() -> Tensor:
            return divergence(logits, nets.classifier(imitated, batch.drawn("kept_imitated"))).mean()

        return self.total(
            {
                "cls": lambda: F.cross_entropy(logits, y),
                "cls_global": lambda: ramp * self.lambda1 * cls_global(),  # z and y drawn anew
                "mse_global": lambda: ramp * self.lambda2 * F.mse_loss(h, imitated),
                "kl_global": lambda: ramp * self.lambda3 * kl_global(),
            }
        )

    def generator_loss(self, nets: Nets, batch: MiniBatch, clock: RoundClock) -> Tensor:
        """L of the local generator, E_i and C_i frozen (Eq. 5-9)."""
        z, y = batch.noise["z"], batch.labels
        h, imitated = nets.extractor(batch.images), nets.generator(z, y)
        logits = nets.classifier(imitated)

        def diversity() -> Tensor:
            return diversity_loss(self.diversity, imitated, z, y, nets.model.classes, self.diversity_scale)

        return self.total(
            {
                "kl_local": lambda: divergence(logits, nets.classifier(h)).mean(),  # (5)
                "mse_local": lambda: self.lambda4 * F.mse_loss(imitated, h),
                "cls_local": lambda: self.lambda5 * F.cross_entropy(logits, y),
                "div": lambda: self.lambda6 * diversity(),  # (7, 8)
            }
        )

    def total(self, terms: Mapping[str, Callable[[], Tensor]]) -> Tensor:
        """The sum of the terms that are on; the others are not computed."""
        return torch.stack([term() for name, term in terms.items() if name not in self.off]).sum()


def resampled_features(nets: Nets, batch: MiniBatch) -> Tensor:
    """G(z^, y^) of the broadcast, both drawn anew: [B, c, s, s]."""
    return nets.received.generator(batch.noise["z_hat"], batch.noise["y"])


def diversity_loss(kind: int, f: Tensor, z: Tensor, y: Tensor, classes: int, scale: DiversityScale = "mean") -> Tensor:
    """L_div = exp( -(1/B^2) sum_{j,k} |f_j - f_k| d_jk ): features f [B, c, s, s], noise z [B, n], labels y [B].

    kind 0: d_jk = |z_j - z_k| (Eq. 7). 1: the same of [z; onehot(y)]. 2: |z_j - z_k| exp(||y_j - y_k||_1), onehot (Eq. 8).
    scale "literal": |.| are the Euclidean norms that are printed. "mean": of features the mean over dimensions of absolute
    differences, of noise that of squared ones, as in the code published with FedGen.
    """
    onehot = torch.eye(classes, dtype=z.dtype, device=z.device)[y]
    latent = torch.cat([z, onehot], 1) if kind == 1 else z
    gaps, noise_gaps = (t[:, None] - t for t in (f.flatten(1), latent))
    if scale == "literal":
        # The norm's gradient at j = k is 0.
        image_distance, noise_distance = (torch.linalg.vector_norm(gap, dim=2) for gap in (gaps, noise_gaps))
    else:
        image_distance, noise_distance = gaps.abs().mean(2), noise_gaps.square().mean(2)
    if kind == 2:
        noise_distance = noise_distance * (onehot[:, None] - onehot).abs().sum(2).exp()
    return (-(image_distance * noise_distance).mean()).exp()
