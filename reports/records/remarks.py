"""What a reader must know before the numbers, what checks found (table_checks.py), and how they differ from published ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from privbench import presets, registry
from privbench.errors import UserError
from privbench.execution.ladder import UNTRAINED
from privbench.records import environments
from privbench.records.schema import AttackRecord, Record
from privbench.scoring.statistics import LEAST_SEEDS
from privbench.spec import CellSpec
from reports.records import grouping, measured, table_checks
from reports.records.labels import NAMES, Gap, label, published, round_label, round_text, unique
from reports.records.measured import papers_attack, strongest
from reports.records.number_text import FEW, NONE, measured_otherwise, span
from reports.records.published import Published, of_papers_attack
from reports.records.quotable import SMOKE_NOTE, is_quotable, is_smoke

LARGE_GAP_DB = 3.0  # a difference from the published value that deserves a sentence
LARGE_GAP_PERCENT = 3.0  # the same for accuracy
# What attacks note of one seed: "photos, fedcg, round 10, seed 103: ...".
OF_RUN = re.compile(r"(.+, round \d+, seed \d+): (.+)")
CAVEAT = "A failed inversion is no proof of privacy: it bounds this attacker, not the next one."
NOT_PUBLISHED = "NOT the published schedule"
NOT_BESIDE = "No published value stands beside it"


def header(records: Sequence[AttackRecord]) -> list[str]:
    """What a reader must know before the first number of an attack."""
    counts = sorted({r.scores.n for r in records})
    return [
        *_circumstances(records, f"n = {span(counts)} victims per cell, pooled over seeds; "),
        *_mus(records),
        "PSNR in dB of images clipped to [0, 1], peak 1, capped at 100; [95% interval of Student's t over seeds]; "
        "'floor' is the best score anybody reaches without inverting (grey, data-set mean, class mean, nearest "
        "auxiliary image), 'gain' the paired gain "
        "over it, 'ceiling' the strongest attack on undefended FedAvg; 'failures' are a floor, a flat image or no number in place "
        "of a reconstruction; 'worst 5%' is the mean PSNR of the 5% of victims reconstructed best; accuracy is in percent, mean "
        f"over clients of the {whose(records)} model at its best validation round, +- over seeds; {_sources(records)}",
        measured.CHOSEN,
        *of_few_seeds(records),
        *measured_otherwise(_published(records)),
        CAVEAT,
    ]


def whose(records: Sequence[Record]) -> str:
    """Which of the clients' models accuracy is of (`--measured`), e.g. "personal"."""
    return " or ".join(unique(r.cell.train.measured for r in records))


def of_few_seeds(records: Sequence[Record]) -> list[str]:
    """What the mark of few seeds means, where there are any."""
    counts = sorted({len(r.seeds) for r in records if len(r.seeds) < LEAST_SEEDS})
    if not counts:
        return []
    text = f"'{FEW}': fewer than {LEAST_SEEDS} seeds, too few for a verdict"
    if counts[0] == 1:
        text += "; of one seed the interval is over its victims and says nothing of training again"
    return [text + "."]


def training_header(records: Sequence[Record], beside: str = NOT_BESIDE) -> list[str]:
    """What a reader must know before the first number of training; `beside`: of published values where a preset is shorter."""
    notes = unique(f"Note: {note}." for r in records for note in r.notes)
    return [*_circumstances(records, "", beside), *notes]


def machines(records: Sequence[Record]) -> str:
    """Hardware, torch and dates of all seeds, e.g. "AMD EPYC, 2 cores, torch 2.13.0+cpu, 2026-11-22 to 2026-11-24"."""
    return f"{'; '.join(unique(map(_hardware, records)))}, {_dates(records)}"


def _hardware(record: Record) -> str:
    """Which machine had which version, where seeds differ in both, is in no record."""
    machine, cores, torch = (environments.text(record, name) for name in ("machine", "cores", "torch"))
    return f"{machine}, {cores} core{'s' * (cores != '1')}, torch {torch}"


def _dates(records: Sequence[Record]) -> str:
    return span(sorted({date for record in records for date in environments.values(record, "date")}))


