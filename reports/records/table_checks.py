"""The checks that need several cells, and with them those of each record alone (privbench/records/checks.py).

below-floor             the attack scores significantly less than an image that anybody can return: it failed
not-monotone            an attack scores lower than one whose knowledge is a part of its own: broken, or badly tuned
oracle-fails            the reference, with the victim's own networks, does not beat the floor: nothing else here was tested
fedavg-fails            undefended FedAvg keeps its images, though it is known to give them away: the attacks are weak
no-control              neither an oracle nor undefended FedAvg was attacked beside it: a failure says nothing
audit-refutes           canaries show that the claimed epsilon is too small
overlapping-intervals   a difference between methods, or a gain, is claimed whose intervals overlap: it rests on the pairing alone

Checks are about one run, not about training again: "significant" is here an interval over other victims of these very networks.
"""

from __future__ import annotations

from collections.abc import Sequence

from privbench import registry
from privbench.records.checks import CheckMessage
from privbench.records.schema import AttackRecord
from privbench.scoring import statistics
from privbench.spec import CellSpec
from reports.records import comparison, grouping, guarantees, knowledge_sets, measured
from reports.records.labels import attacker_text, knowledge_text, networks, unique, update_text
from reports.records.measured import ORACLE, Measured, best_record, strongest
from reports.records.number_text import range_text

# What an attack on undefended FedAvg reaches at least where `known_to_leak` says so.
UNTRAINED_DB, TRAINED_DB = 24.0, 22.0
LEAST_DB = 0.1  # a smaller difference between two attacks is no disorder


def by_record(
    records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()
) -> dict[str, list[CheckMessage]]:
    """record id -> its own failed checks, then those that the other records cause.

    `references` are attacks on undefended FedAvg from outside the table (reports/records/ceiling.py).
    """
    messages = {r.id: [*r.messages, *below_floor(r), *guarantees.refuted(r)] for r in records}
    for table in grouping.trained_alike(records):
        of_table = table.records
        beside = [*of_table, *grouping.beside(table, references)]
        for column in table.columns.values():
            for r, message in (
                *not_monotone(column), *oracle_fails(column), *fedavg_fails(column), *no_control(column, beside),
                *overlapping_floor(column),
            ):  # fmt: skip
                messages[r.id].append(message)
        for r, message in overlapping(of_table):
            messages[r.id].append(message)
    return messages


def lines(records: Sequence[AttackRecord], references: Sequence[AttackRecord] = ()) -> list[str]:
    """One line per failed check, with the rows that share it."""
    messages = by_record(records, references)
    rows: dict[tuple[str, str], list[AttackRecord]] = {}
    for r in records:
        for message in messages[r.id]:
            rows.setdefault((message.name, message.sentence), []).append(r)
    tables = grouping.trained_alike(records)
    return [f"{name}: {_rows(flagged, tables)}: {sentence}." for (name, sentence), flagged in rows.items()]


def _rows(flagged: Sequence[AttackRecord], tables: Sequence[grouping.TrainedAlike]) -> str:
    if len(flagged) == sum(len(table.records) for table in tables) > 1:
        return "every row"
    texts = []
    where = {r.id: (table.title, name) for table in tables for name, column in table.columns.items() for r in column}
    for title in unique(where[r.id][0] for r in flagged):
        here = [r for r in flagged if where[r.id][0] == title]
        each = [
            f"{attack} on {', '.join(unique(where[r.id][1] for r in here if r.attack == attack))}"
            for attack in unique(r.attack for r in here)
        ]
        texts.append(f"{title}: {'; '.join(each)}")
    return " | ".join(texts)


def below_floor(r: AttackRecord) -> list[CheckMessage]:
    """An attack whose whole interval of gains lies below 0; floors themselves are not attacks."""
    return gain_below_floor(r.attack, measured.of(r))


def gain_below_floor(attack: str, row: Measured) -> list[CheckMessage]:
    """The same of the victims as one attack left them.

    An attack that returns the floor itself differs from it by rounding, which is not below it.
    """
    if round(row.gain_here_db.high, 2) >= 0 or attack in registry.FLOORS:
        return []
    if row.identifies:
        sentence = "below the floor in PSNR, yet it identifies more of the victims' images than any floor: noisy, and no protection"
        return [CheckMessage(name="below-floor", sentence=sentence)]
    return [CheckMessage(name="below-floor", sentence="below the floor, so this says nothing about privacy")]


