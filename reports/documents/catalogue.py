"""What can be said of every plug-in, study and command from its own code: the tables of names in the documents and listings."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from privbench import registry
from privbench.data import partition
from privbench.networks.base import LinearClassifier
from privbench.networks.model import BACKBONES, Model, backbone_module
from privbench.observation import knowledge, observe
from privbench.seeds import stream
from privbench.types import CLASSIFICATION
from reports.records.rungs import RUNGS
from reports.studies import definition, study_files
from reports.tables import render

TARGET = re.compile(r"^([a-z-]+):.*?## (.*)$", re.MULTILINE)
CHANNELS, CLASSES = 3, 10  # of the images whose backbones' parameters are counted
# Says nothing of the project.
PLAIN = ("help",)
# Kind of plug-in -> in words, where they differ.
HEADINGS = {"dataset": "data set", "defense": "defence"}


def facts(kind: str, name: str) -> dict[str, str]:
    """What is known of one plug-in, by the heading it stands under."""
    plugin = registry.resolve(kind, name)
    # A data set is a function of its module; of the others the class says what it is and where it is from.
    described = inspect.getmodule(plugin) if kind == "dataset" else plugin
    plugin_facts = {"what": (described.__doc__ or "").strip().splitlines()[0]}
    if kind == "method":
        counts = ["label counts"] if plugin().uploads_counts else []
        plugin_facts["shares"] = ", ".join([*plugin.shared_parts, *counts]) or "nothing"
        sums = ["sum of label counts"] if plugin().broadcasts_counts else []
        plugin_facts["server adds"] = ", ".join([*plugin.serves, *sums]) or "-"
        plugin_facts["paper"] = plugin.paper or "-"
    if kind == "attack":
        plugin_facts |= {
            "rung": plugin.rung,
            "must know": knowledge.tag(plugin),
            "needs": ", ".join(sorted(plugin.needs)) or "nothing",
            "uses where sent": ", ".join(sorted(knowledge.uses(plugin))) or "nothing",
        }
    if kind == "defense":
        settings = [f"{each.name}: {getattr(each.type, '__name__', each.type)}" for each in fields(plugin)]
        plugin_facts["settings"] = ", ".join(settings) or "none"
    if kind == "dataset":
        how, clients, per_client = partition.defaults(name)
        each = {
            "iid": "iid, up to", "domain": "one domain each, up to", "dirichlet": "Dirichlet(1), on average",
            "classes": "classes of its own each, up to",
        }[how]  # fmt: skip
        plugin_facts["default layout"] = f"{clients} clients, {each} {per_client:,} images"
    return plugin_facts


def every(kind: str) -> dict[str, dict[str, str]]:
    """The facts of all plug-ins of a kind; attacks by rung, what they need least first."""
    plugins = {name: facts(kind, name) for name in registry.KINDS[kind]}
    return dict(sorted(plugins.items(), key=lambda entry: entry[1]["rung"])) if kind == "attack" else plugins


def _table(kind: str, columns: dict[str, str]) -> str:
    """All plug-ins of a kind as Markdown: heading -> the fact beneath it."""
    rows = [
        [f"`{name}`", *(plugin_facts[fact] for fact in columns.values())] for name, plugin_facts in every(kind).items()
    ]
    return render.markdown([HEADINGS.get(kind, kind), *columns], rows, words=True)


def attacks(_root: Path) -> str:
    """Name, rung, what the attacker must know, and what the attack does."""
    return _table("attack", {"rung": "rung", "attacker knows": "must know", "method (source)": "what"})


def rungs(_root: Path) -> str:
    """Rung, what it adds in knowledge, and the attacks that stand on it."""
    attacks = every("attack")
    rows = [
        [
            name,
            words,
            ", ".join(f"`{attack}`" for attack, plugin_facts in attacks.items() if plugin_facts["rung"] == name),
        ]
        for name, words in RUNGS.items()
    ]
    return render.markdown(["rung", "knowledge", "attacks"], rows, words=True)


def methods(_root: Path) -> str:
    """Name, what leaves the client, what else the server sends, and what the method does."""
    columns = {"leaves the client": "shares", "also sent by the server": "server adds", "what it does (source)": "what"}
    return _table("method", columns)


def backbones(_root: Path) -> str:
    """Name, sizes of images, shape of the features, what enters the classifier, and how many parameters E and C have."""
    rows = []
    for name in BACKBONES:
        module = backbone_module(name)
        model = Model(name, CHANNELS, CLASSES, module.IMAGE_SIZES[0])
        counts = [sum(t.numel() for t in model.net(part).init(stream(0, part))[0].values()) for part in CLASSIFICATION]
        first = "a linear layer" if isinstance(model.classifier, LinearClassifier) else "convolutions"
        rows.append(
            [
                f"`{name}`",
                ", ".join(str(side) for side in module.IMAGE_SIZES),
                " x ".join(str(size) for size in model.feature_shape),
                first,
                *(f"{count:,}" for count in counts),
                str(module.__doc__).strip().splitlines()[0],
            ]
        )
    head = ["backbone", "sides", "features at the first", "classifier begins with", "E", "C", "what it is (source)"]
    return render.markdown(head, rows, words=True)


def what_is_sent(_root: Path) -> str:
    """What the server sees of each method: of which parts gradients, which weights it sends, and which it receives."""
    names: dict[tuple[str, ...], dict[type, list[str]]] = {}
    for name in registry.METHODS:
        plugin = registry.resolve("method", name)
        names.setdefault(_seen(plugin()), {}).setdefault(plugin, []).append(name)
    rows = [
        # Two names of one method are equal.
        [", ".join(" = ".join(f"`{name}`" for name in same) for same in alike.values()), *seen]
        for seen, alike in names.items()
    ]
    head = ["method", "gradients of", "weights that the server sends", "what each client sends besides"]
    return render.markdown(head, rows, words=True)


def _seen(method: Any) -> tuple[str, ...]:
    """The cells of one method, from what its artifacts offer."""
    offered = observe.offers(method)
    parts = [*method.shared_parts, *method.serves]
    sent = {
        kind: [part for part in parts if f"{kind}:{part}" in offered] for kind in ("gradient", "broadcast", "upload")
    }
    sent["gradient"].sort(key=CLASSIFICATION.index)
    sent["upload"] += ["label counts"] if "label_counts" in offered else []
    return tuple(", ".join(each) or "-" for each in sent.values())


def defenses(_root: Path) -> str:
    """Name, settings, and what it does."""
    return _table("defense", {"settings": "settings", "what it does (source)": "what"})


def datasets(_root: Path) -> str:
    """Name, what it holds, and how it is laid out over clients."""
    return _table("dataset", {"what it holds": "what", "default layout": "default layout"})


def studies(_root: Path) -> str:
    """Name, the published table or figure, what the cells are, and the reports."""
    definitions = [definition.read(name) for name in study_files.names()]
    rows = [[f"`{study.name}`", study.source, study.about, ", ".join(study.reports)] for study in definitions]
    return render.markdown(["study", "the cells of", "what it runs", "reports"], rows, words=True)


def make_targets(root: Path) -> str:
    """The targets of the Makefile with what it says of each."""
    targets = TARGET.findall((root / "Makefile").read_text(encoding="utf-8"))
    rows = [[f"`make {name}`", what] for name, what in targets if name not in PLAIN]
    return render.markdown(["command", "what it does"], rows, words=True)
