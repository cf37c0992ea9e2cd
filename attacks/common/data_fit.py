"""Which gradients would have become what was sent: the data term of an attacker who knows the defence, for ONE victim.

A candidate's gradient g is compared with the sent G after the defence has acted on g, or with the gradient nearest to g that the
defence would have turned into G:
    clip        s g against G.  s = min(1, C / ||g||) where all that the norm is of is observed; else, with a private extractor
                whose gradient enters the norm unseen, s is the least-squares scale in [0, 1]
    noise       s g against G, the squared distance divided by the noise's variance
    prune       what was sent is exact; of the other entries |g_i| <= t, the smallest entry sent (Aji and Heafield, EMNLP 2017)
    quantize    G_i is a level, and g_i was less than one level's width away: unbiased rounding (QSGD, NeurIPS 2017)
    sign        sign(g_i) = sign(G_i), and mean |g| over a tensor is that of G
In the last three the nearest gradient is g with its entries moved into the intervals that G leaves them, so that ||g - nearest||^2
is zero inside and squared outside. Any distance of gradients, a cosine too, is taken to the nearest one.

Where each image of a batch is clipped, attacks/common/gradient_distance.py clips those of the candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from privbench.defending import described
from privbench.observation.local_update import optimiser_of
from privbench.spec import SGD
from privbench.types import CLASSIFICATION, Artifact

# What attacks name in `knows` (privbench.defending.described.kinds).
NOISE = frozenset({"noise"})
CLIP = frozenset({"clip", described.CLIPS_IMAGES})
PRUNE = frozenset({"prune"})
INTERVALS = PRUNE | {"quantize", "sign"}
# Columns of zeros (Soteria), and a bottleneck in the networks (PRECODE).
REPRESENTATION = frozenset({"columns", "bottleneck"})
EVERY = NOISE | CLIP | INTERVALS | REPRESENTATION
TINY = 1e-60  # in place of a squared norm of zero


class DataFit(NamedTuple):
    """What an attacker knows that a defence did to the observed gradient; by default nothing."""

    clip: float | None = None  # C
    by_image: bool = False  # each image's gradient was clipped, and not the whole message
    norm_seen: bool = True  # the clipped norm is of observed entries alone
    pruned: bool = False
    levels: int | None = None  # of quantisation, above zero
    signs: bool = False

    @property
    def by_entry(self) -> bool:
        """Whether G leaves an interval for each entry."""
        return self.pruned or self.levels is not None or self.signs

    @property
    def each_image_clipped(self) -> bool:
        """Whether the candidates of a batch have to be clipped one by one."""
        return self.clip is not None and self.by_image and self.norm_seen


PLAIN = DataFit()


def of(artifact: Artifact) -> DataFit:
    """What the artifact's description of its defence says; PLAIN for one that does none of this."""
    kinds, settings = described.kinds(artifact.defense), artifact.defense
    by_image = described.CLIPS_IMAGES in kinds
    return DataFit(
        clip=_clip(artifact) if {"clip", described.CLIPS_IMAGES} & kinds else None,
        by_image=by_image,
        norm_seen=not by_image or set(CLASSIFICATION) <= set(artifact.gradients),
        pruned="prune" in kinds,
        levels=2 ** (int(settings["bits"]) - 1) - 1 if "quantize" in kinds else None,
        signs="sign" in kinds,
    )


def _clip(artifact: Artifact) -> float | None:
    """C of what was sent.

    None of whole updates in whose several steps gradients were clipped, or those of single images: no one scale undoes that.
    """
    bound, local = float(artifact.defense["clip"]), artifact.local
    if local is None or artifact.defense.get("where") != "step":
        return bound
    setting = optimiser_of(local)
    by_image = artifact.defense.get("clips") == "example"
    # One step of SGD is as much shorter than its gradient as the learning rate says.
    return bound * setting.lr if isinstance(setting, SGD) and local.steps == 1 and not by_image else None


def clip_scale(fit: DataFit, candidate: Tensor, cross: Tensor) -> Tensor:
    """s of a candidate with |g|^2 = `candidate` and g.G = `cross`, over all observed parameters together."""
    assert fit.clip is not None, "only what is clipped has a scale"
    if fit.norm_seen:
        return (fit.clip / candidate.clamp_min(TINY).sqrt()).clamp(max=1)
    return (cross / candidate.clamp_min(TINY)).clamp(0, 1)


def compared(
    fit: DataFit, candidate: Mapping[str, Tensor], observed: Mapping[str, Tensor]
) -> tuple[Mapping[str, Tensor], Mapping[str, Tensor]]:
    """(what the defence makes of the candidate's, what to compare it with), by parameter."""
    if fit.by_entry:
        return candidate, nearest(fit, candidate, observed)
    if fit.clip is None:
        return candidate, observed
    size = torch.stack([g.square().sum() for g in candidate.values()]).sum()
    cross = torch.stack([(g * observed[n]).sum() for n, g in candidate.items()]).sum()
    s = clip_scale(fit, size, cross)
    return {n: s * g for n, g in candidate.items()}, observed


def nearest(fit: DataFit, candidate: Mapping[str, Tensor], observed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradient nearest to the candidate's that the defence would have turned into the observed one, by parameter.

    Of signs one that is near: the candidate cut to the signs, then scaled to the mean sizes.
    """
    if fit.pruned:
        sizes = [observed[n].abs() for n in candidate]
        sent = torch.stack([size.where(size > 0, torch.inf).amin() for size in sizes]).amin()
        return {n: observed[n].where(observed[n] != 0, g.clamp(-sent, sent)) for n, g in candidate.items()}
    if fit.levels is not None:
        return {n: _within_a_level(g, observed[n], fit.levels) for n, g in candidate.items()}
    assert fit.signs, "only a defence of single entries leaves each an interval"
    return {n: _of_signs(g, observed[n]) for n, g in candidate.items()}


def _within_a_level(candidate: Tensor, observed: Tensor, levels: int) -> Tensor:
    """The largest entry of a tensor is a level itself, so that it shows the width."""
    width = observed.abs().amax() / levels
    return torch.minimum(torch.maximum(candidate, observed - width), observed + width)


def _of_signs(candidate: Tensor, observed: Tensor) -> Tensor:
    """The candidate without its entries of another sign, scaled to the mean size of the observed one."""
    size = (candidate * observed.sign()).clamp_min(0)
    mean = size.mean()
    return observed.sign() * torch.where(
        mean > 0, size * (observed.abs().mean() / mean.clamp_min(TINY)), observed.abs()
    )
