"""The doubts that several cells together raise, and with them those that each record holds of itself (privbench/flags.py).

below-floor             the attack scores surely less than an image that anybody can hand in: it failed
not-monotone            an attacker who knows more scores lower than one who knows less: the attack is broken, or badly tuned
oracle-fails            the upper bound, with the victim's own networks, does not beat the floor: nothing else here was tested
fedavg-fails            undefended FedAvg keeps its images, though it is known to give them away: the attacks are weak
overlapping-intervals   a difference between methods is claimed whose intervals overlap: it rests on the paired test alone
"""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import binomtest

from privbench import plugins
from privbench.flags import Flag
from privbench.record import AttackRecord
from reports import comparison
from reports.published_form import ORACLE, group, groups, knowledge_text, label, range_text, strongest, title_of, unique

# What an attack on undefended FedAvg reaches at least, on CIFAR-10 and the papers' LeNet with one image per gradient.
UNTRAINED_DB, TRAINED_DB = 24.0, 22.0
LEAST_DB = 0.1  # a smaller difference between two attacks is no disorder


def by_record(records: Sequence[AttackRecord]) -> dict[str, list[Flag]]:
    """record id -> its own doubts, then those that the other records given raise about it."""
    found = {r.id: [*r.flags, *below_floor(r)] for r in records}
    for key in groups(records):
        own = [r for r in records if group(r.spec) == key]
        for name in unique(label(r.spec) for r in own):
            column = [r for r in own if label(r.spec) == name]
            for r, flag in (*not_monotone(column), *oracle_fails(column), *fedavg_fails(column)):
                found[r.id].append(flag)
        for r, flag in overlapping(own):
            found[r.id].append(flag)
    return found


def lines(records: Sequence[AttackRecord]) -> list[str]:
    """One line per doubt, with the rows that share it."""
    found = by_record(records)
    rows: dict[tuple[str, str], list[AttackRecord]] = {}
    for r in records:
        for flag in found[r.id]:
            rows.setdefault((flag.name, flag.sentence), []).append(r)
    return [f"{name}: {_rows(some, records)}: {sentence}." for (name, sentence), some in rows.items()]


def _rows(some: Sequence[AttackRecord], every: Sequence[AttackRecord]) -> str:
    if len(some) == len(every) > 1:
        return "every row"
    told = []
    for key in groups(some):
        own = [r for r in some if group(r.spec) == key]
        each = [
            f"{attack} on {', '.join(unique(label(r.spec) for r in own if r.spec['attack'] == attack))}"
            for attack in unique(r.spec["attack"] for r in own)
        ]
        told.append(f"{title_of(key)}: {'; '.join(each)}")
    return " | ".join(told)


def below_floor(r: AttackRecord) -> list[Flag]:
    """An attack whose whole interval of gains lies below 0; floors themselves are not attacks."""
    if r.gain_db.high >= 0 or r.spec["attack"] in plugins.FLOORS:
        return []
    if identifies(r):
        told = "below the floor in PSNR, and yet it tells the victims' images apart better than chance: noisy, and no protection"
        return [Flag(name="below-floor", sentence=told)]
    return [Flag(name="below-floor", sentence="below the floor, so this says nothing about privacy")]


def identifies(r: AttackRecord) -> bool:
    """Whether more victims are identified than by chance (one-sided binomial test at 5%)."""
    hits = round(r.scores.identification * r.scores.n)
    return bool(
        binomtest(hits, r.scores.n, r.scores.identification_chance, alternative="greater").pvalue < comparison.ALPHA
    )


def knowledge_of(record: AttackRecord) -> frozenset[str]:
    """What the attacker had: "gradient", shared networks by name, and the fields of Knowledge.

    Which parts' gradients an attack makes use of is its own affair: every attacker holds the whole artifact.
    """
    atoms = set()
    for need in record.knowledge["needs"]:
        source, colon, part = need.partition(":")
        atoms.add(part if source in ("upload", "broadcast") else source if colon else need)
    return frozenset(atoms)


def knows_more(more: AttackRecord, less: AttackRecord) -> bool:
    """Whether one attacker had all that the other had, and something besides; images of another choice are not the same."""
    if more.spec.get("auxiliary") != less.spec.get("auxiliary") and "auxiliary" in knowledge_of(less):
        return False
    if more.knowledge.get("rung") == ORACLE:
        return less.knowledge.get("rung") != ORACLE
    return knowledge_of(less) < knowledge_of(more)


def not_monotone(column: Sequence[AttackRecord]) -> list[tuple[AttackRecord, Flag]]:
    """Among the strongest attacks of each knowledge tag, those that score surely lower than one that knows less.

    Surely: the 95% interval of the paired difference lies below -LEAST_DB, so that rounding and chance raise nothing. A floor is
    no attack, and may only be the one that knows less.
    """
    best = [
        strongest([r for r in column if knowledge_text(r) == known]) for known in unique(map(knowledge_text, column))
    ]
    told = []
    for more in (r for r in best if r.spec["attack"] not in plugins.FLOORS):
        for less in best:
            gaps = comparison.differences_db(more, less) if knows_more(more, less) else []
            if gaps and comparison.range_of(gaps).high < -LEAST_DB:
                sentence = (
                    f"knows more than {less.spec['attack']} ({knowledge_text(less)}) and scores lower, {_db(more)} against "
                    f"{_db(less)} dB: the ladder is not monotone, so this attack is broken or badly tuned"
                )
                told.append((more, Flag(name="not-monotone", sentence=sentence)))
                break
    return told


def oracle_fails(column: Sequence[AttackRecord]) -> list[tuple[AttackRecord, Flag]]:
    """The strongest oracle, where its gain over the floor is not surely above 0."""
    oracles = [r for r in column if r.knowledge.get("rung") == ORACLE]
    if not oracles or strongest(oracles).gain_db.low > 0:
        return []
    r = strongest(oracles)
    sentence = (
        f"the oracle does not beat the floor ({range_text(r.gain_db, sign=True)} dB), so no attack here tests anything"
    )
    return [(r, Flag(name="oracle-fails", sentence=sentence))]


def fedavg_fails(column: Sequence[AttackRecord]) -> list[tuple[AttackRecord, Flag]]:
    """The strongest attack on undefended FedAvg, where it stays below what such an attack is known to reach."""
    r = strongest(column)
    wanted = UNTRAINED_DB if r.spec["round"] == "0" else TRAINED_DB
    if r.spec["method"] != "fedavg" or r.spec["defense"] != "none" or r.scores.psnr_db.mean >= wanted:
        return []
    sentence = (
        f"undefended FedAvg keeps its images ({_db(r)} dB, {wanted:g} expected), so the attacks run here are weak"
    )
    return [(r, Flag(name="fedavg-fails", sentence=sentence))]


def overlapping(own: Sequence[AttackRecord]) -> list[tuple[AttackRecord, Flag]]:
    """Claimed differences between the methods of one table whose intervals overlap; told of the first of the two."""
    by_id = {r.id: r for r in own}
    return [
        (
            by_id[c.ids[0]],
            Flag(
                name="overlapping-intervals",
                sentence=f"{c.name}: the two intervals overlap, so the difference rests on the paired test alone",
            ),
        )
        for c in comparison.between_methods(own)
        if c.differ and c.intervals_overlap
    ]


def _db(r: AttackRecord) -> str:
    return f"{r.scores.psnr_db.mean:.2f}"
