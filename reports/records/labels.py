"""The published form of the attack table: one column per method, the paper's attack and the strongest one side by side."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from privbench import registry, written_defense
from privbench.data import partition
from privbench.data.paper_setup import PROTOCOLS
from privbench.errors import UserError
from privbench.observation.knowledge import WHERE_SHARED
from privbench.observation.local_update import local_steps
from privbench.records.schema import AttackRecord
from privbench.scoring.statistics import Interval
from privbench.spec import CellSpec
from reports.records import measured
from reports.records.measured import strongest
from reports.records.published import Published, of, of_papers_attack, papers_own
from reports.records.quotable import is_quotable

# In the published order.
NAMES = {
    "local": "Local", "fedavg": "FedAvg", "fedprox": "FedProx", "feddf": "FedDF", "fedper": "FedPer", "fedsplit": "FedSplit",
    "lg-fedavg": "LG-FedAvg", "fedgen": "FedGen", "fedcg": "FedCG", "nfl-cgan": "NFL-CGAN", "fedmd-cg": "FedMD-CG",
}  # fmt: skip
SEARCHED = ("mu", "ramp_rounds")  # settings of a method that the papers searched, or that belong to a preset
FIRST = ("FedCG 2", "FedCG-arXiv 2")  # beside attacks, accuracy is that of the papers' table of attacks
MEASURED_OTHERWISE = "†"  # behind a published value that is measured otherwise than here
NONE = "-"  # there is no such number
FEW = "*"  # behind an interval over few seeds
MISSING = "missing"  # there should be one; the reason stands under "Gaps"
REFUSED = "refused"  # there cannot be one: the attack's needs are not met

T = TypeVar("T")


class Gap(NamedTuple):
    """A cell without a record."""

    cell: CellSpec
    reason: str
    state: str = MISSING  # in one or two words; REFUSED where the attack cannot be made on what the method sends

    @property
    def attack(self) -> str:
        """The attack's name; nothing of an accuracy cell."""
        return self.cell.attack or ""


class PublishedTable(NamedTuple):
    """One table of the published form."""

    title: str
    columns: list[str]
    rows: list[list[str]]


def compact(
    records: Sequence[AttackRecord], gaps: Sequence[Gap] = (), references: Sequence[AttackRecord] = ()
) -> list[PublishedTable]:
    """The published form, one table for every data set, round and setting; a method whose cells are missing keeps its column.

    `references` are attacks on undefended FedAvg from outside the table (reports/records/ceiling.py).
    """
    specs = [r.cell for r in records] + [g.cell for g in gaps]
    forms = []
    for key in unique(group(cell) for cell in specs):
        some = [r for r in records if group(r.cell) == key]
        lost = [g for g in gaps if group(g.cell) == key]
        order = sorted([r.cell for r in some] + [g.cell for g in lost], key=place)
        columns = unique(label(cell) for cell in order)
        firsts = [next(cell for cell in order if label(cell) == c) for c in columns]
        own = [[r for r in some if label(r.cell) == c] for c in columns]
        missing = [[g.attack for g in lost if label(g.cell) == c] for c in columns]
        ceiling = ceiling_of([*some, *(r for r in references if group(r.cell) == key)])
        rows = _form_rows(firsts, own, missing, ceiling)
        if not is_quotable(firsts[0].preset):
            rows = [row for row in rows if not row[0].endswith(", dB")]
        forms.append(PublishedTable(title_of(key), ["", *columns], rows))
    return forms


