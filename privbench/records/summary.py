"""From what is on disk to a record: a training run's metrics, and the seeds of a cell gathered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from privbench.errors import UserError
from privbench.records import environments, schema
from privbench.records.entries import (
    AttackCost,
    AttackedSeed,
    BroadcastCheck,
    ClientMetrics,
    Cost,
    Curve,
    InferredSeed,
    KnowledgeUsed,
    SeedResult,
    SeedTraining,
    Statement,
    Victim,
)
from privbench.records.schema import SCHEMA, AttackRecord, InferenceRecord, Record
from privbench.records.store import Store
from privbench.scoring import metrics
from privbench.spec import CellSpec, TrainSpec, checked
from privbench.system import files, machine
from privbench.training import checkpoint, evaluation, history, training_files
from privbench.training.state import Prediction


def training(folder: Path, run: str) -> SeedTraining:
    """What the finished training run with that id in a folder gave; several cells share it as long as its files stay the same.

    UserError: a file of it is damaged or another run's, or its history and its predictions do not belong together.
    """
    names = (checkpoint.SPEC, checkpoint.FINISHED, checkpoint.PREDICTIONS)
    return _training(folder, run, tuple(_version(folder / name) for name in names))


def _version(path: Path) -> tuple[int, ...]:
    """What is another where a file was written again, as files are written whole under a name of their own; () without a file."""
    try:
        facts = path.stat()
    except OSError:
        return ()
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_size


@lru_cache(maxsize=64)
def _training(folder: Path, run: str, _versions: tuple[tuple[int, ...], ...]) -> SeedTraining:
    spec, rounds = checked(TrainSpec, files.read_json(folder / checkpoint.SPEC)), checkpoint.history(folder, run)
    files.check_identity(folder / checkpoint.SPEC, {"spec": spec.id}, spec=run)
    if rounds is None:
        raise UserError(f"run {run} is not trained to the end; run `privbench train` with the same options first")
    predictions = checkpoint.predictions(folder, run)
    best = history.best_rounds(rounds) if rounds else [0] * len(predictions)
    accuracies = [rounds[r - 1]["test_accuracy"][k] for k, r in enumerate(best) if r]
    if rounds and not _same([evaluation.right(prediction) for prediction in predictions], accuracies):
        raise UserError(
            f"the accuracy in {folder / checkpoint.FINISHED} is not that of {folder / checkpoint.PREDICTIONS}, so one of them was "
            "altered or is another run's; move the folder away and run the same command again"
        )
    consistencies = [
        rounds[r - 1]["consistency"][k] if r and rounds[r - 1]["consistency"] else None for k, r in enumerate(best)
    ]
    best_round = history.best_round(rounds)
    with training_files.reading(folder / checkpoint.FINISHED):
        return SeedTraining(
            seed=spec.seed,
            best_round=best_round,
            global_accuracy=rounds[best_round - 1]["global_accuracy"] if rounds else None,
            clients=[
                client_metrics(prediction, round_, loss)
                for prediction, round_, loss in zip(predictions, best, consistencies, strict=True)
            ],
            rounds=[
                history.Round(
                    **entry
                    | {
                        "loss": {name: [_finite(v) for v in values] for name, values in entry["loss"].items()},
                        "consistency": [_finite(v) for v in entry["consistency"]],
                    }
                )
                for entry in rounds
            ],
        )


def client_metrics(prediction: Prediction, round_: int, consistency: float | None) -> ClientMetrics:
    """Everything that one client's test logits say."""
    probabilities, labels = prediction.logits.double().softmax(1).numpy(), prediction.labels.numpy()
    scores = metrics.classification(prediction.logits.numpy(), labels)  # as the accuracy per round is
    curves = metrics.one_vs_rest(probabilities, labels)
    return ClientMetrics(
        round=round_,
        samples=len(labels),
        **scores._replace(confusion=scores.confusion.tolist())._asdict(),
        auc=metrics.macro_auc(curves),
        auc_by_class=[None if curve is None else curve.auc for curve in curves],
        roc=[None if curve is None else _stored(curve) for curve in curves],
        consistency=None if consistency is None else _finite(consistency),
    )


def _stored(curve: metrics.Roc) -> Curve:
    rates = (curve.false_positive_rate, curve.true_positive_rate)
    false_positive_rate, true_positive_rate = (rate.round(metrics.DECIMALS).tolist() for rate in rates)
    return Curve(false_positive_rate=false_positive_rate, true_positive_rate=true_positive_rate)


def summarise(
    *,
    id: str,  # noqa: A002 (the field's name)
    cell: CellSpec,
    trials: Sequence[Mapping[str, Any]],
) -> Record:
    """The record of a cell from what each seed gave: trials, one per seed, each with its `training`.

    An `AttackRecord` of an attacked cell, an `InferenceRecord` where the attack states something of clients.
    """
    first = trials[0]
    common: dict[str, Any] = {
        "schema_version": SCHEMA,
        "id": id,
        "cell": cell,
        "classes": first["classes"],
        "class_names": list(first["class_names"]),
        "client_domains": first.get("client_domains"),
        "environment": dict(first["environment"]),
        "notes": list(
            dict.fromkeys(
                [
                    *(note for trial in trials for note in trial["notes"]),
                    *environments.notes([trial["environment"] for trial in trials]),
                ]
            )
        ),
    }
    cost: dict[str, Any] = {
        "train_seconds": sum(t["cost"]["train_seconds"] for t in trials),
        "peak_memory_mib": max(t["cost"]["peak_memory_mib"] for t in trials),
    }
    if cell.attack is None:
        return Record(**common, cost=Cost(**cost), seeds=[SeedResult(**_of_seed(trial)) for trial in trials])
    labels = sources_of_labels([trial["knowledge"]["labels"] for trial in trials])
    common |= {
        "knowledge": KnowledgeUsed(**first["knowledge"] | {"labels": labels}),
        "guarantee": "; ".join(dict.fromkeys(trial["guarantee"] for trial in trials)),
        "cost": AttackCost(
            **cost,
            attack_seconds=sum(t["cost"]["attack_seconds"] for t in trials),
            gradient_evaluations=sum(t["cost"]["gradient_evaluations"] for t in trials),
        ),
    }
    if "statements" in first:
        return InferenceRecord(
            **common,
            question=first["question"],
            answers=list(first["answers"]),
            seeds=[
                InferredSeed(**_attacked(trial), statements=[Statement(**each) for each in trial["statements"]])
                for trial in trials
            ],
        )
    return AttackRecord(
        **common,
        seeds=[
            AttackedSeed(
                **_attacked(trial),
                victims=[Victim(**victim) for victim in trial["victims"]],
                broadcast=_checks(trial.get("broadcast")),
            )
            for trial in trials
        ],
    )


