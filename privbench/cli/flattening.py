"""Makes a command of a function whose parameters are dataclasses of options.

    @flattened
    def train(run: RunOptions = RunOptions(), training: TrainingOptions = TrainingOptions(), ...) -> None: ...

`flattened` gives the command one option per field in place of such a parameter, with the instance's values as defaults, and passes
the dataclass filled in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar, get_type_hints

from typer.core import TyperCommand, TyperOption

from privbench.errors import UserError


class Once(TyperCommand):
    """A command whose options that take one value may be given once, where otherwise the last would silently count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuses a second value."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        single = [each for each in order if isinstance(each, TyperOption) and not (each.multiple or each.is_flag)]
        for option in single:
            if single.count(option) > 1:
                raise UserError(f"{option.opts[0]} is given {single.count(option)} times, but takes one value")
        return list(super().parse_args(ctx, args))


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
