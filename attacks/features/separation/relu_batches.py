"""The inputs of a linear layer in front of ReLUs, of all images of a batch, in closed form (SPEAR).

Dimitrov, Baader, Mueller, Vechev: SPEAR: Exact Gradient Inversion of Batches in Federated Learning, NeurIPS 2024, arXiv 2403.03945.
Z = W X + b, X [n, B], Y = ReLU(Z). With d = dL/dZ [m, B]
    dL/dW = d X' = L R         of rank B (Theorem 3.1): L [m, B], R [B, n]
    d = L Q,  X' = Q^-1 R      for one Q [B, B]                           (Theorem 3.2)
    d_ji = 0 where ReLU is off, so that of B - 1 such rows A of image i,  L_A q_i = 0   (Theorem 3.3)
Rows are drawn at random until directions q with far more zeros in L q than were asked for are found. Each is made more exact by all
rows where it is 0. B of them that are independent give Q up to a factor each, and dL/db = L Q 1 gives the factors (Theorem 3.5).
A draw serves one of B images with about B 2^(1-B), so that the number of draws, and with it the batch, is bounded.

Deviations: a direction is taken by its number of zeros alone, the largest first, in place of the paper's greedy search over the
signs of Z. Whether the batch is explained, the caller's own residual decides. R is an orthonormal basis of the row space.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from privbench.seeds import stream

DRAWS = 200_000  # at most
CHUNK = 4096  # of them at once
ZERO = 1e-4  # of the largest entry of L q: below it an entry is 0, in single precision
SURPLUS = 0.1  # of the rows: so many more zeros than were asked for has no direction by chance
SAME = 1 - 1e-6  # cosine of two directions that are one
RANK = 1e-6  # of the largest singular value: the smallest of a batch that can be distinguished
CLOSE = 1e-3  # relative: how near L Q 1 comes to dL/db


class Separated(NamedTuple):
    """One batch."""

    inputs: Tensor  # X' [B, n]
    deltas: Tensor  # d' [B, m], each of an image's share of the loss


def separated(weight: Tensor, bias: Tensor, batch: int, seed: int, victim: int, draws: int = DRAWS) -> Separated | None:
    """The inputs behind dL/dW [m, n] and dL/db [m], double precision; None where B directions are not found.

    The order of the images is that in which they were found.
    """
    _, size, right = torch.linalg.svd(weight, full_matrices=False)
    if batch < 2 or batch > len(size) or not bool(size[batch - 1] > RANK * size[0]):
        return None
    r = right[:batch]
    columns = weight @ r.T
    # Rows of one length, as their equations are homogeneous; rows of zeros are off for all images and say nothing.
    norm = columns.norm(dim=1)
    live = norm > ZERO * norm.max()
    unit_rows = columns[live] / norm[live, None]
    directions = _directions(unit_rows, batch, stream(seed, "attacker", "relu rows", victim), draws)
    if directions is None:
        return None
    factors = torch.linalg.lstsq(columns @ directions, bias[:, None]).solution[:, 0]
    q = directions * factors
    if not bool((columns @ q.sum(1) - bias).norm() < CLOSE * bias.norm()) or not bool((factors != 0).all()):
        return None
    return Separated(torch.linalg.solve(q, r), (columns @ q).T)


def _directions(rows: Tensor, batch: int, rng: torch.Generator, draws: int) -> Tensor | None:
    """Independent directions [B, B], one a column, of unit length, each at right angles to many of the rows [m, B]."""
    count, least = len(rows), batch - 1 + SURPLUS * len(rows)
    if count < batch:
        return None
    directions: list[tuple[int, Tensor]] = []
    for start in range(0, draws, CHUNK):
        size = min(CHUNK, draws - start)
        chosen = torch.rand(size, count, generator=rng).topk(batch - 1, dim=1).indices.to(rows.device)
        q = torch.linalg.qr(rows[chosen].mT, mode="complete").Q[:, :, -1]
        zeros = _zeros(rows, q.T).sum(0)
        for one in torch.nonzero(zeros > least)[:, 0].tolist():
            exact = _refined(rows, q[one])
            if all(float((exact @ other).abs()) < SAME for _, other in directions):
                directions.append((int(_zeros(rows, exact[:, None]).sum()), exact))
        if (whole := _independent(directions, batch)) is not None:
            return whole
    return None


def _zeros(rows: Tensor, q: Tensor) -> Tensor:
    """Which entries of L q [m, N] are 0."""
    answers = (rows @ q).abs()
    return answers < ZERO * answers.amax(0)


def _refined(rows: Tensor, q: Tensor) -> Tensor:
    """The direction nearest to being at right angles to all rows to which q [B] nearly is."""
    off = _zeros(rows, q[:, None])[:, 0]
    exact: Tensor = torch.linalg.svd(rows[off], full_matrices=True).Vh[-1]
    return exact


def _independent(directions: list[tuple[int, Tensor]], batch: int) -> Tensor | None:
    """The first B independent ones by their zeros; None where there are fewer."""
    basis: list[Tensor] = []
    for _, q in sorted(directions, key=lambda one: -one[0]):
        whole = torch.stack([*basis, q], 1)
        if float(torch.linalg.svdvals(whole)[-1]) > RANK:
            basis.append(q)
        if len(basis) == batch:
            return torch.stack(basis, 1)
    return None
