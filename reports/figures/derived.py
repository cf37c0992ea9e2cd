"""Published numbers that several clients, rounds or methods go into: relative test accuracy, losses, leads in precision.

A pure function of records. NFL-CGAN prints them of Figures 3, 4, 6, 7 and 8, in its text: the relative test accuracy of a
client, and the least, mean and largest over clients; the training loss after the fifth and after the last round; by how many
points its precision exceeds that of the next best method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from privbench.records.schema import Record
from reports.figures import client_bars, curves
from reports.records import grouping, published
from reports.records.number_text import measured_otherwise, published_text
from reports.records.published import Published
from reports.tables.report import Report, Table
from reports.tables.training.accuracy_table import METRICS

LEADER = "nfl-cgan"
COLUMNS = ["", "what", "here", "published", "difference"]
Quantities = Mapping[str, float]  # published.PublishedRow.metric -> what it is here


class DerivedNumber(NamedTuple):
    """One published number with what it is here."""

    setting: str
    row: str
    metric: str
    measured: float
    printed: Published


def relative_test_accuracy(
    records: Sequence[Record], key: grouping.Setting
) -> Iterator[tuple[str, Record, Quantities]]:
    """Of each client, mean over seeds; clients A to D are 1 to 4."""
    local, others = client_bars.compared(records, key)
    if local is None:
        return
    for name, r in others.items():
        each = [mean for mean, _ in client_bars.values(r, local, client_bars.KINDS["rta"])]
        means = [mean for mean in each if mean is not None]
        quantities = {f"rta_client_{k + 1}": mean for k, mean in enumerate(each) if mean is not None}
        if means and len(means) == len(each):
            quantities |= {"rta_min": min(means), "rta_mean": fmean(means), "rta_max": max(means)}
        yield name, r, quantities


def training_loss(records: Sequence[Record], key: grouping.Setting) -> Iterator[tuple[str, Record, Quantities]]:
    """After the fifth and after the last round, mean over clients and seeds."""
    for name, r in grouping.chosen(records, key).items():
        series = [mean for mean, _ in curves.series(r, curves.QUANTITIES["loss"])]
        yield (
            name,
            r,
            {
                f"loss_{what}": loss
                for what, losses in (("round_5", series[4:5]), ("last", series[-1:]))
                for loss in losses
            },
        )


def precision_lead(records: Sequence[Record], key: grouping.Setting) -> Iterator[tuple[str, Record, Quantities]]:
    """NFL-CGAN's macro precision less that of each other method, points."""
    chosen = grouping.chosen(records, key)
    leader = next((r for r in chosen.values() if r.cell.train.method == LEADER), None)
    best = None if leader is None else METRICS["precision"].of(leader)[0]
    for name, r in chosen.items():
        mean = METRICS["precision"].of(r)[0]
        yield name, r, {} if best is None or mean is None else {"precision_lead": best - mean}


class Kind(NamedTuple):
    """One sort of number, and the report that it stands in."""

    title: str
    of: Callable[[Sequence[Record], grouping.Setting], Iterator[tuple[str, Record, Quantities]]]
    digits: int


KINDS = {
    "rta": Kind("Relative test accuracy, beside the published values", relative_test_accuracy, 3),
    "curves": Kind("Training loss, beside the published values", training_loss, 3),
    "accuracy": Kind("Lead of NFL-CGAN in macro precision, points, beside the published values", precision_lead, 2),
}
NAMES = {
    "rta_min": "lowest client", "rta_mean": "mean over clients", "rta_max": "highest client", "loss_round_5": "after round 5",
    "loss_last": "after the last round", "precision_lead": "lead over this method",
}  # fmt: skip


def lines(records: Sequence[Record], name: str, first: Sequence[str] = ()) -> list[DerivedNumber]:
    """Every published number of one kind whose cells are among the records."""
    return [
        DerivedNumber(grouping.short_title(key), row, metric, measured, printed)
        for key in grouping.settings(records)
        for row, r, quantities in KINDS[name].of(records, key)
        for metric, measured in quantities.items()
        if (printed := published.of(r.cell, metric, first)) is not None
    ]


def beside(report: Report, records: Sequence[Record], name: str, first: Sequence[str] = ()) -> Report:
    """A report with the published numbers of its kind as a last table; as it is where nothing is published."""
    derived_numbers = lines(records, name, first) if name in KINDS else []
    if not derived_numbers:
        return report
    kind = KINDS[name]
    body = [
        [f"{line.setting}, {line.row}", _what(line.metric), *_texts(line, kind.digits)]
        for line in derived_numbers
    ]  # fmt: skip
    sources = ", ".join(sorted({line.printed.source for line in derived_numbers}))
    notes = [f"{kind.title}: {sources}.", *measured_otherwise(line.printed for line in derived_numbers)]
    numbers = [
        {
            "setting": line.setting,
            "row": line.row,
            "quantity": line.metric,
            "mean": line.measured,
            "published": line.printed.value,
            "difference": line.measured - line.printed.value,
            "source": line.printed.source,
        }
        for line in derived_numbers
    ]
    return report._replace(
        tables=[*report.tables, Table(kind.title, COLUMNS, body, notes=notes)], numbers=[*report.numbers, *numbers]
    )


def _what(metric: str) -> str:
    return NAMES.get(metric, metric.removeprefix("rta_").replace("_", " "))


def _texts(line: DerivedNumber, digits: int) -> list[str]:
    printed = line.printed.value
    return [
        f"{line.measured:.{digits}f}",
        published_text(line.printed, digits),
        f"{line.measured - printed:+.{digits}f}",
    ]
