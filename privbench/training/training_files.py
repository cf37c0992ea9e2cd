"""What the files of a training run hold: named tensors, typed headers, a history of every round, and networks that fit.

A checksum says that a file is as somebody wrote it. These checks say that the run which is read can have written it, so that what
is read can be worked with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from privbench.errors import AGAIN, Damaged
from privbench.system import files
from privbench.system.file_headers import short
from privbench.tensors import Parts
from privbench.training.history import Round
from privbench.training.state import Moments, Prediction, Replica, Snapshot, State
from privbench.types import CLASSIFICATION

# Of a client's private networks those that a snapshot holds: what its gradient depends on, and a generator, which is scored.
SNAPSHOT_PARTS = (*CLASSIFICATION, "generator")
Natural = Annotated[int, Field(ge=0, le=2**53)]
Clients = Annotated[int, Field(ge=1, le=100_000)]


class _Header(BaseModel):
    """Further fields are left to who reads them."""

    model_config = ConfigDict(extra="ignore", strict=True)

    spec: str


class CheckpointHeader(_Header):
    """Of a checkpoint."""

    round: Natural
    clients: Clients
    steps: dict[str, dict[str, Natural]]  # network -> stage -> steps of its optimiser
    history: list[dict[str, Any]]


class SnapshotHeader(_Header):
    """Of a snapshot."""

    round: Natural
    clients: Clients


class _Entry(Round):
    """A round of a history as it is written: losses may be NaN."""

    model_config = ConfigDict(allow_inf_nan=True)


@contextmanager
def reading(path: Path, way: str = AGAIN) -> Iterator[None]:
    """Turns what is missing, of another type or out of range in a file into one clear line."""
    try:
        yield
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise Damaged(f"{path} is damaged ({short(place)}: {short(fault['msg'])}); {way}") from error
    except ValueError as error:
        raise Damaged(f"{path} is damaged ({short(error)}); {way}") from error
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise Damaged(f"{path} is damaged ({short(repr(error))}); {way}") from error


def check_history(rounds: Sequence[Mapping[str, Any]], last: int | None) -> None:
    """ValueError where a history has not one whole entry for every round from 1 to `last`, with one accuracy per client in each."""
    entries = [_Entry.model_validate(dict(entry)) for entry in rounds]
    if [entry.round for entry in entries] != list(range(1, len(entries) + 1)):
        raise ValueError("rounds are missing")
    if last not in (None, len(entries)):
        raise ValueError(f"rounds are missing: {len(entries)} in place of {last}")
    sizes = {
        len(values)
        for entry in entries
        for values in (entry.validation_accuracy, entry.test_accuracy, entry.bytes_up, entry.bytes_down)
    }
    if len(sizes) > 1 or 0 in sizes:
        raise ValueError("not one accuracy per client")
    if any(None in values for entry in entries for values in (entry.consistency, *entry.loss.values())):
        raise ValueError("a loss or a consistency is missing")
    if any(len(entry.consistency) not in (0, *sizes) for entry in entries):
        raise ValueError("not one consistency per client")


def check_state(state: State, like: State) -> None:
    """ValueError where the networks of a state are not those that its run starts with, by name, shape and type."""
    if len(state.clients) != len(like.clients) or len(state.uploads) != len(like.uploads):
        raise ValueError(f"{len(state.clients)} clients in place of {len(like.clients)}")
    if state.round != len(state.history):
        raise ValueError(f"round {state.round} after a history of {len(state.history)} rounds")
    pairs = [(state.server, like.server), *zip(state.clients, like.clients, strict=True)]
    for replica, expected in pairs:
        _check_parts(replica.params, expected.params)
        _check_parts(replica.buffers, expected.buffers)
        _check_moments(replica.moments, expected.params)
    for upload, expected_upload in zip(state.uploads, like.uploads, strict=True):
        for parts, expected_parts in zip(upload, expected_upload, strict=True):
            _check_parts(parts, expected_parts)
    _check_predictions(state, len(like.clients))


def _check_moments(moments: Mapping[str, Moments], params: Parts) -> None:
    """Two numbers [P] for each parameter of some of the networks, of the parameters' type."""
    tensors = [t for part in params.values() for t in part.values()]
    for stage, each in moments.items():
        mean, square = each.mean, each.square
        kinds = {t.dtype for t in (*tensors, mean, square)}
        if (
            mean.ndim != 1
            or mean.shape != square.shape
            or len(mean) > sum(t.numel() for t in tensors)
            or len(kinds) > 1
        ):
            raise ValueError(f"the optimiser of stage {stage} does not fit")


