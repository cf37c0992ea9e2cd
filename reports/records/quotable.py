"""Which scores of reconstructions may be shown: none of smoke runs, whose networks have learned nothing. Every report asks here.

The scores stay in the records, so that `privbench reproduce` can compare them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from privbench.records.schema import Record

R = TypeVar("R", bound=Record)

SMOKE = "smoke"  # the preset that tests that every part runs, and nothing else
NOT_SHOWN = "(smoke)"  # in place of a score
SMOKE_NOTE = "smoke tests that every part runs. Its networks have learned nothing, so no score is shown; --preset quick measures."
# Words in the names of columns that hold a score, in tables ("PSNR dB") and in CSV files ("psnr_low", "floor_grey_db").
_WORDS = {"psnr", "gain", "db", "ssim", "lpips", "error"}
_PUBLISHED = "published"  # begins the names of columns of other people's numbers


def is_quotable(preset: str | None) -> bool:
    """Whether scores of a run with that preset, or of unknown preset, may be shown."""
    return preset != SMOKE


def quotable(records: Sequence[R]) -> list[R]:
    """Those of some records whose scores may be shown, in the same order: of the others no figure is drawn."""
    return [r for r in records if is_quotable(r.cell.preset)]


def is_smoke(records: Sequence[Any]) -> bool:
    """Whether no score of some records may be shown, and SMOKE_NOTE says why."""
    return not any(is_quotable(r.cell.preset) for r in records)


def is_score(column: str) -> bool:
    """Whether a column holds scores of reconstructions, by its name; not that of published values."""
    return bool(_WORDS & set(re.findall(r"[a-z]+", column.lower()))) and not column.startswith(_PUBLISHED)


def cells(preset: str, row: Mapping[str, str], empty: str) -> dict[str, str]:
    """A table's row as it may be shown; a cell that says `empty` stays as it is."""
    hidden = () if is_quotable(preset) else [name for name in row if is_score(name) and row[name] != empty]
    return {**row, **dict.fromkeys(hidden, NOT_SHOWN)}


def numbers(preset: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """A CSV file's row as it may be shown: nan in place of each score."""
    hidden = () if is_quotable(preset) else [name for name in row if is_score(name)]
    return {**row, **dict.fromkeys(hidden, math.nan)}
