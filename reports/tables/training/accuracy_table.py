"""The accuracy table: methods down, data sets and layouts across, mean and standard deviation over seeds, the best in bold.

A pure function of records and gaps. Where a value was published for exactly such a cell, it stands beside with the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from privbench.records.means import Spread
from privbench.records.schema import Record
from reports.records import grouping, guarantees, published, remarks
from reports.records.grouping import Setting
from reports.records.labels import Gap, fields_of, unique
from reports.records.number_text import NONE, measured_otherwise, published_text, spread_text
from reports.tables import render
from reports.tables.report import Report, Table


class Metric(NamedTuple):
    """A column of the record as a table shows it."""

    title: str
    short: str
    of: Callable[[Record], tuple[float | None, float | None]]  # (mean, std over seeds)
    digits: int = 2
    lower_is_better: bool = False
    ranked: bool = True  # whether a best one is named


def _average(name: str) -> Callable[[Record], tuple[float | None, float | None]]:
    def of(r: Record) -> tuple[float | None, float | None]:
        spread: Spread = getattr(r.averages, name)
        return spread.mean, spread.std

    return of


def _over_seeds(values: Sequence[float]) -> tuple[float | None, float | None]:
    if not values:
        return None, None
    return fmean(values), stdev(values) if len(values) > 1 else None


def _sent(r: Record) -> tuple[float | None, float | None]:
    """MB that a client sends in a round, mean over clients and rounds."""
    each = [fmean(fmean(entry.bytes_up) for entry in t.rounds) / 1e6 for t in r.training if t.rounds]
    return _over_seeds(each)[0], None


def _seconds(r: Record) -> tuple[float | None, float | None]:
    return _over_seeds([fmean(entry.seconds for entry in t.rounds) for t in r.training if t.rounds])


METRICS = {
    "accuracy": Metric(
        "test accuracy of the clients' own models (L.acc), %", "L.acc, %", lambda r: (r.accuracy.mean, r.accuracy.std)
    ),
    "global_accuracy": Metric("accuracy of the averaged models (G.acc), %", "G.acc, %", _average("global_accuracy")),
    "precision": Metric("macro precision, %", "precision, %", _average("precision")),
    "recall": Metric("macro recall, %", "recall, %", _average("recall")),
    "f1": Metric("macro F1, %", "F1, %", _average("f1")),
    "false_positive_rate": Metric(
        "false-positive rate, %", "FPR, %", _average("false_positive_rate"), lower_is_better=True
    ),
    "auc": Metric("area under the ROC curve", "AUC", _average("auc"), 3),
    "consistency": Metric(
        "consistency loss of generator and classifier, nats",
        "consistency, nats",
        _average("consistency"),
        3,
        lower_is_better=True,
    ),
    "bytes_up": Metric("sent per client and round, MB", "sent, MB", _sent, 3, ranked=False),
    "seconds": Metric("training seconds per round", "s per round", _seconds, 2, ranked=False),
}
WIDE = 3  # settings with published values beside them that a page takes


def how(records: Sequence[Record]) -> str:
    """Of which model, in which round, the numbers are."""
    return (
        f"Every client's {remarks.whose(records)} model at its best validation round; mean over clients, +- standard deviation "
        f"over seeds; the best in bold; '{NONE}': there is no such number."
    )


def report(records: Sequence[Record], gaps: Sequence[Gap], metrics: Sequence[str], first: Sequence[str] = ()) -> Report:
    """One table per metric over all settings (of one setting a single table), then those with published values beside.

    `first` are the published tables that go before others with a value of the same cell.
    """
    keys = grouping.settings(records)
    names = unique([grouping.row(r.cell) for r in records] + [grouping.row(g.cell) for g in gaps])
    if len(keys) == 1 and len(metrics) > 1:
        forms = [_one_setting(records, gaps, keys[0], names, metrics)]
    else:
        forms = [_overview(records, gaps, keys, names, metric) for metric in metrics]
        forms += [_epsilons(records, keys, names)] if guarantees.any_stated(records) else []
    for metric in metrics:
        compared = [
            k for k in keys if any(published.of(r.cell, metric, first) for r in grouping.chosen(records, k).values())
        ]
        forms += [_beside(records, gaps, part, names, metric, first) for part in _parts(compared)]
    numbers = [
        _numbers(r, metric, first) | guarantees.columns(r, records)
        for key in keys
        for r in grouping.chosen(records, key).values()
        for metric in metrics
    ]
    notes = [
        *remarks.training_header(records),
        *remarks.near_chance(records),
        how(records),
        *guarantees.how(records),
        *guarantees.coverage(records),
        *(line for key in keys for line in grouping.searched(records, key)),
        *_published_notes(records, keys, metrics, first),
    ]
    return Report("Accuracy table", notes, forms, numbers)


def _parts(keys: Sequence[Setting]) -> list[list[Setting]]:
    """Settings of one data set in one table, unless they are too many."""
    parts = []
    for dataset in unique(key[0] for key in keys):
        of_dataset = [key for key in keys if key[0] == dataset]
        parts += [of_dataset[i : i + WIDE] for i in range(0, len(of_dataset), WIDE)]
    return parts


def _overview(
    records: Sequence[Record], gaps: Sequence[Gap], keys: Sequence[Setting], names: Sequence[str], metric: str
) -> Table:
    """Every setting; methods without any such number, as without a generator, are left out."""
    columns = [_column(records, gaps, key, names, metric) for key in keys]
    body = [list(cells) for cells in zip(names, *columns, strict=True) if set(cells[1:]) != {NONE}]
    return Table(METRICS[metric].title, ["", *map(grouping.short_title, keys)], body)


def _one_setting(
    records: Sequence[Record], gaps: Sequence[Gap], key: Setting, names: Sequence[str], metrics: Sequence[str]
) -> Table:
    columns = [_column(records, gaps, key, names, metric) for metric in metrics]
    headings = ["", *(METRICS[metric].short for metric in metrics)]
    if guarantees.any_stated(records):
        headings.append(guarantees.EPSILON)
        columns.append(_epsilon_column(records, key, names))
    return Table(grouping.title(key), headings, [list(cells) for cells in zip(names, *columns, strict=True)])


def _epsilons(records: Sequence[Record], keys: Sequence[Setting], names: Sequence[str]) -> Table:
    """What is guaranteed in every setting; methods that guarantee nothing anywhere are left out."""
    columns = [_epsilon_column(records, key, names) for key in keys]
    body = [list(cells) for cells in zip(names, *columns, strict=True) if {*cells[1:]} - {NONE, guarantees.NO_BOUND}]
    return Table("epsilon of the worst client", ["", *map(grouping.short_title, keys)], body)


def _epsilon_column(records: Sequence[Record], key: Setting, names: Sequence[str]) -> list[str]:
    chosen = grouping.chosen(records, key)
    return [guarantees.whole_text(chosen[name]) if name in chosen else NONE for name in names]


def _beside(
    records: Sequence[Record],
    gaps: Sequence[Gap],
    keys: Sequence[Setting],
    names: Sequence[str],
    metric: str,
    first: Sequence[str],
) -> Table:
    """Measured, published, difference of each setting."""
    columns: list[list[str]] = []
    headings = [""]
    for key in keys:
        chosen = grouping.chosen(records, key)
        lost = {grouping.row(g.cell): g.cell for g in gaps if grouping.setting(g.cell) == key}
        specs = {name: chosen[name].cell if name in chosen else lost.get(name) for name in names}
        printed = {name: None if cell is None else published.of(cell, metric, first) for name, cell in specs.items()}
        headings += [grouping.short_title(key), "published", "difference"]
        columns.append(_column(records, gaps, key, names, metric))
        columns.append([published_text(f, METRICS[metric].digits) for f in printed.values()])
        columns.append([_difference(chosen.get(name), f.value if f else None, metric) for name, f in printed.items()])
    title = f"{METRICS[metric].title}, beside the published values"
    return Table(title, headings, [list(cells) for cells in zip(names, *columns, strict=True)])


def _column(
    records: Sequence[Record], gaps: Sequence[Gap], key: Setting, names: Sequence[str], metric: str
) -> list[str]:
    """The cells of one setting; the best as printed is bold, and so are all that are printed alike."""
    how, chosen = METRICS[metric], grouping.chosen(records, key)
    lost = {grouping.row(g.cell): g.state for g in gaps if grouping.setting(g.cell) == key}
    means = {name: round(m, how.digits) for name, r in chosen.items() if (m := how.of(r)[0]) is not None}
    best = (
        (min if how.lower_is_better else max)(means.values()) if len(set(means.values())) > 1 and how.ranked else None
    )
    texts = []
    for name in names:
        if name not in chosen:
            texts.append(lost.get(name, NONE))
            continue
        text = _text(*how.of(chosen[name]), how)
        texts.append(render.bold(text) if best is not None and means.get(name) == best else text)
    return texts


def _text(mean: float | None, std: float | None, how: Metric) -> str:
    return NONE if mean is None else spread_text(mean, std, how.digits)


def _difference(record: Record | None, value: float | None, metric: str) -> str:
    mean = METRICS[metric].of(record)[0] if record is not None else None
    return NONE if mean is None or value is None else f"{mean - value:+.{METRICS[metric].digits}f}"


def _numbers(r: Record, metric: str, first: Sequence[str]) -> dict[str, Any]:
    mean, std = METRICS[metric].of(r)
    printed = published.of(r.cell, metric, first)
    return {
        "id": r.id,
        **fields_of(r.cell, ("preset", "dataset", "partition", "omega", "clients", "backbone", "method")),
        "settings": " ".join(f"{k}={v}" for k, v in r.cell.train.method_settings.items()),
        "row": grouping.row(r.cell),
        "metric": metric,
        "mean": mean,
        "std": std,
        "seeds": " ".join(map(str, r.cell.seeds)),
        "published": printed.value if printed else None,
        "published_std": printed.std if printed else None,
        "difference": mean - printed.value if printed and mean is not None else None,
        "source": printed.source if printed else None,
        "measured_otherwise": printed.note if printed else None,
    }


def _published_notes(
    records: Sequence[Record], keys: Sequence[Setting], metrics: Sequence[str], first: Sequence[str]
) -> list[str]:
    printed = [
        published.of(r.cell, m, first) for key in keys for r in grouping.chosen(records, key).values() for m in metrics
    ]
    sources = sorted({f.source for f in printed if f})
    if not sources:
        return ["Nothing was published for these cells."]
    return [f"Published values: {', '.join(sources)}.", *measured_otherwise(printed)]