def _form_rows(
    specs: Sequence[CellSpec], own: Sequence[list[AttackRecord]], missing: Sequence[list[str]], ceiling: str
) -> list[list[str]]:
    """The rows over columns; each column with its records and the attacks that are missing."""

    def row(name: str, text: Callable[[list[AttackRecord]], str]) -> list[str]:
        return [name, *(text(records) if records else MISSING for records in own)]

    def plain(records: list[AttackRecord], lost: list[str]) -> str:
        found = papers_attack(records)
        if found is not None:
            return range_text(measured.of(found).psnr_db)
        return MISSING if not records or papers_own(records[0].cell.train.method) in lost else NONE

    def which(records: list[AttackRecord], lost: list[str]) -> str:
        if not records:
            return MISSING
        best = strongest(records)
        known = "; ".join(unique(knowledge_text(r) for r in best.attacks))
        floor = measured.returned_text(best)
        return (
            f"{best.name} ({known})"
            + (f"; {floor}" if floor else "")
            + (f"; {', '.join(lost)} missing" if lost else "")
        )

    return [
        row("accuracy of the trained method, %", lambda r: spread_text(r[0].accuracy.mean, r[0].accuracy.std)),
        *_published_row("  published, %", [of(cell, "accuracy", FIRST) for cell in specs]),
        row("attacked round", lambda r: rounds_text(r[0])),
        ["PSNR, the paper's attack, dB", *(plain(r, lost) for r, lost in zip(own, missing, strict=True))],
        ["  the paper's attack", *(papers_own(cell.train.method) or NONE for cell in specs)],
        *_published_row("  published, dB", [of_papers_attack(cell) for cell in specs]),
        row("PSNR, strongest attack here, dB", lambda r: range_text(strongest(r).psnr_db)),
        ["  which", *(which(r, lost) for r, lost in zip(own, missing, strict=True))],
        row("  gain over the floor, dB", lambda r: range_text(strongest(r).gain_db, sign=True)),
        row("floor, dB", lambda r: f"{r[0].floor.psnr_db:.2f} ({r[0].floor.name})"),
        ["ceiling (undefended FedAvg), dB", *(ceiling for _ in own)],
        row("n / failures", lambda r: f"{span(sorted({x.scores.n for x in r}))} / {max(x.scores.failures for x in r)}"),
    ]


def _published_row(name: str, values: Sequence[Published | None]) -> list[list[str]]:
    """The row of published values; none where nothing is published of any column."""
    return [[name, *map(published_text, values)]] if any(values) else []


def papers_attack(own: Sequence[AttackRecord]) -> AttackRecord | None:
    """The record of the papers' own attack among those of one method, if it was made."""
    return next((r for r in own if r.cell.attack == papers_own(r.cell.train.method)), None)


def ceiling_of(records: Sequence[AttackRecord]) -> str:
    """The strongest attack on undefended FedAvg among some records, dB."""
    undefended = [r for r in records if is_ceiling(r.cell)]
    return f"{strongest(undefended).psnr_db.mean:.2f}" if undefended else NONE


def is_ceiling(cell: CellSpec) -> bool:
    """Whether a cell is of undefended FedAvg."""
    return cell.train.method == "fedavg" and cell.train.defense == "none"


def group(cell: CellSpec) -> tuple[Any, ...]:
    """What the records of one table have in common."""
    domains = cell.train.domains
    return (
        cell.train.dataset,
        tuple(domains) if domains else (),
        cell.round,
        cell.preset,
        networks(cell),
        cell.train.clients,
        cell.batch_size,
        cell.labels_known,
        conditions_text(cell),
        update_text(cell),
        cell.wire,
    )


def networks(cell: CellSpec) -> str:
    """The backbone where it is not LeNet-5, which the published numbers are of, e.g. "resnet18 at 32x32"; else nothing."""
    backbone, side = cell.train.backbone, cell.train.image_size
    return "" if backbone == "lenet5" else f"{backbone} at {side}x{side}"


def update_text(cell: CellSpec) -> str:
    """What the server saw where it was whole local updates, e.g. "whole updates of 3 SGD steps at 0.1"; nothing of gradients."""
    local = local_steps(cell)
    if local is None:
        return ""
    steps, optimiser = local.steps, local.optimiser
    sgd = optimiser.get("kind") == "sgd"
    kind, rate = ("SGD ", f" at {optimiser['lr']:g}") if sgd else ("", "")
    part = f" on {local.batch} images each" if local.batch else ""
    return f"whole updates of {steps} {kind}{'step' if steps == 1 else 'steps'}{rate}{part}"


def fields_of(cell: CellSpec, names: Sequence[str]) -> dict[str, Any]:
    """Some fields of a cell, or else of its training, by name."""
    return {name: getattr(cell if name in CellSpec.model_fields else cell.train, name) for name in names}