def _checks(each: Sequence[Mapping[str, Any]] | None) -> list[BroadcastCheck] | None:
    """What clients' checks say of a broadcast, where the server was active."""
    return None if each is None else [BroadcastCheck(**check) for check in each]


def sources_of_labels(each: Sequence[str]) -> str:
    """Where the labels of a cell come from; "recovered" where an attack gave some in one seed and none in another."""
    return "recovered" if "recovered" in each else each[0]


def _attacked(trial: Mapping[str, Any]) -> dict[str, Any]:
    """What the result of an attacked seed gives to a record, whatever was attacked."""
    return _of_seed(trial) | {"round": trial["round"], "accuracy_at_round": list(trial["accuracy_at_round"])}


def _of_seed(trial: Mapping[str, Any]) -> dict[str, Any]:
    """What the result of a seed, attacked or not, gives to a record."""
    return {
        "seed": trial["training"].seed,
        "accuracy": list(trial["accuracy"]),
        "label_counts": trial["label_counts"],
        "training": trial["training"],
        "privacy": trial.get("privacy"),
        "audit": trial.get("audit"),
        "generators": trial.get("generators"),
    }


def finish_cell(store: Store, cell: CellSpec) -> Path:
    """Gathers the seeds of a cell into its record."""
    path = store.record(cell)
    with training_files.reading(store.cell(cell)):
        trials = [_trial(store, cell, spec) for spec in cell.train_specs()]
        record = summarise(id=cell.id, cell=cell, trials=trials)
    for path_of in (store.failure, store.log):
        files.remove(path_of(cell))
    schema.write(record, path)
    return path


def _trial(store: Store, cell: CellSpec, spec: TrainSpec) -> dict[str, Any]:
    """What one seed gave, with its training and a note where that was moved between machines.

    UserError: what `result` and `training` refuse, and a result of another round or of another training than the one on disk.
    """
    folder = store.train(spec)
    measured, trained = result(store, cell, spec.seed)[1], training(folder, spec.id)
    rounds, path = checkpoint.history(folder, spec.id) or [], store.result(cell, spec.seed)
    if cell.attack is not None:
        files.check_identity(path, measured, round=history.resolve_round(cell.round, rounds))
    if rounds and not _same(measured["accuracy"], history.selected_accuracy(rounds)):
        raise UserError(
            f"{path} was made of another training than the one in {folder} (other accuracies); remove it and run the same command "
            "again"
        )
    return measured | {"training": trained, "notes": [*measured["notes"], *moved(spec.seed, rounds)]}


def _same(a: Sequence[float], b: Sequence[float]) -> bool:
    """Whether two lists of percentages are the very same; nan, of no test images, is the same as nan."""
    return len(a) == len(b) and all(x == y or (math.isnan(x) and math.isnan(y)) for x, y in zip(a, b, strict=True))


def moved(seed: int, rounds: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note with the kinds of machine that a run was trained on, where they are several: its last bits depend on them."""
    kinds = machine.kinds(rounds)
    if len(kinds) < 2:
        return []
    named = "; ".join(", ".join(f"{name} {value}" for name, value in kind.items()) for kind in kinds)
    return [f"seed {seed} was trained on {len(kinds)} kinds of machine ({named})"]


def result(store: Store, cell: CellSpec, seed: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors of the reconstruction, what was measured) of one seed of a cell; no tensors where nothing was attacked.

    UserError: the file is missing, damaged, altered, or of another cell, run or seed.
    """
    path = store.result(cell, seed)
    tensors: dict[str, Tensor] = {}
    if cell.attack is None:
        measured = files.read_digested(path)
    else:
        tensors, measured = files.load_tensors(path, "reconstruction")
    run = cell.train.model_copy(update={"seed": seed}).id
    files.check_identity(path, measured, cell=cell.id, spec=run, seed=seed)
    with training_files.reading(path):
        if any(victim["seed"] != seed for victim in (*measured.get("victims", ()), *measured.get("statements", ()))):
            raise ValueError("victims of another seed")
        if "statements" not in measured and cell.attack is not None:
            _check_images(tensors, len(measured["victims"]))
    return tensors, measured


def _check_images(tensors: Mapping[str, Tensor], victims: int) -> None:
    """ValueError or KeyError where the tensors are no images [V, B, C, H, W] of V victims with labels [V, B]."""
    images, labels = tensors["images"], tensors["labels"]
    if images.ndim != 5 or not images.is_floating_point() or len(images) != victims:
        raise ValueError(f"no images of {victims} victims in it")
    if labels.shape != images.shape[:2]:
        raise ValueError("not one label for each of its images")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
