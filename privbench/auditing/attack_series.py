"""Several attacks on one artifact, each scored beside its floors: on an artifact file, and in an audit of a user's module."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from privbench import registry
from privbench.errors import UserError
from privbench.execution import ladder, one_attack, worker_pool
from privbench.records import checks, victims
from privbench.records.checks import CheckMessage
from privbench.records.entries import Victim
from privbench.records.store import Store
from privbench.scoring import feature_scores, image_scores
from privbench.scoring.feature_scores import FeatureScale, FeatureScores
from privbench.system import files
from privbench.types import Artifact, Batch, Knowledge, Reconstruction, Truth, no_progress
from reports.records import table_checks
from reports.records.measured import Measured

SEED = 0  # of what is drawn beside an attack: an artifact does not name its seed
LOG = logging.getLogger("privbench")


class AttackResult(NamedTuple):
    """What one attack made of an artifact."""

    attack: str
    settings: Mapping[str, Any]
    reconstruction: Reconstruction
    path: Path  # of its file
    messages: list[CheckMessage]
    notes: tuple[str, ...]
    # Of pictures, and of vectors; None without a truth.
    measured: Measured | None = None
    features: FeatureScores | None = None


class AttackFailure(NamedTuple):
    """An attack that was refused, or that failed."""

    attack: str
    reason: str


@dataclass(frozen=True)
class AttackSeries:
    """An artifact with what attacking and scoring it takes besides."""

    name: str  # of the artifact, in names of files
    artifact: Callable[[], Artifact]  # read or made anew: each attack has it to itself
    out: Path
    place: torch.device
    seed: int  # of the attacker
    truth: Truth | None = None
    auxiliary: Callable[[], Batch] | None = None  # of attacks that need images
    floor_images: Batch | None = None
    scale: FeatureScale | None = None  # of vectors

    @cached_property
    def seen(self) -> Artifact:
        """The artifact, for what is no attack."""
        return self.artifact()

    def members(self, named: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
        """The attacks that are meant, each once: of a ladder those whose needs are met, each with what it has of the settings."""
        met = self.seen.offers() | ({"auxiliary"} if self.auxiliary is not None else set())
        every = ladder.members(named, ladder.left_out_of_artifact(self.seen))
        return [
            name
            for name in every
            if name in named or registry.needs(name, registry.own_settings(name, settings)) <= met
        ]

    def each(self, attacks: Mapping[str, dict[str, Any]], *, is_ladder: bool) -> Iterator[AttackResult | AttackFailure]:
        """The attacks with their settings in turn; on a ladder those that cannot be made, elsewhere UserError for the first."""
        Store(self.out).check_writable()
        self.floors  # noqa: B018 (before an attack is paid for)
        for name, settings in attacks.items():
            try:
                yield self.attacked(name, settings)
            except Exception as error:
                if not is_ladder and isinstance(error, UserError):
                    raise
                reason = worker_pool.logged(error, files.inside(self.out, f"{self._stem(name)}-error.txt"))
                if not is_ladder:
                    raise UserError(f"{name}: {reason}") from error
                yield AttackFailure(name, reason)

    def attacked(self, name: str, settings: dict[str, Any]) -> AttackResult:
        """One attack, its images on disk."""
        whole = Knowledge(cache=Store(self.out).cache)
        if "auxiliary" in registry.needs(name, settings) and self.auxiliary is not None:
            whole = replace(whole, auxiliary=self.auxiliary())
        with _warnings() as warnings:
            reconstruction = one_attack.attack_artifact(
                name, settings, self.artifact(), whole, self.seed, self.place, no_progress
            )
        path = files.inside(self.out, f"{self._stem(name)}.safetensors")
        tensors = {"images": reconstruction.images, "labels": reconstruction.labels, "loss": reconstruction.loss}
        files.save_tensors(path, "reconstruction", tensors, {"artifact": self.name, "attack": name})
        result = AttackResult(
            name, settings, reconstruction, path, victims.checks_without_truth(self.seen, reconstruction),
            (*reconstruction.notes, *dict.fromkeys(warnings)),
        )  # fmt: skip
        return result if self.truth is None else self._scored(result, self.truth, whole.auxiliary)

    @cached_property
    def floors(self) -> dict[str, Reconstruction]:
        """What anybody returns: floor -> its images, of the floors that can be made; nothing without a truth."""
        if self.truth is None:
            return {}
        met = self.seen.offers() | ({"auxiliary"} if self.floor_images is not None else set())
        knowledge, floors = Knowledge(auxiliary=self.floor_images), {}
        for name in registry.FLOORS:
            if registry.resolve("attack", name).needs <= met:
                # One that needs a label, where nothing shows it.
                try:
                    floors[name] = one_attack.attack_artifact(
                        name, {}, self.seen, knowledge, SEED, self.place, no_progress
                    )
                except UserError as error:
                    LOG.info("no floor %s: %s", name, error)
        return floors

    def _stem(self, attack: str) -> str:
        # Not every system has colons in names of files.
        return f"{self.name}-{attack.replace(':', '.')}"

    def _scored(self, result: AttackResult, truth: Truth, auxiliary: Batch | None) -> AttackResult:
        """With its scores, and every check message of a record of these victims, and whether the attack is below the floor."""
        if is_vector(self.seen):
            if self.scale is None:
                return result
            return result._replace(features=feature_scores.score(result.reconstruction, truth, self.scale))
        images = [batch.images for batch in (self.floor_images, auxiliary) if batch is not None]
        each = [
            Victim(**entry)
            for entry in victims.described(
                self.seen, truth, result.reconstruction, image_scores.score(result.reconstruction, truth), seed=SEED,
                floors={name: image_scores.floor_scores(floor, truth) for name, floor in self.floors.items()},
                auxiliary={name for each_batch in images for name in image_scores.digests(each_batch)},
                is_floor=result.attack in registry.FLOORS,
            )
        ]  # fmt: skip
        measured = Measured((), tuple(each))
        below = table_checks.gain_below_floor(result.attack, measured)
        return result._replace(measured=measured, messages=[*checks.of_victims(each), *below])


def is_vector(seen: Artifact) -> bool:
    """Whether its images are vectors of numbers, and no pictures."""
    return seen.image_shape[1:] == (1, 1)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What is logged as a warning meanwhile, as it says what a reader of the numbers should know."""
    messages: list[str] = []

    class Gatherer(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    gatherer = Gatherer(logging.WARNING)
    LOG.addHandler(gatherer)
    try:
        yield messages
    finally:
        LOG.removeHandler(gatherer)
