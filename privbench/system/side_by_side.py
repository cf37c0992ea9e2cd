"""Calls of one function side by side, each in a process that stays for the next calls.

Threads would wait for each other: a step of a small network is mostly Python. The processes are loky's. They need no guard in a
user's script, and end when nothing was asked of them for a while.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import torch
from loky import get_reusable_executor

from privbench.system import interrupts

# After which a process without work ends. A server's own part between two rounds of its clients took more than a minute on a busy
# machine, and new processes import and read everything again.
IDLE_SECONDS = 300.0
WATCH_SECONDS = 1.0  # between two looks at whether the process that asked is still there
Result = TypeVar("Result")


def call_each(
    function: Callable[..., Result],
    arguments: Sequence[tuple[Any, ...]],
    processes: int,
    ended: Callable[[int], None],
    prepare: Callable[..., None],
    *prepared: Hashable,
) -> list[Result]:
    """[function(*each) for each in arguments], so many at a time, each with one thread of torch.

    `prepare(*prepared)` is called once in each new process; all processes are new where these differ from the last time's. `ended`
    is called here after each call, with how many have ended. An error of a call is raised, and ends the others. A call whose
    process dies, as for want of memory, is made again in this one. All of it must pickle (pickle or cloudpickle).
    """
    with interrupts.delayed(), interrupts.unheard_by_children():
        executor = get_reusable_executor(
            processes, timeout=IDLE_SECONDS, initializer=_begin, initargs=(os.getpid(), prepare, *prepared)
        )
        calls = [executor.submit(function, *each) for each in arguments]
    try:
        with suppress(BrokenProcessPool):
            for done, call in enumerate(as_completed(calls), 1):
                call.result()
                ended(done)
    except BaseException:
        executor.shutdown(wait=True, kill_workers=True)
        raise
    return [
        partial(function, *each)() if isinstance(call.exception(), BrokenProcessPool) else call.result()
        for each, call in zip(arguments, calls, strict=True)
    ]


def _begin(asker: int, prepare: Callable[..., None], *prepared: Hashable) -> None:
    """Of a new process: the one that asked decides when it stops, and it does not outlive that one."""
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(asker,), daemon=True).start()
    torch.set_num_threads(1)
    prepare(*prepared)


def _end_with(asker: int) -> None:
    """Ends this process when the one that asked was killed outright: nobody would hear of what it does."""
    while os.getppid() == asker:
        time.sleep(WATCH_SECONDS)
    os._exit(1)
