"""How long the trained runs of a table took: a row a method, made of the seconds that each round of a record says."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from privbench.records.schema import Record
from reports.documents.model_accuracy import by_label
from reports.records.number_text import span, whole_numbers
from reports.tables import render

COLUMNS = ("method", "seeds", "rounds a seed", "least s a round", "median", "most", "minutes a seed, at the median")


def table(records: Sequence[Record]) -> str:
    """Wall time of each method's rounds, over its seeds; the median says what a round costs where a run was paused in others."""
    rows = []
    for name, record in by_label(records).items():
        rounds = [entry for training in record.training for entry in training.rounds]
        seconds = [entry.seconds for entry in rounds]
        usual = median(seconds)
        rows.append([
            name, whole_numbers(record.cell.seeds), span(sorted({len(training.rounds) for training in record.training})),
            f"{min(seconds):,.0f}", f"{usual:,.0f}", f"{max(seconds):,.0f}",
            f"{usual * len(rounds) / len(record.training) / 60:,.0f}",
        ])  # fmt: skip
    return render.markdown(COLUMNS, rows)
