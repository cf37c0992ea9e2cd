"""One JSON file per finished cell: summarised from its seeds, written atomically, read with its schema checked.

A `Record` is what every cell has: the specification, what training gave (accuracy, metrics, curves, bytes, seconds), and what
it cost. An `AttackRecord` is a record of a cell that was attacked as well. docs/metrics.md defines every number of training.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from privbench import flags, storage
from privbench.errors import UserError
from privbench.flags import Flag
from privbench.score import interval

SCHEMA = 2  # 2: the training part; cells that attack nothing
FILE_NAME = "record.json"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Range(_Strict):
    """A mean with its 95% bootstrap interval."""

    mean: float
    low: float
    high: float


class Accuracy(_Strict):
    """Test accuracy in percent of the clients' measured models, each at its best validation round (FedMD-CG's L.acc)."""

    per_seed: list[float]  # mean over clients
    mean: float
    std: float | None  # over seeds; None for one seed
    per_client: list[list[float]]  # seed, client


class Spread(_Strict):
    """A metric averaged over clients, then over seeds; None where it is undefined for one of them."""

    per_seed: list[float | None]
    mean: float | None
    std: float | None  # over seeds; None for one seed


class Averages(_Strict):
    """The metrics of all clients and seeds in one number each."""

    precision: Spread  # percent, as the next three
    recall: Spread
    f1: Spread
    false_positive_rate: Spread
    auc: Spread  # 0 to 1
    consistency: Spread  # nats; undefined for methods whose clients have no generator
    global_accuracy: Spread  # percent: FedMD-CG's G.acc


class Curve(_Strict):
    """The ROC curve of one class against the rest, from (0, 0) to (1, 1), its collinear points left out.

    Rates in [0, 1], rounded to five decimals.
    """

    false_positive_rate: list[float]
    true_positive_rate: list[float]


class ClientMetrics(_Strict):
    """One client's measured model on its own test images, at its best validation round, the first of equals.

    Macro averages are over the classes that are among the test images.
    """

    round: int  # that round; 0 when nothing was trained
    samples: int  # test images
    accuracy: float  # percent, as the next four
    precision: float
    recall: float
    f1: float
    false_positive_rate: float | None  # None when all test images are of one class
    auc: float | None  # one-vs-rest, macro; None when it is so of every class
    auc_by_class: list[
        float | None
    ]  # None where a class or its rest is not among the test images, or a score is not finite
    roc: list[Curve | None]  # one per class
    confusion: list[list[int]]  # true class, predicted class
    consistency: float | None  # cross-entropy of C_i on G_i(z, y), nats; None without a generator


class ModelAccuracy(_Strict):
    """Accuracy of one of the clients' models after a round, percent: [K]."""

    validation: list[float]
    test: list[float]


class Round(_Strict):
    """One round of one seed: lists have one entry per client. A loss that was not finite is None."""

    round: int  # from 1
    loss: dict[str, list[float | None]]  # by stage, mean over its last epoch; a stage of the server has one entry
    validation_accuracy: list[float]  # percent, of the measured models, as the next
    test_accuracy: list[float]
    global_accuracy: float  # percent, of the weighted average of all measured models on all clients' test images
    models: dict[
        str, ModelAccuracy
    ] = {}  # of the personal, the uploaded and the broadcast model; none in older records
    consistency: list[float | None]  # empty for methods whose clients have no generator
    bytes_up: list[int]  # what each client sent
    bytes_down: list[int]  # what each client received
    seconds: float  # of training, without evaluation


class Training(_Strict):
    """What one seed's training gave."""

    seed: int
    best_round: int  # with the best validation accuracy, mean over clients; 0 when nothing was trained
    global_accuracy: float | None  # percent, at that round; None when nothing was trained
    clients: list[ClientMetrics]
    rounds: list[Round]


