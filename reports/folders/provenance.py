"""Where each number of a record comes from: which file, made when, where, of what, by which revision, and how to make it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence

from privbench import spec
from privbench.records import environments, schema
from privbench.records.checks import CheckMessage
from privbench.records.schema import AttackRecord, InferenceRecord, Record
from reports.records import quotable
from reports.records.labels import label, round_label, round_text
from reports.records.number_text import NONE, spread_text
from reports.tables.report import Entry

# In this order: what bits depend on (privbench/execution/reproduce.py), and when.
ENVIRONMENT = ("machine", "cores", "device", "threads", "torch", "python", "privbench", "date")
# Of the long table, what an entry says in another way.
OWN_COLUMNS = ("seeds", "checks", "data set", "method", "attack", "accuracy")
OTHER_REVISION = "another than today's: this code gives the cell another name, and cannot make it again"


def anchor(record: Record) -> str:
    """What a row links to: by the cell's name, which has hexadecimal digits alone; a record's id may be anything."""
    return f"cell-{record.cell.id}"


def entry(
    record: Record, scores: Mapping[str, str], messages: Sequence[CheckMessage], folder: str, *, is_folder: bool
) -> Entry:
    """The facts of one record; `scores` are its row of the long table, `folder` the name of where it lies."""
    facts = [
        ("record", record.id),
        *([("file", f"{folder}/cells/{record.id}/{schema.FILE_NAME}")] if is_folder else [("file", folder)]),
        ("digest (SHA-256)", schema.content_digest_of(record)),
        ("schema", str(record.schema_version)),
        ("seeds", ", ".join(str(s.seed) for s in record.seeds)),
        ("training runs", ", ".join(each.id for each in record.cell.train_specs())),
        ("revision", revision(record)),
        *((name, environments.text(record, name)) for name in ENVIRONMENT if record.environment.get(name) is not None),
        *(("note", note) for note in record.notes),
        ("accuracy of each seed, %", _accuracies(record)),
        *((name, text) for name, text in scores.items() if name not in OWN_COLUMNS and text not in (NONE, "")),
        *_of_attack(record),
        ("specification", json.dumps(record.cell.model_dump(mode="json"))),
    ]
    again = is_folder and record.id == record.cell.id
    command = f"privbench reproduce {record.id} --out {shlex.quote(folder)}" if again else ""
    # Sentences name scores.
    is_quotable = quotable.is_quotable(record.cell.preset)
    notes = [f"{message.name}: {message.sentence}." if is_quotable else message.name for message in messages]
    return Entry(anchor(record), f"{record.id}: {title(record)}", facts, notes, command)


def title(record: Record) -> str:
    """Data set, method, attack and round in one line."""
    attack = ""
    if isinstance(record, AttackRecord | InferenceRecord):
        where = round_label(record) if isinstance(record, AttackRecord) else round_text(record.cell.round)
        attack = f", {record.attack}, round {where}"
    return f"{record.cell.train.dataset}, {label(record.cell)}{attack}"


def revision(record: Record) -> str:
    """Whose code made the record, as far as its name says: that is a hash with the revisions in it."""
    if record.id != record.cell.id:
        return OTHER_REVISION
    if record.cell.attack is None:
        return f"training {spec.REVISION}"
    of_attack = f", this attack {record.cell.attack_revision}" if record.cell.attack_revision else ""
    return f"training {spec.REVISION}, attacks {spec.ATTACK_REVISION}{of_attack}"


def _accuracies(record: Record) -> str:
    accuracy = record.accuracy
    each = ", ".join(f"{value:.2f}" for value in accuracy.per_seed)
    return f"{each}; mean {spread_text(accuracy.mean, accuracy.std)}"


def _of_attack(record: Record) -> list[tuple[str, str]]:
    """What an attack's record has beyond its scores."""
    if not isinstance(record, AttackRecord):
        return []
    floors = ", ".join(f"{name} {value:.2f}" for name, value in record.floors.items())
    auxiliary = record.knowledge.auxiliary
    images = "none" if auxiliary is None else f"{auxiliary.images} of {auxiliary.dataset}"
    return [
        *([("floors, dB", floors)] if quotable.is_quotable(record.cell.preset) else []),
        ("needs", ", ".join(record.knowledge.needs) or "nothing"),
        ("auxiliary images", images),
        ("restart chosen by", record.knowledge.restart_chosen_by),
        ("guarantee", record.guarantee),
        ("training, s", f"{record.cost.train_seconds:.0f}"),
        ("gradient evaluations", str(record.cost.gradient_evaluations)),
    ]
