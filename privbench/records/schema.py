"""One JSON file per finished cell: written atomically, read with its schema and digest checked.

A `Record` holds what a cell is and what each of its seeds gave (privbench/records/entries.py). A mean over them is computed where
it is asked for (privbench/records/means.py). An `AttackRecord` is the record of a cell that was attacked.

The digest is the SHA-256 of the record's own content. It detects an accident (a truncated copy, an edited number) and is no defence
against somebody who wants to deceive: who edits a record can compute the digest anew. `privbench reproduce` is the check then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError

from privbench.errors import AGAIN, UserError
from privbench.records import checks, upgrade
from privbench.records.checks import CheckMessage
from privbench.records.entries import (
    AttackCost,
    AttackedSeed,
    Cost,
    InferredSeed,
    KnowledgeUsed,
    Name,
    SeedResult,
    SeedTraining,
    Statement,
    Victim,
)
from privbench.records.means import (
    Accuracy,
    Averages,
    Floor,
    Scores,
    accuracy_of,
    averages,
    best_floor,
    floors_of,
    gains,
    scores_of,
)
from privbench.scoring.statement_scores import QUESTIONS
from privbench.spec import CellSpec, first_fault
from privbench.system import files
from privbench.system.file_headers import short
from privbench.training.history import StrictModel

# 2: the training part; cells that attack nothing. 3: typed, per seed and victim, without any summary; outcomes; a digest.
SCHEMA = 3
FILE_NAME = "record.json"
MOST_THREADS, MOST_CORES = 4_096, 65_536  # of one process, of one machine
NAME, NOTE, NOTES = 300, 10_000, 10_000  # letters of a name and of a note, and how many notes
# Of the environment, what every table and `privbench reproduce` say of a record.
ENVIRONMENT = {"device": str, "machine": str, "torch": str, "date": str, "cores": int}


class Record(StrictModel):
    """Everything that a table, a figure or a sceptical reader needs of one cell."""

    schema_version: int
    id: str  # twelve hexadecimal digits
    cell: CellSpec
    classes: int
    class_names: list[Annotated[str, Field(max_length=NAME)]]
    client_domains: list[str] | None  # None in records from before there was one
    cost: Cost
    environment: dict[str, Any]  # of the first seed; notes say where others differ
    notes: Annotated[list[Annotated[str, Field(max_length=NOTE)]], Field(max_length=NOTES)]
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
        return accuracy_of([s.accuracy for s in self.seeds])

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
    def accuracy_at_round(self) -> Accuracy:
        """Of the very networks that were attacked: mean over clients, then over seeds."""
        return accuracy_of([s.accuracy_at_round for s in self.seeds])

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
        """The mean gain of its victims over the best floor (privbench.records.means.gains)."""
        return fmean(gains(self.victims, self.floor.name))

    @cached_property
    def messages(self) -> list[CheckMessage]:
        """The checks that the record fails (privbench/records/checks.py)."""
        return [*checks.of_victims(self.victims), *checks.defense_unknown(self.knowledge.not_modelled)]


class InferenceRecord(Record):
    """The record of a cell whose attack states something of each client (privbench.types.Inference)."""

    knowledge: KnowledgeUsed
    guarantee: str  # as an AttackRecord's
    question: str  # of privbench.scoring.statement_scores.QUESTIONS
    # Among which every statement is a distribution; of a question on candidates what it is a probability of.
    answers: list[str]
    cost: AttackCost
    seeds: Sequence[InferredSeed]

    @property
    def attack(self) -> str:
        """The inference's name."""
        return self.cell.attack or ""

    @cached_property
    def messages(self) -> list[CheckMessage]:
        """The checks that the record fails (privbench/records/checks.py)."""
        return checks.defense_unknown(self.knowledge.not_modelled)

    @cached_property
    def statements(self) -> list[Statement]:
        """Of all seeds."""
        return [s for seed in self.seeds for s in seed.statements]

    @cached_property
    def floors(self) -> tuple[str, ...]:
        """The floors that all statements have: seeds that were made before a floor was measured have fewer."""
        return tuple(name for name in self.statements[0].floors if all(name in s.floors for s in self.statements))

    @cached_property
    def floor(self) -> str:
        """The name of the floor that is best in the mean over clients and seeds."""
        sign = 1 if QUESTIONS[self.question].is_error else -1
        return min(self.floors, key=lambda name: sign * fmean(s.floors[name] for s in self.statements))


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
    record = read(path)
    other = next((name for name in (record.id, record.cell.id) if name != cell.id), None)
    if other is not None:
        raise UserError(
            f"{path} is the record of cell {other}, not of {cell.id}: an intact file in the wrong place; {AGAIN}"
        )
    return record


