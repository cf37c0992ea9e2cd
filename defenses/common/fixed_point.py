"""Messages as whole numbers, so that sums of them are exact: round(n_k t 2^f) for each entry t, and the weight n_k after them.

The mean over K clients is then off by at most K / (2 N 2^f), N = sum of n_k, and by what storing it in single precision rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privbench.errors import UserError
from privbench.tensors import Parts

Whole = NDArray[np.int64]


class FixedPoint(NamedTuple):
    """How entries become whole numbers."""

    bits: int  # f
    limit: float  # sums of weighted entries stay below it

    def encoded(self, client: int, message: Parts, weight: int, clients: int) -> tuple[Whole, Tensor]:
        """([P + 1] of one of `clients` messages, which of its entries have no whole number [P] bool).

        Those are not finite, or too large for a sum of so many; 0 stands in their place. UserError: a weight too large for a sum.
        """
        flat = torch.cat([t.detach().reshape(-1) for net in message.values() for t in net.values()])
        weighted = weight * flat.to("cpu", torch.float64)
        most = self.limit / clients
        if weight >= most:
            raise UserError(
                f"client {client + 1} has {weight} images, and secure aggregation adds numbers below {most:.3g} here"
            )
        lost = ~(weighted.abs() < most)
        whole = (weighted.masked_fill(lost, 0.0) * 2.0**self.bits).round().to(torch.int64).numpy()
        return np.append(whole, np.int64(weight)), lost

    def mean(self, total: Whole, lost: Tensor, like: Parts) -> Parts:
        """The weighted mean from the sum of encoded messages [P + 1], in the form of one of them; NaN where it is `lost` [P]."""
        if total[-1] <= 0:
            raise UserError("secure aggregation needs a client with an image at least, but all weights are 0")
        flat = torch.from_numpy(total[:-1].astype(np.float64) / (float(total[-1]) * 2.0**self.bits))
        flat = flat.masked_fill(lost, torch.nan)
        shapes = [t for net in like.values() for t in net.values()]
        pieces = iter(flat.split([t.numel() for t in shapes]))
        return {part: {n: next(pieces).view_as(t).to(t) for n, t in net.items()} for part, net in like.items()}

    def error(self, weights: Sequence[int]) -> float:
        """By how much an entry of the mean may be off, before it is stored in single precision."""
        return len(weights) / (2 * sum(weights) * 2.0**self.bits)
