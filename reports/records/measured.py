"""What a row of a table is about: the victims of one attack, or those of the strongest of several.

The strongest of several attacks is a maximum, and a maximum flatters itself: of attacks that are equally strong, the one that
these networks and victims happened to suit looks stronger than it is. So the strongest is chosen on all other seeds and reported
on each: victims of one seed share their networks, and an attack what it trained for them. A row's numbers are over all seeds, and
it names every attack that some seeds chose. An attack that does not apply to a seed is no rival there. A row of a ladder may then
lie below one with less knowledge: rows are monotone in expectation only.

The choice makes the seeds of a row depend on each other, which its interval takes for independent: of ten attacks that gain
nothing, it would leave out 0 more often than it says. So a gain is significant only where that of one rival by itself is, too, by
Student's t over seeds, adjusted by Holm over all of them.

Of one seed, or of attacks that were not made on the same seeds, the strongest is chosen on one half of the victims and reported on
the other, both ways. Halves are fixed: victims in the order of seed, client and digest of their images, every second one, so
that seeds and clients have equal shares of both. What an attack owes to the luck of a seed's networks is in both halves, and stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import fmean
from typing import Any

from privbench import registry
from privbench.records.entries import Name, Victim
from privbench.records.means import Floor, Scores, best_floor, floors_identified, gains, scores_of
from privbench.records.schema import AttackRecord
from privbench.scoring import statistics
from privbench.scoring.statistics import Interval
from reports.records.published import papers_attack_on

ORACLE = "L8"  # the rung of the references, which have the victim's own networks
EQUAL_DB = 1e-4  # two images that are equal up to rounding score the same to within it
CHOSEN = (
    "'Strongest' is chosen on the other seeds and reported on each, among attacks that apply to it; of one seed it is chosen on "
    "one half of the victims and reported on the other, both ways. Rows are monotone in expectation only. A gain is "
    "significant only where one of the attacks that were chosen among gains by itself, adjusted (Holm) for how many they are."
)


@dataclass(frozen=True)
class Measured:
    """Some victims, each as one attack left it."""

    attacks: tuple[AttackRecord, ...]  # whose victims they are: one, or those that some seeds or halves chose
    victims: tuple[Victim, ...]
    rivals: tuple[AttackRecord, ...] = ()  # among which they were chosen

    @property
    def first(self) -> AttackRecord:
        """The record for what all attacks of one row have in common."""
        return self.attacks[0]

    @property
    def name(self) -> str:
        """The attack, or all of them, e.g. "decoder/surrogate"."""
        return "/".join(dict.fromkeys(r.attack for r in self.attacks))

    @cached_property
    def scores(self) -> Scores:
        """Means over these victims."""
        return scores_of(self.victims)

    @cached_property
    def floor(self) -> Floor:
        """The best of their floors."""
        return best_floor(self.victims)

    @cached_property
    def psnr_db(self) -> Interval:
        """Mean and interval."""
        return statistics.interval([v.psnr_db for v in self.victims], self.victims)

    @cached_property
    def gains(self) -> list[float]:
        """Each victim's PSNR less its own score of the best floor; 0 for better means alone (privbench.records.means.gains)."""
        return gains(self.victims, self.floor.name)

    @cached_property
    def gain_db(self) -> Interval:
        """Their mean and interval."""
        return statistics.interval(self.gains, self.victims)

    @cached_property
    def gain_here_db(self) -> Interval:
        """The same for other victims of these very networks, which is what checks of a run ask."""
        return statistics.interval(self.gains, self.victims, seeds_fixed=True)

    @cached_property
    def floor_db(self) -> Interval:
        """The best floor's mean and interval."""
        return statistics.interval([v.floors[self.floor.name] for v in self.victims], self.victims)

    @cached_property
    def identifies(self) -> bool:
        """Whether more of these victims are identified than by every floor: the interval of what is more lies above 0.

        For other victims of these very networks. False where a record does not say what floors identify.
        """
        floors = floors_identified(self.victims).values()
        more = [
            statistics.interval(
                [v.identification - of for v, of in zip(self.victims, each, strict=True)],
                self.victims,
                seeds_fixed=True,
            )
            for each in floors
        ]
        return bool(more) and all(one.low > 0 for one in more)

    @property
    def is_significant(self) -> bool:
        """Whether the attack gains significantly over the floor: the interval lies above 0, over enough seeds.

        Not where no image was reconstructed: answers of attacks that failed are better or worse than the floor by accident. Nor
        where the attack was chosen among several of which no single one gains, adjusted for their number (see above).
        """
        return self.reconstructed > 0 and self.gain_db.significantly_above and self._a_rival_gains

    @cached_property
    def _a_rival_gains(self) -> bool:
        if len(self.rivals) < 2:
            return True
        rows = [of(r) for r in self.rivals]
        gaining = [row for row in rows if fmean(row.gains) > 0]
        p_values = [statistics.p_value(row.gains, row.victims) for row in gaining]
        # Of Holm's adjusted values the least is the least times how many there are.
        return any(p is not None and p * len(rows) < statistics.ALPHA for p in p_values)

    @property
    def reconstructed(self) -> int:
        """Of how many victims it returned an image that is no floor and no failure."""
        return self.scores.n - self.scores.failures - self.scores.not_applicable


