"""What a training run says of each of its rounds: losses, accuracies, bytes, seconds and the machine. Records hold it as it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from privbench.errors import UserError

# What rounding may add to a share of 1: statements in single precision add up to 1 within so much.
ROUNDING = 1e-4
Percent = Annotated[float, Field(ge=0, le=100 + ROUNDING)]
Rate = Annotated[float, Field(ge=0, le=1 + ROUNDING)]  # a share or a probability
Count = Annotated[int, Field(ge=0)]
# No number of a record is larger: sums of them, and their squares, stay numbers. Single precision ends at 3.4e38.
MOST = 1e60
Amount = Annotated[float, Field(ge=0, le=MOST)]  # seconds, mebibytes, norms


def _within(number: float) -> float:
    """A number as it is; whether it has to be finite, the model says that holds it."""
    if math.isfinite(number) and abs(number) > MOST:
        raise ValueError(f"a number should lie within {MOST:g}")
    return number


Number = Annotated[float, AfterValidator(_within)]


def is_none(value: object) -> bool:
    """Whether there is nothing to write."""
    return value is None


class StrictModel(BaseModel):
    """No field that is not declared, no conversion, no number that is not finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Machine(StrictModel):
    """The kind of machine that a round was trained on (privbench.system.machine.trained_on)."""

    processor: str
    capability: str  # the widest vectors that torch uses there
    device: str
    threads: int
    torch: str


class ModelAccuracy(StrictModel):
    """Accuracy of one of the clients' models after a round, percent: [K]."""

    validation: list[Percent]
    test: list[Percent]


class TaskScores(StrictModel):
    """A meta-learner on the test tasks of all clients, percent; intervals are 95% over tasks."""

    ways: Count
    shots: Count
    tasks: Count
    accuracy: Percent
    half_width: Amount  # of the interval
    # The same tasks from the networks that training began with, without meta-learning: by as many steps, and by five times as many.
    untrained_accuracy: Percent
    untrained_half_width: Amount
    untrained_longer_accuracy: Percent
    untrained_longer_half_width: Amount


class Round(StrictModel):
    """One round of one seed: lists have one entry per client. A loss that was not finite is None."""

    round: Count  # from 1
    # By stage, mean over its last epoch; one entry per client that took part (all, of what is trained to be measured), or one of
    # the server.
    loss: dict[str, list[Number | None]]
    validation_accuracy: list[Percent]  # percent, of the measured models, as the next
    test_accuracy: list[Percent]
    global_accuracy: Percent  # percent, of the weighted average of all measured models on all clients' test images
    # Of the personal, the uploaded and the broadcast model; none in older records.
    models: dict[str, ModelAccuracy] = {}
    consistency: list[Number | None]  # empty for methods whose clients have no generator
    bytes_up: list[Count]  # what each client sent; 0 where it did not take part, as the next
    bytes_down: list[Count]  # what each client received
    # Which clients took part, from 0; None: all of them. Not written then, so that other records stay as they are.
    participants: list[Count] | None = Field(None, exclude_if=is_none)
    seconds: Amount  # of training, without evaluation
    # Of hiding, adding up and opening the clients' messages, where the server gets their sum alone; all clients in turn.
    aggregation_seconds: Amount | None = None
    machine: Machine | None = None  # None in a record from before it was noted
    # Of a meta-learner alone; not written elsewhere.
    tasks: TaskScores | None = Field(None, exclude_if=lambda value: value is None)


def selected_accuracy(history: Sequence[dict[str, Any]]) -> list[float]:
    """Each client's test accuracy (percent) at the round with its best validation accuracy, the first of equals: [K]."""
    return [history[r - 1]["test_accuracy"][k] for k, r in enumerate(best_rounds(history))]


def best_rounds(history: Sequence[dict[str, Any]]) -> list[int]:
    """The round (from 1) with each client's best validation accuracy, the first of equals: [K]."""
    by_client = zip(*[entry["validation_accuracy"] for entry in history], strict=True)
    return [series.index(max(series)) + 1 for series in by_client]


def best_validation(history: Sequence[dict[str, Any]]) -> list[float]:
    """Each client's best validation accuracy (percent) over the rounds: [K]."""
    return [max(series) for series in zip(*[entry["validation_accuracy"] for entry in history], strict=True)]


def best_round(history: Sequence[dict[str, Any]]) -> int:
    """The round (from 1) with the best validation accuracy, mean over clients; 0 when nothing was trained."""
    means = [sum(e["validation_accuracy"]) / len(e["validation_accuracy"]) for e in history]
    return history[max(range(len(means)), key=lambda r: means[r])]["round"] if means else 0


def resolve_round(text: str, rounds: Sequence[dict[str, Any]]) -> int:
    """The round that "0", "N", "last" or "best" names in a finished run."""
    if text == "last":
        return len(rounds)
    if text == "best":
        return best_round(rounds)
    if not text.isdigit():
        raise UserError(f"--round takes 0, a number, 'last' or 'best', but '{text}' was given")
    if int(text) > len(rounds):
        raise UserError(f"--round {text} was asked for, but the run ended after {len(rounds)} rounds")
    return int(text)
