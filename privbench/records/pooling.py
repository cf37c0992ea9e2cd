"""Records of the same cell made apart, with other seeds, as the one record of all seeds.

What a seed gives depends on the seed and the cell's other fields alone, as its attacker draws from streams of its own
(privbench.seeds.of_attacker). So seeds may be run on several days and machines, and their record is the one of a single run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from privbench.errors import UserError
from privbench.records.entries import AttackCost, Cost, KnowledgeUsed
from privbench.records.schema import AttackRecord, InferenceRecord, Record
from privbench.records.summary import mixed, sources_of_labels


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

    UserError: two of them have a seed in common and differ, or they say otherwise of data or knowledge.
    """
    parts = _distinct(parts)
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    for other in parts[1:]:
        _check_alike(first, other)
    seeds = sorted((seed for part in parts for seed in part.seeds), key=lambda each: each.seed)
    cell = first.cell.with_seeds([each.seed for each in seeds])
    notes = [note for part in parts for note in part.notes]
    changed: dict[str, Any] = {
        "id": cell.id,
        "cell": cell,
        "notes": list(dict.fromkeys([*notes, *mixed([part.environment for part in parts])])),
        "cost": _cost([part.cost for part in parts]),
        "seeds": seeds,
    }
    if isinstance(first, AttackRecord | InferenceRecord):
        labels = sources_of_labels([_knowledge(part).labels for part in parts])
        changed["knowledge"] = first.knowledge.model_copy(update={"labels": labels})
        changed["guarantee"] = "; ".join(dict.fromkeys(_guarantee(part) for part in parts))
    return first.model_copy(update=changed)


def _distinct(parts: Sequence[Record]) -> list[Record]:
    """By their first seeds, a record that is there twice once; UserError where two others have a seed in common."""
    kept: list[Record] = []
    for part in sorted(parts, key=lambda part: part.cell.seeds[0]):
        if part in kept:
            continue
        for other in kept:
            common = sorted({*part.cell.seeds} & {*other.cell.seeds})
            if common:
                raise UserError(
                    f"records {other.id} and {part.id} are of the same cell, and both have seed {common[0]}; name only one of them"
                )
        kept.append(part)
    return kept


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


def _guarantee(record: Record) -> str:
    assert isinstance(record, AttackRecord | InferenceRecord), "of an attacked cell"
    return record.guarantee


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
