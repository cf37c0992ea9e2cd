"""Soteria: the classifier's first layer learns from a pruned representation (Sun et al., CVPR 2021, arXiv 2012.06043).

    r' = argmax ||X - X'||_2  subject to  ||r - r'||_0 <= rate n,    solved by r'_i = 0 where ||r_i (dr_i/dX)^-1|| is largest
r is what enters the first linear layer, X' what an attacker makes of r' (Algorithm 1 for q = 0). The authors' code
(github.com/jeremy313/Soteria) takes ||r_i (dr_i/dX)^-1|| to be r_i / ||dr_i/dX||_2 and so prunes the entries of smallest
    s_i = sum over the images of the mini-batch of ||dr_i/dX||_2 / r_i
Pruned entries are columns of zeros in that layer's weight gradient. The forward pass and all other gradients, the layer's bias
included, stay true. As in that code a mini-batch has ONE mask, by the sum over its images.

Deviations: exactly round(rate n) entries are pruned (there those below a percentile). r is E(x), before dropout, whose mask cancels
in the ratio. It guarantees nothing: the paper certifies a bound for its attacker alone, who inverts r'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privbench.defense import Defense, Place
from privbench.errors import UserError
from privbench.networks.base import ExtractorWithSlopes, LinearClassifier
from privbench.networks.model import Model
from privbench.tensors import Params, Parts


@dataclass(frozen=True)
class Soteria(Defense):
    """Prunes the representation in the gradient of the classifier's first layer (Sun et al., CVPR 2021); no guarantee."""

    rate: float  # share of the entries that are pruned

    def __post_init__(self) -> None:
        """Refuses a share that is none."""
        if not 0 < self.rate < 1:
            raise UserError(f"the defence soteria needs a rate above 0 and below 1, but {self.rate:g} was given")

    @property
    def places(self) -> frozenset[Place]:
        """On the representation; the networks stay, but not all will do."""
        return frozenset({"representation", "network"})

    def network(self, model: Model) -> Model:
        """The same networks; UserError unless a linear layer takes the features, and the extractor says how steep they are."""
        way_out = "leave out --backbone, or try --defense precode"
        if not isinstance(model.classifier, LinearClassifier):
            raise UserError(
                f"the defence soteria prunes what enters a linear layer, but {model.backbone}'s classifier begins with "
                f"convolutions; {way_out}"
            )
        if not isinstance(model.net("extractor"), ExtractorWithSlopes):
            raise UserError(
                f"the defence soteria needs the slope of every feature over the image at each step, which {model.backbone}'s "
                f"extractor has in no closed form; {way_out}"
            )
        return model

    def representation(self, gradients: Parts, model: Model, nets: tuple[Parts, Parts], images: Tensor) -> Parts:
        """The gradients with columns of zeros for what is pruned."""
        if "classifier" not in gradients:
            return gradients
        mask = self.mask(sensitivity(model, nets[0]["extractor"], images))
        name = f"{model.classifier.features_layer}.weight"
        weight = gradients["classifier"][name]
        return gradients | {"classifier": gradients["classifier"] | {name: weight * mask.to(weight)}}

    def mask(self, each: Tensor) -> Tensor:
        """Which entries stay [n] bool, by their sensitivities [B, n]."""
        total = each.sum(0)
        pruned = total.argsort(stable=True)[: round(self.rate * len(total))]
        return torch.ones_like(total, dtype=torch.bool).index_fill(0, pruned, value=False)

    def describe(self) -> dict[str, Any]:
        """The attacker knows the rate; which columns are zero, it sees."""
        return {"name": "soteria", "rate": self.rate, "zeros": "columns", "where": "step"}


def sensitivity(model: Model, params: Params, images: Tensor) -> Tensor:
    """||dr_i/dX||_2 / r_i of every entry of r = E(x): images [B, C, H, W] -> [B, n]."""
    extractor = model.net("extractor")
    assert isinstance(extractor, ExtractorWithSlopes), "checked before training"
    r, _ = extractor.apply(params, {}, images, train=False)
    return extractor.slopes(params, images) / r.flatten(1).clamp_min(torch.finfo(r.dtype).tiny)
