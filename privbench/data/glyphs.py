"""Characters of ten scripts from the fonts that matplotlib ships, split by class: for methods that learn from tasks; embedded.

Fonts: DejaVu Sans, Sans Mono and Serif and STIX General in four styles each, and five of Computer Modern for the letters of ASCII.
The LastResort font, which has a box for every character, is not among them. Four of them or more have the character of a class, and
take turns. In the manner of Omniglot (Lake, Salakhutdinov, Tenenbaum, Science 2015) a class has 20 images.

Which characters are classes: letters without an accent, and mathematical signs, script after script in the order of CHARACTERS, by
code point, up to 60 of Latin and 40 of any other. One that comes nearer than NEAR to an earlier one in any font that has both is
left out, so that A is Latin, and neither Greek nor Cyrillic. The distance of two characters, each fitted to the same box and
blurred by 3x3, is sum |a - b| / sum (a + b) over pixels, from 0 to 1.

Every image is turned, scaled, stretched, sheared and shifted at random. Of each script's classes 60% train, 20% validate and 20%
test: no class serves two purposes. Outlines are not hinted. The grey values depend on the FreeType that matplotlib was built with
and, in a last bit, on Pillow. DIGEST is that of VERSIONS; a note says where the images are others.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import ft2font
from PIL import Image
from torch import Tensor

from privbench.data.dataset import SIDE, Dataset, Domain
from privbench.seeds import stream
from privbench.types import Images

SOURCE = "rendered from the fonts that matplotlib ships: DejaVu and STIX (free licences), Computer Modern (Knuth)"
CHARACTERS = {
    "latin": "ABCDEHIJKLMPQRSUVWXYZabdefgkmnprtyÆØÞßæðþŊŒŦƁƄƆƇƊƋƎƏƐƑƔƕƛƜƝƢ",
    "greek": "ΓΞΣΦΨΩαβζινξςτφωϏϗϙϚϝϞϟϠϡϢϣϤϦϧϨϫϬϮϻ",
    "cyrillic": "ЂЉЊЋЏДЖЗЛЧЩЪЫЮЯбклфцэђєћѣѤѦѨѪѬѮѰѱѵѸѹѺѼѾҀ",
    "armenian": "ԳԴԵԶԷԸԹԺԻԽԾԿՀՁՃՄՅՆՇՈՉՊՌՎՔՖդեէըթխկձճմչպջվ",
    "georgian": "აბგდეთკლნჟრსტუფქღყშცჭჯჰ",
    "hebrew": "אבגדהזיךלמעףץצקרש",
    "arabic": "ءبةتثجخدذرزسشضطعغفقكلمنهوىي",
    "lao": "ກຂງຈຊຍຕທນຜຝພຣລວສຮ",
    "canadian": "ᐂᐄᐅᐆᐊᐋᐌᐍᐎᐏᐑᐒᐓᐔᐕᐗᐘᐙᐚᐝᐞᐟᐠᐣᐤᐥᐨᐩᐪᐫᐭᐮᐵᐾᑁᑃᑈᑉᑍᑏ",
    "signs": "∁∂∄∅∇∈∉∊∋∌∍∎∏−∓∔∕∖∗√∝∞∟∠∡∢∣∥∫∬∭∮∴∵∶∷∸∹∺∻",
}
NEAR = 0.12
STYLES = ("", "-Bold", "-Oblique", "-BoldOblique")
FONTS = (
    *(f"DejaVu{family}{style}" for family in ("Sans", "SansMono") for style in STYLES),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
)
# Their other code points are not those of the characters that they show.
ASCII_FONTS = ("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10")
LEAST_FONTS = 4
PER_CLASS = 20
SHARES = (0.6, 0.2)  # of a script's classes, for training and validation
POINTS = 72  # at which outlines are drawn
BOX = 23  # pixels of the longer side of an upright character of scale 1
OVERSAMPLING = 3
VERSIONS = "FreeType 2.14.3 and Pillow 13.0.0"
DIGEST = "8762d47030ab7efa"


class Jitter(NamedTuple):
    """How one image differs from the upright character in the middle."""

    turn: float  # degrees
    scale: float
    stretch: float  # width by height
    shear: float
    right: float  # pixels
    down: float


def load(root: Path) -> Dataset:
    """One grey domain, split by class; `root` is not needed."""
    sets = []
    for classes in split():
        images = torch.cat([of_class(label) for label in classes])
        labels = torch.tensor(classes).repeat_interleave(PER_CLASS)
        sets.append(Images(images, labels))
    train, validation, test = sets
    digest = digest_of(sets)
    versions = f"FreeType {ft2font.__freetype_version__} and Pillow {Image.__version__}"
    note = (
        "" if digest == DIGEST else f"glyphs is rendered by {versions} here: other images ({digest}) than by {VERSIONS}"
    )
    return Dataset(
        "glyphs", names(), {"all": Domain(train, test, validation)}, flip=False, source=SOURCE, note=note, by_class=True
    )


def digest_of(sets: list[Images]) -> str:
    """Sixteen hexadecimal digits of all images and labels."""
    digest = hashlib.sha256()
    for images, labels in sets:
        digest.update(images.numpy().tobytes())
        digest.update(labels.numpy().tobytes())
    return digest.hexdigest()[:16]


def names() -> tuple[str, ...]:
    """Script and code point of every class, e.g. "greek U+03A9"."""
    return tuple(f"{script} U+{ord(one):04X}" for script, every in CHARACTERS.items() for one in every)


def characters() -> str:
    """The character of every class."""
    return "".join(CHARACTERS.values())


def split() -> tuple[list[int], list[int], list[int]]:
    """The classes that train, validate and test, each ascending; the same for every seed."""
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    first = 0
    for script, every in CHARACTERS.items():
        order = (torch.randperm(len(every), generator=stream(0, "glyphs", "split", script)) + first).tolist()
        cuts = (round(SHARES[0] * len(every)), round(sum(SHARES) * len(every)))
        for part, rows in zip(parts, (order[: cuts[0]], order[cuts[0] : cuts[1]], order[cuts[1] :]), strict=True):
            part += rows
        first += len(every)
    return tuple(sorted(part) for part in parts)  # type: ignore[return-value]


def of_class(label: int) -> Tensor:
    """The images of one class: [20, 1, 32, 32] uint8, white on black."""
    one = characters()[label]
    fonts, rng = fonts_of(one), stream(0, "glyphs", "images", f"{ord(one):04X}")
    drawn = torch.rand(PER_CLASS, len(Jitter._fields), generator=rng, dtype=torch.float64).tolist()
    images = [rendered(outline(fonts[j % len(fonts)], one), jitter(values)) for j, values in enumerate(drawn)]
    return torch.from_numpy(np.stack(images))[:, None]


def fonts_of(character: str) -> list[str]:
    """The fonts that have a character, without those whose box for a missing one would be drawn."""
    names = FONTS + (ASCII_FONTS if character.isascii() else ())
    return [name for name in names if _font(name).get_char_index(ord(character))]


def outline(font: str, character: str) -> np.ndarray:
    """A character as its font has it, cut to its black pixels: [h, w] uint8, 0 where there is no ink."""
    face = _font(font)
    face.set_size(POINTS, 72)
    face.set_text(character, 0.0, flags=ft2font.LoadFlags.NO_HINTING)
    face.draw_glyphs_to_bitmap(antialiased=True)
    pixels = np.asarray(face.get_image())
    rows, columns = np.nonzero(pixels)
    return pixels[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]


@lru_cache(maxsize=len(FONTS + ASCII_FONTS))
def _font(name: str) -> ft2font.FT2Font:
    return ft2font.FT2Font(str(Path(mpl.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"))


def jitter(drawn: list[float]) -> Jitter:
    """From six numbers of [0, 1): a turn of up to 15 degrees, 0.8 to 1.1 times as large, shifts of up to 2.5 pixels."""
    a, b, c, d, e, f = drawn
    return Jitter(30 * a - 15, 0.8 + 0.3 * b, 0.85 + 0.3 * c, 0.4 * d - 0.2, 5 * e - 2.5, 5 * f - 2.5)


UPRIGHT = Jitter(0, 1, 1, 0, 0, 0)


def rendered(ink: np.ndarray, how: Jitter = UPRIGHT) -> np.ndarray:
    """One image of a character: [32, 32] uint8.

    A point p of the image, seen from its middle, shows the ink at A^-1 (p - shift), A = scale x turn x shear x stretch.
    """
    height, width = ink.shape
    zoom = how.scale * BOX * OVERSAMPLING / max(height, width)
    turn = math.radians(how.turn)
    a, b = math.cos(turn) * how.stretch, math.cos(turn) * how.shear - math.sin(turn)
    c, d = math.sin(turn) * how.stretch, math.sin(turn) * how.shear + math.cos(turn)
    over = zoom * (a * d - b * c)
    inverse = ((d / over, -b / over), (-c / over, a / over))
    side = SIDE * OVERSAMPLING
    middle = (side / 2 + how.right * OVERSAMPLING, side / 2 + how.down * OVERSAMPLING)
    offsets = [
        size / 2 - row[0] * middle[0] - row[1] * middle[1] for row, size in zip(inverse, (width, height), strict=True)
    ]
    # A margin, so that the border of the ink is interpolated with black.
    margin = 2
    canvas = Image.fromarray(np.pad(ink, margin))
    coefficients = (*inverse[0], offsets[0] + margin, *inverse[1], offsets[1] + margin)
    large = canvas.transform((side, side), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
    return np.asarray(large.reduce(OVERSAMPLING))
