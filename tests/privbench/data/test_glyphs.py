"""Characters that really are in the fonts, look unlike each other, and are split by class; the same bits everywhere."""

import unicodedata
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import ft2font
from PIL import Image

from privbench.data import glyphs
from privbench.data.dataset import sound

# Blocks of code points from which each script's classes are chosen.
BLOCKS = {
    "latin": (0x41, 0x250),
    "greek": (0x391, 0x3FF),
    "cyrillic": (0x400, 0x52F),
    "armenian": (0x531, 0x588),
    "georgian": (0x10D0, 0x10F1),
    "hebrew": (0x5D0, 0x5EB),
    "arabic": (0x621, 0x64B),
    "lao": (0xE81, 0xEAF),
    "canadian": (0x1401, 0x1676),
    "signs": (0x2200, 0x2300),
}
PUBLISHED = f"FreeType {ft2font.__freetype_version__} and Pillow {Image.__version__}" == glyphs.VERSIONS


@pytest.fixture(scope="module")
def loaded():
    return glyphs.load(Path())


def blurred(font, character):
    image = np.pad(glyphs.rendered(glyphs.outline(font, character)) / 255, 1)
    return sum(image[i : i + 32, j : j + 32] for i in range(3) for j in range(3)) / 9


def distance(a, b, font):
    x, y = blurred(font, a), blurred(font, b)
    return np.abs(x - y).sum() / (x + y).sum()


def test_every_class_has_twenty_images_of_white_ink_on_black(loaded):
    (domain,) = sound(loaded).domains.values()
    sets = {"train": domain.train, "validation": domain.validation, "test": domain.test}
    assert len(loaded.classes) == len(set(glyphs.characters())) == 339
    assert {name: len(part.labels.unique()) for name, part in sets.items()} == {
        "train": 203,
        "validation": 69,
        "test": 67,
    }
    for part in sets.values():
        assert part.images.shape[1:] == (1, 32, 32)
        assert torch.unique(part.labels, return_counts=True)[1].eq(glyphs.PER_CLASS).all()
        assert part.images.flatten(1).max(1).values.min() > 200
        ink = (part.images > 127).flatten(1).sum(1)
        assert 8 <= ink.min() <= ink.max() < 512
        # Nothing is cut off at the border, in all but a few.
        border = torch.cat([part.images[..., 0, :], part.images[..., -1, :]], -1).flatten(1).amax(1)
        assert (border == 0).float().mean() > 0.95


def test_no_class_serves_two_purposes_and_every_script_serves_all(loaded):
    (domain,) = loaded.domains.values()
    classes = [set(part.labels.tolist()) for part in (domain.train, domain.validation, domain.test)]
    assert not classes[0] & classes[1]
    assert not classes[0] & classes[2]
    assert not classes[1] & classes[2]
    assert set.union(*classes) == set(range(339))
    for each in classes:
        assert {loaded.classes[label].split()[0] for label in each} == set(BLOCKS)


@pytest.mark.skipif(not PUBLISHED, reason="other versions of FreeType or Pillow")
def test_the_images_are_those_of_the_digest(loaded):
    assert loaded.note == ""


def test_other_images_are_said_to_be_others(monkeypatch):
    monkeypatch.setattr(glyphs, "split", lambda: ([0], [1], [2]))
    assert "other images" in glyphs.load(Path()).note


def test_no_character_is_a_box_for_a_missing_one():
    folder = Path(mpl.get_data_path()) / "fonts" / "ttf"
    shown = {
        font: ft2font.FT2Font(str(folder / f"{font}.ttf")).get_charmap() for font in glyphs.FONTS + glyphs.ASCII_FONTS
    }
    for one in glyphs.characters():
        fonts = glyphs.fonts_of(one)
        assert len(fonts) >= glyphs.LEAST_FONTS
        assert len(set(fonts)) == len(fonts)
        assert all(shown[font].get(ord(one), 0) > 0 for font in fonts)  # glyph 0 is the box
    assert "DejaVuSans" not in glyphs.fonts_of("\u16a0")  # a rune, which the LastResort font alone would draw


def test_letters_that_look_alike_in_several_scripts_are_one_class():
    every = glyphs.characters()
    for alike in ("AΑА", "BΒВ", "EΕЕ", "HΗН", "oοо", "pрρ", "XΧХx", "Сc"):
        assert sum(one in every for one in alike) <= 1, alike
    assert distance("A", "Α", "DejaVuSans") == 0
    assert distance("A", "А", "STIXGeneral") < glyphs.NEAR < distance("A", "B", "STIXGeneral")


def test_in_no_font_do_two_classes_come_near_each_other():
    every = glyphs.characters()
    for font in (*glyphs.FONTS[::2], *glyphs.ASCII_FONTS[:2]):
        here = [one for one in every if font in glyphs.fonts_of(one)]
        pixels = torch.tensor(np.stack([blurred(font, one).ravel() for one in here]), dtype=torch.float32)
        ink = pixels.sum(1)
        apart = torch.cdist(pixels, pixels, p=1) / (ink[:, None] + ink) + torch.eye(len(here))
        assert apart.min() >= glyphs.NEAR - (1e-4 if PUBLISHED else 0.01), font


@pytest.mark.thorough
def test_the_classes_are_those_that_the_rule_chooses():
    chosen = {}
    for script, (first, end) in BLOCKS.items():
        most, before = 60 if script == "latin" else 40, len(chosen)
        for one in map(chr, range(first, end)):
            kinds = ("Sm",) if script == "signs" else ("Lu", "Ll", "Lo")
            if len(chosen) - before == most:
                break
            accented = script != "signs" and unicodedata.decomposition(one)
            if unicodedata.category(one) not in kinds or accented or len(glyphs.fonts_of(one)) < glyphs.LEAST_FONTS:
                continue
            images = {font: blurred(font, one) for font in glyphs.fonts_of(one)}
            if all(apart(images, other) >= glyphs.NEAR for other in chosen.values()):
                chosen[one] = images
        assert "".join(list(chosen)[before:]) == glyphs.CHARACTERS[script]


def apart(a, b):
    """The least distance of two characters over the fonts that have both."""
    return min((np.abs(a[f] - b[f]).sum() / (a[f] + b[f]).sum() for f in a.keys() & b.keys()), default=1)


def test_an_upright_character_is_in_the_middle_and_a_jittered_one_is_moved_as_asked():
    ink = glyphs.outline("DejaVuSans", "H")
    image = torch.tensor(glyphs.rendered(ink)).float()
    where = torch.arange(32) + 0.5
    middle = [float((image.sum(axis) * where).sum() / image.sum()) for axis in (0, 1)]
    assert middle == pytest.approx([16, 16], abs=0.2)
    moved = torch.tensor(glyphs.rendered(ink, glyphs.UPRIGHT._replace(right=2, down=-3))).float()
    after = [float((moved.sum(axis) * where).sum() / moved.sum()) for axis in (0, 1)]
    assert after == pytest.approx([middle[0] + 2, middle[1] - 3], abs=0.05)
    bar = glyphs.outline("DejaVuSans", "−")
    turned = np.nonzero(glyphs.rendered(bar, glyphs.UPRIGHT._replace(turn=90)) > 127)
    assert np.ptp(turned[0]) > 4 * np.ptp(turned[1])
