"""How a defence is written on the command line and in specifications, and how that is read.

none                          no settings
gaussian:0.001                a value without a key is the class's first field
gaussian:variance=0.001       the same with its key; commas separate one defence's settings: KEY=VALUE,KEY=VALUE
package.module:Class[:...]    a class of a user's own, with the same settings
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from privbench import registry
from privbench.errors import UserError
from privbench.hyperparameters import is_whole, kind

Items = tuple[tuple[str, str], ...]


class Parts(NamedTuple):
    """A written defence, taken apart."""

    name: str  # "gaussian", "package.module:Class"
    items: Items  # (field, or nothing for the first; value) of each setting


def parts(text: str) -> Parts:
    """The parts, with nothing imported; UserError for a form that is none."""
    name, _, rest = text.partition(":")
    attribute, _, values = rest.partition(":")
    if name not in registry.DEFENSES and attribute.isidentifier():
        name, rest = f"{name}:{attribute}", values
    items = []
    for i, item in enumerate(rest.split(",") if rest else ()):
        key, equals, value = item.partition("=")
        key, value = (key, value) if equals else ("", item)
        if not value or (equals and not key) or (i > 0 and not equals):
            raise UserError(
                f"a defence is written NAME, NAME:VALUE or NAME:KEY=VALUE,KEY=VALUE, but '{text}' was given"
            )
        items.append((key, value))
    return Parts(name, tuple(items))


def typed(text: str) -> str:
    """A defence that this process's user typed; from now on its class may be used. UserError as `parts` and `registry.typed`."""
    registry.typed("defense", parts(text).name)
    return text


def create(text: str, where: str) -> Any:
    """A defence from its written form.

    `where` is passed on when the class has such a field. UserError as `parts` and `registry.create`, and for a setting that is
    given twice.
    """
    name, items = parts(text)
    plugin = registry.resolve("defense", name)
    return registry.create(plugin, settings(text, plugin, items, where))


def settings(text: str, plugin: type, items: Items, where: str) -> dict[str, Any]:
    """The settings of a defence's class, with `where` if it has such a field; UserError as `create` says."""
    fields = {f.name: f for f in dataclasses.fields(plugin)}
    found: dict[str, Any] = {"where": where} if "where" in fields else {}
    first = next((name for name in fields if name != "where"), None)
    name = parts(text).name
    if items and first is None:
        raise UserError(f"the defence '{name}' takes no value, but '{text}' was given")
    if first is not None and not items and name in registry.DEFENSES:
        raise UserError(f"the defence '{name}' needs a value, e.g. {name}:0.001")
    for key, value in items:
        field = key or str(first)
        if field == "where":
            raise UserError(f"where a defence acts is said by --where, but '{text}' was given")
        if field in found:
            raise UserError(f"{field} is given twice in the defence '{text}'")
        # A field that is not there is refused, with those that are, where the class is made.
        found[field] = _read(kind(plugin, fields[field]), value, text) if field in fields else value
    return found


def _read(asked: Any, value: str, text: str) -> Any:
    """One value as its field takes it: a float unless a whole number, a word or a truth is asked for."""
    allowed = {asked, *get_args(asked)}
    if bool in allowed and value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        number = float(value)
    except ValueError as error:
        if allowed & {int, float} and str not in allowed:
            raise UserError(f"the defence '{parts(text).name}' takes a number, but '{text}' was given") from error
        return value
    if asked is str:
        return value
    return int(number) if is_whole(asked) and math.isfinite(number) and number.is_integer() else number


def canonical(text: str, where: str = "update") -> str:
    """The form that specifications hold: one without keys as it stands, else keys in the order of the class's fields.

    So "gaussian:variance=0.001" becomes "gaussian:0.001", and one defence has one name. UserError as `create`.
    """
    made, (name, items) = create(text, where), parts(text)
    if not any(key for key, _ in items):
        return text
    fields = [f.name for f in dataclasses.fields(made) if f.name != "where"]
    given = {key or fields[0] for key, _ in items}
    told = {field: _written(getattr(made, field)) for field in fields if field in given}
    if list(told) == fields[:1]:
        return f"{name}:{told[fields[0]]}"
    return f"{name}:" + ",".join(f"{field}={value}" for field, value in told.items())


def _written(value: Any) -> str:
    """A value in the fewest characters that are read as the same."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def numbers(text: str) -> dict[str, float]:
    """The settings of a written defence that are finite numbers, by field ("" for the first); nothing is imported."""
    found = {}
    for key, value in parts(text).items:
        try:
            number = float(value)
        except ValueError:
            continue
        if math.isfinite(number):
            found[key] = number
    return found


def first_field(text: str) -> str:
    """The field that a value without a key is of, e.g. "variance"; "value" where the class cannot be imported."""
    try:
        plugin = registry.resolve("defense", parts(text).name)
    except UserError:
        return "value"
    return next((f.name for f in dataclasses.fields(plugin) if f.name != "where"), "value")


def has_place(texts: Sequence[str]) -> bool:
    """Whether any of some defences has a place to act at, so that --where means something."""
    return any(
        "where" in (f.name for f in dataclasses.fields(registry.resolve("defense", parts(text).name))) for text in texts
    )


def noise_variance(description: Mapping[str, Any]) -> float:
    """The variance per coordinate of the noise that a defence adds, by its own `describe()`; 0 without any."""
    return float(description.get("variance", 0.0))
