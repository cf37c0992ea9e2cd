"""What committed records there are: which seeds of the published settings were trained and attacked, and what earlier code made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from privbench import presets, registry
from privbench.records.schema import Record
from reports.records.labels import label, place, round_place, unique
from reports.records.number_text import NONE, whole_numbers
from reports.tables import render

COLUMNS = ("data set", "method", "seeds trained", "rounds attacked (seeds)")


def table(records: Sequence[Record]) -> str:
    """A row a data set and method. Each record with an attack stands for its training, too."""
    ordered = sorted(records, key=lambda r: (registry.short(r.cell.train.dataset), place(r.cell)))
    rows = []
    for dataset, method in unique((registry.short(r.cell.train.dataset), label(r.cell)) for r in ordered):
        of_run = [r for r in ordered if (registry.short(r.cell.train.dataset), label(r.cell)) == (dataset, method)]
        rows.append([dataset, method, _seeds(of_run), _rounds([r for r in of_run if r.cell.attack])])
    return render.markdown(COLUMNS, rows)


def earlier_revisions(tables: Mapping[str, Sequence[Record]]) -> str:
    """A row a table and attack whose code changed after its records were made, in a way that could change what it returns.

    tables   name -> records
    """
    rows = []
    for name, records in tables.items():
        old = [r.cell for r in records if not presets.is_of_today(r.cell)]
        changes = Counter((c.attack or "", c.attack_revision, presets.revision_of(c)) for c in old)
        rows += [
            [f"`{name}`", f"`{attack}`", str(then), str(now), str(count)]
            for (attack, then, now), count in sorted(changes.items())
        ]
    return render.markdown(("records", "attack", "their revision", "today's", "rows"), rows)


def _rounds(attacked: Sequence[Record]) -> str:
    """The attacked rounds in order, those next to each other that have the same seeds together."""
    rounds = sorted({r.cell.round for r in attacked}, key=round_place)
    each = [(name, _seeds([r for r in attacked if r.cell.round == name])) for name in rounds]
    groups = [(seeds, ", ".join(name for name, _ in group)) for seeds, group in groupby(each, key=itemgetter(1))]
    return "; ".join(f"{names} ({seeds})" for seeds, names in groups) or NONE


def _seeds(records: Sequence[Record]) -> str:
    seeds = sorted({seed for r in records for seed in r.cell.seeds})
    return whole_numbers(seeds) if seeds else NONE
