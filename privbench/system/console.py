"""What the commands print, and where: results to the standard output, progress and messages to the standard error.

Names from outside (paths, plug-ins, data sets, texts of exceptions) are printed as they are: rich reads no markup (`[/y]`) and no
emoji codes (`folder:dog`) in them, and a control character is shown as a sign in place of being obeyed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from privbench.system.printable import lines, one_line


class Console(RichConsole):
    """A console of rich's that prints text as it is, tables and bars included."""

    def __init__(self, **options: Any) -> None:
        """`options` are rich's."""
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """rich's, with control characters made visible; what rich itself sends to the terminal passes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=lines(segment.text))

    def say(self, text: object) -> None:
        """Prints one line, however long, without breaking it: a path can be copied from it."""
        self.print(one_line(str(text)), soft_wrap=True)


def results() -> Console:
    """The standard output; made where it is used, so that a redirected one is found."""
    return Console()


def messages() -> Console:
    """The standard error."""
    return Console(stderr=True)


def announce(line: str) -> None:
    """Prints one line to the standard error at once: what was understood, before the import of torch, which takes seconds."""
    print(one_line(line), file=sys.stderr, flush=True)


def forgiving() -> None:
    """Lets the standard streams print characters that they have no code for as escapes, in place of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