def read(path: Path) -> Record:
    """The record; a damaged, altered, foreign or newer file raises UserError with its name. Schema 2 is upgraded."""
    if not path.is_file():
        raise UserError(f"there is no record at {path}")
    return of_value(files.read_json(path), path)


def of_value(value: Any, place: Path | str, advice: str = AGAIN) -> Record:
    """The record that some JSON says, as it was read from `place`; UserError as `read`, with what to do about it."""
    if not isinstance(value, dict) or "schema_version" not in value:
        raise UserError(f"{place} is not a privbench record")
    try:
        if value["schema_version"] == 2:
            upgrade.check_summaries(value)
            return _validated(upgrade.to_schema_3(value))
        if value["schema_version"] != SCHEMA:
            version = short(value["schema_version"])
            raise UserError(f"{place} has record schema {version}; this privbench reads {SCHEMA} and 2")
        digest = value.pop(files.DIGEST, None)
        if digest != files.content_digest(value):
            raise UserError(
                f"{place} was altered or damaged after it was written: its digest does not fit its content; {advice}"
            )
        return _validated(value)
    except ValidationError as error:
        field, rule, _ = first_fault(error)
        raise UserError(f"{place} is damaged ({field}: {rule}); {advice}") from error
    except ValueError as error:
        raise UserError(f"{place} was altered or damaged after it was written: {short(error)}; {advice}") from error
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{place} is damaged ({short(repr(error))}); {advice}") from error


def _validated(value: Mapping[str, Any]) -> Record:
    kind = InferenceRecord if "question" in value else AttackRecord
    record: Record = (Record if value["cell"].get("attack") is None else kind).model_validate(value)
    check_whole(record)
    return record


def check_whole(record: Record) -> None:
    """ValueError where its seeds are not the cell's, where there is nothing to take a mean of, or for a machine that is none."""
    _check_environment(record.environment)
    if not re.fullmatch(r"[0-9a-f]{12}", record.id):
        raise ValueError(f"id should be twelve hexadecimal digits, but {short(record.id)} was given")
    if not record.seeds or not all(s.accuracy and s.label_counts and s.training.clients for s in record.seeds):
        raise ValueError("no seeds, or no clients of one of them")
    _check_seeds(record)
    if isinstance(record, InferenceRecord):
        _check_statements(record)
    if isinstance(record, AttackRecord):
        if not all(s.victims and s.accuracy_at_round for s in record.seeds):
            raise ValueError("no victims of one of its seeds")
        if not floors_of(record.victims):
            raise ValueError("no floor that every victim has")
    _check_clients(record)


def _check_environment(said: Mapping[str, Any]) -> None:
    """ValueError where what tables say of a machine and a day is missing, or can be of none."""
    for name, most in (("threads", MOST_THREADS), ("cores", MOST_CORES)):
        count = said.get(name, 1)
        if type(count) is not int or not 1 <= count <= most:
            raise ValueError(f"environment.{name} should be from 1 to {most}, but {short(repr(count))} was given")
    for name, kind in ENVIRONMENT.items():
        if type(said.get(name)) is not kind:
            raise ValueError(f"environment.{name} is missing or no {'text' if kind is str else 'number'}")
    if long := [name for name, value in said.items() if isinstance(value, str) and len(value) > NAME]:
        raise ValueError(f"environment.{short(long[0])} has more than {NAME} letters")
    date.fromisoformat(said["date"])


