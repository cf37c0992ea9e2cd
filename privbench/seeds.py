"""Named random streams: every draw of the project comes from `stream(seed, *names)`.

A stream is a function of its names alone, so that adding a method, a client or an attack never changes the numbers of
another. Draws are made on the CPU and moved, so that a run has the same draws on every device.
"""

import hashlib

import torch

Name = str | int


def stream(seed: int, *names: Name) -> torch.Generator:
    """A CPU generator for one purpose, e.g. stream(0, "client", 3, "round", 7, "batches")."""
    text = "/".join(str(part) for part in (seed, *names))
    digest = hashlib.sha256(text.encode()).digest()
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(digest[:8], "little") & (2**63 - 1))
    return generator
