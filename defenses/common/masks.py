"""Pairwise additive masks over 64-bit integers (Bonawitz et al., CCS 2017, doi 10.1145/3133956.3133982, section 4.0.1).

    y_k = x_k + sum_{j > k} PRG(s_kj) - sum_{j < k} PRG(s_kj)   (mod 2^64)
Each pair of clients shares a seed s_kj that the server does not know. The masks cancel in the sum over all clients and in no
smaller one: every proper subset's sum is uniform. PRG is SHAKE-256.
Not simulated: the key agreement by which pairs come to their seeds (a public key of 32 bytes per client with X25519), and the
secret shares by which the sum survives clients that leave. Here every client takes part in every round.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray

from defenses.common.fixed_point import Whole

SEED_BYTES = 32
WORD = np.dtype("<u8")  # 64-bit integers, as they are sent
Words = NDArray[np.uint64]
Seeds = Mapping[tuple[int, int], bytes]


def pair_seeds(clients: int, rng: torch.Generator) -> dict[tuple[int, int], bytes]:
    """The seed of each pair j < k of clients."""
    drawn = torch.randint(256, (clients * (clients - 1) // 2, SEED_BYTES), generator=rng, dtype=torch.uint8)
    return {pair: row.numpy().tobytes() for pair, row in zip(combinations(range(clients), 2), drawn, strict=True)}


def masked(client: int, clients: int, message: Whole, seeds: Seeds) -> bytes:
    """What one client sends in place of its message [P]: 8 bytes an entry."""
    total = message.astype(np.uint64)
    for other in range(clients):
        if other != client:
            mask = _expanded(seeds[min(client, other), max(client, other)], len(message))
            total = total + mask if client < other else total - mask
    return total.astype(WORD).tobytes()


def _expanded(seed: bytes, entries: int) -> Words:
    return np.frombuffer(hashlib.shake_256(seed).digest(entries * WORD.itemsize), WORD).astype(np.uint64)


class MaskedSum:
    """The server: holds what clients sent, no seed, and opens the sum when the last client has sent."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.received: dict[int, Words] = {}

    def receive(self, client: int, upload: bytes) -> None:
        """Takes one client's masked message."""
        self.received[client] = np.frombuffer(upload, WORD).astype(np.uint64)

    def opened(self) -> Whole:
        """The sum of the messages modulo 2^64, read as signed: [P]. ValueError before the last client has sent."""
        if missing := sorted({*range(self.clients)} - {*self.received}):
            raise ValueError(f"the sum opens with the messages of all clients, and those of {missing} are missing")
        total: Words = np.add.reduce(list(self.received.values()), axis=0, dtype=np.uint64)
        return total.view(np.int64)
