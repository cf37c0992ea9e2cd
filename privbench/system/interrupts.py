"""Stopping on request: a signal is never lost, never taken for a damaged file, and always reported in one line.

SIGINT (Ctrl-C), SIGTERM (batch systems) and SIGHUP (a closed terminal) raise KeyboardInterrupt wherever the program is. Code that
calls back into Python may turn that into an error of its own or drop it. So this module remembers that a stop was asked for
(`stop_signal`), and reading a file delays signals until the file is read (`delayed`). It imports the standard library alone, so
that it can be the first thing a program does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

STATUS = 130  # of a program that was stopped, as shells have it
# What the last line of most commands says.
CONTINUES = "everything finished is on disk, and the same command continues from there"
UNHEARD = {getattr(signal, name) for name in ("SIGINT", "SIGHUP") if hasattr(signal, name)}
STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_stop_signal: str | None = None  # the name of the signal that asked for a stop
_status = STATUS  # with which a program that has said its last leaves
_ending = False  # the last line is being written: what comes now asks for nothing more


def listen() -> None:
    """Makes every stop signal raise KeyboardInterrupt and be remembered; one that is ignored (nohup, a background job) stays so."""
    global _stop_signal, _ending
    _stop_signal, _ending = None, False
    sys.unraisablehook = _dropped
    for number in STOPS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler, _leave):
            signal.signal(number, _ask)


def stop_signal() -> str | None:
    """The name of the signal that asked this program to stop, since it began to listen; None where none has."""
    return _stop_signal


def check() -> None:
    """Raises KeyboardInterrupt where a stop was asked for and something on the way dropped it."""
    if _stop_signal is not None:
        raise KeyboardInterrupt


@contextmanager
def delayed() -> Iterator[None]:
    """Holds every signal that Python handles until the block ends, and delivers it then; a stop wins over an error of the block.

    For code that lets no exception of a handler through, such as safetensors, whose readers call back into Python and take whatever
    happens there for a fault of the file. Only the main thread handles signals, so that elsewhere there is nothing to hold.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
    pending: list[tuple[int, FrameType | None]] = []
    holding = True

    def hold(number: int, frame: FrameType | None) -> None:
        # A stop that comes while the handlers are put back may leave this one in place: it then passes everything on.
        if holding:
            pending.append((number, frame))
        else:
            handlers[number](number, frame)

    try:
        for number in map(int, signal.valid_signals()):
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, hold)
        yield
    finally:
        holding = False
        for each, handler in handlers.items():
            signal.signal(each, handler)
        for each, frame in pending:
            handlers[each](each, frame)


def end(what_is_left: str = CONTINUES) -> NoReturn:
    """Ends a program that was asked to stop: one line, however often it was asked, and status 130."""
    global _ending  # noqa: PLW0603 (the same)
    _ending = True
    name = f" by {_stop_signal}" if _stop_signal else ""
    print(f"privbench: stopped{name}; {what_is_left}", file=sys.stderr, flush=True)
    sys.exit(STATUS)


def keep_status() -> None:
    """At the very end, leaves a program that was stopped with its status; registered with atexit before all others.

    Python itself would die by SIGINT where the stop came while an extension ran Python code, such as at its import.
    """
    if not _ending:
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(_status)


def leave_at_once(status: int) -> None:
    """From here on a stop signal ends the process immediately with its status: all output is written."""
    global _status  # noqa: PLW0603 (the same)
    _status = status
    for number in STOPS:
        if signal.getsignal(number) is _ask:
            signal.signal(number, _leave)


def _ask(number: int, frame: FrameType | None) -> None:
    global _stop_signal  # noqa: PLW0603 (the same)
    if _ending:
        return
    _stop_signal = signal.Signals(number).name
    raise KeyboardInterrupt


def _dropped(error: sys.UnraisableHookArgs) -> None:
    """A stop that came where no exception gets through, as in a destructor, is remembered, and needs no traceback."""
    if not issubclass(error.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(error)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_status)


@contextmanager
def unheard_by_children() -> Iterator[None]:
    """Processes that begin here ignore Ctrl-C and hang-ups, which a terminal sends to all: the parent decides."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, UNHEARD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
