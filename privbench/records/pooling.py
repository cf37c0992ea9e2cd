"""Records of the same cell made apart, with other seeds, as the one record of all seeds.

What a seed gives depends on the seed and the cell's other fields alone, as its attacker draws from streams of its own
(privbench.seeds.of_attacker). So seeds may be run on several days and machines, and their record is the one of a single run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from privbench.errors import UserError
from privbench.records import environments
from privbench.records.entries import AttackCost, Cost, KnowledgeUsed
from privbench.records.schema import AttackRecord, InferenceRecord, Record, check_whole
from privbench.records.summary import sources_of_labels
from privbench.records.unlike import unlike


def pooled(records: Iterable[Record]) -> list[Record]:
    """The records, those of the same cell with other seeds as one, in the order in which their cells came first.

    Records of earlier revisions stay as they are: today's code gives their cells other names. UserError: `one`.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        key = record.cell.id_but_for_seeds if record.id == record.cell.id else f"earlier {record.id}"
        groups.setdefault(key, []).append(record)
    return [one(group) for group in groups.values()]


def one(parts: Sequence[Record]) -> Record:
    """The record of all seeds of several records of the same cell.

    A seed that several of them have counts once. UserError: its numbers differ, but for times and machines; or the records say
    otherwise of data or knowledge, or make no whole one.
    """
    parts = sorted(parts, key=lambda part: part.cell.seeds)
    for other in parts[1:]:
        _check_alike(parts[0], other)
    _check_common_seeds(parts)
    first, *others = parts = _needed(parts)
    if not others:
        return first
    # The first that has a seed says when and where it was made.
    seeds = {each.seed: each for part in reversed(parts) for each in part.seeds}
    cell = first.cell.with_seeds(sorted(seeds))
    changed: dict[str, Any] = {
        "id": cell.id,
        "cell": cell,
        "notes": [*_notes(parts), *_counted_again(parts)],
        "cost": _cost([part.cost for part in parts]),
        "seeds": [seeds[seed] for seed in cell.seeds],
    }
    if isinstance(first, AttackRecord | InferenceRecord):
        labels = sources_of_labels([_knowledge(part).labels for part in parts])
        changed["knowledge"] = first.knowledge.model_copy(update={"labels": labels})
        changed["guarantee"] = "; ".join(dict.fromkeys(text for part in parts for text in _guarantees(part)))
    whole = first.model_copy(update=changed)
    try:
        check_whole(whole)
    except ValueError as error:
        raise UserError(f"the records of {_named(first)} make no whole one: {error}") from error
    return whole


def _check_common_seeds(parts: Sequence[Record]) -> None:
    """UserError where two records say otherwise of what a seed gave."""
    each: dict[int, tuple[Record, Any]] = {}
    for part in parts:
        for result in part.seeds:
            other, before = each.setdefault(result.seed, (part, result))
            if before is result:
                continue
            then, now = (of.model_dump(mode="json", serialize_as_any=True) for of in (before, result))
            if difference := next(unlike(then, now, ""), None):
                raise UserError(
                    f"two records of {_named(part)} have seed {result.seed}, and their numbers differ: {other.id} with seeds "
                    f"{_listed(other)} and {part.id} with {_listed(part)} ({difference}); leave one of them out"
                )


def _needed(parts: Sequence[Record]) -> list[Record]:
    """Without those whose seeds the others have, so that their cost is not counted again."""
    kept = dict(enumerate(parts))
    for i, part in sorted(kept.items(), key=lambda each: len(each[1].seeds)):
        if {*part.cell.seeds} <= {seed for j, other in kept.items() if j != i for seed in other.cell.seeds}:
            del kept[i]
    return list(kept.values())


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
    notes = [note for part in parts for note in part.notes if not environments.is_note(note)]
    return list(dict.fromkeys([*notes, *environments.notes_of_pooled(parts)]))


def _counted_again(parts: Sequence[Record]) -> list[str]:
    """Of which seeds the time counts more than once: a record has that of all its seeds together."""
    counts = Counter(seed for part in parts for seed in part.cell.seeds)
    again = ", ".join(str(seed) for seed, count in sorted(counts.items()) if count > 1)
    return [f"seconds and gradient evaluations count seed {again} once for each record that has it"] if again else []


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
