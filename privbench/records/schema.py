"""One JSON file per finished cell: gathered from its seeds, written atomically, read with its schema and digest checked.

A `Record` holds what a cell is and what each of its seeds gave, per client and per victim; a mean over them is computed where it is
asked for and stored nowhere, and intervals are the reports' (privbench/scoring/statistics.py). An `AttackRecord` is the record
of a cell that was attacked. docs/appendix/metrics.md defines every number of training.

The digest is the SHA-256 of the record's own content. It detects an accident (a truncated copy, an edited number) and is no defence
against somebody who wants to deceive: who edits a record can compute the digest anew. `privbench reproduce` is the check then.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal, NamedTuple, Self

from pydantic import ValidationError

from privbench.errors import UserError
from privbench.records import checks, upgrade
from privbench.records.checks import CheckMessage
from privbench.spec import CellSpec, first_fault
from privbench.system import files
from privbench.system.file_headers import short
from privbench.training.history import Round, StrictModel

# 2: the training part; cells that attack nothing. 3: typed, per seed and victim, without any summary; outcomes; a digest.
SCHEMA = 3
FILE_NAME = "record.json"
Outcome = Literal["reconstructed", "gave up", "not applicable", "diverged"]
FAILURES = ("gave up", "diverged")
MOST_THREADS = 4_096  # of one process
# Of the environment, what every table and `privbench reproduce` say of a record.
ENVIRONMENT = {"device": str, "machine": str, "torch": str, "date": str, "cores": int}
TAIL = 0.05  # of victims, the most exposed
EXPOSED_DB = 20.0  # a reconstruction at which what is on a small picture can be seen
Name = tuple[int, int, tuple[str, ...]]


class Accuracy(NamedTuple):
    """Test accuracy in percent of the clients' measured models, each at its best validation round (FedMD-CG's L.acc)."""

    per_seed: list[float]  # mean over clients
    mean: float
    std: float | None  # over seeds; None for one seed
    per_client: list[list[float]]  # seed, client


class Spread(NamedTuple):
    """A metric averaged over clients, then over seeds; None where it is undefined for one of them."""

    per_seed: list[float | None]
    mean: float | None
    std: float | None  # over seeds; None for one seed


class Averages(NamedTuple):
    """The metrics of all clients and seeds in one number each."""

    precision: Spread  # percent, as the next three
    recall: Spread
    f1: Spread
    false_positive_rate: Spread
    auc: Spread  # 0 to 1
    consistency: Spread  # nats; undefined for methods whose clients have no generator
    global_accuracy: Spread  # percent: FedMD-CG's G.acc


class Curve(StrictModel):
    """The ROC curve of one class against the rest, from (0, 0) to (1, 1), its collinear points left out.

    Rates in [0, 1], rounded to five decimals.
    """

    false_positive_rate: list[float]
    true_positive_rate: list[float]


class ClientMetrics(StrictModel):
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


class SeedTraining(StrictModel):
    """What one seed's training gave."""

    seed: int
    best_round: int  # with the best validation accuracy, mean over clients; 0 when nothing was trained
    global_accuracy: float | None  # percent, at that round; None when nothing was trained
    clients: list[ClientMetrics]
    rounds: list[Round]


class Victim(StrictModel):
    """One attacked upload."""

    seed: int
    client: int
    images: list[
        str
    ]  # digests of its originals: equal pictures have equal ones (privbench.scoring.image_scores.digests)
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
    outcome: Outcome  # how the attack ended (privbench/records/victims.py)
    floors: dict[str, float]

    @property
    def name(self) -> Name:
        """What distinguishes the victims of a setting: seed, client and originals."""
        return (self.seed, self.client, tuple(self.images))

    @property
    def failed(self) -> bool:
        """Whether nothing was reconstructed, though the attack applied."""
        return self.outcome in FAILURES


class AuxiliaryUsed(StrictModel):
    """The images that an attacker had beyond what was observed."""

    dataset: str
    share: float
    images: int
    labels: str  # how its classes were matched to the victims'
    left_out_as_training_images: int


class KnowledgeUsed(StrictModel):
    """What the attacker knew."""

    tag: str  # in words, on what this method sends
    tag_in_general: str  # the same whatever a method sends
    rung: str | None  # of the ladder; None for a user's own attack that names none
    needs: list[str]
    uses: list[str]  # what it read beside its needs
    pools: int | None = (
        None  # how many uploads of a client each image was reconstructed from; None where it was one alone
    )
    active_rounds: int | None = None  # for how many rounds before the attacked one the server sent crafted networks
    auxiliary: AuxiliaryUsed | None
    labels: Literal["known", "recovered"]
    restart_chosen_by: str


