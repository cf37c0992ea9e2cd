"""From what is on disk to a record: a training run's metrics, and the seeds of a cell gathered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from privbench import checkpoint, evaluation, harness, machine, metrics, record, storage
from privbench.errors import UserError
from privbench.spec import CellSpec, TrainSpec, checked
from privbench.store import Store


@lru_cache(maxsize=64)
def training(folder: Path) -> record.Training:
    """What the finished training run in a folder gave; several cells share it."""
    spec, rounds = checked(TrainSpec, storage.read_json(folder / checkpoint.SPEC)), checkpoint.history(folder)
    if rounds is None:
        raise UserError(f"run {spec.id} is not trained to the end; run `privbench train` with the same options first")
    predictions = checkpoint.predictions(folder)
    best = harness.best_rounds(rounds) if rounds else [0] * len(predictions)
    own = [rounds[r - 1]["consistency"][k] if r and rounds[r - 1]["consistency"] else None for k, r in enumerate(best)]
    best_round = harness.best_round(rounds)
    return record.Training(
        seed=spec.seed,
        best_round=best_round,
        global_accuracy=rounds[best_round - 1]["global_accuracy"] if rounds else None,
        clients=[
            client_metrics(prediction, round_, loss)
            for prediction, round_, loss in zip(predictions, best, own, strict=True)
        ],
        rounds=[
            record.Round(
                **entry
                | {
                    "loss": {name: [_finite(v) for v in values] for name, values in entry["loss"].items()},
                    "consistency": [_finite(v) for v in entry["consistency"]],
                }
            )
            for entry in rounds
        ],
    )


def client_metrics(prediction: evaluation.Prediction, round_: int, consistency: float | None) -> record.ClientMetrics:
    """Everything that one client's test logits say."""
    probabilities, labels = prediction.logits.double().softmax(1).numpy(), prediction.labels.numpy()
    found = metrics.classification(prediction.logits.numpy(), labels)  # as the accuracy per round is
    curves = metrics.one_vs_rest(probabilities, labels)
    return record.ClientMetrics(
        round=round_,
        samples=len(labels),
        **found._replace(confusion=found.confusion.tolist())._asdict(),
        auc=metrics.macro_auc(curves),
        auc_by_class=[None if curve is None else curve.auc for curve in curves],
        roc=[None if curve is None else _stored(curve) for curve in curves],
        consistency=None if consistency is None else _finite(consistency),
    )


def _stored(curve: metrics.Roc) -> record.Curve:
    rates = (curve.false_positive_rate, curve.true_positive_rate)
    false_positive_rate, true_positive_rate = (rate.round(metrics.DECIMALS).tolist() for rate in rates)
    return record.Curve(false_positive_rate=false_positive_rate, true_positive_rate=true_positive_rate)


def finish_cell(store: Store, cell: CellSpec) -> Path:
    """Gathers the seeds of a cell into its record."""
    trials = [_trial(store, cell, spec) for spec in cell.train_specs()]
    path = store.record(cell)
    store.failure(cell).unlink(missing_ok=True)
    record.write(record.summarise(id=cell.id, cell=cell, trials=trials), path)
    return path


def _trial(store: Store, cell: CellSpec, spec: TrainSpec) -> dict[str, Any]:
    """What one seed gave, with its training and a note where that was moved between machines."""
    found, rounds = _result(store, cell, spec.seed), checkpoint.history(store.train(spec)) or []
    return found | {"training": training(store.train(spec)), "notes": [*found["notes"], *moved(spec.seed, rounds)]}


def moved(seed: int, rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note with the kinds of machine that a run was trained on, where they are several: its last bits depend on them."""
    kinds = machine.kinds(rounds)
    if len(kinds) < 2:
        return []
    named = "; ".join(", ".join(f"{name} {value}" for name, value in kind.items()) for kind in kinds)
    return [f"seed {seed} was trained on {len(kinds)} kinds of machine ({named})"]


def _result(store: Store, cell: CellSpec, seed: int) -> dict[str, Any]:
    path = store.result(cell, seed)
    found: dict[str, Any] = (
        storage.read_json(path) if cell.attack is None else storage.load_tensors(path, "reconstruction")[1]
    )
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