class Victim(_Strict):
    """One attacked upload."""

    seed: int
    client: int
    images: list[str]  # digests of its originals: equal pictures have equal ones (privbench.score.digests)
    in_auxiliary: bool  # whether an original is among the attacker's, or the floors', auxiliary images
    psnr_db: float
    psnr_raw_db: float | None
    ssim: float
    lpips: float | None  # None where its weights are not installed
    feature_error: float | None  # ||E(x~) - E(x)|| / ||E(x)|| through its own true extractor; None when not finite
    identification: float  # share of its reconstructions nearest to an original of its own
    label_accuracy: float
    gradient_norm: float | None  # of everything observed of it; None when not finite
    loss: float | None  # the attacker's own final objective; None when it was not finite
    loss_fell: bool | None  # whether that objective ended lower than it began; None for attacks that do not descend
    failed: bool
    floors: dict[str, float]


class ScoreSummary(_Strict):
    """Over all victims of all seeds."""

    psnr_db: Range
    psnr_raw_db: Range | None  # None when a victim has none: a mean over the others would flatter
    ssim: Range
    lpips: Range | None  # None when a victim has none, as the next
    feature_error: Range | None
    identification: float  # mean over victims
    identification_chance: float  # of one and the same image handed in for every victim of a seed
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
    peak_memory_mib: float


class AttackCost(Cost):
    """The same with the attack's part."""

    attack_seconds: float
    gradient_evaluations: int


class Record(_Strict):
    """Everything a table, a figure or a doubting reader needs of one cell."""

    schema_version: int
    id: str
    spec: dict[str, Any]
    accuracy: Accuracy
    averages: Averages
    cost: Cost
    environment: dict[str, Any]
    notes: list[str]
    label_counts: list[list[list[int]]]  # training images: seed, client, class
    training: list[Training]  # one per seed


class AttackRecord(Record):
    """The record of a cell that was attacked."""

    rounds: list[int]  # the attacked round of each seed
    accuracy_at_round: float  # percent, of the very networks that were attacked, mean over clients and seeds
    scores: ScoreSummary
    floors: dict[str, float]
    floor: Floor
    gain_db: Range  # paired per victim against the best floor
    knowledge: dict[str, Any]
    guarantee: str  # what the defence promises a client over all rounds whatever the attack, or that there is none
    flags: list[Flag]  # doubts that the record raises about itself (privbench/flags.py)
    cost: AttackCost
    victims: list[Victim]


