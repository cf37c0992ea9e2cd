"""A part of a sweep, for a machine of a batch system: every Nth training run, and all that is measured on it.

A run and its attacks stay together, so that no shard trains what another one trains. Which runs a shard has depends on the sweep
alone and not on what is finished. privbench/execution/sweep/merging.py puts the results together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from privbench import registry
from privbench.errors import UserError
from privbench.spec import CellSpec, TrainSpec

MOST = 10_000  # shards of one sweep


class Shard(NamedTuple):
    """One of several parts, from 1 on."""

    part: int
    parts: int


def read(text: str) -> Shard:
    """A shard as it was written, e.g. "3/16"; UserError where it is none."""
    written = re.fullmatch(r"(\d{1,5})/(\d{1,5})", text.strip(), re.ASCII)
    shard = Shard(*map(int, written.groups())) if written else None
    if shard is None or not 1 <= shard.part <= shard.parts <= MOST:
        raise UserError(
            f"--shard takes a part and their number, from 1/1 to {MOST}/{MOST}, e.g. 3/16, but '{text}' was given"
        )
    return shard


def runs(cells: Sequence[CellSpec], shard: Shard) -> frozenset[str]:
    """The ids of the training runs of one shard: dealt out in turn, those that take longest first."""
    every = {spec.id: spec for cell in cells for spec in cell.train_specs()}
    dealt = sorted(every, key=lambda run: (-_networks(every[run]), run))
    return frozenset(dealt[shard.part - 1 :: shard.parts])


def _networks(spec: TrainSpec) -> int:
    """How many networks a run's method trains."""
    return len(registry.resolve("method", spec.method).parts)
