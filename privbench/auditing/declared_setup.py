"""Whether messages came about as is declared: the true images give them then, and where they do not, no score says anything."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privbench.auditing import evidence
from privbench.defending import described
from privbench.networks.module_model import ModuleModel
from privbench.types import Artifact, Truth

# Percent of a message that its true images explain at least: in single precision, and where numbers were rounded coarsely.
EXACT, ROUNDED = 99.0, 95.0
HALF = 50.0  # percent of a message, which images of no attack explain
ALIKE = 0.02  # relative: multiples that count as the same one
LOOK_AT = "the weights that went down, mean and std, mode, loss, batch size, a defence of the sender, local steps"


def check(model: ModuleModel, seen: Artifact, truth: Truth | None) -> tuple[str, str]:
    """(a warning, a note), of which one is empty; both are of a set-up that cannot be checked.

    It can where the truth has labels, both networks are known, and nothing is drawn or added that nobody knows: noise, dropout,
    mini-batches of several steps.
    """
    if truth is None or not _is_known(model, seen):
        return "", ""
    labels = truth.labels if seen.labels is None else seen.labels.to(truth.labels)
    given = evidence.explanation(seen, truth.images, labels)
    if given is None or not bool(given.explained.isfinite().all()):
        return "", ""
    least = _least(seen)
    if float(least.min()) < HALF:
        # Steps so small that the weights hold mostly rounding.
        return "", ""
    unlike = int((given.explained < least).sum())
    if not unlike:
        return "", "The true images explain all of every message, as these are declared."
    warning = (
        f"THE TRUE IMAGES DO NOT EXPLAIN THE MESSAGES as declared: {float(given.explained.min()):.0f}% at worst, less than "
        f"{float(least.max()):.0f}% of {unlike} of {len(given.explained)}. {_likely(seen, given, least)}A low score then says "
        "nothing of privacy."
    )
    return warning, ""


def check_unscored(model: ModuleModel, seen: Artifact, explained: Sequence[float]) -> str:
    """A note where nobody's images explain half of the messages, and no truth says why; from the percentages of all attacks."""
    if not explained or max(explained) >= HALF or not _is_known(model, seen):
        return ""
    return (
        f"No attack's images explain half of the messages: they failed, or the messages came about otherwise than is declared. "
        f"Look at {LOOK_AT}."
    )


def _is_known(model: ModuleModel, seen: Artifact) -> bool:
    is_exact = seen.defense.get("name") in (described.NONE, "rounded")
    in_batches = seen.local is not None and seen.local.batch is not None and seen.local.steps > 1
    return is_exact and not in_batches and not (model.train and model.extractor_part.draws)


def _least(seen: Artifact) -> Tensor:
    """Percent of each message that its true images explain at least, [V].

    An update is a difference of weights, each stored to within `eps` of itself: of a small step that is much.
    """
    least = torch.full((seen.victims,), ROUNDED if "wire" in seen.defense else EXACT, dtype=torch.float64)
    if not seen.updates:
        return least
    changed = [(t.double(), seen.weights[p][n]) for p, net in seen.updates.items() for n, t in net.items()]
    size = torch.stack([t.square().flatten(1).sum(1) for t, _ in changed]).sum(0)
    stored = sum(float((torch.finfo(torch.float32).eps * theta.double()).square().sum()) for _, theta in changed)
    return least - 100 * stored / size.clamp_min(1e-300)


def _likely(seen: Artifact, given: evidence.Explanation, least: Tensor) -> str:
    """What is likely to be otherwise."""
    multiple, then = given.multiple, given.explained_then
    one = float(multiple.median())
    alike = bool(((multiple - one).abs() <= ALIKE * abs(one)).all())
    if not bool((then >= least).all()):
        return f"Look at {LOOK_AT}, the order of the true images. "
    if alike and abs(one - seen.batch_size) <= ALIKE * seen.batch_size and seen.batch_size > 1:
        return f"{one:.3g} times what they give does: the sender's loss adds up over the {seen.batch_size} images of a batch. "
    if bool((multiple < 0).all()):
        return (
            "What they give does with the other sign: a sign, or the states before and after, are the other way round. "
        )
    return f"{one:.3g} times what they give does: a clip of the sender, or another rate. "
