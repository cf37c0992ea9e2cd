"""Tables and sentences of the published findings, made of committed records: short enough for a page of prose.

A sentence's words follow from its numbers, so that it stays true when the records are measured again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from privbench import registry, spec
from privbench.records.schema import AttackRecord, Record
from privbench.scoring.statistics import Interval
from reports.records import measured
from reports.records.labels import (
    NONE,
    label,
    papers_attack,
    place,
    range_text,
    span,
    spread_text,
    unique,
)
from reports.records.measured import Measured, strongest
from reports.records.remarks import NOT_PUBLISHED
from reports.tables import render

COLUMNS = ("method", "accuracy, %", "paper's attack, dB", "strongest, dB", "over the floor, dB")
BEST, UNTRAINED = "best", "0"
WHEN = {BEST: "after training", UNTRAINED: "before training"}
# The address of the whole table, from docs/results.md.
TABLE = "results/quick-photos.md"


def by_method(records: Sequence[AttackRecord], round_: str) -> dict[str, list[AttackRecord]]:
    """Method and defence -> its records at one round, in the published order."""
    some = sorted((r for r in records if r.cell.round == round_), key=lambda r: place(r.cell))
    return {name: [r for r in some if label(r.cell) == name] for name in unique(label(r.cell) for r in some)}


def five_columns(records: Sequence[AttackRecord], round_: str = BEST) -> str:
    """A row a method: accuracy, the paper's attack, the strongest attack, and its gain over the best floor."""
    rows = []
    for name, own in by_method(records, round_).items():
        best, plain = _strongest(own), papers_attack(own)
        gain = range_text(best.gain_db, sign=True)
        accuracy = spread_text(own[0].accuracy.mean, own[0].accuracy.std, 1).replace("+-", "±")
        paper = NONE if plain is None else f"{plain.scores.psnr_db:.1f}"
        rows.append(
            [name, accuracy, paper, range_text(best.psnr_db, digits=1), render.bold(gain) if best.is_sure else gain]
        )
    return render.markdown(COLUMNS, rows)


def setting(records: Sequence[AttackRecord]) -> str:
    """What all records of a table have in common: data, network, schedule, victims, machine, date and revisions."""
    train = [r.cell.train for r in records]
    preset = span(sorted({r.cell.preset for r in records}))
    preset += "" if preset == "paper" else f" ({NOT_PUBLISHED})"
    seeds = span(sorted({seed for r in records for seed in r.cell.seeds}))
    images = span(sorted({r.cell.batch_size for r in records}))
    return "\n".join(
        [
            f"Data set {_named(t.dataset for t in train)}, {_named(t.backbone for t in train)}, "
            f"{span(sorted({t.clients for t in train}))} clients, preset {preset}; seeds {seeds}, "
            f"{span(sorted({r.scores.n for r in records}))} victims, images per gradient: {images}.",
            f"{machines(records)}. {_revisions(records)}",
        ]
    )


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in unique(names))


def machines(records: Sequence[Record]) -> str:
    """Hardware, torch and date, e.g. "AMD EPYC, 2 cores, torch 2.13.0+cpu, 2026-11-22"."""
    each = [r.environment for r in records]
    told = unique(f"{e['machine']}, {e['cores']} cores, torch {e['torch']}" for e in each)
    return f"{'; '.join(told)}, {span(sorted({e['date'] for e in each}))}"


def _revisions(records: Sequence[Record]) -> str:
    """Whether today's code gives these records; their names are hashes with the revisions in them."""
    if all(r.id == r.cell.id for r in records):
        return f"Training revision {spec.REVISION}, attack revision {spec.ATTACK_REVISION}."
    return "Measured by code of another revision than today's."


def of_strongest(records: Sequence[AttackRecord], method: str) -> str:
    """The strongest attack on one method after training."""
    return f"{_of_attack(_strongest(by_method(records, BEST)[method]))} {_source(records)}"


def of_papers_attack(records: Sequence[AttackRecord], method: str) -> str:
    """The papers' own attack on one method beside the strongest one, and before training."""
    best = _strongest(by_method(records, BEST)[method])
    after, before = (_papers(by_method(records, round_)[method]) for round_ in (BEST, UNTRAINED))
    return (
        f"On the same uploads {_of_attack(after)} `{best.name}` reaches {_level(best.psnr_db)}.\n"
        f"Before training {_of_attack(before)} {_source(records)}"
    )


def of_noise(records: Sequence[AttackRecord], noisy: Sequence[str]) -> str:
    """A line for each defence and round: the strongest attack on noisy gradients."""
    lines = [
        f"- {name}, {words}: {_of_attack(_strongest(by_method(records, round_)[name]))}"
        for name in noisy
        for round_, words in WHEN.items()
    ]
    return "\n".join([*lines, "", _source(records)])


def of_private(records: Sequence[AttackRecord], methods: Sequence[str]) -> str:
    """A line for each method after training: the papers' own attack and the strongest one."""
    lines = []
    for name in methods:
        own = by_method(records, BEST)[name]
        lines += [f"- {name}: {_of_attack(each)}" for each in (_strongest(own), _papers(own))]
    return "\n".join([*lines, "", _source(records)])


def _strongest(own: Sequence[AttackRecord]) -> Measured:
    return strongest([r for r in own if r.attack not in registry.FLOORS])


def _papers(own: Sequence[AttackRecord]) -> Measured:
    found = papers_attack(own)
    if found is None:
        raise ValueError(f"the papers' attack on {label(own[0].cell)} is not among the records")
    return measured.of(found)


def _of_attack(own: Measured) -> str:
    """Three sentences: what one attack reaches, against the floor, and how many victims it identifies."""
    s = own.scores
    failures = f" It fails for {s.failures} of {s.n}." if s.failures else ""
    return (
        f"`{own.name}` reaches {_level(own.psnr_db)}. {_against_floor(own.gain_db)} "
        f"It identifies {100 * s.identification:.0f}% of the victims (chance: {100 * s.identification_chance:.3g}%).{failures}"
    )


def _level(found: Interval) -> str:
    mean, _, rest = range_text(found).partition(" ")
    return f"{mean} dB {rest}"


def _against_floor(found: Interval) -> str:
    mean, _, rest = range_text(found, sign=True).partition(" ")
    gain = f"{mean} dB {rest}"
    if found.surely_above:
        return f"That is a sure gain over the floor: {gain}."
    if found.is_few:
        return f"Too few seeds to compare with the floor: {gain}."
    return f"That is below the floor: {gain}." if found.high < 0 else f"No sure gain over the floor: {gain}."


def _source(records: Sequence[AttackRecord]) -> str:
    """Where all numbers stand, the machine and the date."""
    return f"[Table]({TABLE}). {machines(records)}."
