"""Tables and sentences of the published findings, made of committed records: short enough for a page of prose.

A sentence's words follow from its numbers, so that it stays true when the records are measured again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from privbench import presets, registry, spec
from privbench.execution.ladder import UNTRAINED
from privbench.records.schema import AttackRecord, Record
from privbench.scoring import statistics
from privbench.scoring.statistics import Interval
from reports.records import knowledge_sets, measured, published, remarks
from reports.records.labels import attacker_text, knowledge_text, label, place, unique
from reports.records.measured import ORACLE, Measured, papers_attack, strongest
from reports.records.number_text import NONE, range_text, span, spread_text, whole_numbers
from reports.records.remarks import NOT_PUBLISHED
from reports.tables import ladder, render, sentences
from reports.tables.summary.columns import in_rungs

COLUMNS = ("method", "accuracy, %", "paper's attack, dB", "strongest, dB", "over the floor, dB")
BESIDE_PRINTED = (
    "method", "accuracy, %", "printed", "paper's attack, dB", "printed", "floor, dB", "strongest passive attacker, dB",
    "it knows", "strongest active server, dB",
)  # fmt: skip
BETWEEN_ROUNDS = ("method", "the attacker knows", "round {early}, dB", "round {late}, dB", "difference, dB")
BEST = "best"
WHEN = {BEST: "after training", UNTRAINED: "before training"}
# The addresses of whole tables, from docs/results.md.
TABLE, LADDER = "results/quick-photos.md", "results/ladder-photos.md"


def by_method(records: Sequence[AttackRecord], round_: str) -> dict[str, list[AttackRecord]]:
    """Method and defence -> its records at one round, in the published order."""
    ordered = sorted((r for r in records if r.cell.round == round_), key=lambda r: place(r.cell))
    return {name: [r for r in ordered if label(r.cell) == name] for name in unique(label(r.cell) for r in ordered)}


def five_columns(records: Sequence[AttackRecord], round_: str = BEST) -> str:
    """A row a method: accuracy, the paper's attack, the strongest attack, and its gain over the best floor."""
    rows = []
    for name, method_records in by_method(records, round_).items():
        best, plain = _strongest(method_records), papers_attack(method_records)
        gain = range_text(best.gain_db, sign=True)
        accuracy = spread_text(method_records[0].accuracy.mean, method_records[0].accuracy.std, 1).replace("+-", "±")
        paper = NONE if plain is None else f"{plain.scores.psnr_db:.1f}"
        shown = render.bold(gain) if best.is_significant else gain
        rows.append([name, accuracy, paper, range_text(best.psnr_db, digits=1), shown])
    return render.markdown(COLUMNS, rows)


def beside_printed(records: Sequence[AttackRecord], round_: str = BEST) -> str:
    """A row a method: accuracy and the paper's attack as measured and as printed, the best floor, and the strongest attackers.

    The passive one has a column for what it knows: several sets where seeds choose unlike attacks. The active one
    has a column of its own. The oracle, which holds the victim's own extractor, is no attacker.
    """
    rows = []
    for name, method_records in by_method(records, round_).items():
        attackers = [r for r in method_records if r.attack not in registry.FLOORS and ladder.rung(r) != ORACLE]
        passive, active = ([r for r in attackers if r.cell.active == of] for of in (False, True))
        plain = papers_attack(method_records)
        if plain is None or not passive:
            continue
        best, cell = strongest(passive), plain.cell
        accuracy, psnr = published.of(cell, "accuracy"), published.of_papers_attack(cell)
        rows.append([
            name,
            f"{method_records[0].accuracy.mean:.1f}", NONE if accuracy is None else f"{accuracy.value:.1f}",
            f"{plain.scores.psnr_db:.1f}", NONE if psnr is None else f"{psnr.value:.1f}",
            f"{best.floor.psnr_db:.1f}",
            _named_score(best), " or ".join(unique(map(knowledge_text, best.attacks))), _of_active(active),
        ])  # fmt: skip
    return render.markdown(BESIDE_PRINTED, rows)


