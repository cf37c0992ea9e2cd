"""An active server: the classifier it sends sorts the images of a batch into rows of its first layer's gradient.

Every row of the crafted first layer looks along one direction w at one level c_j: z_j = s_j (w h - c_j). The sigmoid's slope
is not 0 only near z_j = 0, so row j's gradient holds the images with w h near c_j and no others; where that is one image,
dL/dW_j / dL/db_j is its h, whatever the size of the batch. The levels are quantiles of w h over auxiliary images, w their
features' first principal direction. Two neighbouring rows that agree hold one image: a mixture changes from row to row. Then
features are inverted as in attacks/staged.py.

Fowl et al.: Robbing the Fed, ICLR 2022, arXiv 2110.13057 (bins of a ReLU layer, told apart by differences of rows; a
sigmoid's slope makes bins of its own). Deviations: the layer stands at its place in the architecture, behind the extractor,
as a client would look at shapes, so that features are imprinted and not images; the later layers are sent as they are. Where
E is private, levels are those of a random stand-in's features, and so is the inversion: then only h is won.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks import case, descend
from attacks.staged import Staged
from privbench.errors import UserError
from privbench.nets import LinearClassifier, Model
from privbench.seeds import stream
from privbench.settings import Count
from privbench.types import Artifact, Knowledge, Networks, Reconstruction, Report, no_report

SHARPNESS = 5.0  # of z from one level to the next
WIDENED = 1.2  # the range of levels, relative to that of the auxiliary images
LIVE = 1e-5  # of the largest dL/db_j: rows below it hold no image
SAME = 1e-2  # relative distance below which two rows hold the same image


@dataclass(frozen=True)
class Imprint:
    """Features of any batch from one crafted classifier."""

    feature_steps: Count = 300

    needs: ClassVar[frozenset[str]] = frozenset({"gradient:classifier", "auxiliary"})
    uses: ClassVar[frozenset[str]] = frozenset({"gradient:extractor"})
    knowledge: ClassVar[str] = "active server + auxiliary"
    rung: ClassVar[str] = "L7"
    active: ClassVar[bool] = True

    def craft(self, model: Model, broadcast: Networks, knowledge: Knowledge, seed: int) -> Networks:
        """The classifier to send in place of the broadcast one; UserError unless its first layer is linear."""
        if not isinstance(model.classifier, LinearClassifier):
            raise UserError(f"imprint needs a classifier that begins with a linear layer, but it is {model.backbone}'s")
        assert knowledge.auxiliary is not None, "the needs name auxiliary images"
        params, buffers = broadcast.params.get("extractor"), broadcast.buffers.get("extractor", {})
        if params is None:
            params, buffers = model.net("extractor").init(stream(seed, "attacker", "stand-in"))
        images = knowledge.auxiliary.images
        with torch.no_grad():
            h, _ = model.net("extractor").apply(params, buffers, images, train=False)
        h = h.flatten(1).double()
        _, _, directions = torch.linalg.svd(h - h.mean(0), full_matrices=False)
        w, classifier = directions[0], broadcast.params["classifier"]
        rows = len(classifier["fc1.bias"])
        t = h @ w
        levels = torch.quantile(t, torch.linspace(0, 1, rows, dtype=t.dtype, device=t.device))
        levels = t.mean() + WIDENED * (levels - t.mean())
        gap = (levels[2:] - levels[:-2]) / 2
        gap = torch.cat([gap[:1], gap, gap[-1:]]).clamp_min(1e-3 * (levels[-1] - levels[0]) / rows)
        slope = SHARPNESS / gap
        crafted = {"fc1.weight": slope[:, None] * w, "fc1.bias": -slope * levels}
        return Networks({"classifier": classifier | {n: t.to(classifier[n]) for n, t in crafted.items()}}, {})

    def reconstruct(
        self, artifact: Artifact, knowledge: Knowledge, seed: int, report: Report = no_report
    ) -> Reconstruction:
        """The features of every image from the rows, then the images; UserError where the classifier is not a crafted one."""
        weight = artifact.weights["classifier"].get("fc1.weight", torch.eye(2))
        if torch.linalg.matrix_rank(weight.double(), rtol=1e-5) != 1:
            raise UserError(
                "imprint reads what its own crafted classifier brought back, but these clients got an honest one; name it "
                "with --attack in a run of your own"
            )
        own = case.make(artifact, seed)
        h = features(artifact)
        inversion = Staged(feature_steps=self.feature_steps)
        end = inversion.invert(own, h, None, case.plain_start(artifact, seed), report)
        return descend.reconstruction(end, 1, own.labels)


def features(artifact: Artifact) -> Tensor:
    """h [V, B, c, s, s] of every batch, as the rows of its imprinted layer hold them; the mean where a row is missing."""
    gradient = artifact.gradients["classifier"]
    found = [
        _rows(w, b, artifact.batch_size)
        for w, b in zip(gradient["fc1.weight"].double(), gradient["fc1.bias"].double(), strict=True)
    ]
    return torch.stack(found).unflatten(2, artifact.model.feature_shape)


def _rows(weight: Tensor, bias: Tensor, batch: int) -> Tensor:
    """The features [B, n] that the rows of one gradient hold, those first on which neighbours agree best."""
    live = torch.nonzero(bias.abs() > LIVE * bias.abs().max())[:, 0]
    quotient = weight[live] / bias[live, None]
    size = quotient.norm(dim=1).clamp_min(1e-300)
    gap = (quotient[1:] - quotient[:-1]).norm(dim=1) / size[1:]
    adjacent = live[1:] == live[:-1] + 1
    gap = torch.where(adjacent, gap, torch.inf)
    edge = gap.new_full((1,), torch.inf)
    agreement = torch.minimum(torch.cat([gap, edge]), torch.cat([edge, gap]))[: len(live)]  # none where no row is live
    chosen: list[Tensor] = []
    for row in agreement.argsort().tolist():
        one = quotient[row]
        if len(chosen) < batch and all((one - other).norm() > SAME * size[row] for other in chosen):
            chosen.append(one)
    mean = bias @ weight / bias.square().sum().clamp_min(1e-300)
    return torch.stack(chosen + [mean] * (batch - len(chosen))).clamp(0, 1)