def groups(records: Sequence[AttackRecord]) -> list[tuple[Any, ...]]:
    """The tables that some records make, in the order of their first record."""
    return unique(group(r.cell) for r in records)


def title_of(key: tuple[Any, ...]) -> str:
    """The heading of one group."""
    dataset, domains, asked, preset, nets, clients, batch, labels, dealt, update, wire = key
    name = registry.short(dataset)
    parts = [
        f"{name} ({', '.join(domains)})" if domains else name,
        f"round {asked_text(asked)}",
        f"{preset} preset",
    ]
    parts += [nets] if nets else []
    parts += [dealt] if dealt else []
    parts += [f"{clients} clients"] if clients else []
    parts += [update] if update else []
    parts += [f"{batch} images per {'update' if update else 'gradient'}"] if batch > 1 else []
    parts += ["labels known"] if labels else []
    parts += [f"sent in {wire}"] if wire != "float32" else []
    return ", ".join(parts)


def partition_text(cell: CellSpec) -> str:
    """How the images are laid out over clients, in words, where it is not as published for the data set."""
    how = cell.train.partition
    if how == "dirichlet":
        return f"Dirichlet({cell.train.omega:g})"
    usual = partition.DEFAULTS.get(cell.train.dataset, (how,))[0]
    return "" if how == usual else {"iid": "IID", "domain": "by domain"}[how]


def conditions_text(cell: CellSpec) -> str:
    """The same with what else a comparison has in common, where it is not FedCG's: protocol, flips, whose accuracy counts."""
    train = cell.train
    protocol = [] if train.protocol == "fedcg" else [f"protocol {train.protocol}"]
    flips = [] if train.flip == PROTOCOLS[train.protocol].flip else ["with flips" if train.flip else "without flips"]
    measured = [] if train.measured == "personal" else [f"{train.measured} model measured"]
    return ", ".join([*([dealt] if (dealt := partition_text(cell)) else []), *protocol, *flips, *measured])


def place(cell: CellSpec) -> tuple[int, str, tuple[float, ...], str]:
    """Columns stand in the published order, weaker noise first."""
    names = list(NAMES)
    method = names.index(cell.train.method) if cell.train.method in names else len(names)
    name = written_defense.parts(cell.train.defense).name.removeprefix("none")
    values = tuple(written_defense.numbers(cell.train.defense).values())
    return (method, name, values, f"{cell.train.defense} {cell.train.where}")


def cell_place(cell: CellSpec) -> tuple[Any, ...]:
    """Cells of one table: methods as columns stand, of each its attacks in the catalogue's order, users' own last."""
    attack, known = cell.attack or "", list(registry.ATTACKS)
    return (*place(cell), known.index(attack) if attack in known else len(known), attack)


