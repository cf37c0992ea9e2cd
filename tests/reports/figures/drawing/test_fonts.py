"""Names in scripts that matplotlib's own font lacks: drawn where an installed font has them, else with their codes."""

import logging

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import rcParams
from matplotlib.font_manager import FontEntry, fontManager
from PIL import Image

from reports.figures import label_histogram, roc
from reports.figures.drawing import fonts, style
from reports.figures.label_histogram import Panel
from reports.records import grouping
from tests.builders.records import record

DOG, CAT, ABSENT = "\u72d7", "\u732b", "\U000f1234"


def font_with(characters, path):
    """A font whose every character is a filled square."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 900), (900, 900), (900, 0)):
        pen.lineTo(corner)
    pen.closePath()
    names = [f"uni{ord(each):04X}" for each in characters]
    built = FontBuilder(1000, isTTF=True)
    built.setupGlyphOrder([".notdef", *names])
    built.setupCharacterMap(dict(zip(map(ord, characters), names, strict=True)))
    built.setupGlyf({".notdef": TTGlyphPen(None).glyph(), **dict.fromkeys(names, pen.glyph())})
    built.setupHorizontalMetrics(dict.fromkeys([".notdef", *names], (1000, 0)))
    built.setupHorizontalHeader(ascent=900, descent=-100)
    built.setupNameTable({"familyName": "Squares", "styleName": "Regular", "psName": "Squares"})
    built.setupOS2(usWeightClass=400)
    built.setupPost()
    built.save(path)


@pytest.fixture(autouse=True)
def forgotten():
    """What is known of characters is forgotten before and after, as a test changes which fonts there are."""
    for each in (fonts.family, fonts._warn):
        each.cache_clear()
    yield
    for each in (fonts.family, fonts._warn):
        each.cache_clear()


@pytest.fixture
def squares(tmp_path, monkeypatch):
    """An installed font that has the dog and the cat."""
    font_with(DOG + CAT, tmp_path / "squares.ttf")
    entry = FontEntry(fname=str(tmp_path / "squares.ttf"), name="Squares", weight=400, size="scalable")
    monkeypatch.setattr(fontManager, "ttflist", [*fontManager.ttflist, entry])
    fontManager._findfont_cached.cache_clear()
    yield
    monkeypatch.undo()
    fontManager._findfont_cached.cache_clear()


def drawn(names, folder):
    """A label histogram, whose names are ticks, and a curve, whose legend and title hold names; warnings are errors."""
    panel = Panel(f"title {names[0]}", list(names), [[1] * len(names)] * len(names))
    paths = label_histogram.write([panel], names, folder / "clients")
    records = [record(dataset=f"folder:/x/{names[0]}", attack=None)]
    return paths + roc.write(records, grouping.settings(records)[0], folder / "roc")


def ink(path):
    """How many pixels are dark."""
    return int((np.asarray(Image.open(path).convert("L")) < 128).sum())


def test_without_a_font_the_codes_are_drawn_and_one_line_says_so(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(fontManager, "ttflist", [e for e in fontManager.ttflist if "DejaVu" in e.name])
    with caplog.at_level(logging.WARNING, "privbench"):
        assert len(drawn([f"{DOG}{CAT}", f"x{DOG}\x1b[2J", "caf\u00e9"], tmp_path)) == 4
    assert fonts.drawable(f"a{DOG}\n\u03a9") == "a\\u72d7\n\u03a9"
    assert len(caplog.messages) == 1
    assert f"such as {DOG}; figures show their codes (\\u72d7)" in caplog.messages[0]


def test_an_installed_font_draws_what_the_usual_one_lacks(squares, tmp_path, caplog):
    assert fonts.families(f"a{DOG}") == [*rcParams["font.family"], "Squares"]
    assert fonts.drawable(f"a{DOG}{CAT}{ABSENT}") == f"a{DOG}{CAT}\\U000f1234"
    assert style.width_inches(f"{DOG}{DOG}", 72) == pytest.approx(2, rel=0.05)
    with_names = drawn([f"{DOG}{CAT}", DOG], tmp_path)
    (tmp_path / "blank").mkdir()
    without = drawn(["  ", " "], tmp_path / "blank")
    assert not [line for line in caplog.messages if DOG in line]
    for one, other in zip(with_names, without, strict=True):
        if one.suffix == ".png":
            # Filled squares of about 7 points at 300 dpi.
            assert ink(one) - ink(other) > 2 * 25**2
        else:
            assert b"Squares" in one.read_bytes()


def test_a_font_that_draws_a_box_for_everything_and_one_that_cannot_be_read_are_no_fonts(tmp_path, monkeypatch):
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    broken = FontEntry(fname=str(tmp_path / "broken.ttf"), name="Broken", weight=400, size="scalable")
    boxes = [e for e in fontManager.ttflist if e.name.startswith(fonts.LAST_RESORT)]
    assert boxes
    usual = [e for e in fontManager.ttflist if e.name == "DejaVu Sans"]
    monkeypatch.setattr(fontManager, "ttflist", [broken, *boxes, *usual])
    assert fonts.family(ABSENT) is None
    assert fonts.family("a") == ""