def _check_predictions(state: State, clients: int) -> None:
    """Of every client, or of none yet, what it predicts; of every client what the history says."""
    if len(state.predictions) not in (0, clients):
        raise ValueError(f"predictions of {len(state.predictions)} clients in place of {clients}")
    if any(len(entry["test_accuracy"]) != clients for entry in state.history):
        raise ValueError("a history of another number of clients")
    for prediction in state.predictions:
        check_prediction(prediction.logits, prediction.labels)


def check_snapshot(shot: Snapshot, like: State) -> None:
    """ValueError where the networks of a snapshot are not those that its run starts with, by name, shape and type.

    A snapshot holds of a client what the server does not, and of its uploads what the server attacks no gradient of.
    """
    if len(shot.clients) != len(like.clients) or len(shot.uploads) != len(like.uploads):
        raise ValueError(f"{len(shot.clients)} clients in place of {len(like.clients)}")
    _check_parts(shot.server.params, like.server.params)
    _check_parts(shot.server.buffers, like.server.buffers)
    for client, expected in zip(shot.clients, like.clients, strict=True):
        private = [part for part in SNAPSHOT_PARTS if part in expected.params and part not in like.server.params]
        _check_parts(client.params, {part: expected.params[part] for part in private})
        _check_parts(client.buffers, {part: expected.buffers[part] for part in private})
    for upload, sent in zip(shot.uploads, like.uploads, strict=True):
        for parts, expected_parts in zip(upload, sent, strict=True):
            _check_parts(parts, {part: net for part, net in expected_parts.items() if part not in CLASSIFICATION})


def check_prediction(logits: Tensor, labels: Tensor) -> None:
    """ValueError where logits [N, Y] and labels [N] are not those of images."""
    if logits.ndim != 2 or not logits.is_floating_point() or labels.shape != logits.shape[:1]:
        raise ValueError("logits and labels of different numbers of images")
    if labels.is_floating_point() or not bool(((labels >= 0) & (labels < logits.shape[1])).all()):
        raise ValueError("labels that are no classes")


def _check_parts(parts: Parts, expected: Parts) -> None:
    kinds, expected_kinds = (
        {f"{part}.{name}": (tuple(t.shape), t.dtype) for part, net in networks.items() for name, t in net.items()}
        for networks in (parts, expected)
    )
    if kinds != expected_kinds:
        name = min(name for name in kinds.keys() | expected_kinds.keys() if kinds.get(name) != expected_kinds.get(name))
        raise ValueError(f"{name} does not fit the networks of its run")


def prediction_tensors(each: Sequence[Prediction]) -> dict[str, Tensor]:
    """`prediction<k>/logits` and `prediction<k>/labels` of every client k."""
    return {f"prediction{k}/{name}": t for k, one in enumerate(each) for name, t in one._asdict().items()}


def predictions(tensors: dict[str, Tensor]) -> list[Prediction]:
    """Every client's prediction, on the CPU; none where the file holds none."""
    clients = sum(name.startswith("prediction") for name in tensors) // len(Prediction._fields)
    return [
        Prediction(**{name: tensors[f"prediction{k}/{name}"].cpu() for name in Prediction._fields})
        for k in range(clients)
    ]


def network_tensors(networks: tuple[Parts, Parts], name: str) -> dict[str, Tensor]:
    """`<name>/params/<part>/<entry>` and `<name>/buffers/<part>/<entry>` of some networks."""
    params, buffers = networks
    return files.flatten(params, f"{name}/params") | files.flatten(buffers, f"{name}/buffers")


def replica_tensors(replica: Replica, name: str) -> dict[str, Tensor]:
    """The same of a replica, with its optimiser's `<name>/mean/<stage>` and `<name>/square/<stage>`."""
    tensors = network_tensors((replica.params, replica.buffers), name)
    for stage, m in replica.moments.items():
        tensors |= {f"{name}/mean/{stage}": m.mean, f"{name}/square/{stage}": m.square}
    return tensors


def networks_of(tensors: dict[str, Tensor], name: str) -> tuple[Parts, Parts]:
    """(parameters, buffers) of the networks `name`."""
    params = files.unflatten(tensors, f"{name}/params")
    buffers = files.unflatten(tensors, f"{name}/buffers")
    return params, {part: buffers.get(part, {}) for part in params}


def replica_of(tensors: dict[str, Tensor], name: str, steps: dict[str, int]) -> Replica:
    """The replica `name`; `steps` are those of its optimiser, by stage."""
    moments = {s: Moments(tensors[f"{name}/mean/{s}"], tensors[f"{name}/square/{s}"], n) for s, n in steps.items()}
    return Replica(*networks_of(tensors, name), moments)