class SeedResult(StrictModel):
    """What one seed gave."""

    seed: int
    accuracy: list[float]  # percent, per client, each personal model at its best validation round
    label_counts: list[list[int]]  # training images: client, class
    training: SeedTraining


class AttackedSeed(SeedResult):
    """What one seed of an attacked cell gave."""

    round: int  # that was attacked
    accuracy_at_round: list[float]  # percent, per client, of the very networks attacked; schema 2 kept one mean of all
    victims: list[Victim]


class Scores(NamedTuple):
    """Means over victims; None where one of them has no such number, as a mean over the others would flatter."""

    psnr_db: float
    psnr_raw_db: float | None
    ssim: float
    lpips: float | None
    feature_error: float | None
    identification: float
    identification_chance: float  # of one and the same image returned for every victim of a seed
    label_accuracy: float
    worst_db: (
        float  # mean PSNR of the TAIL of victims that are reconstructed best, who are the most exposed; at least one
    )
    exposed: float  # share of victims reconstructed at more than EXPOSED_DB
    n: int
    failures: int  # gave up or diverged
    not_applicable: int


class Floor(NamedTuple):
    """The best of the no-information floors."""

    name: str
    psnr_db: float


class Cost(StrictModel):
    """Summed over seeds; memory is the largest of any process."""

    train_seconds: float
    peak_memory_mib: float


class AttackCost(Cost):
    """The same with the attack's part."""

    attack_seconds: float
    gradient_evaluations: int


class Record(StrictModel):
    """Everything that a table, a figure or a sceptical reader needs of one cell."""

    schema_version: int
    id: str
    cell: CellSpec
    classes: int
    class_names: list[str]
    client_domains: list[str] | None  # None in records from before there was one
    cost: Cost
    environment: dict[str, Any]  # of the first seed; notes say where others differ
    notes: list[str]
    seeds: Sequence[SeedResult]

    def __copy__(self) -> Self:
        """Without what was computed of it, which a changed field would make untrue."""
        copied = super().__copy__()
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    @cached_property
    def training(self) -> list[SeedTraining]:
        """Of each seed."""
        return [s.training for s in self.seeds]

    @cached_property
    def label_counts(self) -> list[list[list[int]]]:
        """Training images: seed, client, class."""
        return [s.label_counts for s in self.seeds]

    @cached_property
    def accuracy(self) -> Accuracy:
        """Mean over clients, then over seeds."""
        per_seed = [fmean(s.accuracy) for s in self.seeds]
        std = stdev(per_seed) if len(per_seed) > 1 else None
        return Accuracy(per_seed, fmean(per_seed), std, [list(s.accuracy) for s in self.seeds])

    @cached_property
    def averages(self) -> Averages:
        """Every metric of training."""
        return averages(self.training)


class AttackRecord(Record):
    """The record of a cell that was attacked."""

    knowledge: KnowledgeUsed
    guarantee: str  # what the defence promises a client over all rounds whatever the attack, or that there is none
    cost: AttackCost
    seeds: Sequence[AttackedSeed]

    @property
    def attack(self) -> str:
        """The attack's name."""
        return self.cell.attack or ""

    @cached_property
    def rounds(self) -> list[int]:
        """The attacked round of each seed."""
        return [s.round for s in self.seeds]

    @cached_property
    def victims(self) -> list[Victim]:
        """Of all seeds."""
        return [v for s in self.seeds for v in s.victims]

    @cached_property
    def names(self) -> tuple[Name, ...]:
        """Of the same victims."""
        return tuple(v.name for v in self.victims)

    @cached_property
    def accuracy_at_round(self) -> float:
        """Percent, of the very networks that were attacked, mean over clients and seeds."""
        return fmean(a for s in self.seeds for a in s.accuracy_at_round)

    @cached_property
    def scores(self) -> Scores:
        """Means over all victims."""
        return scores_of(self.victims)

    @cached_property
    def floors(self) -> dict[str, float]:
        """Each floor's mean."""
        return floors_of(self.victims)

    @cached_property
    def floor(self) -> Floor:
        """The best of them."""
        return best_floor(self.victims)

    @cached_property
    def gain_db(self) -> float:
        """The mean over victims of PSNR less the victim's own score of the best floor."""
        floor = self.floor.name
        return fmean(v.psnr_db - v.floors[floor] for v in self.victims)

    @cached_property
    def messages(self) -> list[CheckMessage]:
        """The checks that the record fails (privbench/records/checks.py)."""
        return checks.of_victims(self.victims)


