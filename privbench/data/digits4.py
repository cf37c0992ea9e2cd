"""Four domains of real digits for the non-IID setting, in the manner of Digit5, embedded.

    plain     scikit-learn's handwritten digits
    blended   |patch of a photograph - digit| per channel: how MNIST-M was made from MNIST (Ganin and Lempitsky 2015)
    fonts     digits of the fonts that matplotlib ships, with random font, size, turn, place and colours: the recipe of
              Synthetic Digits (Ganin and Lempitsky 2015), without its neighbouring distractors
    inverted  strokes thickened by a 3x3 grey dilation, then inverted
Every handwritten digit serves one domain and one purpose only. All images have three channels.
"""

from pathlib import Path

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from privbench.data import digits, photos
from privbench.data.dataset import SIDE, Dataset, Domain
from privbench.data.readers.resize import to_32, to_colour
from privbench.seeds import stream
from privbench.types import Images

SOURCE = "made from scikit-learn's digits, scikit-image's and scikit-learn's photographs and matplotlib's fonts"
DOMAINS = ("plain", "blended", "fonts", "inverted")
TRAIN, TEST = 400, 199  # per domain; the test images are halved into validation and test
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSerif",
    "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "cmr10", "cmb10", "cmss10",
    "cmtt10",
)  # fmt: skip
OVERSAMPLING = 3
LEAST_CONTRAST = 90  # of 255, between the grey values of digit and background


def load(root: Path, domains: tuple[str, ...] | None = None) -> Dataset:
    """One client's worth of images per domain; `root` is not needed."""
    images, labels = digits.shuffled()
    share = TRAIN + TEST
    loaded = {}
    for name in domains or DOMAINS:
        rows = slice(("plain", "blended", "inverted").index(name) * share, None) if name != "fonts" else slice(0, share)
        x, y = images[rows][:share], labels[rows][:share]
        if name == "plain":
            x = to_colour(x)
        elif name == "blended":
            x = blended(x)
        elif name == "inverted":
            x = inverted(x)
        else:
            x, y = fonts(share)
        loaded[name] = Domain(Images(x[:TRAIN], y[:TRAIN]), Images(x[TRAIN:], y[TRAIN:]))
    note = "" if tuple(loaded) == DOMAINS else f"digits4 with the domains {', '.join(loaded)} only"
    return Dataset("digits4", tuple("0123456789"), loaded, flip=False, source=SOURCE, note=note)


def blended(images: Tensor) -> Tensor:
    """|patch - digit|: [N, 1, 32, 32] -> [N, 3, 32, 32] uint8."""
    rng = stream(0, "digits4", "blended")
    names = list(photos.PHOTOS)
    originals = {name: photos.photograph(name) for name in names}
    patches = []
    for choice in torch.randint(len(names), (len(images),), generator=rng).tolist():
        photo = originals[names[choice]]
        top = int(torch.randint(photo.shape[1] - SIDE + 1, (), generator=rng))
        left = int(torch.randint(photo.shape[2] - SIDE + 1, (), generator=rng))
        patches.append(photo[:, top : top + SIDE, left : left + SIDE])
    return (torch.stack(patches).int() - images.int()).abs().to(torch.uint8)


def inverted(images: Tensor) -> Tensor:
    """Thickened strokes on white: [N, 1, 32, 32] -> [N, 3, 32, 32] uint8."""
    thick = torch.nn.functional.max_pool2d(images.float(), 3, stride=1, padding=1)
    return to_colour((255 - thick).to(torch.uint8))


def fonts(count: int) -> tuple[Tensor, Tensor]:
    """Rendered digits [count, 3, 32, 32] uint8 with labels, classes in turn and then shuffled."""
    rng = stream(0, "digits4", "fonts")
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    labels = torch.arange(count) % 10
    labels = labels[torch.randperm(count, generator=rng)]
    return torch.stack([_render(str(int(y)), folder, rng) for y in labels]), labels


def _render(text: str, folder: Path, rng: torch.Generator) -> Tensor:
    draw = torch.rand(6, generator=rng).tolist()
    side = SIDE * OVERSAMPLING
    size = round(side * (0.7 + 0.3 * draw[0]))
    font = ImageFont.truetype(str(folder / f"{FONTS[int(draw[1] * len(FONTS))]}.ttf"), size)
    canvas = Image.new("L", (side, side), 0)
    left, top, right, bottom = font.getbbox(text)
    x = (side - right - left) / 2 + (draw[2] - 0.5) * 0.2 * side
    y = (side - bottom - top) / 2 + (draw[3] - 0.5) * 0.2 * side
    ImageDraw.Draw(canvas).text((x, y), text, fill=255, font=font)
    turned = canvas.rotate((draw[4] - 0.5) * 40, resample=Image.Resampling.BILINEAR)
    mask = torch.from_numpy(np.array(turned))[None].float() / 255
    while True:
        ink, paper = torch.randint(256, (2, 3, 1, 1), generator=rng).float()
        if abs(float(ink.mean() - paper.mean())) >= LEAST_CONTRAST:
            break
    return to_32((paper + mask * (ink - paper)).round().to(torch.uint8)[None])[0]
