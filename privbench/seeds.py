"""Named random streams: every draw of the project comes from `stream(seed, *names)`.

A stream is a function of its names alone, so that adding a method, a client or an attack never changes the numbers of
another. Draws are made on the CPU and moved, so that a run has the same draws on every device.

An attacker draws from a seed of its own. The run's seed reveals the defence's noise, the dropout masks and the networks that the
clients started with, so no attack receives it.
"""

import hashlib

import torch

Name = str | int


def stream(seed: int, *names: Name) -> torch.Generator:
    """A CPU generator for one purpose, e.g. stream(0, "client", 3, "round", 7, "batches").

    torch's CPU generator takes the lower 32 bits of a seed: of the 320,000 streams of five runs at the published schedule some nine
    pairs are one. Noise and masks that are drawn so are those of a simulation, and no secrets.
    """
    text = "/".join(str(part) for part in (seed, *names))
    digest = hashlib.sha256(text.encode()).digest()
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(digest[:8], "little") & (2**63 - 1))
    return generator


def of_attacker(run: str, round_: int) -> int:
    """The seed of an attacker of the training run named `run` (TrainSpec.id) after `round_` rounds, from 0 to 2^63 - 1.

    sha256 of both, under a name of its own. It is the same on every machine, for every attack and for any number of victims, so
    that attacks on one artifact share what they train. It leads back to the run's seed by guessing the whole specification alone.
    """
    text = f"privbench attacker/{run}/round {round_}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") & (2**63 - 1)
