"""What a finished run should have on disk, and how what is lost of it is made again.

Training is repeated from the nearest whole checkpoint, or from the beginning. It must give the accuracies that the run's history
tells, as it does on the same kind of machine.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privbench.errors import Damaged, UserError
from privbench.spec import TrainSpec
from privbench.training import checkpoint, evaluation, harness
from privbench.training.history import best_rounds, selected_accuracy
from privbench.training.state import Prediction, Setup
from privbench.types import Progress, no_progress

LOG = logging.getLogger("privbench")
MOST_NAMED = 4  # files that one line names


def missing(folder: Path, spec: TrainSpec) -> list[Path]:
    """The files that a finished run keeps and that are not there: the history alone where that is missing. UserError as `history`.

    Whole checkpoints only accelerate later work. A run without that of its beginning, as older ones are, is not said to miss them:
    those that it has, attacks on the networks that clients sent left there.
    """
    rounds = checkpoint.history(folder, spec.id)
    if rounds is None:
        return [folder / checkpoint.FINISHED]
    snapshots, checkpoints = checkpoint.stored_rounds(spec, rounds)
    whole = [checkpoint.full_path(folder, number) for number in sorted(checkpoints)]
    paths = [
        folder / checkpoint.SPEC,
        folder / checkpoint.PREDICTIONS,
        *(checkpoint.snapshot_path(folder, number) for number in sorted(snapshots)),
        *(whole if checkpoint.full_path(folder, 0).exists() else ()),
    ]
    return [path for path in paths if not path.exists()]


def lost(folder: Path, spec: TrainSpec) -> list[str]:
    """What of a finished run has to be made again, and why, in words; nothing where it is whole. UserError as `history`."""
    absent = missing(folder, spec)
    lines = []
    if absent:
        more = f" and {len(absent) - MOST_NAMED} more" if len(absent) > MOST_NAMED else ""
        lines = [f"{folder} has lost {', '.join(path.name for path in absent[:MOST_NAMED])}{more}"]
    if (folder / checkpoint.PREDICTIONS).exists():
        try:
            checkpoint.predictions(folder, spec.id)
        except Damaged as error:
            lines.append(str(error))
    return lines


def restore(setup: Setup, folder: Path, progress: Progress = no_progress) -> None:
    """Makes again what a finished run has lost, with a line each; UserError where training gives other numbers here.

    The caller holds the folder's lock, and its specification is there.
    """
    spec = setup.spec
    for why in lost(folder, spec):
        LOG.warning("%s; what is lost is made again by training", why)
    absent = set(missing(folder, spec))
    rounds = checkpoint.history(folder, spec.id) or []
    snapshots, checkpoints = checkpoint.stored_rounds(spec, rounds)
    snapshots = {number for number in snapshots if checkpoint.snapshot_path(folder, number) in absent}
    checkpoints = {number for number in checkpoints if checkpoint.full_path(folder, number) in absent}
    if numbers := sorted(snapshots | checkpoints):
        state = harness.state_of(setup, folder, checkpoint.nearest(folder, spec, numbers[0], setup.device))
        for number in numbers:
            harness.advance(setup, state, number, progress)
            _check_accuracies(folder, state.history, rounds)
            # With the seconds that the rounds took at first.
            state.history = rounds[:number]
            if number in snapshots:
                checkpoint.save_snapshot(folder, spec, state)
            if number in checkpoints:
                checkpoint.save_full(folder, spec, state)
    if lost(folder, spec):
        checkpoint.save_predictions(folder, spec, predictions_again(setup, folder, progress))


def predictions_again(setup: Setup, folder: Path, progress: Progress = no_progress) -> list[Prediction]:
    """Each client's predictions at its best validation round of a finished run, trained again; they must fit its history.

    UserError where they do not, as on another kind of machine.
    """
    rounds = checkpoint.history(folder, setup.spec.id) or []
    best = best_rounds(rounds) if rounds else []
    state = harness.state_at(setup, folder, max(best, default=0), progress)
    predictions = state.predictions or evaluation.predictions(setup, state)
    # As text: the accuracy of a client without test images is nan.
    if best and str([evaluation.right(p) for p in predictions]) != str(selected_accuracy(rounds)):
        raise _other_numbers(folder)
    return predictions


def _check_accuracies(folder: Path, again: Sequence[Mapping[str, Any]], rounds: Sequence[Mapping[str, Any]]) -> None:
    """UserError where rounds that were trained again have other accuracies than the history tells."""
    for new, old in zip(again, rounds, strict=False):
        if any(str(new[name]) != str(old[name]) for name in ("validation_accuracy", "test_accuracy")):
            raise _other_numbers(folder)


def _other_numbers(folder: Path) -> UserError:
    return UserError(
        f"what {folder} has lost cannot be made again here: training gives other numbers on this kind of machine; remove {folder} "
        "and run the same command again to train the run anew"
    )
