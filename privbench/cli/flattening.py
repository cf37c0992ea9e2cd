"""Makes a command of a function whose parameters are dataclasses of options.

    @flattened
    def train(run: RunOptions = RunOptions(), training: TrainingOptions = TrainingOptions(), ...) -> None: ...

`flattened` gives the command one option per field in place of such a parameter, with the instance's values as defaults, and passes
the dataclass filled in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

from typer.core import TyperCommand, TyperOption

from privbench.errors import UserError


class Once(TyperCommand):
    """A command whose options that take one value may be given once, where otherwise the last would silently count.

    Nor may a value be empty: an empty path would be the folder where the command runs.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuses a second value, and an empty one."""
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for each in order:
            value = given.get(each.name or "")
            if "" in (value if isinstance(value, list | tuple) else [value]):
                raise UserError(f"{_called(each)} is empty; name something or leave it out")
        single = [each for each in order if isinstance(each, TyperOption) and not (each.multiple or each.is_flag)]
        for option in single:
            if single.count(option) > 1:
                raise UserError(f"{option.opts[0]} is given {single.count(option)} times, but takes one value")
        return list(super().parse_args(ctx, args))


def refuse_others(ctx: Any, chosen: str, allowed: Collection[str]) -> None:
    """UserError for an option on the command line that says nothing beside the option `chosen`, unless `allowed` names it."""
    for each in ctx.command.params:
        source = ctx.get_parameter_source(each.name)
        is_given = source is not None and source.name == "COMMANDLINE"
        if is_given and each.name not in allowed and _called(each) != chosen:
            raise UserError(f"{_called(each)} says nothing beside {chosen}; leave it out")


def _called(parameter: Any) -> str:
    """An option as it is written, or an argument as help names it."""
    return str(parameter.opts[0] if isinstance(parameter, TyperOption) else parameter.name.upper())


F = TypeVar("F", bound=Callable[..., None])


def flattened(command: F) -> F:
    """The command with one parameter per field of every parameter whose default is an instance of a dataclass."""
    parts: dict[str, type] = {}
    flat: list[inspect.Parameter] = []
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        group = parameter.default
        if not is_dataclass(group) or isinstance(group, type):
            flat.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        parts[parameter.name] = type(group)
        annotations = get_type_hints(type(group), include_extras=True)
        flat += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=getattr(group, field.name),
                annotation=annotations[field.name],
            )
            for field in fields(group)
        ]

    @wraps(command)
    def call(**values: Any) -> None:
        groups = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)}) for name, kind in parts.items()
        }
        command(**values, **groups)

    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call  # type: ignore[return-value]
