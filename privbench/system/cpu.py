"""How many cores this process may use: all of the machine's, or in a worker process the share that its parent gives it."""

from __future__ import annotations

import os
from typing import Any

from privbench.errors import UserError

_share: Any = None  # set once in each worker process: how many cores every job in flight may use just now, as the parent last said


def cores() -> int:
    """How many processes may run at once: at most the cores that the process, its container or LOKY_MAX_CPU_COUNT is limited to.

    UserError where LOKY_MAX_CPU_COUNT is no whole number.
    """
    from loky import cpu_count

    try:
        return int(cpu_count())
    except ValueError as error:
        limit = os.environ.get("LOKY_MAX_CPU_COUNT")
        raise UserError(
            f"LOKY_MAX_CPU_COUNT must be a whole number of cores, got {limit!r}; set it again, or unset it"
        ) from error


def threads(alone: int) -> int:
    """How many threads, each on a core of its own, training may use just now: in a worker its share, elsewhere `alone`."""
    return alone if _share is None else int(_share.value)


def take_share(share: Any) -> None:
    """Makes this process a worker that may use `share.value` cores, a number that the parent alone changes.

    It has no lock: a worker that was killed while it held one would stop the parent for good.
    """
    global _share  # noqa: PLW0603 (a worker process has no other place for it)
    import torch

    torch.set_num_threads(1)
    _share = share