def _check_clients(record: Record) -> None:
    """ValueError where what is said of clients, classes, rounds or victims does not belong together."""
    if record.classes != len(record.class_names):
        raise ValueError(f"{len(record.class_names)} names of {record.classes} classes")
    if record.client_domains is not None and len(record.client_domains) != record.cell.train.clients:
        raise ValueError(f"{len(record.client_domains)} domains of {record.cell.train.clients} clients")
    for each in record.seeds:
        clients, rounds = len(each.accuracy), [r.round for r in each.training.rounds]
        of_clients: list[Sequence[Any]] = [each.label_counts, each.training.clients]
        of_clients += [r.validation_accuracy for r in each.training.rounds]
        if any(len(of) != clients for of in of_clients):
            raise ValueError("not as many accuracies as clients")
        if len({len(counts) for counts in each.label_counts}) > 1:
            raise ValueError("label counts of other classes at one client than at another")
        if any(a >= b for a, b in pairwise(rounds)) or each.training.best_round not in (0, *rounds):
            raise ValueError("its rounds should ascend, and its best one be one of them")
        if isinstance(each, AttackedSeed | InferredSeed):
            _check_attacked(record.cell, each, clients)


def _check_attacked(cell: CellSpec, seed: AttackedSeed | InferredSeed, clients: int) -> None:
    # A record of schema 2 has one mean of all clients.
    if len(seed.accuracy_at_round) not in (1, clients):
        raise ValueError("not as many accuracies of the attacked round as clients")
    if cell.round.isdigit() and seed.round != int(cell.round):
        raise ValueError(f"round {seed.round} was attacked, not {cell.round}")
    each = seed.victims if isinstance(seed, AttackedSeed) else seed.statements
    if any(one.client >= cell.train.clients for one in each):
        raise ValueError(f"a victim or statement of a client beyond the {cell.train.clients} that there are")
    if isinstance(seed, AttackedSeed) and len(seed.victims) != cell.victims:
        raise ValueError(f"{len(seed.victims)} victims of a seed, where the cell has {cell.victims}")


def _check_seeds(record: Record) -> None:
    """ValueError where a seed is not the cell's, or is there twice: it would count as two trainings."""
    numbers = record.cell.seeds
    if tuple(each.seed for each in record.seeds) != numbers:
        raise ValueError("its seeds are not the cell's")
    if len(set(numbers)) < len(numbers) or min(numbers) < 0:
        raise ValueError("a seed that is negative or there twice")
    for each in record.seeds:
        of = [*getattr(each, "victims", ()), *getattr(each, "statements", ())]
        if {each.training.seed, *(one.seed for one in of)} != {each.seed}:
            raise ValueError("a training, victim or statement of another seed than the one it stands under")


def _check_statements(record: InferenceRecord) -> None:
    """ValueError where there is no statement of a seed, or one that is none on the record's question."""
    if record.question not in QUESTIONS:
        raise ValueError(f"question should be one of {', '.join(QUESTIONS)}, but {short(record.question)} was given")
    if not all(s.statements and s.accuracy_at_round for s in record.seeds):
        raise ValueError("no statements of one of its seeds")
    of_candidates = QUESTIONS[record.question].of_candidates
    for each in record.statements:
        count = len(each.true) if of_candidates else len(record.answers)
        if of_candidates and {*each.true} != {0.0, 1.0}:
            raise ValueError("a statement on candidates that are not members and others")
        if {len(each.stated), len(each.true)} != {count}:
            raise ValueError("a statement of other answers than the record's")
        if each.others is not None and (not of_candidates or len(each.others) != each.true.count(0.0)):
            raise ValueError("other images than those of which a statement says that they are no members")
    if not record.floors:
        raise ValueError("no floor that every statement has")
