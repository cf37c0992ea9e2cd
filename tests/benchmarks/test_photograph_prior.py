"""The prior of photographs is what its script measures, on photographs that no data set here holds."""

import hashlib
from pathlib import Path

import pytest
import skimage
import sklearn.datasets
import torch

from attacks.common import priors
from benchmarks import photograph_prior
from benchmarks.photograph_prior import PHOTOGRAPHS, Constants, Measured
from privbench.data import photos

# Another JPEG decoder differs by a level of 255 here and there, and the crops' pixels are rounded to whole levels: about 1e-3 of
# the squared differences of the smoothest colours, whose neighbours differ by a few levels.
TOLERANCE = 1e-2


def test_the_shipped_constants_are_those_of_the_measured_photographs():
    constants = photograph_prior.constants([photograph.measured for photograph in PHOTOGRAPHS.values()])
    assert constants == Constants(priors.CHROMA, priors.STRENGTH, priors.MEAN)


def test_every_photograph_at_hand_measures_what_is_written_down():
    files = {name: photograph_prior.at_hand(photograph) for name, photograph in PHOTOGRAPHS.items()}
    assert files["officer"] is not None  # in matplotlib, which the project needs
    for name, file in files.items():
        if file is not None:
            photograph = PHOTOGRAPHS[name]
            measured = photograph_prior.measure(photograph_prior.crops(photograph_prior.pixels(photograph, file), name))
            assert measured == pytest.approx(photograph.measured, rel=TOLERANCE), name


def test_no_data_set_holds_one_of_the_photographs():
    folders = (Path(skimage.__file__).parent / "data", Path(sklearn.datasets.__file__).parent / "images")
    used = [next(folder / file for folder in folders if (folder / file).is_file()) for file in photos.PHOTOS.values()]
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in used}
    assert len(digests) == len(photos.PHOTOS)
    assert digests.isdisjoint(photograph.sha256 for photograph in PHOTOGRAPHS.values())


def test_another_file_of_the_same_name_is_refused(monkeypatch):
    other = PHOTOGRAPHS["officer"]._replace(sha256="0" * 64)
    with pytest.raises(ValueError, match="is not the file that was measured"):
        photograph_prior.at_hand(other)


def test_a_drawn_image_of_the_prior_measures_its_strength_and_chroma():
    """The estimators give back the constants of images drawn from the model itself, 4,000 of them: 1% of each."""
    gaussian = priors.photographed(3, 32, 0.5, (4.0, 25.0), torch.zeros(1, dtype=torch.float64))
    z = torch.randn(4000, 3 * 32 * 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u = gaussian.root(z * 0.05).unflatten(1, (3, 32, 32))  # small, so that few pixels leave [-1, 1]
    measured = photograph_prior.measure((u + 1) / 2 * 255)
    assert measured.strength / 0.05**2 == pytest.approx(0.5, rel=0.01)
    assert measured.brightness / measured.red_blue == pytest.approx(4, rel=0.01)
    assert measured.brightness / measured.green_magenta == pytest.approx(25, rel=0.01)
    whole = measured._replace(constant=measured.strength / priors.MEAN)
    assert photograph_prior.constants([whole]).mean == priors.MEAN


def test_photographs_count_alike():
    one, other = Measured(4, 2, 1, 1, 10), Measured(8, 2, 1, 2, 20)
    assert photograph_prior.constants([one, other]) == Constants((3.0, 6.0), 1.5, 0.1)
