"""What cells have otherwise than their preset: settings of the attack, how much was trained and how.

Titles of tables name the setting that all methods of a comparison have in common. These lines name the rest, so that two runs that
differ in it are told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from privbench import presets, registry
from privbench.errors import UserError
from privbench.records.schema import Record
from privbench.spec import CellSpec, TrainSpec
from reports.records.labels import label, unique

# Fields of a schedule that no number depends on.
WITHOUT_EFFECT = frozenset({"keep_every"})


def of_attack(cell: CellSpec) -> dict[str, Any]:
    """The attack's settings that differ from its preset's, also those that an older preset left at the attack's defaults."""
    try:
        usual = presets.settings_of_attack(cell.preset, str(cell.attack), cell.train.backbone)
        defaults = {f.name: f.default for f in fields(registry.resolve("attack", str(cell.attack))) if f.name in usual}
    except UserError:
        # A class that only the record names is not imported.
        usual, defaults = {}, {}
    return {name: value for name, value in (defaults | cell.attack_settings).items() if usual.get(name) != value}


def of_training(cell: CellSpec) -> dict[str, Any]:
    """How many images a client has, and the fields of the schedule, e.g. "task.lr", that differ from the preset's."""
    train = cell.train
    layout = {name: getattr(train, name) for name in ("backbone", "image_size", "protocol", "partition", "domains")}
    try:
        usual = presets.train_spec(cell.preset, train.dataset, train.method, **layout)
    except UserError:
        # A data set or method of a user's own, or one that its preset no longer has.
        return {}
    there = _fields(usual)
    return {name: value for name, value in _fields(train).items() if there[name] != value}


def lines(records: Sequence[Record]) -> list[str]:
    """One line for each that differs from its preset, e.g. "Not as in the preset: dlg with steps 1."."""
    attacks = unique(
        f"{r.cell.attack} with {text(settings)}" for r in records if r.cell.attack and (settings := of_attack(r.cell))
    )
    trained = unique(
        f"{label(r.cell)} trained with {text(changed)}" for r in records if (changed := of_training(r.cell))
    )
    return [f"Not as in the preset: {'; '.join(each)}." for each in (attacks, trained) if each]


def _fields(train: TrainSpec) -> dict[str, Any]:
    """The images of a client and the schedule, optimisers spelt out."""
    flat: dict[str, Any] = {"per_client": train.per_client}
    for name, value in train.schedule.model_dump().items():
        flat |= {f"{name}.{one}": v for one, v in value.items()} if isinstance(value, Mapping) else {name: value}
    return {name: value for name, value in flat.items() if name not in WITHOUT_EFFECT}


def text(settings: Mapping[str, Any]) -> str:
    """Settings in words, e.g. "steps 1, task.lr 0.001"."""
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in sorted(settings.items())
    )
