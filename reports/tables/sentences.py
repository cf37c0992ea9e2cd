"""What an attack reaches, as sentences. Their words follow from the numbers, so they stay true when those are measured again."""

from __future__ import annotations

from privbench.scoring.statistics import Interval
from reports.records.labels import knowledge_text, unique
from reports.records.measured import Measured, identified_text
from reports.records.number_text import range_text

SIGNIFICANT, BELOW = "a significant gain over the floor", "below the floor"
FEW, NO = "too few seeds to compare with the floor", "no significant gain over the floor"
ADJUSTED = "a gain that is not significant, adjusted for the attacks that it was chosen among"
NOTHING = "no image was reconstructed; its answers against the floor"


def of_attack(row: Measured) -> str:
    """Three sentences: what one attack reaches, against the floor, and how many victims it identifies."""
    s = row.scores
    failures = f" It fails for {s.failures} of {s.n}." if s.failures else ""
    return (
        f"`{row.name}` reaches {level(row.psnr_db)}. {_against_floor(row)} "
        f"It identifies {identified_text(s, 'of the victims')}.{failures}"
    )


def in_one(row: Measured, where: str) -> str:
    """The first two of them as one, with what the attacker knows; `where` is the method and its setting."""
    known = "; ".join(unique(knowledge_text(r) for r in row.attacks))
    return f"{where}: {row.name} ({known}) reaches {level(row.psnr_db)}; {verdict(row)}: {_gain(row.gain_db)}."


def level(interval: Interval) -> str:
    """A PSNR with its interval."""
    mean, _, rest = range_text(interval).partition(" ")
    return f"{mean} dB {rest}"


def verdict(row: Measured) -> str:
    """What a gain over the floor says."""
    gain = row.gain_db
    if row.reconstructed == 0:
        return NOTHING
    if row.is_significant:
        return SIGNIFICANT
    if gain.is_few:
        return FEW
    if gain.significantly_above:
        return ADJUSTED
    return BELOW if gain.high < 0 else NO


def _gain(gain: Interval) -> str:
    mean, _, rest = range_text(gain, sign=True).partition(" ")
    return f"{mean} dB {rest}"


def _against_floor(row: Measured) -> str:
    words = verdict(row)
    words = f"That is {words}" if words in (SIGNIFICANT, ADJUSTED, BELOW) else words[0].upper() + words[1:]
    return f"{words}: {_gain(row.gain_db)}."
