"""Strict reading of a capture's index: every field is known, typed and bounded before anything that it says is believed.

The same checks hold for what is written, so that no honest capture is refused later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any, TypeVar

from privbench.capture import limits
from privbench.capture.index import (
    FORMAT,
    NAMES,
    NOT_FINITE,
    VERSION,
    IndexedBroadcast,
    IndexedMessage,
    IndexedRound,
    Layout,
    file_name,
)
from privbench.capture.messages import KINDS, LocalWork, MessageFacts
from privbench.system.file_headers import DIMENSIONS, HEADER_BYTES, LENGTH_BYTES, Declared, short

T = TypeVar("T")
FIELDS = {"privbench", "version", "layouts", "rounds"}
ROUND = {"round", "file", "bytes", "sha256", "broadcasts", "messages"}
MESSAGE = {
    "kind", "clients", "of", "examples", "broadcast", "training", "local", "metrics", "layout", "labels",
}  # fmt: skip
HEX = set("0123456789abcdef")


def index(content: Mapping[str, Any]) -> tuple[Layout, tuple[IndexedRound, ...]]:
    """(the model's layout, rounds) of an index without its digest; ValueError names the first field that does not fit."""
    value = _table(content, "the index", FIELDS)
    if value["privbench"] != FORMAT or type(value["version"]) is not int or value["version"] != VERSION:
        raise ValueError(f"it is no {FORMAT} of version {VERSION}")
    layouts = _list(value["layouts"], "layouts", limits.LAYOUTS, _layout, least=1)
    rounds = _list(value["rounds"], "rounds", limits.ROUNDS, lambda entry, at: round_of(entry, at, layouts))
    if any(a.number >= b.number for a, b in pairwise(rounds)):
        raise ValueError("the rounds should ascend")
    return layouts[0], rounds


def round_of(entry: Any, at: str, layouts: tuple[Layout, ...]) -> IndexedRound:
    """One round of an index; ValueError as `index`."""
    value = _table(entry, at, ROUND)
    number = _whole(value["round"], f"{at}.round", 0, limits.ROUND)
    if value["file"] != file_name(number):
        raise ValueError(f"{at}.file: the file of round {number} is {file_name(number)}")
    sha256 = value["sha256"]
    if not isinstance(sha256, str) or len(sha256) != 64 or not set(sha256) <= HEX:
        raise ValueError(f"{at}.sha256 is no SHA-256")
    size = _whole(value["bytes"], f"{at}.bytes", LENGTH_BYTES, limits.ROUND_BYTES)
    broadcasts = _list(
        value["broadcasts"],
        f"{at}.broadcasts",
        limits.MESSAGES,
        lambda b, place: _broadcast(b, place, layouts),
        least=1,
    )
    messages = _list(
        value["messages"], f"{at}.messages", limits.MESSAGES,
        lambda m, place: _message(m, place, layouts, len(broadcasts)), least=1,
    )  # fmt: skip
    _check_receivers(broadcasts, at)
    round_ = IndexedRound(number, size, sha256, broadcasts, messages)
    _check_size(round_, at)
    return round_


def _check_size(round_: IndexedRound, at: str) -> None:
    """Against the file's announced size, added up without a table of all tensors: layouts are shared, so few bytes name many."""
    layouts = [*(b.layout for b in round_.broadcasts), *(m.layout for m in round_.messages)]
    count = sum(layout.count for layout in layouts) + len(round_.messages)
    if count > limits.TENSORS:
        raise ValueError(f"{at} has {count} tensors, more than {limits.TENSORS}")
    total = sum(layout.nbytes for layout in layouts)
    total += sum(message.labels.nbytes for message in round_.messages if message.labels is not None)
    if not total + LENGTH_BYTES <= round_.bytes <= total + LENGTH_BYTES + HEADER_BYTES:
        raise ValueError(f"{at}: its tensors take {total} bytes, which do not fit a file of {round_.bytes}")


def _check_receivers(broadcasts: tuple[IndexedBroadcast, ...], at: str) -> None:
    """Each client received one broadcast."""
    named = [client for each in broadcasts if each.clients is not None for client in each.clients]
    if len(set(named)) < len(named) or sum(each.clients is None for each in broadcasts) > 1:
        raise ValueError(f"{at}.broadcasts: each client receives one")


def _layout(entry: Any, at: str) -> Layout:
    value = _table(entry, at, {"parameters", "buffers"})
    parameters, buffers = (
        _names(value[group], f"{at}.{group}", limits.TENSORS, _tensor) for group in ("parameters", "buffers")
    )
    return Layout(parameters, buffers)


def _tensor(entry: Any, at: str) -> Declared:
    value = _table(entry, at, {"dtype", "shape"})
    if not isinstance(value["dtype"], str) or value["dtype"] not in NAMES:
        raise ValueError(f"{at}.dtype is {short(value['dtype'])}; known: {', '.join(NAMES)}")
    shape = _list(value["shape"], f"{at}.shape", DIMENSIONS, lambda n, place: _whole(n, place, 0, limits.SIDE))
    return Declared(NAMES[value["dtype"]], shape)


def _broadcast(entry: Any, at: str, layouts: tuple[Layout, ...]) -> IndexedBroadcast:
    value = _table(entry, at, {"layout", "clients"})
    clients = None if value["clients"] is None else _clients(value["clients"], f"{at}.clients", least=1)
    return IndexedBroadcast(layouts[_whole(value["layout"], f"{at}.layout", 0, len(layouts) - 1)], clients)


def _message(entry: Any, at: str, layouts: tuple[Layout, ...], broadcasts: int) -> IndexedMessage:
    value = _table(entry, at, MESSAGE)
    if not isinstance(value["kind"], str) or value["kind"] not in KINDS:
        raise ValueError(f"{at}.kind is {short(value['kind'])}; known: {', '.join(KINDS)}")
    facts = MessageFacts(
        kind=value["kind"],
        clients=_clients(value["clients"], f"{at}.clients"),
        of=_whole(value["of"], f"{at}.of", 1, limits.CLIENTS),
        examples=_optional(value["examples"], lambda n: _whole(n, f"{at}.examples", 1, limits.EXAMPLES)),
        broadcast=_optional(value["broadcast"], lambda n: _whole(n, f"{at}.broadcast", 0, broadcasts - 1)),
        training=_optional(value["training"], lambda n: _truth_value(n, f"{at}.training")),
        local=_optional(value["local"], lambda work: _local(work, f"{at}.local")),
        metrics=_names(value["metrics"], f"{at}.metrics", limits.METRICS, _metric),
    )
    if facts.of < len(facts.clients):
        raise ValueError(f"{at}: {len(facts.clients)} clients are named, more than the {facts.of} whose data it holds")
    if facts.kind == "gradient" and facts.local is not None:
        raise ValueError(f"{at}: local steps belong to updates and weights")
    layout = layouts[_whole(value["layout"], f"{at}.layout", 0, len(layouts) - 1)]
    if not layout.parameters:
        raise ValueError(f"{at} holds no parameters")
    labels = _optional(value["labels"], lambda t: _tensor(t, f"{at}.labels"))
    if labels is not None and (not labels.shape or labels.shape[0] != (facts.examples or labels.shape[0])):
        raise ValueError(f"{at}.labels: there should be one for each of its {facts.examples} examples")
    return IndexedMessage(facts, layout, labels)


def _local(entry: Any, at: str) -> LocalWork:
    value = _table(entry, at, {"steps", "batch_size", "optimizer", "settings"})
    return LocalWork(
        _optional(value["steps"], lambda n: _whole(n, f"{at}.steps", 1, limits.STEPS)),
        _optional(value["batch_size"], lambda n: _whole(n, f"{at}.batch_size", 1, limits.EXAMPLES)),
        _optional(value["optimizer"], lambda name: _name(name, f"{at}.optimizer")),
        _names(value["settings"], f"{at}.settings", limits.SETTINGS, _setting),
    )


def _setting(value: Any, at: str) -> Any:
    if isinstance(value, list):
        return _list(value, at, limits.SETTINGS, _scalar)
    return _name(value, at) if isinstance(value, str) else _scalar(value, at)


def _scalar(value: Any, at: str) -> bool | int | float | None:
    if value is None or type(value) in (bool, float):
        return value
    return _whole(value, at, -(2**63), 2**63 - 1)


def _metric(value: Any, at: str) -> Any:
    return _list(value, at, limits.NUMBERS, _metric_number) if isinstance(value, list) else _metric_number(value, at)


def _metric_number(value: Any, at: str) -> float:
    if isinstance(value, str) and value in NOT_FINITE:
        return float(value)
    return value if type(value) is float else _whole(value, at, -(2**63), 2**64 - 1)


def _clients(value: Any, at: str, least: int = 0) -> tuple[int, ...]:
    clients = _list(value, at, limits.CLIENTS, lambda n, place: _whole(n, place, 0, limits.CLIENT - 1), least=least)
    if any(a >= b for a, b in pairwise(clients)):
        raise ValueError(f"{at} should ascend")
    return clients


def _optional(value: Any, read: Callable[[Any], T]) -> T | None:
    return None if value is None else read(value)


def _truth_value(value: Any, at: str) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{at} should be true or false, but is {short(value)}")
    return value


def _whole(value: Any, at: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{at} should be a whole number from {least} to {most}, but is {short(value)}")
    return value


def _name(value: Any, at: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= limits.NAME or not value.isprintable():
        raise ValueError(f"{at} should be a name of at most {limits.NAME} printable letters, but is {short(value)}")
    return value


def _table(value: Any, at: str, fields: Collection[str]) -> dict[str, Any]:
    """An object with just these fields."""
    if not isinstance(value, dict) or value.keys() != set(fields):
        actual = ", ".join(short(name, 40) for name in list(value)[:12]) if isinstance(value, dict) else short(value)
        raise ValueError(f"{at} should have the fields {', '.join(sorted(fields))}, but is {actual}")
    return value


def _names(value: Any, at: str, most: int, read: Callable[[Any, str], T]) -> dict[str, T]:
    """An object whose fields are names of somebody's own."""
    if not isinstance(value, dict) or len(value) > most:
        raise ValueError(f"{at} should be an object of at most {most} fields")
    return {_name(name, f"a name in {at}"): read(each, f"{at}.{short(name, 40)}") for name, each in value.items()}


def _list(value: Any, at: str, most: int, read: Callable[[Any, str], T], least: int = 0) -> tuple[T, ...]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ValueError(f"{at} should be a list of {least} to {most} entries")
    return tuple(read(each, f"{at}[{number}]") for number, each in enumerate(value))
