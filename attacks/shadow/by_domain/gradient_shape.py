"""Numbers of a classifier's gradient that stay the same when hidden units change places (after Ganju et al., CCS 2018).

Ganju, Wang, Yang, Gunter, Borisov: Property Inference Attacks on Fully Connected Neural Networks using Permutation Invariant
Representations, CCS 2018: a network and one with its hidden units in another order are the same, and a classifier of networks
should not tell them apart. There a set network learns such a representation from thousands of shadow models. Here a few shadow
clients have to do, so that it is written down. Of every tensor g of the classifier:
    log ||g||_2,  log mean |g|,  and of a matrix  log (s_i / ||g||_2), s_i its SINGULAR largest singular values
"""

from __future__ import annotations

import torch
from torch import Tensor

from privbench.tensors import Params

SINGULAR = 8
SMALLEST = 1e-12  # of a size
FAINTEST = 1e-4  # of a singular value, relative to the whole: below it single precision decides


def of(gradient: Params) -> Tensor:
    """The numbers of each upload, [V, n] float64, from parameter -> [V, ...]; NaN where it is not finite, or all zero."""
    columns, total = list[Tensor](), torch.zeros(())
    for name in sorted(gradient):
        g = gradient[name].detach().cpu().double()
        flat = g.flatten(1)
        norm = flat.norm(dim=1)
        total = total + norm
        columns += [norm.clamp_min(SMALLEST).log()[:, None], flat.abs().mean(1).clamp_min(SMALLEST).log()[:, None]]
        if g.ndim > 2:
            columns.append((_singular(g.flatten(2)) / norm.clamp_min(SMALLEST)[:, None]).clamp_min(FAINTEST).log())
    numbers = torch.cat(columns, 1)
    return torch.where((total.isfinite() & (total > 0))[:, None], numbers, torch.nan)


def _singular(matrices: Tensor) -> Tensor:
    """The largest singular values of [V, o, i]: [V, at most SINGULAR]; zeros where a matrix is not finite."""
    matrices = matrices.where(matrices.isfinite().all(2).all(1)[:, None, None], 0.0)
    gram = matrices @ matrices.mT if matrices.shape[1] <= matrices.shape[2] else matrices.mT @ matrices
    return torch.linalg.eigvalsh(gram).flip(1)[:, :SINGULAR].clamp_min(0).sqrt()