def scores_of(victims: Sequence[Victim]) -> Scores:
    """Means over some victims, at least one."""
    per_seed = Counter(v.seed for v in victims).values()
    return Scores(
        psnr_db=fmean([v.psnr_db for v in victims]),
        psnr_raw_db=mean([v.psnr_raw_db for v in victims]),
        ssim=fmean([v.ssim for v in victims]),
        lpips=mean([v.lpips for v in victims]),
        feature_error=mean([v.feature_error for v in victims]),
        identification=fmean([v.identification for v in victims]),
        identification_chance=fmean([1 / count for count in per_seed]),
        label_accuracy=fmean([v.label_accuracy for v in victims]),
        worst_db=fmean(sorted((v.psnr_db for v in victims), reverse=True)[: math.ceil(TAIL * len(victims))]),
        exposed=fmean([v.psnr_db > EXPOSED_DB for v in victims]),
        n=len(victims),
        failures=sum(v.failed for v in victims),
        not_applicable=sum(v.outcome == "not applicable" for v in victims),
    )


def floors_of(victims: Sequence[Victim]) -> dict[str, float]:
    """The mean of each floor that every victim has."""
    names = [name for name in victims[0].floors if all(name in v.floors for v in victims)]
    return {name: fmean([v.floors[name] for v in victims]) for name in names}


def best_floor(victims: Sequence[Victim]) -> Floor:
    """The floor with the highest mean."""
    floors = floors_of(victims)
    name = max(floors, key=lambda name: floors[name])
    return Floor(name, floors[name])


def summarise(
    *,
    id: str,  # noqa: A002 (the field's name)
    cell: CellSpec,
    trials: Sequence[Mapping[str, Any]],
) -> Record:
    """The record of a cell from what each seed gave: trials, one per seed, each with its `training`.

    An `AttackRecord` where the trials have victims.
    """
    first = trials[0]
    common: dict[str, Any] = {
        "schema_version": SCHEMA,
        "id": id,
        "cell": cell,
        "classes": first["classes"],
        "class_names": list(first["class_names"]),
        "client_domains": first.get("client_domains"),
        "environment": dict(first["environment"]),
        "notes": list(dict.fromkeys([*(note for trial in trials for note in trial["notes"]), *_mixed(trials)])),
    }
    cost: dict[str, Any] = {
        "train_seconds": sum(t["cost"]["train_seconds"] for t in trials),
        "peak_memory_mib": max(t["cost"]["peak_memory_mib"] for t in trials),
    }
    if "victims" not in first:
        return Record(**common, cost=Cost(**cost), seeds=[SeedResult(**_of_seed(trial)) for trial in trials])
    return AttackRecord(
        **common,
        knowledge=KnowledgeUsed(**first["knowledge"]),
        guarantee="; ".join(dict.fromkeys(trial["guarantee"] for trial in trials)),
        cost=AttackCost(
            **cost,
            attack_seconds=sum(t["cost"]["attack_seconds"] for t in trials),
            gradient_evaluations=sum(t["cost"]["gradient_evaluations"] for t in trials),
        ),
        seeds=[
            AttackedSeed(
                **_of_seed(trial),
                round=trial["round"],
                accuracy_at_round=list(trial["accuracy_at_round"]),
                victims=[Victim(**victim) for victim in trial["victims"]],
            )
            for trial in trials
        ],
    )


def _of_seed(trial: Mapping[str, Any]) -> dict[str, Any]:
    """What the result of a seed, attacked or not, gives to a record."""
    return {
        "seed": trial["training"].seed,
        "accuracy": list(trial["accuracy"]),
        "label_counts": trial["label_counts"],
        "training": trial["training"],
    }


def averages(trainings: Sequence[SeedTraining]) -> Averages:
    """Each metric's mean over the clients of each seed, with mean and standard deviation over seeds."""
    names = [name for name in Averages._fields if name != "global_accuracy"]
    found = {name: spread([mean([getattr(c, name) for c in t.clients]) for t in trainings]) for name in names}
    return Averages(**found, global_accuracy=spread([t.global_accuracy for t in trainings]))


def spread(per_seed: Sequence[float | None]) -> Spread:
    """Mean and standard deviation (n - 1) over seeds."""
    whole = [value for value in per_seed if value is not None]
    std = stdev(whole) if len(whole) == len(per_seed) > 1 else None
    return Spread(per_seed=list(per_seed), mean=mean(per_seed), std=std)


