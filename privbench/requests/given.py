"""Values of options that are given in Python, checked as the command line checks what is typed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from privbench.errors import UserError
from privbench.spec import first_fault
from privbench.system.file_headers import short

# One text with commas on the command line, without commas in any value: a list of values here.
WITH_COMMAS = ("observed_rounds",)


def value(name: str, hint: Any, given: Any) -> Any:
    """What is given for an option, in the form that the command line gives it; `hint` is its annotation with its typer.Option.

    UserError for a value of another kind, or below the option's least one. No truth value passes for a number.
    """
    kind, *about = get_args(hint)
    kinds = get_args(kind) or (kind,)
    if any(get_origin(each) is list for each in kinds):
        return given if given is None else listed(given)
    if name in WITH_COMMAS and isinstance(given, Iterable | int) and not isinstance(given, str | bool | Mapping):
        given = ",".join(listed(given))
    if isinstance(given, bool) and bool not in kinds:
        raise UserError(f"{name}: Input should be {_named(kinds)}, but {given} was given")
    try:
        read = TypeAdapter(kind).validate_python(given)
    except ValidationError as error:
        _, rule, _ = first_fault(error)
        raise UserError(f"{name}: {rule}, but {short(repr(given))} was given") from error
    least = next((option.min for option in about if option.min is not None), None)
    if read is not None and least is not None and read < least:
        raise UserError(f"{name}: Input should be greater than or equal to {least}, but {short(repr(given))} was given")
    return read


def listed(given: Any) -> list[str]:
    """Several values, or one, as words."""
    several = isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping | type)
    return [str(each) for each in given] if several else [str(given)]


def _named(kinds: Iterable[Any]) -> str:
    words = {int: "an integer", float: "a number", str: "a text"}
    return next((words[kind] for kind in kinds if kind in words), "another")
