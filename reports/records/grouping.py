"""How records are put into tables and figures: one setting a table, one method (with its settings) a row, trained in one way.

A setting is what all methods of one comparison have in common: data set, layout, clients, networks, preset. Cells that differ in
the attack alone share their training, and count once. Where a setting of the method or of its schedule was searched (FedProx's mu,
a learning rate), the run with the best validation accuracy stands for the method.

A table of attacks (labels.py, `group`) may hold one method with one defence twice, trained by two schedules or from other images:
its label does not say so. Records are compared, and checked together, where they were trained alike in all that methods have in
common (COMMON). What is a method's own (mu, steps of a server) may differ from method to method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from privbench import presets, registry
from privbench.data import partition
from privbench.errors import UserError
from privbench.records.schema import AttackRecord, Record
from privbench.spec import CellSpec, TrainSpec
from reports.records.labels import (
    DIGITS,
    SEARCHED,
    conditions_text,
    group,
    label,
    networks,
    observed_words,
    place,
    title_of,
    unique,
)

Setting = tuple[Any, ...]
Observation = tuple[Setting, tuple[str, ...]]
R = TypeVar("R", bound=Record)
ALIASES = {"FedSplit": "FedSplit (LG-FedAvg)"}
# Fields of a schedule that no number depends on.
WITHOUT_EFFECT = frozenset({"keep_every"})
# What all methods train by: the images of a client, and of the schedule what is no generator's and no server's.
COMMON = frozenset({"per_client", "rounds", "local_epochs", "client_steps", "batch", "patience"})
TASK = "task."  # begins the settings of the clients' optimiser, which are common, too
RATE = "task.lr"  # but for the rate of SGD under FedMD-CG's protocol, which is searched for each method
Key = tuple[tuple[Any, ...], str]


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
    return flat(train.schedule.model_dump())


def flat(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a schedule that was written out."""
    fields: dict[str, Any] = {}
    for name, value in schedule.items():
        fields |= {f"{name}.{one}": v for one, v in value.items()} if isinstance(value, Mapping) else {name: value}
    return fields


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


class TrainedAlike(NamedTuple):
    """Records of one table that may be compared."""

    key: Key
    title: str
    columns: dict[str, list[AttackRecord]]  # a method and its defence, with what is its own where there are several

    @property
    def records(self) -> list[AttackRecord]:
        """Of all columns."""
        return [r for column in self.columns.values() for r in column]


def training_overrides(cell: CellSpec) -> dict[str, Any]:
    """How many images a client has, and the fields of the schedule, e.g. "task.lr", that differ from the preset's."""
    usual = _usual(cell)
    return {name: value for name, value in _fields(cell.train).items() if name in usual and usual[name] != value}


def override_text(settings: Mapping[str, Any]) -> str:
    """Settings in words, e.g. "steps 1, task.lr 0.001"."""
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in sorted(settings.items())
    )


def training_words(cells: Iterable[CellSpec]) -> dict[str, str]:
    """Cell id -> how it was trained, in words: what is not as in its preset, and what other cells of its column have otherwise."""
    each, columns = {cell.id: cell for cell in cells}, dict[tuple[Any, ...], list[CellSpec]]()
    for cell in each.values():
        columns.setdefault((group(cell), label(cell)), []).append(cell)
    texts: dict[str, str] = {}
    for column in columns.values():
        whole = [_common(cell) | _own(cell) for cell in column]
        texts |= {
            cell.id: override_text(training_overrides(cell) | varying)
            for cell, varying in zip(column, _varying(whole), strict=True)
        }
    return texts


def trained_alike(records: Sequence[AttackRecord]) -> list[TrainedAlike]:
    """The tables that some records make, each of records that were trained alike, in the order of their first record."""
    of_key: dict[Key, list[AttackRecord]] = {}
    for r in records:
        of_key.setdefault(key_of(r.cell), []).append(r)
    titles: dict[Key, str] = {}
    for one in unique(where for where, _ in of_key):
        keys = [key for key in of_key if key[0] == one]
        for key, varying in zip(keys, _varying([_common(of_key[key][0].cell) for key in keys]), strict=True):
            titles[key] = title_of(one) + (f", trained with {override_text(varying)}" if varying else "")
    return [TrainedAlike(key, titles[key], _columns(alike)) for key, alike in of_key.items()]