def mean(values: Sequence[float | None]) -> float | None:
    """The mean, or None where a part is missing: a mean over the rest would flatter."""
    whole = [value for value in values if value is not None]
    return fmean(whole) if whole and len(whole) == len(values) else None


def _mixed(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note for each way in which the seeds were not computed alike; the record's environment is the first seed's."""
    notes = []
    for key in ("privbench", "torch", "device", "machine"):
        found = list(dict.fromkeys(str(trial["environment"].get(key)) for trial in trials))
        if len(found) > 1:
            notes.append(f"the seeds differ in {key}: {', '.join(found)}")
    return notes


def write(record: Record, path: Path) -> None:
    """Writes the whole record or nothing: one line per field, since curves and matrices of a line a number would be long."""
    content = record.model_dump(mode="json", serialize_as_any=True)
    content = {"schema_version": content.pop("schema_version"), files.DIGEST: content_digest_of(record), **content}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
    files.write_bytes(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def content_digest_of(record: Record) -> str:
    """The digest of a record as it is written."""
    return files.content_digest(record.model_dump(mode="json", serialize_as_any=True))


def read_of(cell: CellSpec, path: Path) -> Record:
    """The record of that very cell; UserError as `read`, and where an intact record is another cell's."""
    found = read(path)
    other = next((name for name in (found.id, found.cell.id) if name != cell.id), None)
    if other is not None:
        raise UserError(
            f"{path} is the record of cell {other}, not of {cell.id}: an intact file in the wrong place; remove it and run the "
            "same command again"
        )
    if tuple(s.seed for s in found.seeds) != cell.seeds:
        raise UserError(f"{path} is damaged (its seeds are not the cell's); remove it and run the same command again")
    return found


def read(path: Path) -> Record:
    """The record; a damaged, altered, foreign or newer file raises UserError with its name. Schema 2 is upgraded."""
    if not path.is_file():
        raise UserError(f"there is no record at {path}")
    return of_value(files.read_json(path), path)


def of_value(value: Any, path: Path) -> Record:
    """The record that some JSON says, as it was read from `path`; UserError as `read`."""
    if not isinstance(value, dict) or "schema_version" not in value:
        raise UserError(f"{path} is not a privbench record")
    try:
        if value["schema_version"] == 2:
            upgrade.check_summaries(value)
            return _validated(upgrade.to_schema_3(value))
        if value["schema_version"] != SCHEMA:
            found = short(value["schema_version"])
            raise UserError(f"{path} has record schema {found}; this privbench reads {SCHEMA} and 2")
        digest = value.pop(files.DIGEST, None)
        if digest != files.content_digest(value):
            raise UserError(
                f"{path} was altered or damaged after it was written: its digest does not fit its content; remove it and run the "
                "same command again"
            )
        return _validated(value)
    except ValidationError as error:
        place, rule, _ = first_fault(error)
        raise UserError(f"{path} is damaged ({place}: {rule}); remove it and run the same command again") from error
    except ValueError as error:
        raise UserError(
            f"{path} was altered or damaged after it was written: {short(error)}; remove it and run the same command again"
        ) from error
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(
            f"{path} is damaged ({short(repr(error))}); remove it and run the same command again"
        ) from error


def _validated(value: Mapping[str, Any]) -> Record:
    kind = Record if value["cell"].get("attack") is None else AttackRecord
    found: Record = kind.model_validate(value)
    _check_whole(found)
    return found


def _check_whole(found: Record) -> None:
    """ValueError where there is nothing to take a mean of, or the machine is none that a run could be repeated on."""
    threads = found.environment.get("threads", 1)
    if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
        raise ValueError(
            f"environment.threads should be from 1 to {MOST_THREADS}, but {short(repr(threads))} was given"
        )
    for name, kind in ENVIRONMENT.items():
        if type(found.environment.get(name)) is not kind:
            raise ValueError(f"environment.{name} is missing or no {'text' if kind is str else 'number'}")
    if not found.seeds or not all(s.accuracy and s.label_counts and s.training.clients for s in found.seeds):
        raise ValueError("no seeds, or no clients of one of them")
    if isinstance(found, AttackRecord):
        if not all(s.victims and s.accuracy_at_round for s in found.seeds):
            raise ValueError("no victims of one of its seeds")
        if not floors_of(found.victims):
            raise ValueError("no floor that every victim has")