def _circumstances(records: Sequence[Record], counted: str, beside: str = NOT_BESIDE) -> list[str]:
    preset_names = unique(r.cell.preset for r in records)
    devices = [f"{environments.text(r, 'device')}: {_hardware(r)}" for r in records]
    seeds = unique(", ".join(str(seed) for seed in r.cell.seeds) for r in records)
    what = f"Preset {', '.join(preset_names)}; seeds {' or '.join(seeds)}; {counted}"
    lines = [f"{what}{'; '.join(unique(devices))}; {_dates(records)}."]
    if not all(map(is_quotable, preset_names)):
        lines.append(SMOKE_NOTE[0].upper() + SMOKE_NOTE[1:])
    shorter = [name for name in preset_names if name != "paper"]
    subject = "This" if shorter == preset_names else f"Preset {' or '.join(shorter)}"
    if shorter == ["standard"]:
        lines.append(
            f"{subject} is {NOT_PUBLISHED}: a third of its rounds and no early stop, all else as published. {beside}; "
            "`--preset paper` runs all of them."
        )
    elif shorter:
        lines.append(
            f"{subject} is {NOT_PUBLISHED}: fewer rounds, images and seeds at a higher learning rate. {beside}; "
            f"`--preset paper` runs {_at_length(records)}."
        )
    attacked = [r for r in records if isinstance(r, AttackRecord)]
    absent = unique(e.get("lpips", "") for e in (r.environment for r in attacked if r.scores.lpips is None))
    lines += [f"There is no LPIPS: {reason}." for reason in absent if reason not in ("", "installed")]
    return lines


def _at_length(records: Sequence[Record]) -> str:
    """What the paper preset runs of their methods."""
    methods = unique(r.cell.train.method for r in records)
    without = [NAMES[name] for name in methods if name in presets.WITHOUT_PUBLISHED_SCHEDULE]
    if not without:
        return "the published settings"
    instead = f"{' and '.join(without)} at FedCG's schedule, as no other is printed"
    return instead if len(without) == len(methods) else f"the published settings, {instead}"


def _mus(records: Sequence[Record]) -> list[str]:
    """The mu of each data set's FedProx."""
    mus = [(r.cell, r.cell.train.method_settings.get("mu")) for r in records]
    return unique(
        f"{registry.short(cell.train.dataset)}, {label(cell)}: mu {mu:g}." for cell, mu in mus if mu is not None
    )


def _sources(records: Sequence[AttackRecord]) -> str:
    values = _published(records)
    sources = sorted({value.source for value in values})
    none = f"('{NONE}': none)"
    return (
        f"published values are those of {', '.join(sources)} {none}."
        if sources
        else "nothing was published for these cells."
    )


def _published(records: Sequence[AttackRecord]) -> list[Published]:
    each = [value for r in records for value in (published(r.cell)[0], of_papers_attack(r.cell))]
    return [value for value in each if value is not None]


def remarks(records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()) -> list[str]:
    """One line per failed check, then one per column that disagrees with the published value, then notes.

    Of smoke runs, that they test the set-up alone. `references` as `table_checks.by_record` takes them.
    """
    if is_smoke(records):
        return [SMOKE_NOTE, *of_training(records)]
    columns = [column for table in grouping.trained_alike(records) for column in table.columns.values()]
    differences = [line for column in columns for line in _against_published(column)]
    return unique([*table_checks.lines(records, references), *differences, *of_training(records)])


def of_training(records: Sequence[AttackRecord]) -> list[str]:
    """Methods that did not train, by data set, and what is noted of the data."""
    return [*near_chance(records), *_notes(records)]


def near_chance(records: Sequence[Record]) -> list[str]:
    """Methods that did not train, a line for each data set."""
    lines = []
    for dataset in unique(r.cell.train.dataset for r in records):
        of_dataset = [r for r in records if r.cell.train.dataset == dataset]
        chance = unique(f"{label(r.cell)} ({r.accuracy.mean:.1f}%)" for r in of_dataset if _near_chance(r))
        if chance:
            lines.append(
                f"{registry.short(dataset)}: accuracy near chance, so these methods did not train: {'; '.join(chance)}."
            )
    return lines


def _notes(records: Sequence[AttackRecord]) -> list[str]:
    """Every note once; of one that several attacked runs share, how many there are and the first of them."""
    runs: dict[str, list[str]] = {}
    for note in unique(note for r in records for note in r.notes):
        of_run = OF_RUN.fullmatch(note)
        where, text = of_run.groups() if of_run else ("", note)
        runs.setdefault(text, []).append(where)
    lines = []
    for text, places in runs.items():
        where = f"{places[0]}: " if places[0] else ""
        others = f" ({len(places)} runs of attacks say so; this is the first)" if len(places) > 1 else ""
        lines.append(f"note: {where}{text}{others}.")
    return lines


