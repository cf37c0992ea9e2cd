"""What a person sees while jobs run: one bar over all jobs with the time left, one line per running job."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from privbench.system import console as consoles
from privbench.system.console import Console
from privbench.system.printable import one_line

CONSOLE = consoles.messages()


class JobBars:
    """Bars on a terminal; elsewhere one line per finished job, so that a log stays readable."""

    def __init__(self, total: int, console: Console = CONSOLE) -> None:
        self.console, self.total, self.finished, self.started = console, total, 0, time.monotonic()
        self.bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.overall = self.bars.add_task("all jobs", total=total, left="")
        self.rows: dict[str, TaskID] = {}
        self.since: dict[str, float] = {}
        self.over: set[str] = set()

    def __enter__(self) -> JobBars:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()

    def progress(self, title: str, done: int, total: int, what: str) -> None:
        """One job got on; time left is judged from its own pace at this kind of work. Words that come after its end are late."""
        if title in self.over:
            return
        now = time.monotonic()
        kind = f"{title}: {what.split(' ')[0]}"
        begun = self.since.setdefault(kind, now)
        remaining = f"{_clock((now - begun) / done * (total - done))} left" if done and now > begun else ""
        if title not in self.rows:
            self.rows[title] = self.bars.add_task("", left="")
        self.bars.update(
            self.rows[title], description=one_line(f"{title}: {what}"), completed=done, total=total, left=remaining
        )

    def outcome(self, title: str, reason: str | None) -> None:
        """One job ended."""
        self.finished += 1
        self.over.add(title)
        if title in self.rows:
            self.bars.remove_task(self.rows.pop(title))
        passed = time.monotonic() - self.started
        remaining = f"about {_clock(passed / self.finished * (self.total - self.finished))} left"
        self.bars.update(self.overall, completed=self.finished, left=remaining)
        if reason is not None or not self.console.is_terminal:
            ending = "done" if reason is None else f"not all of it done: {reason}"
            self.console.say(f"[{self.finished}/{self.total}] {title}: {ending} ({_clock(passed)})")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
