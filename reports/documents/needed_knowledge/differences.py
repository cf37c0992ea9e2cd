"""Differences between two attackers on the same victims: other methods or other knowledge, of several committed tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from privbench.records.schema import AttackRecord
from reports.documents.findings import by_method
from reports.records import comparison, knowledge_sets
from reports.records.measured import Measured
from reports.records.number_text import NONE, range_text
from reports.tables import render
from reports.tables.summary.columns import in_rungs


class Attacker(NamedTuple):
    """Whoever has that knowledge, in words that are the same for every method, and attacks one method as well as it can."""

    method: str
    knowledge: str


def table(
    tables: Mapping[str, Sequence[AttackRecord]],
    rows: Mapping[str, tuple[Attacker, Attacker]],
    round_: str,
    missing: Collection[tuple[str, str]] = (),
) -> str:
    """A row a pair of attackers, a column a table: PSNR in dB of the first less that of the second, with its 95% interval.

    Bold where reports/records/comparison.py claims a difference, adjusted over the whole table.

    tables   title -> records of at least those methods at round `round_`
    rows     words of a row -> who is compared; ValueError where a table has no attack within such knowledge
    missing  (words of a row, title) of which that is known: a dash stands there. ValueError where the table has one after all
    """
    best = {title: _strongest(records, round_) for title, records in tables.items()}
    pairs = {}
    for words, attackers in rows.items():
        for title, found in best.items():
            absent = [each for each in attackers if each not in found]
            if bool(absent) != ((words, title) in missing):
                raise ValueError(f"{title}, {words}: {absent or 'nothing'} is missing")
            if not absent:
                pairs[f"{words}, {title}"] = (found[attackers[0]], found[attackers[1]])
    cells = compared(pairs)
    body = [[words, *(cells.get(f"{words}, {title}", NONE) for title in tables)] for words in rows]
    return f"{render.markdown(['difference, dB', *tables], body)}\n\n{comparison.RULE}{comparison.EACH_ALONE}"


def compared(pairs: Mapping[str, tuple[Measured, Measured]]) -> dict[str, str]:
    """Name -> the first of a pair less the second as above, adjusted over all; a dash where they have no victim in common."""
    claims = {one.name: one for one in comparison.paired([(name, *pair) for name, pair in pairs.items()])}
    return {name: _cell(claims[name]) if name in claims else NONE for name in pairs}


def _strongest(records: Sequence[AttackRecord], round_: str) -> dict[Attacker, Measured]:
    """Of every method and set of knowledge the strongest attack."""
    return {
        Attacker(method, row.knowledge): row.best
        for method, of_method in by_method(records, round_).items()
        for row in knowledge_sets.rows(in_rungs(of_method), lambda r: str(r.knowledge.tag_in_general))
    }


def _cell(one: comparison.Comparison) -> str:
    text = range_text(one.difference_db, sign=True)
    return render.bold(text) if one.differ else text
