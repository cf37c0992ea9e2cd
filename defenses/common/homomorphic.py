"""Sums under CKKS encryption (TenSEAL): clients encrypt, a server without the secret key adds, the key holder decrypts.

Cheon, Kim, Kim, Song, ASIACRYPT 2017; TenSEAL, Benaissa et al. 2021, arXiv 2104.03152 (Microsoft SEAL). The clients share one key
pair, as in BatchCrypt (Zhang et al., USENIX ATC 2020). Ring dimension 8192 with 170 bits of moduli: 128-bit security (the
standard's table allows 218). Only additions are needed, so that no evaluation key exists.

CKKS adds noise to what is decrypted: per entry and client a standard deviation of at most about 3.2 sqrt((4n/3 + 1) n) / 2^50 =
2.7e-11 (n = 8192). What is encrypted lies on a grid of 2^-24, a thousand times as wide, so that rounding to it gives the exact
sum, and the same bits in every run, though encryption draws its randomness from the system.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from defenses.common.fixed_point import Whole
from privbench.errors import UserError

RING = 8192
SLOTS = RING // 2  # numbers per ciphertext
MODULI = (60, 50, 60)  # bits
SCALE = 2.0**50


def tenseal() -> ModuleType:
    """The package; UserError where it is not installed."""
    try:
        import tenseal as package
    except ImportError as error:
        raise UserError(
            "secure aggregation with backend=ckks needs the package tenseal; install it with `pip install tenseal`, or choose "
            "backend=masks"
        ) from error
    return package


class KeyHolder:
    """Holds the secret key, and never the server's inputs."""

    def __init__(self) -> None:
        package = tenseal()
        self._context = package.context(
            package.SCHEME_TYPE.CKKS, poly_modulus_degree=RING, coeff_mod_bit_sizes=list(MODULI)
        )
        self._context.global_scale = SCALE

    def public(self) -> bytes:
        """Parameters and public key, for clients and the server."""
        serialised: bytes = self._context.serialize(
            save_public_key=True, save_secret_key=False, save_galois_keys=False, save_relin_keys=False
        )
        return serialised

    def decrypted(self, chunks: Sequence[bytes], entries: int, bits: int) -> Whole:
        """The sum [entries] as whole multiples of 2^-bits."""
        package = tenseal()
        each = [np.asarray(package.ckks_vector_from(self._context, chunk).decrypt()) for chunk in chunks]
        return np.rint(np.concatenate(each)[:entries] * 2.0**bits).astype(np.int64)


def encrypted(public: bytes, message: Whole, bits: int) -> list[bytes]:
    """What one client sends: a ciphertext for every SLOTS entries of message [P], which are multiples of 2^-bits."""
    package = tenseal()
    context = package.context_from(public)
    numbers = message / 2.0**bits
    return [
        package.ckks_vector(context, numbers[start : start + SLOTS]).serialize()
        for start in range(0, len(numbers), SLOTS)
    ]


class EncryptedSum:
    """The server: adds ciphertexts under the public key, and cannot decrypt."""

    def __init__(self, public: bytes) -> None:
        self.context = tenseal().context_from(public)
        self.total: list[Any] = []

    def receive(self, chunks: Sequence[bytes]) -> None:
        """Adds one client's ciphertexts."""
        arrived = [tenseal().ckks_vector_from(self.context, chunk) for chunk in chunks]
        self.total = [a + b for a, b in zip(self.total, arrived, strict=True)] if self.total else arrived

    def summed(self) -> list[bytes]:
        """The encrypted sum, for the key holder."""
        return [chunk.serialize() for chunk in self.total]
