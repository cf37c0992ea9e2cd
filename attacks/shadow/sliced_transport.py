"""Features aligned to what a client's generator makes by sliced optimal transport, class by class, in place of two moments.

    A(E') = sum over classes c of  n_c / n  SW(E'(x) of c, G(z, c)) / spread
    SW(p, q) = mean over directions theta of  integral over t in (0, 1) of (F^-1(t) - H^-1(t))^2
F and H are the distribution functions of theta . h under p and q: in one dimension the squared Wasserstein-2 distance is that of
the quantiles. The integral is a mean over LEVELS levels, and exact where both numbers of features divide LEVELS. `spread` is the
mean variance of a generated feature within its class, so that a shift of all features counts as in the moments' distance
(`to_generator` in surrogate_training.py). Directions are drawn once.

Sliced distances: Rabin, Peyre, Delon, Bernot, SSVM 2011; Bonneel et al., J. Math. Imaging Vis. 2015. SDAR (Zhu et al., NDSS 2025,
arXiv 2310.10483) aligns such features by a discriminator, FORA (Xu et al., CVPR 2024) by maximum mean discrepancy.

A mini-batch holds few images of a class. Their quantiles differ from the generator's by chance, which no surrogate can lower; the
class means of the moments' distance have the same fault.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.shadow.surrogate_training import EPS, Align
from privbench.types import Batch

DIRECTIONS = 128
LEVELS = 64


def directions(size: int, rng: torch.Generator) -> Tensor:
    """Unit vectors [size, DIRECTIONS], uniform on the sphere."""
    return F.normalize(torch.randn(size, DIRECTIONS, generator=rng), dim=0)


def quantiles(values: Tensor) -> Tensor:
    """Of each column of some numbers [n, P], n >= 1, at LEVELS levels: [LEVELS, P]."""
    levels = (torch.arange(LEVELS, device=values.device) + 0.5) / LEVELS
    return values.sort(0).values[(levels * len(values)).long()]


def to_generated(generated: Batch, along: Tensor) -> Align:
    """A of features [n, c, s, s] of some labels [n], against generated ones of the same classes, over `along` [c s s, P].

    A class of which nothing was generated counts for nothing.
    """
    h, y = generated.images.flatten(1), generated.labels
    along = along.to(h)
    of_class = {c: h[y == c] for c in y.unique().tolist()}
    target = {c: quantiles(of_one @ along) for c, of_one in of_class.items()}
    squares = sum((of_one - of_one.mean(0)).square().sum() for of_one in of_class.values())
    spread = squares / h.numel()

    def align(features: Tensor, labels: Tensor) -> Tensor:
        projected = features.flatten(1) @ along
        total = features.new_zeros(())
        for c in sorted(target.keys() & set(labels.tolist())):
            mine = projected[labels == c]
            total = total + len(mine) * (quantiles(mine) - target[c]).square().mean()
        return total / len(labels) / (spread + EPS)

    return align
