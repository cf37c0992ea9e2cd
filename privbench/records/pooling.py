"""Records of the same cell made apart, with other seeds, as the one record of all seeds.

What a seed gives depends on the seed and the cell's other fields alone, as its attacker draws from streams of its own
(privbench.seeds.of_attacker). So seeds may be run on several days and machines, and their record is the one of a single run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from privbench.errors import UserError
from privbench.records.entries import TIMED, AttackCost, Cost, KnowledgeUsed
from privbench.records.schema import AttackRecord, InferenceRecord, Record
from privbench.records.summary import BETWEEN, DIFFER, mixed, sources_of_labels


def pooled(records: Iterable[Record]) -> list[Record]:
    """The records, those of the same cell with other seeds as one, in the order in which their cells came first.

    Records of earlier revisions stay as they are: today's code gives their cells other names. UserError: `one`.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        key = record.cell.with_seeds([0]).id if record.id == record.cell.id else f"earlier {record.id}"
        groups.setdefault(key, []).append(record)
    return [one(group) for group in groups.values()]


def one(parts: Sequence[Record]) -> Record:
    """The record of all seeds of several records of the same cell.

    A seed that several of them have counts once. UserError: its numbers differ, but for times and machines; or the records say
    otherwise of data or knowledge.
    """
    parts = _distinct(parts)
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    for other in parts[1:]:
        _check_alike(first, other)
    seeds = [each for _, each in sorted(_seeds(parts).items())]
    parts = _needed(parts)
    if len(parts) == 1:
        return parts[0]
    cell = first.cell.with_seeds([each.seed for each in seeds])
    changed: dict[str, Any] = {
        "id": cell.id,
        "cell": cell,
        "notes": _notes(parts),
        "cost": _cost([part.cost for part in parts]),
        "seeds": seeds,
    }
    if isinstance(first, AttackRecord | InferenceRecord):
        labels = sources_of_labels([_knowledge(part).labels for part in parts])
        changed["knowledge"] = first.knowledge.model_copy(update={"labels": labels})
        changed["guarantee"] = "; ".join(dict.fromkeys(text for part in parts for text in _guarantees(part)))
    return first.model_copy(update=changed)


def _distinct(parts: Sequence[Record]) -> list[Record]:
    """By their first seeds, a record that is there twice once."""
    kept: list[Record] = []
    for part in sorted(parts, key=lambda part: part.cell.seeds):
        if part not in kept:
            kept.append(part)
    return kept


def _seeds(parts: Sequence[Record]) -> dict[int, Any]:
    """What each seed gave; UserError where two records say otherwise of it."""
    each: dict[int, tuple[Record, Any]] = {}
    for part in parts:
        for result in part.seeds:
            other, before = each.setdefault(result.seed, (part, result))
            if before is not result and _numbers(before.model_dump()) != _numbers(result.model_dump()):
                raise UserError(
                    f"two records of {_named(part)} have seed {result.seed}, and their numbers differ: {other.id} with seeds "
                    f"{_listed(other)} and {part.id} with {_listed(part)}; leave one of them out"
                )
    return {seed: result for seed, (_, result) in each.items()}


def _needed(parts: Sequence[Record]) -> list[Record]:
    """Without those whose seeds the others have, so that their cost is not counted again."""
    kept = list(parts)
    for part in sorted(parts, key=lambda part: len(part.seeds)):
        others = {seed for each in kept if each is not part for seed in each.cell.seeds}
        if {*part.cell.seeds} <= others:
            kept.remove(part)
    return kept


def _numbers(value: Any) -> Any:
    """A result without times and machines."""
    if isinstance(value, dict):
        return {name: _numbers(one) for name, one in value.items() if name not in TIMED}
    return [_numbers(one) for one in value] if isinstance(value, list) else value


def _named(record: Record) -> str:
    attack = "" if record.cell.attack is None else f", {record.cell.attack}"
    return f"{record.cell.train.method} on {record.cell.train.dataset}{attack}"


def _listed(record: Record) -> str:
    return ", ".join(map(str, record.cell.seeds))


def _check_alike(first: Record, other: Record) -> None:
    """UserError where what is said once for all seeds differs."""
    for name in ("classes", "class_names", "client_domains", "question", "answers"):
        if getattr(first, name, None) != getattr(other, name, None):
            raise UserError(f"records {first.id} and {other.id} are of the same cell, but their {name} differ")
    if isinstance(first, AttackRecord | InferenceRecord) and _tag(first) != _tag(other):
        raise UserError(
            f"records {first.id} and {other.id} are of the same cell, but their attackers know other things"
        )


def _tag(record: Record) -> tuple[str, str]:
    used = _knowledge(record)
    return used.tag, used.tag_in_general


def _knowledge(record: Record) -> KnowledgeUsed:
    assert isinstance(record, AttackRecord | InferenceRecord), "of an attacked cell"
    return record.knowledge


def _guarantees(record: Record) -> list[str]:
    """That of each of its seeds, equal ones once."""
    assert isinstance(record, AttackRecord | InferenceRecord), "of an attacked cell"
    return record.guarantee.split("; ")


def _notes(parts: Sequence[Record]) -> list[str]:
    """Those of all parts; in what their seeds differ is said once, of all of them."""
    notes, kinds = [], []
    for part in parts:
        kinds.append(part.environment)
        for note in part.notes:
            if note.startswith(DIFFER):
                key, _, values = note.removeprefix(DIFFER).partition(": ")
                kinds += [part.environment | {key: value} for value in values.split(BETWEEN)]
            else:
                notes.append(note)
    return list(dict.fromkeys([*notes, *mixed(kinds)]))


def _cost(each: Sequence[Cost]) -> Cost:
    """All seeds' time, and the most memory that one of them took."""
    total: dict[str, Any] = {
        "train_seconds": sum(cost.train_seconds for cost in each),
        "peak_memory_mib": max(cost.peak_memory_mib for cost in each),
    }
    attacked = [cost for cost in each if isinstance(cost, AttackCost)]
    if not attacked:
        return Cost(**total)
    return AttackCost(
        **total,
        attack_seconds=sum(cost.attack_seconds for cost in attacked),
        gradient_evaluations=sum(cost.gradient_evaluations for cost in attacked),
    )
