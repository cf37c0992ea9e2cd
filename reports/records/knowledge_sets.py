"""What an attacker knew as a set, whose set lies within whose, and the rows of a ladder that follow from it.

A row of a ladder stands for one set of knowledge K. It shows the best attack whose knowledge lies within K: whoever knows K can
make any of them. So more knowledge never scores lower, but for the choice on other seeds or victims (measured.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from privbench import registry
from privbench.records.schema import AttackRecord
from reports.records.labels import knowledge_text, shared_parts, unique, where_shared
from reports.records.measured import ORACLE, Measured, strongest

ACTIVE = "active"  # the power to send crafted networks
NATURAL = "natural images"  # what images are like in general
CLASS_EVIDENCE = frozenset({"gradient", "update", "labels"})


class LadderRow(NamedTuple):
    """One row of a ladder."""

    knowledge: str  # K in words
    alike: list[AttackRecord]  # the attacks that need all of K
    best: Measured  # of the attacks whose knowledge lies within K


def knowledge_of(record: AttackRecord) -> frozenset[str]:
    """What the attacker used: "gradient", shared networks by name, the fields of Knowledge, ACTIVE, NATURAL.

    Which parts' gradients an attack makes use of makes no difference.
    """
    atoms = set()
    for need in [*record.knowledge.needs, *record.knowledge.uses]:
        source, colon, part = need.partition(":")
        atoms.add(part if source in ("upload", "broadcast") else source if colon else need)
    parts = where_shared(record.knowledge.tag)  # by a record from before `uses`
    atoms |= {part for part in parts if part in shared_parts(record.cell.train.method)}
    atoms |= {NATURAL} & set(record.knowledge.tag.split(" + "))
    return frozenset(atoms | {ACTIVE} if record.cell.active else atoms)


def implied(atoms: frozenset[str]) -> frozenset[str]:
    """The same with what follows from it.

    An active server sees the gradients that a passive one sees. Who has images knows what images are like. Gradients, updates and
    labels tell classes.
    """
    closure = set(atoms)
    closure |= {"gradient"} if ACTIVE in closure else set()
    closure |= {NATURAL} if "auxiliary" in closure else set()
    closure |= {"classes"} if closure & CLASS_EVIDENCE else set()
    return frozenset(closure)


def lies_within(less: AttackRecord, more: AttackRecord) -> bool:
    """Whether the second attacker had all that the first had.

    Auxiliary images of another choice, or of a folder that held others, are other knowledge. Who knows more images of a client, or
    better, knows fewer and worse ones; so it is with observed rounds.
    """
    needed = knowledge_of(less)
    within_images = "known" not in needed or _fewer_images(less, more)
    within_rounds = "rounds" not in needed or _fewer_rounds(less, more)
    return _same_images(more, less) and needed <= implied(knowledge_of(more)) and within_images and within_rounds


def _fewer_images(less: AttackRecord, more: AttackRecord) -> bool:
    """Whether the first knew no more images of a client than the second, and none of them better."""
    one, other = less.knowledge.known, more.knowledge.known
    if one is None or other is None:
        return False
    exactly = other.quality_db is None
    return one.images <= other.images and (exactly or (one.quality_db or math.inf) <= (other.quality_db or math.inf))


def _fewer_rounds(less: AttackRecord, more: AttackRecord) -> bool:
    """Whether the second kept as many uploads of every round that the first kept some of."""
    one, other = less.knowledge.rounds, more.knowledge.rounds
    if one is None or other is None:
        return False
    return one.uploads <= other.uploads and set(one.observed) <= set(other.observed)


def knows_more(more: AttackRecord, less: AttackRecord) -> bool:
    """Whether one attacker had all that the other had, and something besides.

    NATURAL alone is not something: it is an assumption, which may be wrong of these images. The oracle has the victim's own
    networks and so knows more than every attacker but an active server.
    """
    if more.knowledge.rung == ORACLE:
        return less.knowledge.rung != ORACLE and not less.cell.active and _same_images(more, less)
    besides = bool(implied(knowledge_of(more)) - implied(knowledge_of(less)) - {NATURAL})
    besides = besides or (more.knowledge.known, more.knowledge.rounds) != (less.knowledge.known, less.knowledge.rounds)
    return less.knowledge.rung != ORACLE and lies_within(less, more) and besides


def _same_images(one: AttackRecord, other: AttackRecord) -> bool:
    """Whether the first had the auxiliary images that the second needs."""
    choices = {(r.cell.auxiliary, r.cell.auxiliary_content) for r in (one, other)}
    return len(choices) == 1 or "auxiliary" not in knowledge_of(other)


def rows(
    column: Sequence[AttackRecord],
    text: Callable[[AttackRecord], str] = knowledge_text,
    among: Sequence[AttackRecord] | None = None,
) -> list[LadderRow]:
    """The rows of one column, in the order of its attacks; floors are no attacks.

    A set of knowledge is what attackers of one `text` have in common, of those that apply to a victim: of a server that sent
    everybody the honest networks there is no row. `among` are the records of several columns: with them there is a row for every
    set that one of them has, wherever an attack of this column lies within it.
    """
    attacks = [r for r in column if r.attack not in registry.FLOORS]
    every = attacks if among is None else [r for r in among if r.attack not in registry.FLOORS]
    ladder_rows = []
    for each in unique(map(text, every)):
        owners = [r for r in every if text(r) == each and r.scores.applied]
        if rivals := within(attacks, owners):
            ladder_rows.append(LadderRow(each, [r for r in attacks if text(r) == each], strongest(rivals)))
    return ladder_rows


def within(attacks: Sequence[AttackRecord], owners: Sequence[AttackRecord]) -> list[AttackRecord]:
    """The attacks whose knowledge lies within that of one of the owners; a reference is compared with references alone."""
    references = all(r.knowledge.rung == ORACLE for r in owners)
    return [
        r
        for r in attacks
        if (r.knowledge.rung == ORACLE) == references and any(lies_within(r, owner) for owner in owners)
    ]


def distinct(rows: Sequence[LadderRow]) -> list[Measured]:
    """The best of some rows, each once: an attack may be the best of several."""
    return list({tuple(r.id for r in row.best.attacks): row.best for row in rows}.values())
