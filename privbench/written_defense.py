"""How a defence is written on the command line and in specifications, and how that is read.

none                          no settings
gaussian:0.001                a value without a key is the class's first field
gaussian:variance=0.001       the same with its key; commas separate one defence's settings: KEY=VALUE,KEY=VALUE
package.module:Class[:...]    a class of a user's own, with the same settings
clip:1+quantize:4             several, in the order in which they act (privbench/defending/composition.py)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from privbench import names, registry
from privbench.defending.described import JOINED
from privbench.errors import UserError
from privbench.hyperparameters import is_whole, kind

if TYPE_CHECKING:
    from privbench.defense import Defense

Items = tuple[tuple[str, str], ...]


class Parts(NamedTuple):
    """A written defence, taken apart."""

    name: str  # "gaussian", "package.module:Class"
    items: Items  # (field, or nothing for the first; value) of each setting


def members(text: str) -> tuple[Parts, ...]:
    """The parts of each defence that is written, one or several, with nothing imported; UserError for a form that is none."""
    return tuple(_parts(each) for each in names.defenses(text))


def joined(text: str) -> str:
    """The names without settings, e.g. "clip+quantize"."""
    return JOINED.join(each.name for each in members(text))


def _parts(text: str) -> Parts:
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


def keeps_epsilon(text: str) -> bool:
    """Whether noise is solved for in what is written, as far as text tells: nothing is imported."""
    return any(registry.may_solve_for_noise(*each) for each in members(text))


def with_noise(text: str, noise: float | None) -> str:
    """The same with the noise multiplier that was solved for in place of its epsilon, of which one defence at most has one."""
    if noise is None:
        return text
    each = []
    for one in names.defenses(text):
        name, items = _parts(one)
        first = _first_field(registry.resolve("defense", name))
        named = [(key or str(first), value) for key, value in items]
        if "epsilon" in dict(named):
            settings = [
                ("noise", repr(noise)),
                *((key, value) for key, value in named if key not in ("epsilon", "noise")),
            ]
            one = f"{name}:{','.join(f'{key}={value}' for key, value in settings)}"
        each.append(one)
    return JOINED.join(each)


def typed(text: str) -> str:
    """Defences that this process's user typed; from now on their classes may be used. UserError as `members`, `registry.typed`."""
    for each in members(text):
        registry.typed("defense", each.name)
    return text


def create(text: str, where: str) -> Defense:
    """A defence from its written form; of several that are written, their composition.

    `where` is passed on when a class has such a field. UserError as `members` and `registry.create`, for a setting that is given
    twice, for a class that is no Defense, and for several that make none together.
    """
    # Imported where it is used: listings and help need no torch.
    from privbench.defending.composition import Composition

    each = tuple(_create(one, where) for one in names.defenses(text))
    return each[0] if len(each) == 1 else Composition(each)


def _create(text: str, where: str) -> Defense:
    from privbench.defense import Defense

    name, items = _parts(text)
    plugin = registry.resolve("defense", name)
    defense = registry.create(plugin, _settings(text, plugin, items, where))
    if not isinstance(defense, Defense):
        raise UserError(
            f"{name} is no subclass of privbench.defense.Defense, which names the places where a defence acts; "
            "docs/extending.md has an example"
        )
    _check_places(name, defense)
    if name not in registry.DEFENSES:
        _check_description(name, defense)
    return defense


def _check_places(name: str, defense: Defense) -> None:
    """UserError for a defence that names a place that is none, or one of which it has no method."""
    from privbench.defense import PLACES, Defense

    if unknown := sorted(str(place) for place in set(defense.places) - set(PLACES)):
        raise UserError(f"{name} acts at no place '{unknown[0]}'; known: {', '.join(PLACES)}")
    for place in (each for each in PLACES if each in defense.places):
        if getattr(type(defense), place) is getattr(Defense, place):
            raise UserError(f"{name} says that it acts at '{place}', but has no method of that name")