def in_order(records: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Records as tables and grids list them: table by table, each in the order of `cell_place`."""
    tables = groups(records)
    return sorted(records, key=lambda r: (tables.index(group(r.cell)), cell_place(r.cell)))


def label(cell: CellSpec) -> str:
    """A column's heading: the method and its defence."""
    method: str = cell.train.method
    name = NAMES.get(method, method) + _settings_text(cell)
    if cell.train.defense == "none":
        return name
    kind, items = written_defense.parts(cell.train.defense)
    values = ", ".join(f"{key} {value}" if key else value for key, value in items)
    where = " (every step)" if cell.train.where == "step" else ""
    shown = kind.capitalize() if kind in registry.DEFENSES else kind
    return f"{name} + {f'{shown} {values}'.strip()}{where}"


def settings_of(cell: CellSpec) -> dict[str, Any]:
    """The settings that distinguish the variants of a method."""
    return {k: v for k, v in cell.train.method_settings.items() if k not in SEARCHED}


def _settings_text(cell: CellSpec) -> str:
    """The same in words, e.g. " (dense GAN, ave)"."""
    words = {"gan": "{} GAN", "aggregator": "{}", "without": "without {}", "diversity": "diversity {}"}
    texts = []
    for name, value in settings_of(cell).items():
        number = isinstance(value, float) or (name == "diversity" and isinstance(value, int))
        short = f"{value:g}" if number else str(value)
        # What a file calls a setting is no format string.
        texts.append(words[name].format(short) if name in words else f"{name} {short}")
    return f" ({', '.join(texts)})" if texts else ""


def knowledge_text(record: AttackRecord) -> str:
    """What the attacker used, in words; which auxiliary images, where they are not all of the attacked data set's."""
    tag = record.knowledge.tag
    for part in where_shared(tag):  # a record from before `uses`
        used = f" + {part}" if part in shared_parts(record.cell.train.method) else ""
        tag = tag.replace(f" + {part}{WHERE_SHARED}", used)
    return _with_images(tag, record)


def pooled_text(record: AttackRecord) -> str:
    """How many uploads of a client each image was reconstructed from, in words to follow its knowledge; nothing where only one."""
    count = record.knowledge.pools
    return "" if count is None else f"; pools {count} upload{'s' * (count != 1)} a client"


def attacker_text(record: AttackRecord) -> str:
    """The same whatever the method shares, for comparing methods: e.g. "gradient + auxiliary + generator where shared"."""
    return _with_images(record.knowledge.tag_in_general, record)


def _with_images(tag: str, record: AttackRecord) -> str:
    images = record.cell.auxiliary
    return f"{tag} ({images})" if "auxiliary" in record.knowledge.needs and images != "same" else tag


def where_shared(tag: str) -> list[str]:
    """The parts that a tag names with "where shared"."""
    return re.findall(rf"(\w+){WHERE_SHARED}", tag)


def shared_parts(method: str) -> tuple[str, ...]:
    """What a method shares; nothing where it is a user's own that is not at hand."""
    try:
        return tuple(registry.resolve("method", method).shared_parts)
    except UserError:
        return ()


def round_label(record: AttackRecord) -> str:
    """Which round was attacked, in words."""
    asked: str = record.cell.round
    return f"{asked} ({rounds_text(record)})" if asked in ("best", "last") else asked_text(asked)


def round_place(asked: str) -> tuple[bool, int]:
    """Numbered rounds stand in their order, "best" and "last" after them."""
    return (not asked.isdigit(), int(asked) if asked.isdigit() else 0)


def asked_text(asked: str) -> str:
    """A round as it was asked for."""
    return "0 (untrained)" if asked == "0" else asked


def rounds_text(record: AttackRecord) -> str:
    """The rounds that were attacked, over seeds."""
    rounds = sorted(set(record.rounds))
    return str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]}-{rounds[-1]}"


def published(cell: CellSpec) -> tuple[Published | None, Published | None]:
    """(accuracy, PSNR) of exactly this cell: a PSNR stands beside the papers' own attack alone."""
    return of(cell, "accuracy", FIRST), of(cell, "psnr_db")


def published_text(found: Published | None, digits: int = 2) -> str:
    """A published value, marked where the paper measures it otherwise than the suite, or the sign that there is none."""
    if found is None:
        return NONE
    return spread_text(found.value, found.std, digits) + (MEASURED_OTHERWISE if found.note else "")


def measured_otherwise(values: Iterable[Published | None]) -> list[str]:
    """One line per way in which some published values are measured otherwise than here."""
    notes: dict[str, list[str]] = {}
    for value in values:
        if value is not None and value.note:
            notes.setdefault(value.note, []).append(value.source)
    return [f"{MEASURED_OTHERWISE} {', '.join(unique(sources))}: {note}." for note, sources in notes.items()]


def spread_text(mean: float, std: float | None, digits: int = 2) -> str:
    """A mean with its standard deviation, where there is one."""
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} +- {std:.{digits}f}"


def range_text(range_: Interval, *, sign: bool = False, digits: int = 2) -> str:
    """A mean with its interval, marked where the seeds are few."""
    plus = "+" if sign else ""
    # Rounded first, and 0 added, as what rounds to zero has no sign.
    mean, low, high = (
        f"{round(value, digits) + 0.0:{plus}.{digits}f}" for value in (range_.mean, range_.low, range_.high)
    )
    return f"{mean} [{low}, {high}]{FEW if range_.is_few else ''}"


def span(values: Sequence[Any]) -> str:
    """One value, or the first and the last of some sorted ones."""
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def unique(values: Iterable[T]) -> list[T]:
    """Each value once, in the order of its first coming."""
    return list(dict.fromkeys(values))