def _of_active(records: Sequence[AttackRecord]) -> str:
    """The strongest active server, of those that sent crafted networks to anybody."""
    applied = [r for r in records if r.scores.applied]
    if applied:
        return _named_score(strongest(applied))
    return f"sends the honest networks: {', '.join(f'`{r.attack}`' for r in records)}" if records else NONE


def _named_score(of: Measured) -> str:
    return f"{range_text(of.psnr_db, digits=1)} `{of.name}`"


def between_rounds(records: Sequence[AttackRecord], early: int, after: int) -> str:
    """A row a set of knowledge: its best attack at round `early` and at the best round, and the difference, victim by victim.

    Of the methods whose best round comes later than `after`: a schedule of so many rounds gives all others the same networks.
    """
    over_rounds = partial(attacker_text, over_rounds=True)
    at = {round_: by_method(records, round_) for round_ in (str(early), BEST)}
    rows, late = [], set()
    for name in at[BEST]:
        if max(at[BEST][name][0].rounds) <= after or name not in at[str(early)]:
            continue
        late |= set(at[BEST][name][0].rounds)
        first, last = (
            {row.knowledge: row.best for row in knowledge_sets.rows(in_rungs(at[round_][name]), over_rounds)}
            for round_ in at
        )
        # Where the same attacks are the best for more knowledge too, once.
        pairs: dict[tuple[str, ...], str] = {}
        for k in [k for k in last if k in first]:
            pairs.setdefault(tuple(r.id for of in (first[k], last[k]) for r in of.attacks), k)
        for knowledge in pairs.values():
            one, other = first[knowledge], last[knowledge]
            gap = range_text(_difference(one, other), sign=True)
            rows.append([name, knowledge, _named_score(one), _named_score(other), gap])
    return render.markdown([title.format(early=early, late=span(sorted(late))) for title in BETWEEN_ROUNDS], rows)


def _difference(one: Measured, other: Measured) -> Interval:
    """The mean of the same victims' differences, one less the other, of the seeds of both; ValueError where victims are others."""
    common = {v.seed for v in one.victims} & {v.seed for v in other.victims}
    before, after = ({(v.seed, v.client, *v.images): v for v in of.victims if v.seed in common} for of in (one, other))
    if not common or before.keys() != after.keys():
        raise ValueError("these attacks have other victims, so that no differences are paired")
    return statistics.interval([before[k].psnr_db - v.psnr_db for k, v in after.items()], list(after.values()))


def setting(records: Sequence[AttackRecord]) -> str:
    """What all records of a table have in common: data, network, schedule, victims, machine, date and revisions."""
    train = [r.cell.train for r in records]
    preset = span(sorted({r.cell.preset for r in records}))
    preset += "" if preset == "paper" else f" ({NOT_PUBLISHED})"
    images = span(sorted({r.cell.batch_size for r in records}))
    return "\n".join(
        [
            f"Data set {_named(t.dataset for t in train)}, {_named(t.backbone for t in train)}, "
            f"{span(sorted({t.clients for t in train}))} clients, preset {preset}; seeds {_seeds_text(records)}, "
            f"{span(sorted({r.scores.n for r in records}))} victims, images per gradient: {images}.{pooled_uploads(records)}",
            f"{remarks.machines(records)}. {_revisions(records)}",
        ]
    )


def pooled_uploads(records: Sequence[AttackRecord]) -> str:
    """From how many uploads of a client attacks learn that pool them, as a sentence to follow; nothing where none does."""
    counts = sorted({r.knowledge.pools for r in records if r.knowledge.pools is not None})
    return f" Attacks that pool learn from {span(counts)} upload{'s' * (counts != [1])} of a client." if counts else ""


def _seeds_text(records: Sequence[Record]) -> str:
    """The seeds; which column has which where columns have others."""
    columns: dict[str, list[str]] = {}
    for name in unique(label(r.cell) for r in sorted(records, key=lambda r: place(r.cell))):
        seeds = {seed for r in records if label(r.cell) == name for seed in r.cell.seeds}
        columns.setdefault(whole_numbers(sorted(seeds)), []).append(name)
    if len(columns) == 1:
        return next(iter(columns))
    return "; ".join(f"{seeds} ({', '.join(names)})" for seeds, names in columns.items())


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in unique(names))


