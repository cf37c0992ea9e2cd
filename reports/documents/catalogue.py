"""What can be said of every plug-in, study and command from its own code: the tables of names in the documents and listings."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path

from privbench import registry
from privbench.data import partition
from privbench.observation import knowledge
from reports.studies import definition, study_files
from reports.tables import render

TARGET = re.compile(r"^([a-z-]+):.*?## (.*)$", re.MULTILINE)
# Says nothing of the project.
PLAIN = ("help",)


def facts(kind: str, name: str) -> dict[str, str]:
    """What is known of one plug-in, by the heading it stands under."""
    plugin = registry.resolve(kind, name)
    # A data set is a function of its module; of the others the class says what it is and where it is from.
    described = inspect.getmodule(plugin) if kind == "dataset" else plugin
    found = {"what": (described.__doc__ or "").strip().splitlines()[0]}
    if kind == "method":
        counts = ["label counts"] if plugin().uploads_counts else []
        found["shares"] = ", ".join([*plugin.shared_parts, *counts]) or "nothing"
        found["paper"] = plugin.paper or "-"
    if kind == "attack":
        found |= {
            "rung": plugin.rung,
            "must know": knowledge.tag(plugin),
            "needs": ", ".join(sorted(plugin.needs)) or "nothing",
            "uses where sent": ", ".join(sorted(knowledge.uses(plugin))) or "nothing",
        }
    if kind == "defense":
        settings = [f"{each.name}: {getattr(each.type, '__name__', each.type)}" for each in fields(plugin)]
        found["settings"] = ", ".join(settings) or "none"
    if kind == "dataset":
        how, clients, per_client = partition.defaults(name)
        each = {"iid": "iid, up to", "domain": "one domain each, up to", "dirichlet": "Dirichlet(1), on average"}[how]
        found["default layout"] = f"{clients} clients, {each} {per_client:,} images"
    return found


def every(kind: str) -> dict[str, dict[str, str]]:
    """The facts of all plug-ins of a kind; attacks by rung, what they need least first."""
    found = {name: facts(kind, name) for name in registry.KINDS[kind]}
    return dict(sorted(found.items(), key=lambda entry: entry[1]["rung"])) if kind == "attack" else found


def _table(kind: str, columns: dict[str, str]) -> str:
    """All plug-ins of a kind as Markdown: heading -> the fact beneath it."""
    rows = [[f"`{name}`", *(own[fact] for fact in columns.values())] for name, own in every(kind).items()]
    return render.markdown(["name", *columns], rows, words=True)


def attacks(_root: Path) -> str:
    """Name, rung, what the attacker must know, and what the attack does."""
    return _table("attack", {"rung": "rung", "must know": "must know", "what it does": "what"})


def methods(_root: Path) -> str:
    """Name, what leaves the client, and the paper."""
    return _table("method", {"shares": "shares", "what it is": "what", "paper": "paper"})


def defenses(_root: Path) -> str:
    """Name, settings, and what it does."""
    return _table("defense", {"what it does": "what", "settings": "settings"})


def datasets(_root: Path) -> str:
    """Name, what it holds, and how it is laid out over clients."""
    return _table("dataset", {"what it holds": "what", "default layout": "default layout"})


def studies(_root: Path) -> str:
    """Name, the published table or figure, and what the cells are."""
    found = [definition.read(name) for name in study_files.names()]
    rows = [[f"`{study.name}`", study.source, study.about] for study in found]
    return render.markdown(["study", "of", "what it runs"], rows, words=True)


def make_targets(root: Path) -> str:
    """The targets of the Makefile with what it says of each."""
    found = TARGET.findall((root / "Makefile").read_text(encoding="utf-8"))
    rows = [[f"`make {name}`", what] for name, what in found if name not in PLAIN]
    return render.markdown(["command", "what it does"], rows, words=True)