def key_of(cell: CellSpec) -> Key:
    """What the records of one table that were trained alike have in common."""
    return group(cell), str(sorted(_common(cell).items()))


def beside(table: TrainedAlike, references: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Those of some records from elsewhere that were trained as those of a table, whatever their own presets are."""
    alike = {(group(r.cell), _trained(r.cell)) for r in table.records}
    return [r for r in references if key_of(r.cell) == table.key or (group(r.cell), _trained(r.cell)) in alike]


def best_of_each(columns: Mapping[str, Sequence[AttackRecord]]) -> dict[str, Sequence[AttackRecord]]:
    """Of the columns of one method and defence the one that is best by validation accuracy."""
    best: dict[str, str] = {}
    for name, column in columns.items():
        method = label(column[0].cell)
        if method not in best or _validated(column) > _validated(columns[best[method]]):
            best[method] = name
    return {name: column for name, column in columns.items() if name in best.values()}


def _columns(records: Sequence[AttackRecord]) -> dict[str, list[AttackRecord]]:
    """Those of one table in the published order."""
    by_label: dict[str, dict[str, list[AttackRecord]]] = {}
    for r in sorted(records, key=lambda r: place(r.cell)):
        by_label.setdefault(label(r.cell), {}).setdefault(str(sorted(_own(r.cell).items())), []).append(r)
    columns = {}
    for name, variants in by_label.items():
        each = list(variants.values())
        for variant, varying in zip(each, _varying([_own(one[0].cell) for one in each]), strict=True):
            columns[f"{name} ({override_text(varying)})" if varying else name] = variant
    return columns


def _validated(column: Sequence[AttackRecord]) -> float:
    return max(map(validation_accuracy, column))


def _common(cell: CellSpec) -> dict[str, Any]:
    """What methods have in common, where it is not as in the preset, or where that is not known."""
    usual, train = _usual(cell), cell.train
    given = {
        name: value for name, value in _fields(train).items() if usual.get(name) != value and _is_common(cell, name)
    }
    given |= {} if train.min_per_client is None else {"min_per_client": train.min_per_client}
    return given | ({} if train.content is None else {"files": train.content[:DIGITS]})


def _trained(cell: CellSpec) -> str:
    """All that methods have in common."""
    return str(sorted((name, value) for name, value in _fields(cell.train).items() if _is_common(cell, name)))


def _own(cell: CellSpec) -> dict[str, Any]:
    """The rest: of a method's own."""
    searched = {name: value for name, value in cell.train.method_settings.items() if name in SEARCHED}
    return searched | {name: value for name, value in training_overrides(cell).items() if not _is_common(cell, name)}


def _is_common(cell: CellSpec, name: str) -> bool:
    if name == RATE and cell.train.protocol == "fedmd-cg" and cell.preset in presets.AS_PUBLISHED:
        return False
    return name in COMMON or name.startswith(TASK)


def _varying(each: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of several settings those that not all have alike."""
    alike = {name for name in each[0] if all(name in one and one[name] == each[0][name] for one in each)}
    return [{name: value for name, value in one.items() if name not in alike} for one in each]


def _usual(cell: CellSpec) -> dict[str, Any]:
    """The images of a client and the schedule in the cell's preset; of a method or data set of a user's own the schedule alone."""
    train = cell.train
    layout = {name: getattr(train, name) for name in ("backbone", "image_size", "protocol", "partition", "domains")}
    try:
        return _fields(presets.train_spec(cell.preset, train.dataset, train.method, **layout))
    except UserError:
        # What only the record names is not imported.
        if cell.preset not in presets.PRESETS:
            return {}
        chosen = (cell.preset, train.dataset, train.method, train.backbone, train.protocol)
        return _flat(presets.schedule_of(*chosen))


def _fields(train: TrainSpec) -> dict[str, Any]:
    """The images of a client and the schedule, optimisers spelt out."""
    return {"per_client": train.per_client} | _flat(train.schedule.model_dump())


def _flat(schedule: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flat(schedule).items() if name not in WITHOUT_EFFECT}
