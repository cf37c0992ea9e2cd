"""`privbench list` of plug-ins and studies: from files that are shipped, without importing torch, so that it answers at once."""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from rich.table import Table

from privbench import registry
from privbench.system import console
from privbench.system.printable import one_line
from reports.records.rungs import RUNGS
from reports.studies import study_files

FILE = Path(__file__).with_name("plugins.json")  # written by privbench/cli/plugin_facts.py
Facts = dict[str, dict[str, dict[str, str]]]  # kind -> name -> heading -> what stands under it
# What a listing says of every plug-in beside its name, and with --long besides, by kind.
SHORT = {
    "method": ("shares",), "attack": ("rung", "must know"), "dataset": ("default layout",), "defense": ("what",),
}  # fmt: skip
LONG = {
    "method": ("server adds", "what", "paper"), "attack": ("needs", "uses where sent", "what"), "dataset": ("what",),
    "defense": ("settings",),
}  # fmt: skip


def facts() -> Facts:
    """What is known of every built-in plug-in."""
    content: Facts = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def list_plugins(kind: str, *, long: bool = False) -> None:
    """Every plug-in of a kind: a row each, or with `long` a paragraph each with everything that is known of it."""
    to, every = console.results(), facts()[kind]
    if kind == "attack":
        every = dict(sorted(every.items(), key=lambda entry: entry[1]["rung"]))
    others = [
        f"{e.name} ({e.dist.name if e.dist else 'a package'}: {e.value})"
        for e in metadata.entry_points(group=f"privbench.{kind}s")
        if e.name in registry.installed(kind)
    ]
    if long:
        width = max(map(len, (*SHORT[kind], *LONG[kind]))) + 4
        for name, facts_of_one in every.items():
            to.print(name, style="bold")
            for fact in (*SHORT[kind], *LONG[kind]):
                head = f"  {fact}".ljust(width)
                to.print(
                    textwrap.fill(
                        facts_of_one[fact], max(to.width, 40), initial_indent=head, subsequent_indent=" " * width
                    )
                )
        _list_installed(others)
        return
    table = _table("name", *SHORT[kind], unbroken=("name", "rung"))
    for name, facts_of_one in every.items():
        table.add_row(name, *(facts_of_one[fact] for fact in SHORT[kind]))
    to.print(table)
    if kind == "attack":
        to.print("What an attacker knows, by rung (`--long` says more of each attack):")
        for rung, words in RUNGS.items():
            to.print(f"{rung}  {words}")
    _list_installed(others)


def _list_installed(others: Sequence[str]) -> None:
    """The plug-ins of other packages, which nothing is imported of."""
    if others:
        console.results().print(one_line(f"Of other packages: {', '.join(others)}"))


def list_studies() -> None:
    """Every study with what it is the cells of."""
    table = _table("name", "source", "what", unbroken=("name",))
    for name in study_files.names():
        content = tomllib.loads(study_files.text(name))
        table.add_row(name, content["source"], content["about"])
    console.results().print(table)


def _table(*columns: str, unbroken: tuple[str, ...]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column in unbroken)
    return table