def _against_published(records: Sequence[AttackRecord]) -> list[str]:
    """What is to be said of the published values of one method in one table; its floors are no attacks."""
    first = records[0]
    place = f"{registry.short(first.cell.train.dataset)}, {label(first.cell)}"
    accuracy, psnr = published(first.cell)[0], of_papers_attack(first.cell)
    lines = []
    if psnr is not None and psnr.value < first.floor.psnr_db:
        lines.append(
            f"{place}: the published {psnr.value:.2f} dB lies below the {first.floor.psnr_db:.2f} dB that the {first.floor.name} "
            "image scores on these victims: it reports an attack that failed, not protection."
        )
    attacked = [r for r in records if r.attack not in registry.FLOORS]
    if psnr is not None and attacked:
        best, papers = strongest(attacked), papers_attack(attacked)
        each = {"the strongest attack here": best}
        each |= {"the paper's attack": measured.of(papers)} if papers is not None else {}
        scores = [(who, row.name, row.scores.psnr_db) for who, row in each.items()]
        if any(abs(mean - psnr.value) > LARGE_GAP_DB for _, _, mean in scores):
            texts = [f"{who}, {name}, {mean:.2f} ({mean - psnr.value:+.1f})" for who, name, mean in scores]
            lines.append(f"{place}, round {round_label(first)}: published {psnr.value:.2f} dB; {'; '.join(texts)}.")
    off = first.accuracy.mean - accuracy.value if accuracy is not None else 0.0
    if accuracy is not None and abs(off) > LARGE_GAP_PERCENT:
        lines.append(f"{place}: accuracy {first.accuracy.mean:.2f}%, published {accuracy.value:.2f}% ({off:+.1f}).")
    return lines


def _near_chance(record: Record) -> bool:
    return record.accuracy.mean < 1.5 * 100 / record.classes


def left_out(records: Sequence[AttackRecord], gaps: Sequence[Gap]) -> list[str]:
    """The attacks that were neither made nor refused, and those that were not of untrained or trained networks without a defence.

    A ladder leaves out those that are never the best.
    """
    cells = [*(r.cell for r in records), *(gap.cell for gap in gaps)]
    named = {cell.attack for cell in cells}
    missing = [name for name in registry.ATTACKS if name not in named]
    undefended = [cell for cell in cells if cell.train.defense == "none"]
    untrained = {cell.attack for cell in undefended if cell.round == UNTRAINED}
    trained = {cell.attack for cell in undefended if cell.round != UNTRAINED}
    more = f"`--attack {registry.WHOLE_LADDER}` makes those that apply."
    lines = [f"Not among the attacks: {', '.join(missing)}. {more}"] if missing else []
    for networks, made, left in (
        ("untrained", untrained, registry.NEVER_ABOVE_UNTRAINED),
        ("trained", trained, registry.NEVER_BEST_TRAINED),
    ):
        elsewhere = [name for name in registry.ATTACKS if name in left & named - made]
        if made and elsewhere:
            lines.append(f"Not among those on {networks} networks without a defence: {', '.join(elsewhere)}. {more}")
    return lines


def gap_lines(gaps: Sequence[Gap]) -> list[str]:
    """One line per missing attack on a method and reason, with all its rounds."""
    rounds: dict[tuple[str, ...], list[str]] = {}
    for g in gaps:
        names = (registry.short(g.cell.train.dataset), label(g.cell), g.attack)
        rounds.setdefault((*names, g.reason), []).append(round_text(g.cell.round))
    return [
        f"{dataset}, {name}, {attack}, round {', '.join(unique(of_group))}: {reason}"
        for (dataset, name, attack, reason), of_group in rounds.items()
    ]


def attack_overrides(cell: CellSpec) -> dict[str, Any]:
    """The attack's settings that differ from its preset's, also those that an older preset left at the attack's defaults."""
    try:
        usual = presets.settings_of_attack(cell.preset, str(cell.attack), cell.train.backbone)
        defaults = {f.name: f.default for f in fields(registry.resolve("attack", str(cell.attack))) if f.name in usual}
    except UserError:
        # A class that only the record names is not imported.
        usual, defaults = {}, {}
    return {name: value for name, value in (defaults | cell.attack_settings).items() if usual.get(name) != value}


def override_lines(records: Sequence[Record]) -> list[str]:
    """One line for each that differs from its preset, e.g. "Not as in the preset: dlg with steps 1."."""
    attacks = unique(
        f"{r.cell.attack} with {grouping.override_text(settings)}"
        for r in records
        if r.cell.attack and (settings := attack_overrides(r.cell))
    )
    trained = unique(
        f"{label(r.cell)} trained with {grouping.override_text(changed)}"
        for r in records
        if (changed := grouping.training_overrides(r.cell))
    )
    return [f"Not as in the preset: {'; '.join(each)}." for each in (attacks, trained) if each]
