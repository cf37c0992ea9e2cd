"""One JSON file per finished cell: summarised from its seeds, written atomically, read with its schema checked."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from privbench import storage
from privbench.errors import UserError
from privbench.score import interval

SCHEMA = 1
FILE_NAME = "record.json"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Range(_Strict):
    """A mean with its 95% bootstrap interval."""

    mean: float
    low: float
    high: float


class Accuracy(_Strict):
    """Test accuracy in percent."""

    per_seed: list[float]  # mean over clients, each at its best validation round
    mean: float
    std: float | None  # over seeds; None for one seed
    at_round_mean: float  # of the very networks that were attacked
    per_client: list[list[float]]  # seed, client


class Victim(_Strict):
    """One attacked upload."""

    seed: int
    client: int
    psnr_db: float
    psnr_raw_db: float | None
    ssim: float
    label_accuracy: float
    loss: float | None  # the attacker's own final objective; None when it was not finite
    failed: bool
    floors: dict[str, float]


class ScoreSummary(_Strict):
    """Over all victims of all seeds."""

    psnr_db: Range
    psnr_raw_db: Range | None  # None when a victim has none: a mean over the others would flatter
    ssim: Range
    label_accuracy: float
    n: int
    failures: int


class Floor(_Strict):
    """The best of the no-information floors."""

    name: str
    psnr_db: float


class Cost(_Strict):
    """Summed over seeds; memory is the largest of any process."""

    train_seconds: float
    attack_seconds: float
    gradient_evaluations: int
    peak_memory_mib: float


class Record(_Strict):
    """Everything a table, a figure or a doubting reader needs of one cell."""

    schema_version: int
    id: str
    spec: dict[str, Any]
    rounds: list[int]  # the attacked round of each seed
    accuracy: Accuracy
    victims: list[Victim]
    scores: ScoreSummary
    floors: dict[str, float]
    floor: Floor
    gain_db: Range  # paired per victim against the best floor
    knowledge: dict[str, Any]
    cost: Cost
    environment: dict[str, Any]
    notes: list[str]
    label_counts: list[
        list[list[int]]
    ] = []  # training images: seed, client, class; none in a record of an earlier version


def summarise(*, id: str, spec: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Record:  # noqa: A002 (the field's name)
    """The record of a cell from what each seed's attack wrote: trials, one per seed, with at least one victim each.

    The best floor is the one with the highest mean; the gain is each victim's PSNR less its own score of that floor.
    """
    victims = [Victim(**victim) for trial in trials for victim in trial["victims"]]
    names = [name for name in victims[0].floors if all(name in victim.floors for victim in victims)]
    floors = {name: statistics.fmean(victim.floors[name] for victim in victims) for name in names}
    best = max(floors, key=lambda name: floors[name])
    raws = [victim.psnr_raw_db for victim in victims]
    per_seed = [statistics.fmean(trial["accuracy"]) for trial in trials]
    return Record(
        schema_version=SCHEMA,
        id=id,
        spec=dict(spec),
        rounds=[trial["round"] for trial in trials],
        accuracy=Accuracy(
            per_seed=per_seed,
            mean=statistics.fmean(per_seed),
            std=statistics.stdev(per_seed) if len(per_seed) > 1 else None,
            at_round_mean=statistics.fmean(a for trial in trials for a in trial["accuracy_at_round"]),
            per_client=[list(trial["accuracy"]) for trial in trials],
        ),
        victims=victims,
        scores=ScoreSummary(
            psnr_db=_range([v.psnr_db for v in victims]),
            psnr_raw_db=None if any(r is None for r in raws) else _range([r for r in raws if r is not None]),
            ssim=_range([v.ssim for v in victims]),
            label_accuracy=statistics.fmean(v.label_accuracy for v in victims),
            n=len(victims),
            failures=sum(v.failed for v in victims),
        ),
        floors=floors,
        floor=Floor(name=best, psnr_db=floors[best]),
        gain_db=_range([v.psnr_db - v.floors[best] for v in victims]),
        knowledge=dict(trials[0]["knowledge"]),
        cost=Cost(
            train_seconds=sum(t["cost"]["train_seconds"] for t in trials),
            attack_seconds=sum(t["cost"]["attack_seconds"] for t in trials),
            gradient_evaluations=sum(t["cost"]["gradient_evaluations"] for t in trials),
            peak_memory_mib=max(t["cost"]["peak_memory_mib"] for t in trials),
        ),
        environment=dict(trials[0]["environment"]),
        notes=list(dict.fromkeys([*(note for trial in trials for note in trial["notes"]), *_mixed(trials)])),
        label_counts=[trial["label_counts"] for trial in trials if "label_counts" in trial],
    )


def _mixed(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note for each way in which the seeds were not computed alike; the record's environment is the first seed's."""
    notes = []
    for key in ("privbench", "torch", "device", "machine"):
        found = list(dict.fromkeys(str(trial["environment"].get(key)) for trial in trials))
        if len(found) > 1:
            notes.append(f"the seeds differ in {key}: {', '.join(found)}")
    return notes


def _range(values: Sequence[float]) -> Range:
    return Range(**interval(values)._asdict())


def write(record: Record, path: Path) -> None:
    """Writes the whole record or nothing."""
    storage.write_json(path, record.model_dump(mode="json"))


def read(path: Path) -> Record:
    """The record; a damaged, foreign or newer file raises UserError with its name."""
    if not path.is_file():
        raise UserError(f"there is no record at {path}")
    value = storage.read_json(path)
    if not isinstance(value, dict) or "schema_version" not in value:
        raise UserError(f"{path} is not a privbench record")
    if value["schema_version"] != SCHEMA:
        raise UserError(f"{path} has record schema {value['schema_version']}; this privbench reads {SCHEMA}")
    try:
        return Record.model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise UserError(
            f"{path} is damaged ({place}: {fault['msg']}); remove it and run the same command again"
        ) from error


def find(folder: Path) -> tuple[list[Record], dict[Path, str]]:
    """(every readable record under a folder, in order of path; the path of each damaged one with a line that says why).

    A damaged record never hides the others.
    """
    records, faults = [], {}
    for path in sorted(folder.rglob(FILE_NAME)):
        try:
            records.append(read(path))
        except UserError as error:
            faults[path] = str(error)
    return records, faults
