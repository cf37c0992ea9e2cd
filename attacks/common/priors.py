"""What an attacker believes about images before seeing anything: they are smooth, and lie in [0, 1]."""

from typing import NamedTuple

import torch
from torch import Tensor

from privbench.errors import UserError


def total_variation(x: Tensor) -> Tensor:
    """Mean squared difference of neighbouring pixels, x [B, C, H, W]; 0 along an axis of one pixel, which has no neighbours."""
    return sum((d.square().mean() for d in _differences(x)), x.new_zeros(()))


def absolute_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, across plus down: the total variation of Geiping et al. 2020."""
    return sum((d.abs().mean() for d in _differences(x)), x.new_zeros(()))


def _differences(x: Tensor) -> list[Tensor]:
    """Of neighbouring pixels across and down, of the axes that have some."""
    both = x[..., :, 1:] - x[..., :, :-1], x[..., 1:, :] - x[..., :-1, :]
    return [d for d in both if d.numel()]


def square(shape: tuple[int, int, int]) -> tuple[int, int]:
    """(channels, side) of square images [C, H, W]; UserError for others, of which no prior here is."""
    channels, height, width = shape
    if height != width:
        raise UserError(
            f"this attack believes something about square images, but these are {height}x{width}; try --attack dlg"
        )
    return channels, height


def l2(x: Tensor) -> Tensor:
    """Mean squared distance of pixels from grey."""
    return torch.square(x - 0.5).mean()


class GaussianPrior(NamedTuple):
    """Images around grey whose opponent-colour cosine coefficients are independent: u = 2x - 1 ~ N(0, Sigma), D = C H W.

    A cosine pattern of squared spatial frequency l has the variance step^2 / (roughness of its colour * (l + FLATTEST)): a
    Gaussian Markov field whose neighbouring pixels differ by about `step`, and by far less in colour than in brightness.
    """

    colours: Tensor  # [C, C] orthonormal rows
    cosines: Tensor  # [s, s] orthonormal rows
    variance: Tensor  # [C, s, s], or [n, C, s, s] where each of n images has its own

    def covariance(self, t: Tensor) -> Tensor:
        """Sigma t, [n, D]."""
        return self._scale(t, self.variance)

    def precision(self, t: Tensor) -> Tensor:
        """Sigma^-1 t, [n, D]."""
        return self._scale(t, 1 / self.variance)

    def root(self, t: Tensor) -> Tensor:
        """Sigma^(1/2) t, [n, D]: independent unit Gaussians become images of this prior."""
        return self._scale(t, self.variance.sqrt())

    def whitened(self, t: Tensor) -> Tensor:
        """Sigma^(-1/2) t, [n, D]: the way back from `root`."""
        return self._scale(t, self.variance.rsqrt())

    def smooth(self, t: Tensor) -> Tensor:
        """Sigma t of images whose channels are the opponent colours, [n, C, s, s]."""
        return self._spread(t, self.variance)

    def coefficients(self, t: Tensor) -> Tensor:
        """The independent coefficients of images [n, D], whose variances `variance` holds: [n, C, s, s]."""
        opponents = torch.einsum("oc,nchw->nohw", self.colours, t.unflatten(1, self.variance.shape[-3:]))
        return self.cosines @ opponents @ self.cosines.T

    def _scale(self, t: Tensor, by: Tensor) -> Tensor:
        spread = self._spread(torch.einsum("oc,nchw->nohw", self.colours, t.unflatten(1, by.shape[-3:])), by)
        return torch.einsum("oc,nohw->nchw", self.colours, spread).flatten(1)

    def _spread(self, t: Tensor, by: Tensor) -> Tensor:
        return self.cosines.T @ (by * (self.cosines @ t @ self.cosines.T)) @ self.cosines


FLATTEST = 0.01  # keeps the variance of the mean finite


def natural(channels: int, side: int, step: float, chroma: tuple[float, float], like: Tensor) -> GaussianPrior:
    """The Gaussian prior of square images; `chroma` are the roughnesses of red-blue and of green-magenta, brightness has 1.

    Three channels are taken as red, green and blue; any other number as unrelated. `like` gives dtype and device.
    """
    opponents = like.new_tensor([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) if channels == 3 else torch.eye(channels).to(like)
    roughness = like.new_tensor([1, *chroma]) if channels == 3 else like.new_ones(channels)
    k = torch.arange(side).to(like)
    cosines = torch.cos(torch.pi / side * k[:, None] * (k + 0.5)) * (2 / side) ** 0.5
    cosines[0] = side**-0.5
    frequency = 2 - 2 * torch.cos(torch.pi / side * k)
    variance = step**2 / (roughness[:, None, None] * (frequency[:, None] + frequency + FLATTEST))
    return GaussianPrior(opponents / opponents.norm(dim=1, keepdim=True), cosines, variance)


# A usual difference of neighbouring pixels in 2x - 1, of brightness; only its ratio to the errors of the equations counts.
PIXEL_STEP = 0.1
# Measured on photographs that are in none of the data sets here (benchmarks/photograph_prior.py), in 2x - 1:
# how much less red-blue and green-magenta change between neighbouring pixels than brightness, squared;
CHROMA = (17.0, 94.0)
# the variance of a cosine pattern of brightness, times its squared frequency l, before the blur;
STRENGTH = 0.78
# it replaces FLATTEST, as the brightness of a photograph varies more than a Markov field's.
MEAN = 0.0066


def photographed(channels: int, side: int, strength: float, chroma: tuple[float, float], like: Tensor) -> GaussianPrior:
    """The Gaussian prior of photographs made small: variance strength exp(-l / 2) / (roughness of its colour (l + MEAN)).

    1 / l is the spectrum of natural scenes (Field, JOSA A 1987), exp(-l / 2) that of the blur before pixels are left out, with a
    standard deviation of 0.7 of those that stay. `natural` is as rough in fine patterns and far narrower in coarse ones.
    """
    usual = natural(channels, side, 1.0, chroma, like)
    k = torch.arange(side).to(like)
    frequency = 2 - 2 * torch.cos(torch.pi / side * k)
    squared = frequency[:, None] + frequency
    falling = torch.exp(-squared / 2) * (squared + FLATTEST) / (squared + MEAN)
    return usual._replace(variance=strength * falling * usual.variance)


def measured(deviations: Tensor, usual: GaussianPrior, worth: float) -> GaussianPrior:
    """The prior of images like these: `deviations` [N, C, s, s] of u = 2x - 1 from their means, N >= 1.

    Each coefficient's variance is measured, with `usual` counted in as so many (`worth`) images, so that a handful does no harm.
    """
    spread = torch.einsum("oc,nchw->nohw", usual.colours, deviations)
    squares = (usual.cosines @ spread @ usual.cosines.T).square().sum(0)
    return usual._replace(variance=(squares + worth * usual.variance) / (len(deviations) + worth))
