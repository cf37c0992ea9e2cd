"""What people say of a defence, beside every attack that was measured on it: by whom, how much, and what is guaranteed.

The verdict follows from the rows: one attacker who surely gains over the floor refutes a claim of protection for what it knows. No
number of failed attacks proves one.
"""

from __future__ import annotations

from collections.abc import Sequence

from privbench import registry
from privbench.records.schema import AttackRecord
from reports.documents.findings import WHEN, by_method
from reports.records import guarantees, measured
from reports.records.labels import knowledge_text
from reports.records.number_text import range_text, spread_text
from reports.tables import render
from reports.tables.sentences import machines

COLUMNS = ("defence", "attacked", "attack", "it knows", "PSNR, dB", "over the floor, dB", "epsilon", "accuracy, %")


def of_claim(records: Sequence[AttackRecord], columns: Sequence[str]) -> str:
    """A verdict and a table: a row for each attack on each of some columns, at each round.

    ValueError: a column without a record.
    """
    rows, refuted, few = [], [], False
    for round_, words in WHEN.items():
        of_column = by_method(records, round_)
        for name in columns:
            attacks = [r for r in of_column.get(name, []) if r.attack not in registry.FLOORS]
            for record in attacks:
                row = measured.of(record)
                gain = range_text(row.gain_db, sign=True)
                accuracy = spread_text(record.accuracy.mean, record.accuracy.std, 1).replace("+-", "±")
                rows.append(
                    [
                        name, words, f"`{record.attack}`", knowledge_text(record), range_text(row.psnr_db),
                        render.bold(gain) if row.is_sure else gain, guarantees.whole_text(record), accuracy,
                    ]
                )  # fmt: skip
                few |= row.gain_db.is_few
                if row.gain_db.surely_above:
                    refuted.append(f"{name}, {words}, by `{record.attack}` ({knowledge_text(record)})")
    absent = [name for name in columns if not any(row[0] == name for row in rows)]
    if absent:
        raise ValueError(f"no attack on {', '.join(absent)} is among the records")
    return f"{verdict(refuted, few)}\n\n{render.markdown(COLUMNS, rows)}\n\n{machines(records)}."


def verdict(refuted: Sequence[str], few: bool) -> str:
    """What follows for a claim, from who surely gains over the floor and whether seeds are too few to be sure of anything."""
    if refuted:
        return f"**It does not hold** for {'; '.join(refuted)}: a sure gain over the floor."
    if few:
        return "**Not answered yet:** seeds are too few for a sure gain. The rows are observations."
    return (
        "**Not refuted here:** no attack below surely gains over the floor. This bounds these attackers and no others."
    )
