"""Which installed font draws a character of a name from outside, and what stands in its place where none does.

matplotlib brings DejaVu Sans, which has Latin, Greek and Cyrillic, but none of the characters of Chinese, Japanese or Korean.
"""

from __future__ import annotations

import logging
from functools import cache

from matplotlib import rcParams
from matplotlib.font_manager import FontEntry, FontProperties, findfont, fontManager, get_font

from privbench.system.printable import lines

LOG = logging.getLogger("privbench")
LAST_RESORT = "Last Resort"  # begins the names of fonts that draw a box for every character
PLAIN = 400  # the weight of a regular font


def drawable(text: str) -> str:
    """The text with the code (backslash, u72d7) of each character that no installed font has; one line says so, of the first."""
    text = lines(text)
    missing = [each for each in text if each != "\n" and family(each) is None]
    if missing and not _warn.cache_info().currsize:
        _warn(missing[0])
    return "".join(_code(each) if each in missing else each for each in text)


def families(text: str) -> list[str]:
    """The fonts that draw a text, for matplotlib to fall back on in this order: first the usual one."""
    others = dict.fromkeys(font for each in text if each != "\n" and (font := family(each)))
    return [*rcParams["font.family"], *(name for name in others if name)]


def properties(text: str, points: float) -> FontProperties:
    """The same, of a size."""
    return FontProperties(family=families(text), size=points)


@cache
def family(character: str) -> str | None:
    """The font that draws a character: "" for the usual one, None where no installed font does."""
    if ord(character) in _characters(findfont(FontProperties())):
        return ""
    able = [entry for entry in fontManager.ttflist if _is_usable(entry) and ord(character) in _characters(entry.fname)]
    best = min(able, key=lambda entry: (entry.style != "normal", entry.weight != PLAIN, entry.name), default=None)
    return None if best is None else best.name


def _is_usable(entry: FontEntry) -> bool:
    return entry.size == "scalable" and not entry.name.startswith(LAST_RESORT)


@cache
def _characters(path: str) -> frozenset[int]:
    """The codes of what a font has; none of one that cannot be read, or is made of pictures of one size."""
    try:
        font = get_font(path)
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (OSError, RuntimeError):
        return frozenset()


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode()


@cache
def _warn(character: str) -> None:
    """One line, however many characters of however many figures there are."""
    LOG.warning(
        "no installed font has characters such as %s; figures show their codes (%s): install one that has them, e.g. Noto Sans CJK",
        character,
        _code(character),
    )
