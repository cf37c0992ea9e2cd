"""Under what the seeds of a record were computed: processor, versions, days.

A record has the environment of its first seed; a note says in what those of others differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from privbench.records.schema import Record

NAMES = ("privbench", "python", "torch", "device", "machine", "cores", "threads", "lpips", "date")
DIFFER = "the seeds differ in "
# Of what they differ in: names of processors hold commas.
BETWEEN = " | "


def notes(environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note for each way in which seeds of these environments were not computed alike."""
    return _notes({name: [str(environment.get(name)) for environment in environments] for name in NAMES})


def notes_of_pooled(records: Sequence[Record]) -> list[str]:
    """The same of all seeds of several records."""
    return _notes({name: [value for record in records for value in values(record, name)] for name in NAMES})


def is_note(note: str) -> bool:
    """Whether a note of a record says in what its seeds differ."""
    return note.startswith(DIFFER)


def values(record: Record, name: str) -> list[str]:
    """What the environments of a record's seeds say by one name of `NAMES`, each once."""
    start = f"{DIFFER}{name}: "
    for note in record.notes:
        if note.startswith(start):
            return note.removeprefix(start).split(BETWEEN)
    return [str(record.environment.get(name))]


def text(record: Record, name: str) -> str:
    """The same as one text: "AMD EPYC or Intel(R) Xeon(R) Processor"."""
    return " or ".join(values(record, name))


def _notes(each: Mapping[str, Iterable[str]]) -> list[str]:
    distinct = {name: sorted(set(values)) for name, values in each.items()}
    return [f"{DIFFER}{name}: {BETWEEN.join(values)}" for name, values in distinct.items() if len(values) > 1]