def _revisions(records: Sequence[Record]) -> str:
    """Whether today's code gives these records; their names are hashes with the revisions in them."""
    if any(r.id != r.cell.id for r in records):
        return "Measured by code of another revision than today's."
    old = {(r.cell.attack, r.cell.attack_revision) for r in records if not presets.is_of_today(r.cell)}
    each = ", ".join(f"`{attack}` {revision}" for attack, revision in sorted(old, key=str))
    earlier = f" Of earlier revisions of their own: {each}." if each else ""
    return f"Training revision {spec.REVISION}, attack revision {spec.ATTACK_REVISION}.{earlier}"


def of_strongest(records: Sequence[AttackRecord], method: str) -> str:
    """The strongest attack on one method after training."""
    return f"{sentences.of_attack(_strongest(by_method(records, BEST)[method]))} {_source(records)}"


def of_papers_attack(records: Sequence[AttackRecord], method: str) -> str:
    """The papers' own attack on one method beside the strongest one, and before training."""
    best = _strongest(by_method(records, BEST)[method])
    after, before = (_papers(by_method(records, round_)[method]) for round_ in (BEST, UNTRAINED))
    return (
        f"On the same uploads {sentences.of_attack(after)} `{best.name}` reaches {sentences.level(best.psnr_db)}.\n"
        f"Before training {sentences.of_attack(before)} {_source(records)}"
    )


def of_noise(records: Sequence[AttackRecord], noisy: Sequence[str]) -> str:
    """A line for each defence and round: the strongest attack on noisy gradients."""
    lines = [
        f"- {name}, {words}: {sentences.of_attack(_strongest(by_method(records, round_)[name]))}"
        for name in noisy
        for round_, words in WHEN.items()
    ]
    return "\n".join([*lines, "", _source(records)])


def of_private(records: Sequence[AttackRecord], methods: Sequence[str]) -> str:
    """A line for each method after training: the papers' own attack and the strongest one."""
    lines = []
    for name in methods:
        method_records = by_method(records, BEST)[name]
        lines += [
            f"- {name}: {sentences.of_attack(each)}" for each in (_strongest(method_records), _papers(method_records))
        ]
    return "\n".join([*lines, "", _source(records)])


def of_knowledge(records: Sequence[AttackRecord]) -> str:
    """Of each method: the least knowledge that gains before training, every one that does after it, and the best without a gain."""
    lines = []
    for name in by_method(records, BEST):
        untrained = [row for row in _attackers(by_method(records, UNTRAINED)[name]) if row.is_significant]
        trained = _attackers(by_method(records, BEST)[name])
        gaining = [row for row in trained if row.is_significant]
        others = sorted((row for row in trained if not row.is_significant), key=lambda row: -row.psnr_db.mean)
        for words, rows in ((WHEN[UNTRAINED], untrained[:1]), (WHEN[BEST], [*gaining, *others[:1]])):
            lines += [f"- {name}, {words}, {_knowledge(row)}: {sentences.of_attack(row)}" for row in rows]
    return "\n".join([*lines, "", _source(records, LADDER)])


def _knowledge(row: Measured) -> str:
    """Of all of its attacks, as its victims are those of all of them."""
    return " or ".join(unique(knowledge_text(r) for r in row.attacks))


def _attackers(records: Sequence[AttackRecord]) -> list[Measured]:
    """The best attack of every set of knowledge, each once, in the order of the rungs; no reference."""
    rows = knowledge_sets.distinct(knowledge_sets.rows(in_rungs(records), attacker_text))
    return [row for row in rows if ladder.rung(row.first) != ORACLE]


def _strongest(records: Sequence[AttackRecord]) -> Measured:
    return strongest([r for r in records if r.attack not in registry.FLOORS])


def _papers(records: Sequence[AttackRecord]) -> Measured:
    record = papers_attack(records)
    if record is None:
        raise ValueError(f"the papers' attack on {label(records[0].cell)} is not among the records")
    return measured.of(record)


def _source(records: Sequence[AttackRecord], table: str = TABLE) -> str:
    """Where all numbers stand, the machine and the date."""
    return f"[Table]({table}). {remarks.machines(records)}."
