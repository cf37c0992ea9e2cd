"""Ranges of a plug-in's settings, declared as the types of its fields and checked by pydantic where a plug-in is made.

    steps: Count = 300        weight: Weight = 1e-4        optimiser: Literal["lbfgs", "adam"] = "lbfgs"
`privbench.registry.create` refuses what lies outside; a class made by hand is not checked. Any annotation that pydantic knows will
do; the numbers below are what most settings are.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field
from functools import cache
from types import SimpleNamespace
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic import Field as Range

MOST = 10**9  # of anything counted: more would not end in a lifetime, and is a slip
Count = Annotated[int, Range(ge=1, le=MOST)]  # of steps, restarts, networks
CountOrZero = Annotated[int, Range(ge=0, le=MOST)]  # 0 leaves out what is counted
Weight = Annotated[float, Range(ge=0)]  # of a term; 0 leaves it out
Positive = Annotated[float, Range(gt=0)]  # a rate, a standard deviation
Share = Annotated[float, Range(ge=0, lt=1)]  # of what is dropped

STRICT = ConfigDict(strict=True, allow_inf_nan=False)  # no text for numbers, no 1 for true; an integer is a float too
WORDS = {  # of pydantic's reasons, with what they are about
    "int_type": "takes a whole number",
    "float_type": "takes a finite number",
    "finite_number": "takes a finite number",
    "string_type": "takes a word",
    "bool_type": "takes true or false",
    "greater_than_equal": "should be at least {ge}",
    "greater_than": "should be above {gt}",
    "less_than_equal": "should be at most {le}",
    "less_than": "should be below {lt}",
    "literal_error": "should be {expected}",
}

Fact = TypeVar("Fact")


class BySetting(Generic[Fact]):
    """What a plug-in declares, where its settings change it: a class says the usual, a plug-in what holds with its own settings.

    needs = BySetting(USUAL, lambda attack: USUAL | {"initial"} if attack.start == "initial" else USUAL)
    """

    def __init__(self, usual: Fact, of: Callable[[Any], Fact]) -> None:
        """`usual` holds with the default settings, and `of` makes the same of a plug-in."""
        self.usual, self.of = usual, of

    def __get__(self, plugin: object | None, _class: type | None = None) -> Fact:
        """Of a class what is usual, of a plug-in what its settings make of it."""
        return self.usual if plugin is None else self.of(plugin)


def kind(plugin: type, field: Field[Any]) -> Any:
    """The annotation of a dataclass's field; Any where it is text that names what is not there at run time."""
    if not isinstance(field.type, str):
        return field.type
    owner = next(c for c in plugin.__mro__ if field.name in inspect.get_annotations(c))
    alone = SimpleNamespace(__annotations__={field.name: field.type})  # so that no other field's annotation can fail
    try:
        return get_type_hints(alone, vars(sys.modules[owner.__module__]), include_extras=True)[field.name]
    except NameError:
        return Any


def is_whole(annotation: Any) -> bool:
    """Whether a field takes whole numbers."""
    return (get_args(annotation) or (annotation,))[0] is int


@cache
def _adapter(plugin: type, field: Field[Any]) -> TypeAdapter[Any]:
    """What checks the values of a field, made once: it takes longer than to check hundreds of values."""
    return TypeAdapter(kind(plugin, field), config=STRICT)


def fault(plugin: type, field: Field[Any], value: object) -> str | None:
    """Rule, what came and the default, in one line, where a value is none for the field."""
    try:
        _adapter(plugin, field).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        rule = WORDS.get(first["type"], first["msg"]).format(**first.get("ctx", {}))
        default = "" if field.default is MISSING else f"; its default is {field.default!r}"
        return f"{field.name} {rule}, but {value!r} was given{default}"
    except PydanticUserError:  # a type that the plug-in defines: its class must check it
        return None
    return None
