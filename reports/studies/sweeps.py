"""Swept fields of a study: every combination of their values becomes cells, and a cell says which values it has.

A name is a field of training as presets.train_spec takes it ("clients", "omega", "backbone"), a field of a cell ("batch_size",
"local_steps"), or one setting: "schedule.batch", "schedule.task.lr", "settings.mu" of the method, "attack.steps" of the attack,
"defense.variance" or "defense.epsilon" of the defence. A column that has no such setting stands once, beside the sweep.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from privbench import registry, written_defense
from privbench.defending.described import NONE
from privbench.errors import UserError
from privbench.spec import CellSpec, TrainSpec, nearest

# Before one setting of a schedule, a method, an attack or a defence.
SCHEDULE, METHOD, ATTACK, DEFENCE = "schedule.", "settings.", "attack.", "defense."
OF_TRAINING = tuple(
    TrainSpec.model_fields.keys() - {"dataset", "method", "method_settings", "defense", "schedule", "seed", "content"}
)
OF_CELLS = (
    "batch_size", "labels_known", "observe", "local_steps", "local_lr", "local_batch", "auxiliary", "wire", "audit",
    "generated", "victims", "known_images", "known_quality_db", "observed_rounds", "uploads_per_round",
)  # fmt: skip
DECIBELS = " db"  # ends the words of a field that is measured in them
Point = Mapping[str, Any]  # name -> value


def check(sweep: Mapping[str, Any]) -> None:
    """UserError for a name that is none, and for one without values."""
    for name, values in sweep.items():
        prefixes = tuple(prefix for prefix in (SCHEDULE, METHOD, ATTACK, DEFENCE) if name.startswith(prefix))
        if not prefixes and name not in (*OF_TRAINING, *OF_CELLS):
            raise UserError(f"a study cannot sweep '{name}'; {nearest(name, (*sorted(OF_TRAINING), *OF_CELLS))}")
        if not values:
            raise UserError(f"the sweep of '{name}' names no value")


def points(sweep: Mapping[str, Any], method: str, defense: str) -> list[Point]:
    """Every combination of the values that a column can have; of settings that it lacks, none."""
    able = {name: values for name, values in sweep.items() if _has(name, method, defense)}
    return [dict(zip(able, combination, strict=True)) for combination in itertools.product(*able.values())]


def _has(name: str, method: str, defense: str) -> bool:
    if name.startswith(METHOD):
        return name.removeprefix(METHOD) in {field.name for field in fields(registry.resolve("method", method))}
    return defense != NONE if name.startswith(DEFENCE) else True


def is_of_attacks(name: str) -> bool:
    """Whether a swept field says how networks are attacked, and not how they are trained."""
    return name in OF_CELLS or name.startswith(ATTACK)


def words(name: str) -> str:
    """A swept field as a table says it, its unit behind a comma."""
    text = name.replace("_", " ")
    return f"{text.removesuffix(DECIBELS)}, dB" if text.endswith(DECIBELS) else text


def with_value(name: str, value: Any) -> str:
    """A swept field of one value, as the name of a line says it."""
    text, _, unit = words(name).partition(", ")
    return f"{text} {value_text(value)}{unit and ' '}{unit}"


def value_text(value: Any) -> str:
    """A swept value; of several numbers one after the other, 0 to 9 where they follow each other."""
    if not isinstance(value, tuple):
        return f"{value:g}" if isinstance(value, float) else str(value)
    is_range = len(value) > 2 and value == tuple(range(value[0], value[0] + len(value)))
    return f"{value[0]} to {value[-1]}" if is_range else ", ".join(map(str, value))


def of_training(point: Point) -> dict[str, Any]:
    """The fields of training of a point."""
    return {name: value for name, value in point.items() if name in OF_TRAINING}


def of_cells(point: Point, last: int) -> dict[str, Any]:
    """The fields of a cell. Observed rounds after the `last` of training are left out, as attacked ones are."""
    fields = {name: value for name, value in point.items() if name in OF_CELLS}
    if "observed_rounds" in fields:
        fields["observed_rounds"] = tuple(r for r in fields["observed_rounds"] if r < last)
    return fields


def settings(point: Point, prefix: str) -> dict[str, Any]:
    """The settings with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in point.items() if name.startswith(prefix)}


def defended(defense: str, point: Point) -> str:
    """A column's defence with the swept settings: "gaussian" and a variance of 0.1 are "gaussian:variance=0.1"."""
    swept = ",".join(f"{key}={value}" for key, value in settings(point, DEFENCE).items())
    if not swept:
        return defense
    return written_defense.canonical(f"{defense}{',' if ':' in defense else ':'}{swept}")


def value(cell: CellSpec, name: str) -> Any:
    """The value that a cell has of a swept field; None where it has none."""
    if name.startswith(DEFENCE):
        key = name.removeprefix(DEFENCE)
        values = {
            field or written_defense.first_field(defence): number
            for (defence, field), number in written_defense.numbers(cell.train.defense).items()
        }
        return values.get(key)
    if name.startswith(SCHEDULE):
        entry: Any = cell.train.schedule.model_dump()
        for part in name.removeprefix(SCHEDULE).split("."):
            entry = entry.get(part) if isinstance(entry, Mapping) else None
        return entry
    if name.startswith(METHOD):
        return _setting("method", cell.train.method, cell.train.method_settings, name.removeprefix(METHOD))
    if name.startswith(ATTACK):
        return None if cell.attack is None else _setting(
            "attack", cell.attack, cell.attack_settings, name.removeprefix(ATTACK)
        )  # fmt: skip
    return getattr(cell if name in OF_CELLS else cell.train, name)


def position(sweep: Mapping[str, Sequence[Any]], cell: CellSpec) -> list[int]:
    """Where a cell's value stands among those of each swept field; behind them where it is none of them."""
    values = [value(cell, name) for name in sweep]
    return [
        list(known).index(one) if one in known else len(known)
        for known, one in zip(sweep.values(), values, strict=True)
    ]


def _setting(kind: str, plugin: str, settings: Mapping[str, Any], name: str) -> Any:
    """A setting that was given, or else the default of its class."""
    if name in settings:
        return settings[name]
    defaults = {field.name: field.default for field in fields(registry.resolve(kind, plugin))}
    return defaults.get(name)