def of(record: AttackRecord) -> Measured:
    """The victims of one attack."""
    return Measured((record,), tuple(record.victims))


def returned(row: Measured) -> dict[str, int]:
    """Floor -> of how many victims the attack returned that very image in place of a reconstruction.

    Decided by the score: the floor's to EQUAL_DB, which is more than rounding and far less than two images differ by chance.
    """
    if row.first.attack in registry.FLOORS:
        return {}
    counts: Counter[str] = Counter()
    for v in row.victims:
        same = [name for name, psnr in v.floors.items() if abs(v.psnr_db - psnr) < EQUAL_DB]
        if same and v.outcome != "diverged":
            counts[next((name for name in (row.floor.name, "class-mean") if name in same), same[0])] += 1
    return dict(counts)


def returned_text(row: Measured) -> str:
    """The same in words, e.g. "returned the class mean for 29 of 80"; nothing where it never did."""
    n = len(row.victims)
    names = {name: f"the {name.replace('-', ' ')}" if name != "grey" else "grey" for name in registry.FLOORS}
    each = [f"{names[name]}{f' for {count} of {n}' if count < n else ''}" for name, count in returned(row).items()]
    return f"returned {' and '.join(each)}" if each else ""


def attackers(records: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Those that are no reference and no floor; floors where there are no attacks, and all where there is nothing else."""
    no_reference = [r for r in records if r.knowledge.rung != ORACLE]
    return [r for r in no_reference if r.attack not in registry.FLOORS] or no_reference or list(records)


def best_record(records: Sequence[AttackRecord]) -> AttackRecord:
    """The record with the highest mean PSNR over all victims: for pictures and orders, not for numbers that are printed."""
    return max(attackers(records), key=lambda r: r.scores.psnr_db)


def strongest(records: Sequence[AttackRecord]) -> Measured:
    """Of some attacks the strongest, chosen on all other seeds and reported on each; of one seed, on halves (see above).

    References and floors are no attackers and stand only where there is nothing else. A single victim is its own half. Attacks on
    other victims, as on sums over clients and on one client in them, have halves of their own.
    """
    rivals = attackers(records)
    if len(rivals) == 1:
        return of(rivals[0])
    part = _parts(rivals)
    if not part:
        return replace(of(best_record(rivals)), rivals=tuple(rivals))
    chosen: dict[int, AttackRecord] = {}
    for this in sorted(set(part.values())):
        # Whoever attacks knows where an attack does not apply, as after sending honest networks, and takes another there.
        able = [r for r in rivals if _applied(_placed(r, part, this, here=True))] or rivals
        means = [_over_floor(r, _placed(r, part, this, here=False)) for r in able]
        chosen[this] = able[means.index(max(means))]
    unlike = {r.id: r for r in chosen.values()}
    if len(unlike) == 1:
        return replace(of(chosen.popitem()[1]), rivals=tuple(rivals))
    victims = [v for this, r in chosen.items() for v in r.victims if part[v.name] == this]
    return Measured(tuple(unlike.values()), tuple(sorted(victims, key=lambda v: v.name)), tuple(rivals))


def _placed(record: AttackRecord, part: Mapping[Name, int], this: int, *, here: bool) -> list[Victim]:
    """An attack's victims of one part, or of all others."""
    return [v for v, name in zip(record.victims, record.names, strict=True) if (part[name] == this) == here]


def _over_floor(record: AttackRecord, victims: Sequence[Victim]) -> float:
    """By how much an attack is above its best floor on some victims, dB, where it applied: rivals may have other victims."""
    floor = record.floor.name
    return fmean(v.psnr_db - v.floors[floor] for v in _applied(victims) or victims)


def _applied(victims: Sequence[Victim]) -> list[Victim]:
    """Those to which the attack applied."""
    return [v for v in victims if v.outcome != "not applicable"]


def _parts(rivals: Sequence[AttackRecord]) -> dict[Name, int]:
    """Victim -> its seed, or its half (see above); nothing where one of the halves would hold no victim."""
    seeds = {frozenset(name[0] for name in r.names) for r in rivals}
    if len(seeds) == 1 and len(next(iter(seeds))) > 1:
        return {name: name[0] for r in rivals for name in r.names}
    groups = _groups({r.names for r in rivals})
    if any(len(group) < 2 for group in groups):
        return {}
    return {name: half for group in groups for name, half in _halves(tuple(sorted(group))).items()}


def halves(victims: Sequence[Victim]) -> dict[Name, int]:
    """Victim -> 0 or 1, the same for every attack on the same victims; see above."""
    return _halves(tuple(sorted({v.name for v in victims})))


def _groups(each: Iterable[Sequence[Name]]) -> list[set[Name]]:
    """The victims of some attacks, together where an attack has some of both."""
    groups: list[set[Name]] = []
    for names in each:
        shared = [group for group in groups if not group.isdisjoint(names)]
        groups = [group for group in groups if group not in shared] + [set(names).union(*shared)]
    return groups


@lru_cache(maxsize=64)
def _halves(names: tuple[Name, ...]) -> dict[Name, int]:
    return {name: i % 2 for i, name in enumerate(names)}


def differences(first: Measured, second: Measured) -> tuple[list[float], list[Victim]]:
    """PSNR of the first less the second's in dB, for every victim of both, and who they are.

    A victim of both has the same images under the same seed, and where several clients hold these, the same client.
    """
    same_client = {v.name: v.psnr_db for v in second.victims}
    other = {(v.seed, *v.images): v.psnr_db for v in second.victims}
    common = [v for v in first.victims if (v.seed, *v.images) in other]
    return [v.psnr_db - same_client.get(v.name, other[v.seed, *v.images]) for v in common], common


def identified_text(scores: Scores, of: str = "") -> str:
    """How many are identified, with what the best floor identifies: "26% (floor 19%)"; where that is not known, with chance."""
    floor, chance = scores.identification_floor, scores.identification_chance
    beside = f"chance {100 * chance:.3g}%" if floor is None else f"floor {100 * floor:.0f}%"
    return f"{100 * scores.identification:.0f}%{of and f' {of}'} ({beside})"


def psnr_columns(row: Measured) -> dict[str, Any]:
    """The PSNR and the best floor of one row of a CSV file, dB; alike in every table of attacks."""
    floor = row.first.floor
    return {
        "psnr_db": row.scores.psnr_db,
        "psnr_low": row.psnr_db.low,
        "psnr_high": row.psnr_db.high,
        "psnr_raw_db": row.scores.psnr_raw_db,
        "floor": floor.name,
        "floor_db": floor.psnr_db,
    }


def score_columns(row: Measured) -> dict[str, Any]:
    """The gain in dB and the other scores of such a row."""
    s = row.scores
    return {
        "gain_db": row.gain_db.mean,
        "gain_low": row.gain_db.low,
        "gain_high": row.gain_db.high,
        "ssim": s.ssim,
        "feature_error": s.feature_error,
        "lpips": s.lpips,
        "worst_5_percent_db": s.worst_db,
        "share_above_20_db": s.exposed,
        "identification": s.identification,
        "identification_chance": s.identification_chance,
        "identification_floor": s.identification_floor,
        "label_accuracy": s.label_accuracy,
        "n": s.n,
        "failures": s.failures,
        "not_applicable": s.not_applicable,
        "seeds": " ".join(map(str, row.first.cell.seeds)),
    }


def papers_attack(records: Sequence[AttackRecord]) -> AttackRecord | None:
    """The record of the papers' own attack among those of one method, if it was made."""
    return next((r for r in records if r.cell.attack == papers_attack_on(r.cell.train.method)), None)