def not_monotone(column: Sequence[AttackRecord]) -> list[tuple[AttackRecord, CheckMessage]]:
    """Attacks that score significantly lower than one whose knowledge is a part of theirs.

    Each attack is taken by itself, not as the best of a row. Surely: the 95% interval of the paired difference lies below
    -LEAST_DB, so that rounding and chance raise nothing; of several the strongest is reported. A floor is no attack: what scores
    less than one is reported by `below_floor`. An attack that did not apply is not compared.
    """
    attacks = [measured.of(r) for r in _attacks(column) if r.scores.applied]
    attacks.sort(key=lambda one: -one.scores.psnr_db)
    raised = []
    for more in attacks:
        for less in attacks:
            above = knowledge_sets.knows_more(more.first, less.first)
            gaps, victims = measured.differences(more, less) if above else ([], [])
            if gaps and statistics.interval(gaps, victims, seeds_fixed=True).high < -LEAST_DB:
                sentence = (
                    f"knows more than {less.first.attack} ({knowledge_text(less.first)}) and scores lower, {_db(more)} against "
                    f"{_db(less)} dB, by more than chance, so this attack is broken or badly tuned"
                )
                raised.append((more.first, CheckMessage(name="not-monotone", sentence=sentence)))
                break
    return raised


def oracle_fails(column: Sequence[AttackRecord]) -> list[tuple[AttackRecord, CheckMessage]]:
    """The strongest oracle, where its gain over the floor is not significantly above 0."""
    oracles = [r for r in column if r.knowledge.rung == ORACLE]
    if not oracles or strongest(oracles).gain_here_db.low > 0:
        return []
    best = strongest(oracles)
    gain = range_text(best.gain_here_db, sign=True)
    sentence = f"the oracle does not beat the floor ({gain} dB), so no attack here tests anything"
    return [(best.first, CheckMessage(name="oracle-fails", sentence=sentence))]


def known_to_leak(cell: CellSpec) -> bool:
    """Whether UNTRAINED_DB and TRAINED_DB hold: CIFAR-10, the papers' LeNet-5, the gradient of one image."""
    return (cell.train.dataset, networks(cell), cell.batch_size, update_text(cell)) == ("cifar10", "", 1, "")


def fedavg_fails(column: Sequence[AttackRecord]) -> list[tuple[AttackRecord, CheckMessage]]:
    """The strongest attack on undefended FedAvg, where it stays below what such an attack is known to reach.

    Where that is not known, it must gain significantly over the floor.
    """
    attacks = _attacks(column)
    if not attacks or not _undefended(attacks[0]):
        return []
    best = strongest(attacks)
    r = best.first
    expected = UNTRAINED_DB if r.cell.round == "0" else TRAINED_DB
    if known_to_leak(r.cell):
        fails, short = best.scores.psnr_db < expected, f"{_db(best)} dB, {expected:g} expected"
    else:
        fails, short = best.gain_here_db.low <= 0, f"{range_text(best.gain_here_db, sign=True)} dB over the floor"
    sentence = f"undefended FedAvg keeps its images ({short}), so the attacks run here are weak"
    return [(r, CheckMessage(name="fedavg-fails", sentence=sentence))] if fails else []


def no_control(
    column: Sequence[AttackRecord], of_group: Sequence[AttackRecord]
) -> list[tuple[AttackRecord, CheckMessage]]:
    """The strongest attack of a column without an oracle, where `of_group` has no attack on undefended FedAvg either."""
    attacks = _attacks(column)
    if not attacks or any(r.knowledge.rung == ORACLE for r in attacks):
        return []
    if any(map(_undefended, _attacks(of_group))):
        return []
    sentence = (
        "neither an oracle nor undefended FedAvg was attacked beside it, so nothing shows what these attacks can do here, and a "
        "failure says nothing"
    )
    return [(best_record(attacks), CheckMessage(name="no-control", sentence=sentence))]


def _attacks(column: Sequence[AttackRecord]) -> list[AttackRecord]:
    return [r for r in column if r.attack not in registry.FLOORS]


def _undefended(r: AttackRecord) -> bool:
    return bool(r.cell.train.method == "fedavg" and r.cell.train.defense == "none")


def overlapping_floor(column: Sequence[AttackRecord]) -> list[tuple[AttackRecord, CheckMessage]]:
    """Among the best attacks of a ladder's rows, those that claim a gain over a floor whose interval overlaps theirs.

    A gain is claimed where the tables print it bold (Measured.is_significant).
    """
    best = knowledge_sets.distinct(knowledge_sets.rows(column, attacker_text))
    tested = comparison.against_floor(best, [row.name for row in best])
    sentence = "its interval and the floor's overlap, so the gain rests on the paired test alone"
    return [
        (row.first, CheckMessage(name="overlapping-intervals", sentence=sentence))
        for row, test in zip(best, tested, strict=True)
        if test.intervals_overlap and row.is_significant
    ]


def overlapping(records: Sequence[AttackRecord]) -> list[tuple[AttackRecord, CheckMessage]]:
    """Claimed differences between the methods of one table whose intervals overlap; reported for the first of the two."""
    by_id = {r.id: r for r in records}
    return [
        (
            by_id[c.ids[0]],
            CheckMessage(
                name="overlapping-intervals",
                sentence=f"{c.name}: the two intervals overlap, so the difference rests on the paired test alone",
            ),
        )
        for c in comparison.between_methods(records)
        if c.differ and c.intervals_overlap
    ]


def _db(row: Measured) -> str:
    return f"{row.scores.psnr_db:.2f}"
