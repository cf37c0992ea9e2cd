"""The records behind the published tables: docs/results/records/<table>.jsonl.xz, one record a line, compressed with xz.

A page of docs/results that has no such file says so in a line of its own (NO_RECORDS).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from privbench import registry
from privbench.records import pooling, record_lines
from privbench.records.entries import Name
from privbench.records.schema import AttackRecord, Record
from reports.records import labels
from reports.studies import definition
from reports.tables import sweep

FOLDER = Path("docs/results")
NO_RECORDS = "No records of this table are committed"


def path_of(root: Path, name: str) -> Path:
    """Where the records of a table lie."""
    return root / FOLDER / "records" / f"{name}{record_lines.ENDING}"


def names(root: Path) -> list[str]:
    """Of all tables that have records."""
    return sorted(
        path.name.removesuffix(record_lines.ENDING)
        for path in (root / FOLDER / "records").glob(f"*{record_lines.ENDING}")
    )


@cache
def read(path: Path) -> tuple[Record, ...]:
    """The records of one table; UserError where one is damaged.

    Those of the best round come first, then attacks and methods in the registry's order, then defences by name and numbers.
    """
    return tuple(sorted(_with_floors_identified(record_lines.read(path)), key=_place))


def _with_floors_identified(records: Sequence[Record]) -> list[Record]:
    """The same. What floors identify is taken from their records on the same victims where a record does not say it."""
    floors: dict[tuple[Any, ...], dict[Name, dict[str, float]]] = {}
    for r in records:
        if r.cell.attack in registry.FLOORS and isinstance(r, AttackRecord):
            for each in r.seeds:
                of_seed = floors.setdefault(_networks(r, each.seed), {})
                for v in each.victims:
                    of_seed.setdefault(v.name, {})[r.attack] = v.identification
    return [_filled(r, floors) if floors and isinstance(r, AttackRecord) else r for r in records]


def _networks(record: AttackRecord, seed: int) -> tuple[Any, ...]:
    """Whose victims those of a seed are: its training, the attacked round, and what is observed."""
    cell = record.cell.with_seeds([seed])
    return cell.train.id, cell.round, cell.observe, cell.batch_size, cell.wire


def _filled(record: AttackRecord, floors: Mapping[tuple[Any, ...], Mapping[Name, dict[str, float]]]) -> AttackRecord:
    seeds = []
    for each in record.seeds:
        known = floors.get(_networks(record, each.seed), {})
        victims = [
            v
            if v.floors_identified or v.name not in known
            else v.model_copy(update={"floors_identified": known[v.name]})
            for v in each.victims
        ]
        seeds.append(each.model_copy(update={"victims": victims}))
    return record.model_copy(update={"seeds": seeds})


def _place(record: Record) -> tuple[Any, ...]:
    """Where a record stands among those of a table; what else distinguishes cells goes by their ids."""
    round_, attack = labels.round_place(record.cell.round), record.cell.attack
    train = record.cell.train
    return (
        not round_[0], round_, _number(attack, registry.ATTACKS), _number(train.method, registry.METHODS),
        train.defense != "none", _by_numbers(train.defense), record.id,
    )  # fmt: skip


def _number(name: str | None, catalogue: Iterable[str]) -> int:
    names = list(catalogue)
    return names.index(name) if name in names else -1


def _by_numbers(text: str) -> list[tuple[bool, float, str]]:
    """A key by which 0.5 stands before 5, and 8 before 50."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(number % 2 == 1, float(part) if number % 2 else 0.0, part) for number, part in enumerate(parts)]


def read_all(root: Path, names: Iterable[str]) -> list[Record]:
    """The records of several tables, one table after the other."""
    return [record for name in names for record in read(path_of(root, name))]


def attacked(root: Path, name: str, dataset: str | None = None) -> list[AttackRecord]:
    """The records of attacks of one table; on one data set alone where it is named."""
    records = [r for r in read(path_of(root, name)) if isinstance(r, AttackRecord)]
    return [r for r in records if dataset in (None, r.cell.train.dataset)]


def of_most_seeds(root: Path, names: Iterable[str]) -> list[AttackRecord]:
    """The attacks of some tables, seeds that were run apart together; of a method and round those alone that have all its seeds.

    An attack that was made on fewer of them is no rival of the others: its seeds may be easier ones.
    """
    records = [r for r in pooling.pooled(read_all(root, names)) if isinstance(r, AttackRecord)]
    most: dict[tuple[str, str], int] = {}
    for r in records:
        at = labels.label(r.cell), r.cell.round
        most[at] = max(most.get(at, 0), len(r.cell.seeds))
    return sorted((r for r in records if len(r.cell.seeds) == most[labels.label(r.cell), r.cell.round]), key=_place)


def seed_by_seed(record: Record) -> list[Record]:
    """The record of each seed by itself."""
    return [
        record.model_copy(update={"cell": record.cell.with_seeds([each.seed]), "seeds": [each]})
        for each in record.seeds
    ]


def of_attacks(name: str, text: Callable[..., str], *more: object) -> Callable[[Path], str]:
    """A block made of the attack records of one table."""
    return lambda root: text(attacked(root, name), *more)


def of_seeds(names: Sequence[str], text: Callable[..., str], *more: object) -> Callable[[Path], str]:
    """The same of several tables of one study, seeds that were run apart together."""
    return lambda root: text(of_most_seeds(root, names), *more)


def of_all(name: str, text: Callable[..., str], *more: object) -> Callable[[Path], str]:
    """A block made of every record of one table."""
    return lambda root: text(read(path_of(root, name)), *more)


def in_order(name: str, records: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Records of a study in the order of what it sweeps, data sets as it names them, others last."""
    study = definition.read(name)
    named = [*study.embedded, *(data.name for data in study.data)]
    place = {dataset: i for i, dataset in enumerate(named)}
    ordered = sweep.in_order(study.sweep, records)
    return sorted(ordered, key=lambda r: place.get(r.cell.train.dataset, len(named)))


def without_records(root: Path) -> list[str]:
    """The pages of docs/results that have no records and do not say so."""
    return [
        page.name
        for page in sorted((root / FOLDER).glob("*.md"))
        if not path_of(root, page.stem).exists() and NO_RECORDS not in page.read_text(encoding="utf-8")
    ]
