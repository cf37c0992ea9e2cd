"""Secure aggregation: the server gets the weighted sum of what all clients send, and no single message.

backend=masks   pairwise additive masks over 64-bit integers (Bonawitz et al., CCS 2017; defenses/common/masks.py)
backend=ckks    sums under CKKS encryption (TenSEAL; defenses/common/homomorphic.py)
Both add whole numbers, so that the sum is exact but for the rounding of fixed point: entries of the mean are off by at most
K / (2 N 2^f), with f = 32 fractional bits (masks) or 24 (ckks) and N images in all. A client's number of images is in its message,
and only the sum of them opens. The server is honest but curious; a sum is all the same a function of data, so that nothing is
guaranteed for it. An entry that is not finite in some message, or too large, has no whole number: that entry of the mean is NaN,
as it is without secure aggregation where training diverges.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from defenses.common import homomorphic, masks
from defenses.common.fixed_point import FixedPoint, Whole
from privbench.defense import Defense, Facts, Place, Sum
from privbench.errors import UserError
from privbench.tensors import Parts

# A sum of whole numbers stays below 2^63 under masks; under CKKS, double precision keeps entries below 2^22 apart on their grid.
BACKENDS = {"masks": FixedPoint(bits=32, limit=2.0**30), "ckks": FixedPoint(bits=24, limit=2.0**22)}


@dataclass(frozen=True)
class SecureAggregation(Defense):
    """The server sees the weighted sum of all clients alone (Bonawitz et al., CCS 2017; or CKKS); no guarantee for the sum."""

    name: ClassVar[str] = "secure-aggregation"

    backend: str = "masks"  # or "ckks"

    def __post_init__(self) -> None:
        """Refuses an unknown backend."""
        if self.backend not in BACKENDS:
            raise UserError(f"secure aggregation has the backends masks and ckks, but '{self.backend}' was given")

    @property
    def places(self) -> frozenset[Place]:
        """On what all clients send."""
        return frozenset({"aggregate"})

    @property
    def fixed_point(self) -> FixedPoint:
        """How messages become whole numbers."""
        return BACKENDS[self.backend]

    def planned(self, every: Sequence[Facts]) -> Self:
        """The same; UserError where the backend's package is missing."""
        if self.backend == "ckks":
            homomorphic.tenseal()
        return self

    def aggregate(self, messages: Sequence[Parts], weights: Sequence[int], rng: torch.Generator) -> Sum:
        """Encoded, hidden, serialised, added and opened; what each client sent, and all seconds, as measured."""
        started, clients = time.perf_counter(), len(messages)
        encoded = [
            self.fixed_point.encoded(k, message, weight, clients)
            for k, (message, weight) in enumerate(zip(messages, weights, strict=True))
        ]
        each, lost = [whole for whole, _ in encoded], torch.stack([one for _, one in encoded]).any(0)
        total, bytes_sent = _masked(each, rng) if self.backend == "masks" else self._encrypted(each)
        mean = self.fixed_point.mean(total, lost, messages[0])
        return Sum(mean, bytes_sent, time.perf_counter() - started)

    def _encrypted(self, each: Sequence[Whole]) -> tuple[Whole, tuple[int, ...]]:
        holder, bits = homomorphic.KeyHolder(), self.fixed_point.bits
        public = holder.public()
        server, sent = homomorphic.EncryptedSum(public), []
        for message in each:
            chunks = homomorphic.encrypted(public, message, bits)
            server.receive(chunks)
            sent.append(sum(map(len, chunks)))
        return holder.decrypted(server.summed(), len(each[0]), bits), tuple(sent)

    def describe(self) -> dict[str, Any]:
        """The attacker knows the backend, and that sums are exact."""
        return {"name": self.name, "backend": self.backend, "exact": True}


def _masked(each: Sequence[Whole], rng: torch.Generator) -> tuple[Whole, tuple[int, ...]]:
    clients = len(each)
    seeds, server, sent = masks.pair_seeds(clients, rng), masks.MaskedSum(clients), []
    for k, message in enumerate(each):
        upload = masks.masked(k, clients, message, seeds)
        server.receive(k, upload)
        sent.append(len(upload))
    return server.opened(), tuple(sent)
