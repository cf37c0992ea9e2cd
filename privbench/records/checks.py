"""Checks of a result: a name and one plain sentence for each that it fails, computed from the record, printed in every table.

Here are the checks of a single cell; those that need several cells (a ladder that is not monotone, an undefended
FedAvg that keeps its images) are in reports/records/table_checks.py, and reports/records/remarks.py prints both kinds. A victim
is counted under one cause alone, the first of: zero gradient, not finite, loss did not fall.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from privbench.scoring.statistics import LEAST_SEEDS, LEAST_VICTIMS


class CheckMessage(BaseModel):
    """One failed check."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str
    sentence: str


class AttackedUpload(Protocol):
    """What the checks need of one attacked upload (privbench.records.entries.Victim has it all)."""

    @property
    def seed(self) -> int:
        """Of its federation."""
        ...

    @property
    def images(self) -> list[str]:
        """Digests of its originals (privbench.scoring.image_scores.digests)."""
        ...

    @property
    def in_auxiliary(self) -> bool:
        """Whether one of them is among the auxiliary images."""
        ...

    @property
    def gradient_norm(self) -> float | None:
        """Of all that was observed; None when not finite."""
        ...

    @property
    def loss(self) -> float | None:
        """The attacker's final objective; None when not finite."""
        ...

    @property
    def loss_fell(self) -> bool | None:
        """None for an attack that does not descend."""
        ...

    @property
    def outcome(self) -> str:
        """How the attack ended (privbench/records/victims.py)."""
        ...


def zero_gradient(victims: Sequence[AttackedUpload]) -> list[CheckMessage]:
    """Nothing was there to attack."""
    count = sum(v.gradient_norm == 0 for v in victims)
    return _message("zero-gradient", count, victims, "sent a gradient of zeros alone, so there was nothing to attack")


def not_finite(victims: Sequence[AttackedUpload]) -> list[CheckMessage]:
    """NaN or infinity in the gradient, the objective or the image."""
    count = sum(v.gradient_norm is None or (v.gradient_norm > 0 and v.outcome == "diverged") for v in victims)
    return _message(
        "not-finite", count, victims, "have a gradient, objective or image that is not finite; the attack failed there"
    )


def loss_did_not_fall(victims: Sequence[AttackedUpload]) -> list[CheckMessage]:
    """The attack ended no better, by its own objective, than it began."""
    count = sum(bool(v.gradient_norm) and v.outcome != "diverged" and v.loss_fell is False for v in victims)
    return _message(
        "loss-did-not-fall",
        count,
        victims,
        "ended with an objective no lower than at the start: the attack did nothing",
    )


def duplicate_victims(victims: Sequence[AttackedUpload]) -> list[CheckMessage]:
    """One picture attacked twice within a seed counts twice in every mean and narrows every interval."""
    counts = Counter((v.seed, image) for v in victims for image in v.images)
    twice = sum(any(counts[v.seed, image] > 1 for image in v.images) for v in victims)
    return _message(
        "duplicate-victims", twice, victims, "hold an image that another victim or place of the same seed holds too"
    )


def auxiliary_overlap(victims: Sequence[AttackedUpload]) -> list[CheckMessage]:
    """The attacker, or a floor, was given what it should reconstruct."""
    count = sum(v.in_auxiliary for v in victims)
    return _message(
        "auxiliary-overlap", count, victims, "have an original among the auxiliary images, which must be disjoint"
    )


def few(victims: Sequence[AttackedUpload]) -> list[CheckMessage]:
    """Too little for a published row."""
    seeds = len({v.seed for v in victims})
    if len(victims) >= LEAST_VICTIMS and seeds >= LEAST_SEEDS:
        return []
    return [
        CheckMessage(
            name="few",
            sentence=f"{len(victims)} victims, {seeds} seed{'' if seeds == 1 else 's'}: too few to publish "
            f"({LEAST_VICTIMS} victims, {LEAST_SEEDS} seeds)",
        )
    ]


def defense_unknown(not_modelled: Sequence[str]) -> list[CheckMessage]:
    """The attack has no form for something that the defence does (privbench.observation.knowledge.not_modelled)."""
    if not not_modelled:
        return []
    sentence = (
        f"this attacker does not know the defence (it has no form for: {', '.join(not_modelled)}), so a low score says nothing of "
        "one that does"
    )
    return [CheckMessage(name="defence-unknown", sentence=sentence)]


CHECKS: tuple[Callable[[Sequence[AttackedUpload]], list[CheckMessage]], ...] = (
    zero_gradient, not_finite, loss_did_not_fall, duplicate_victims, auxiliary_overlap, few,
)  # fmt: skip


def of_victims(victims: Sequence[AttackedUpload]) -> list[CheckMessage]:
    """Every check that one cell's victims fail."""
    return [message for check in CHECKS for message in check(victims)]


def _message(name: str, count: int, victims: Sequence[AttackedUpload], what: str) -> list[CheckMessage]:
    return [CheckMessage(name=name, sentence=f"{count} of {len(victims)} victims {what}")] if count else []


def names(messages: Iterable[CheckMessage]) -> str:
    """The names alone, each once, as a table's cell holds them; "-" for none."""
    return ", ".join(each_name(messages)) or "-"


def each_name(messages: Iterable[CheckMessage]) -> list[str]:
    """The names of some check messages, each once, in the order of their first appearance."""
    return list(dict.fromkeys(message.name for message in messages))