def summarise(*, id: str, spec: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Record:  # noqa: A002 (the field's name)
    """The record of a cell from what each seed gave: trials, one per seed, each with its `training`.

    An `AttackRecord` where the trials have victims.
    """
    trainings: list[Training] = [trial["training"] for trial in trials]
    per_seed = [statistics.fmean(trial["accuracy"]) for trial in trials]
    common: dict[str, Any] = {
        "schema_version": SCHEMA,
        "id": id,
        "spec": dict(spec),
        "accuracy": Accuracy(
            per_seed=per_seed,
            mean=statistics.fmean(per_seed),
            std=statistics.stdev(per_seed) if len(per_seed) > 1 else None,
            per_client=[list(trial["accuracy"]) for trial in trials],
        ),
        "averages": averages(trainings),
        "environment": dict(trials[0]["environment"]),
        "notes": list(dict.fromkeys([*(note for trial in trials for note in trial["notes"]), *_mixed(trials)])),
        "label_counts": [trial["label_counts"] for trial in trials],
        "training": trainings,
    }
    cost: dict[str, Any] = {
        "train_seconds": sum(t["cost"]["train_seconds"] for t in trials),
        "peak_memory_mib": max(t["cost"]["peak_memory_mib"] for t in trials),
    }
    if "victims" not in trials[0]:
        return Record(**common, cost=Cost(**cost))
    return AttackRecord(**common, **_attacked(trials, cost))


def _attacked(trials: Sequence[Mapping[str, Any]], cost: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the attack, with at least one victim a seed.

    The best floor is the one with the highest mean; the gain is each victim's PSNR less its own score of that floor.
    """
    victims = [Victim(**victim) for trial in trials for victim in trial["victims"]]
    names = [name for name in victims[0].floors if all(name in victim.floors for victim in victims)]
    floors = {name: statistics.fmean(victim.floors[name] for victim in victims) for name in names}
    best = max(floors, key=lambda name: floors[name])
    return {
        "rounds": [trial["round"] for trial in trials],
        "accuracy_at_round": statistics.fmean(a for trial in trials for a in trial["accuracy_at_round"]),
        "victims": victims,
        "scores": ScoreSummary(
            psnr_db=_range([v.psnr_db for v in victims]),
            psnr_raw_db=_range_of_all([v.psnr_raw_db for v in victims]),
            ssim=_range([v.ssim for v in victims]),
            lpips=_range_of_all([v.lpips for v in victims]),
            feature_error=_range_of_all([v.feature_error for v in victims]),
            identification=statistics.fmean(v.identification for v in victims),
            identification_chance=statistics.fmean(1 / len(trial["victims"]) for trial in trials),
            label_accuracy=statistics.fmean(v.label_accuracy for v in victims),
            n=len(victims),
            failures=sum(v.failed for v in victims),
        ),
        "floors": floors,
        "floor": Floor(name=best, psnr_db=floors[best]),
        "gain_db": _range([v.psnr_db - v.floors[best] for v in victims]),
        "knowledge": dict(trials[0]["knowledge"]),
        "guarantee": "; ".join(dict.fromkeys(trial["guarantee"] for trial in trials)),
        "flags": flags.of_victims(victims),
        "cost": AttackCost(
            **cost,
            attack_seconds=sum(t["cost"]["attack_seconds"] for t in trials),
            gradient_evaluations=sum(t["cost"]["gradient_evaluations"] for t in trials),
        ),
    }


def averages(trainings: Sequence[Training]) -> Averages:
    """Each metric's mean over the clients of each seed, with mean and standard deviation over seeds."""
    names = [name for name in Averages.model_fields if name != "global_accuracy"]
    found = {name: spread([mean([getattr(c, name) for c in t.clients]) for t in trainings]) for name in names}
    return Averages(**found, global_accuracy=spread([t.global_accuracy for t in trainings]))


def spread(per_seed: Sequence[float | None]) -> Spread:
    """Mean and standard deviation (n - 1) over seeds."""
    whole = [value for value in per_seed if value is not None]
    std = statistics.stdev(whole) if len(whole) == len(per_seed) > 1 else None
    return Spread(per_seed=list(per_seed), mean=mean(per_seed), std=std)


def mean(values: Sequence[float | None]) -> float | None:
    """The mean, or None where a part is missing: a mean over the rest would flatter."""
    whole = [value for value in values if value is not None]
    return statistics.fmean(whole) if whole and len(whole) == len(values) else None


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


def _range_of_all(values: Sequence[float | None]) -> Range | None:
    whole = [value for value in values if value is not None]
    return _range(whole) if len(whole) == len(values) else None


def write(record: Record, path: Path) -> None:
    """Writes the whole record or nothing: one line per field, since curves and matrices of a line a number would be long."""
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in record.model_dump(mode="json").items()]
    storage.write_bytes(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def read(path: Path) -> Record:
    """The record; a damaged, foreign or newer file raises UserError with its name."""
    if not path.is_file():
        raise UserError(f"there is no record at {path}")
    value = storage.read_json(path)
    if not isinstance(value, dict) or "schema_version" not in value:
        raise UserError(f"{path} is not a privbench record")
    if value["schema_version"] != SCHEMA:
        raise UserError(f"{path} has record schema {value['schema_version']}; this privbench reads {SCHEMA}")
    attacked = not isinstance(value.get("spec"), dict) or value["spec"].get("attack") is not None
    try:
        return (AttackRecord if attacked else Record).model_validate(value)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise UserError(
            f"{path} is damaged ({place}: {fault['msg']}); remove it and run the same command again"
        ) from error
