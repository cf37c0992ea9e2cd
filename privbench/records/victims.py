"""What a record says of each attacked upload: its scores, its outcome, and the facts that checks.py needs.

An outcome is, of these the first that holds:
    not applicable   the attack says so, or all that was observed is zero, so that there was nothing to attack
    diverged         the image or the attack's own objective is not finite, or the attack says so
    gave up          the attack says that it returned a floor (the class mean, grey), or every image that it returned is flat: no
                     channel varies by as much as one step of 8 bits, as where a descent ends in finite grey
    reconstructed    otherwise
Floors (privbench.registry.FLOORS) return by design what no attack may count as a reconstruction: of them only the second is asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from privbench import tensors
from privbench.records import checks
from privbench.records.checks import CheckMessage
from privbench.scoring import image_scores
from privbench.scoring.image_scores import FloorScores, ImageScores
from privbench.types import Artifact, Outcome, Reconstruction, Truth


def described(
    seen: Artifact,
    truth: Truth,
    reconstruction: Reconstruction,
    scores: ImageScores,
    *,
    seed: int,
    floors: Mapping[str, FloorScores],
    auxiliary: set[str],
    is_floor: bool,
) -> list[dict[str, Any]]:
    """One entry per victim, with the fields of entries.Victim; `auxiliary` are the digests of the attacker's images."""
    ended = outcomes(seen, reconstruction, is_floor=is_floor)
    norms, fell, images = gradient_norms(seen), loss_fell(reconstruction.trace), image_scores.originals(truth)
    return [
        {
            "seed": seed,
            "client": int(seen.client[v]),
            "images": images[v],
            "in_auxiliary": not auxiliary.isdisjoint(images[v]),
            "psnr_db": float(scores.psnr_db[v]),
            "psnr_raw_db": _finite(scores.psnr_raw_db[v]),
            "ssim": float(scores.ssim[v]),
            "lpips": None if scores.lpips is None else float(scores.lpips[v]),
            "feature_error": None if scores.feature_error is None else _finite(scores.feature_error[v]),
            "identification": float(scores.identification[v]),
            "label_accuracy": float(scores.label_accuracy[v]),
            "gradient_norm": _finite(norms[v]),
            "loss": _finite(reconstruction.loss[v]),
            "loss_fell": fell[v],
            "outcome": ended[v],
            "floors": {floor: scored.psnr_db[v] for floor, scored in floors.items()},
            "floors_identified": {floor: scored.identification[v] for floor, scored in floors.items()},
        }
        for v in range(seen.victims)
    ]


def labels_used(seen: Artifact, reconstruction: Reconstruction) -> str:
    """Where the labels of an attack come from: "known", "recovered" by the attack, or "none", as it gave none (-1)."""
    if seen.labels is not None:
        return "known"
    return "recovered" if bool((reconstruction.labels >= 0).any()) else "none"


def outcomes(seen: Artifact, reconstruction: Reconstruction, *, is_floor: bool) -> list[str]:
    """How the attack on each victim ended, in words [V]."""
    declared = (
        torch.zeros(seen.victims, dtype=torch.int64) if reconstruction.outcome is None else reconstruction.outcome.cpu()
    )
    broken = (~(tensors.finite_rows(reconstruction.images) & reconstruction.loss.isfinite())).cpu()
    absent, flat = gradient_norms(seen) == 0, is_flat(reconstruction.images)
    if is_floor:
        declared, absent, flat = torch.zeros_like(declared), torch.zeros_like(absent), torch.zeros_like(flat)
    words = []
    for word, nothing, bad, plain in zip(
        declared.tolist(), absent.tolist(), broken.tolist(), flat.tolist(), strict=True
    ):
        outcome = Outcome(word)
        if nothing:
            outcome = Outcome.NOT_APPLICABLE
        if outcome is not Outcome.NOT_APPLICABLE and bad:
            outcome = Outcome.DIVERGED
        if outcome is Outcome.RECONSTRUCTED and plain:
            outcome = Outcome.GAVE_UP
        words.append(outcome.word)
    return words


def is_flat(images: Tensor) -> Tensor:
    """Whether all B images of a victim are of one colour each, [V, B, C, H, W] -> [V] bool.

    That is, clipped to [0, 1], no channel varies by 1/255 or more. Vectors, [V, B, D, 1, 1], are no pictures and never flat.
    """
    if images.shape[3:] == (1, 1):
        return torch.zeros(len(images), dtype=torch.bool)
    pixels = images.clamp(0, 1).flatten(3)
    return (pixels.amax(3) - pixels.amin(3) < 1 / 255).flatten(1).all(1).cpu()


class _Unseen(NamedTuple):
    """An attacked upload whose originals are not available."""

    seed: int
    images: list[str]
    in_auxiliary: bool
    gradient_norm: float | None
    loss: float | None
    loss_fell: bool | None
    outcome: str


def checks_without_truth(seen: Artifact, reconstruction: Reconstruction) -> list[CheckMessage]:
    """The checks that need no truth: of an artifact and what an attack made of it. The number of victims is not checked."""
    norms, fell = gradient_norms(seen), loss_fell(reconstruction.trace)
    ended = outcomes(seen, reconstruction, is_floor=False)
    each = [
        _Unseen(0, [], False, _finite(norms[v]), _finite(reconstruction.loss[v]), fell[v], ended[v])
        for v in range(seen.victims)
    ]
    return [
        message
        for check in (checks.zero_gradient, checks.not_finite, checks.loss_did_not_fall)
        for message in check(each)
    ]


def gradient_norms(seen: Artifact) -> Tensor:
    """The Euclidean norm of all that was observed of each victim's gradient or update, as the server got it: [V] float64.

    Where clients send weights alone, that of what the victim's client sent.
    """
    observed = seen.gradients | seen.updates
    if not observed:
        observed = {part: {n: t[seen.upload_of] for n, t in net.items()} for part, net in seen.uploads.items()}
    squares = [t.double().flatten(1).square().sum(1) for part in observed.values() for t in part.values()]
    return sum(squares[1:], squares[0]).sqrt()


def loss_fell(trace: Tensor) -> list[bool | None]:
    """Whether each victim's objective ended lower than it began [V]; None where nothing was descended on.

    That is where T = 1, and where a number is followed by NaN alone: others of the same artifact were descended on.
    """
    if trace.shape[1] < 2:
        return [None] * len(trace)
    descended = ~(trace[:, 0].isfinite() & trace[:, 1:].isnan().all(1))
    fell = trace[:, -1] < trace[:, 0]
    return [bool(f) if d else None for f, d in zip(fell, descended, strict=True)]


def _finite(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
