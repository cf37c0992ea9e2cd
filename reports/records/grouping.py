"""How the records of training are put into tables and figures: one setting a table, one method (with its settings) a row.

A setting is what all methods of one comparison have in common: data set, layout, clients, networks, preset. Cells that differ in
the attack alone share their training, and count once. Where a setting of the method or of its schedule was searched (FedProx's mu,
a learning rate), the run with the best validation accuracy stands for the method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, TypeVar

from privbench import registry
from privbench.data import partition
from privbench.records.schema import Record
from privbench.spec import CellSpec, TrainSpec
from reports.records.labels import conditions_text, label, networks, observed_words, unique

Setting = tuple[Any, ...]
Observation = tuple[Setting, tuple[str, ...]]
R = TypeVar("R", bound=Record)
ALIASES = {"FedSplit": "FedSplit (LG-FedAvg)"}


def setting(cell: CellSpec) -> Setting:
    """What one comparison has in common."""
    domains = tuple(cell.train.domains or ())
    return (cell.train.dataset, domains, conditions_text(cell), cell.train.clients, networks(cell), cell.preset)


def short_title(key: Setting) -> str:
    """A setting as a column heading, e.g. "cifar10, 8 clients"."""
    dataset, domains, dealt, clients, nets, _ = key
    name = registry.short(dataset) + (f" ({', '.join(domains)})" if domains else "")
    usual = None if dataset.startswith(registry.FOLDER) else partition.defaults(dataset)[1]
    several = [] if clients in (None, usual) else [f"{clients} clients"]
    return ", ".join([name, *([dealt] if dealt else []), *several, *([nets] if nets else [])])


def title(key: Setting) -> str:
    """The same in full, as the heading of a table or figure."""
    dataset, domains, dealt, clients, nets, preset = key
    name = registry.short(dataset) + (f" ({', '.join(domains)})" if domains else "")
    several = f"{clients} {'client' if clients == 1 else 'clients'}"
    parts = [name, *([dealt] if dealt else []), several, *([nets] if nets else []), f"{preset} preset"]
    return ", ".join(parts)


def stem(key: Setting) -> str:
    """A setting in names of files, e.g. "fmnist-dirichlet0.1-10clients"."""
    dataset, domains, dealt, clients, nets, _ = key
    parts = [
        registry.stem(dataset),
        *domains,
        dealt.replace("Dirichlet(", "dirichlet").replace(")", "").replace(", ", "-"),
        nets.split(" ")[0],
    ]
    return "-".join([part.replace(" ", "-") for part in parts if part] + [f"{clients}clients"])


def observation(cell: CellSpec) -> Observation:
    """A setting and what the server saw in it: attacks on one image and on sixteen at once are no rivals."""
    return setting(cell), tuple(observed_words(cell))


def observations(records: Sequence[Record]) -> list[Observation]:
    """Those of some records, in the order of their first record."""
    return unique(observation(r.cell) for r in records)


def observation_title(key: Observation) -> str:
    """One of them as the heading of a figure, e.g. "digits, 4 clients, quick preset, 16 images per gradient"."""
    return ", ".join([title(key[0]), *key[1]])


def row(cell: CellSpec) -> str:
    """The name of a row: the method with its settings and defence."""
    name = label(cell)
    return ALIASES.get(name, name)


def legend_names(names: Sequence[str]) -> list[str]:
    """The names of some rows for a figure's legend: of variants of one method, the settings alone.

    Whole names where something follows the settings, as a defence does.
    """
    methods = {name.partition(" (")[0] for name in names}
    settings = [name.partition(" (")[2] for name in names]
    if len(methods) > 1 or len(names) < 2 or any(")" in text[:-1] for text in settings):
        return list(names)
    return [text.removesuffix(")") or name for name, text in zip(names, settings, strict=True)]


def settings(records: Sequence[Record]) -> list[Setting]:
    """The comparisons that some records make, in the order of their first record."""
    return unique(setting(r.cell) for r in records)


def chosen(records: Sequence[Record], key: Setting) -> dict[str, Record]:
    """One record per row of one setting, in the order of the records; of several the best by validation accuracy."""
    by_row: dict[str, Record] = {}
    for r in records:
        if setting(r.cell) != key:
            continue
        name = row(r.cell)
        if name not in by_row or validation_accuracy(r) > validation_accuracy(by_row[name]):
            by_row[name] = r
    return by_row


def best_searched(records: Sequence[R]) -> list[R]:
    """The records of every row's chosen settings alone, in order: of FedProx those with one mu, whatever attacked them."""
    chosen_settings = {
        (key, name): _settings(r.cell) for key in settings(records) for name, r in chosen(records, key).items()
    }
    return [r for r in records if _settings(r.cell) == chosen_settings[setting(r.cell), row(r.cell)]]


def searched(records: Sequence[Record], key: Setting) -> list[str]:
    """Which value of a searched setting stands for its method, one line per setting of a row that has several."""
    lines = []
    for name, r in chosen(records, key).items():
        rivals = [_settings(o.cell) for o in records if setting(o.cell) == key and row(o.cell) == name]
        for one, best in _settings(r.cell).items():
            values = unique(rival[one] for rival in rivals if one in rival)
            if len(values) > 1:
                listed = ", ".join(_text(value) for value in values)
                lines.append(
                    f"{short_title(key)}, {name}: {one} {_text(best)}, the best of {listed} by validation accuracy."
                )
    return lines


def _settings(cell: CellSpec) -> dict[str, Any]:
    """The settings of a method and the fields of its schedule, optimisers spelt out: "mu", "task.lr"."""
    return {**cell.train.method_settings, **schedule_fields(cell.train)}


def schedule_fields(train: TrainSpec) -> dict[str, Any]:
    """The fields of a schedule, optimisers spelt out: "rounds", "task.lr"."""
    flat: dict[str, Any] = {}
    for name, value in train.schedule.model_dump().items():
        flat |= {f"{name}.{one}": v for one, v in value.items()} if isinstance(value, Mapping) else {name: value}
    return flat


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float | int) else str(value)


def validation_accuracy(r: Record) -> float:
    """Each client's best over the rounds, mean over clients and seeds, percent; -1 when no round was trained."""
    best = [
        fmean(max(series) for series in zip(*[e.validation_accuracy for e in t.rounds], strict=True))
        for t in r.training
        if t.rounds
    ]
    return fmean(best) if best else -1.0