def _check_description(name: str, defense: Defense) -> None:
    """UserError for a user's defence that does not say what an attacker knows of it."""
    try:
        described = defense.describe()
    except Exception as error:
        raise UserError(f"{name} cannot describe itself: {registry.where_it_failed(error)}") from error
    if not isinstance(described, Mapping) or "name" not in described:
        raise UserError(f"{name}: describe() should return a mapping with a 'name', but returned {described!r}")


def _first_field(plugin: type) -> str | None:
    """Which setting a value without a key is of; None of a class without any."""
    return next((field.name for field in dataclasses.fields(plugin) if field.name != "where"), None)


def _settings(text: str, plugin: type, items: Items, where: str) -> dict[str, Any]:
    """The settings of a defence's class, with `where` if it has such a field; UserError as `create` says."""
    fields = {f.name: f for f in dataclasses.fields(plugin)}
    values: dict[str, Any] = {"where": where} if "where" in fields else {}
    first = _first_field(plugin)
    name = _parts(text).name
    if items and first is None:
        raise UserError(f"the defence '{name}' takes no value, but '{text}' was given")
    if first is not None and not items and fields[first].default is dataclasses.MISSING:
        raise UserError(f"the defence '{name}' needs a value for {first}, e.g. {name}:{first}=...")
    for key, value in items:
        field = key or str(first)
        if field == "where":
            raise UserError(f"where a defence acts is said by --where, but '{text}' was given")
        if field in values:
            raise UserError(f"{field} is given twice in the defence '{text}'")
        # A field that is not there is refused, with those that are, where the class is made.
        values[field] = _read(kind(plugin, fields[field]), value, text) if field in fields else value
    return values


def _read(annotation: Any, value: str, text: str) -> Any:
    """One value as its field takes it: a float unless a whole number, a word or a truth is asked for."""
    allowed = {annotation, *get_args(annotation)}
    if bool in allowed and value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        number = float(value)
    except ValueError as error:
        if allowed & {int, float} and str not in allowed:
            raise UserError(f"the defence '{_parts(text).name}' takes a number, but '{text}' was given") from error
        return value
    if annotation is str:
        return value
    return int(number) if is_whole(annotation) and math.isfinite(number) and number.is_integer() else number


def canonical(text: str, where: str = "update") -> str:
    """The form that specifications hold: one without keys as it stands, else keys in the order of the class's fields.

    So "gaussian:variance=0.001" becomes "gaussian:0.001", and one defence has one name. UserError as `create`.
    """
    create(text, where)
    return JOINED.join(_canonical(one, where) for one in names.defenses(text))


def _canonical(text: str, where: str) -> str:
    defense, (name, items) = _create(text, where), _parts(text)
    if not any(key for key, _ in items):
        return text
    fields = [f.name for f in dataclasses.fields(defense) if f.name != "where"]
    named = {key or fields[0] for key, _ in items}
    written = {field: _written(getattr(defense, field)) for field in fields if field in named}
    if list(written) == fields[:1]:
        return f"{name}:{written[fields[0]]}"
    return f"{name}:" + ",".join(f"{field}={value}" for field, value in written.items())


def _written(value: Any) -> str:
    """A value in the fewest characters that are read as the same."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def numbers(text: str) -> dict[tuple[str, str], float]:
    """The settings of a written defence that are finite numbers, by defence and field ("" for the first); nothing is imported."""
    values = {}
    for name, items in members(text):
        for key, value in items:
            try:
                number = float(value)
            except ValueError:
                continue
            if math.isfinite(number):
                values[name, key] = number
    return values


def first_field(name: str) -> str:
    """The field that a value without a key is of, e.g. "variance" of "gaussian"; "value" where the class cannot be imported."""
    try:
        plugin = registry.resolve("defense", name)
    except UserError:
        return "value"
    return next((f.name for f in dataclasses.fields(plugin) if f.name != "where"), "value")


def has_place(texts: Sequence[str]) -> bool:
    """Whether any of some defences has a place to act at, so that --where means something."""
    plugins = [registry.resolve("defense", each.name) for text in texts for each in members(text)]
    return any("where" in (f.name for f in dataclasses.fields(plugin)) for plugin in plugins)
