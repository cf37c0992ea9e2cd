"""Records for the reports' tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from privbench.presets import train_spec
from privbench.records.entries import ClientMetrics, Curve, KnowledgeUsed, SeedTraining, Victim
from privbench.records.summary import summarise
from privbench.spec import CellSpec, TrainSpec
from privbench.training.history import ModelAccuracy, Round
from reports.documents.model_accuracy import MODELS

TRAIN = set(TrainSpec.model_fields)


def training(seed: int, accuracies: Sequence[float], rounds: int = 3, generator: bool = False) -> SeedTraining:
    """One seed's training: two classes, five test images of each class per client."""
    clients = [
        ClientMetrics(
            round=2, samples=10, accuracy=a, precision=max(a - 1, 0.0), recall=a, f1=max(a - 0.5, 0.0),
            false_positive_rate=100 - a, auc=min(0.9 + seed / 100, 1.0), auc_by_class=[0.9, 0.9],
            confusion=[[4, 1], [2, 3]], consistency=0.5 + k if generator else None,
            roc=[Curve(false_positive_rate=[0.0, 0.2, 1.0], true_positive_rate=[0.0, 0.8, 1.0])] * 2,
        )
        for k, a in enumerate(accuracies)
    ]  # fmt: skip
    each = [
        Round(
            round=r + 1, loss={"task": [2.0 / (r + 1)] * len(accuracies), "distillation": [1.0]}, seconds=2.0 + r,
            validation_accuracy=[max(a - abs(r - 1), 0.0) for a in accuracies],
            test_accuracy=[max(a - abs(r - 1), 0.0) for a in accuracies],
            global_accuracy=30.0 + r, consistency=[1.0 / (r + 1)] * len(accuracies) if generator else [],
            bytes_up=[1000] * len(accuracies), bytes_down=[1200] * len(accuracies),
        )
        for r in range(rounds)
    ]  # fmt: skip
    return SeedTraining(seed=seed, best_round=2, global_accuracy=31.0 + seed % 50, clients=clients, rounds=each)


def cell_of(
    method: str,
    defense: str,
    attack: str | None,
    dataset: str,
    round_: str,
    seeds: Sequence[int],
    changes: Mapping[str, Any],
) -> CellSpec:
    """A cell of the quick preset on 4 clients, 4 victims; `changes` are of its own fields or of its training's, by name."""
    usual = train_spec("quick", "cifar10", "fedavg").model_dump()
    settings = {"dataset": dataset, "method": method, "defense": defense, "clients": 4, "method_settings": {}}
    if dataset in ("digit5", "office10", "domainnet", "digits4"):
        settings["partition"] = "domain"
    of_cell = {
        "preset": "quick", "attack": attack, "round": round_ if attack else "best", "victims": 4 if attack else 0,
        "seeds": seeds,
    }  # fmt: skip
    of_training = {name: value for name, value in changes.items() if name in TRAIN}
    of_cell |= {name: value for name, value in changes.items() if name not in TRAIN}
    return CellSpec.model_validate(of_cell | {"train": usual | settings | of_training})


def changed_cell(cell: CellSpec, **changes: Any) -> CellSpec:
    """The same cell with other fields of its own or of its training's."""
    train = cell.train.model_copy(update={name: value for name, value in changes.items() if name in TRAIN})
    of_cell = {name: value for name, value in changes.items() if name not in TRAIN}
    return cell.model_copy(update=of_cell | {"train": train})


def changed(record: Any, **changes: Any) -> Any:
    """The same record of such a cell."""
    return record.model_copy(update={"cell": changed_cell(record.cell, **changes)})


def with_knowledge(record: Any, **changes: Any) -> Any:
    """The same record of an attacker who knew something else."""
    return record.model_copy(update={"knowledge": record.knowledge.model_copy(update=changes)})


def with_victims(record: Any, victims: Sequence[Victim]) -> Any:
    """The same record with other victims, each under its own seed."""
    seeds = [s.model_copy(update={"victims": [v for v in victims if v.seed == s.seed]}) for s in record.seeds]
    return record.model_copy(update={"seeds": seeds})


def with_psnr(record: Any, psnr_db: Callable[[Victim], float]) -> Any:
    """The same record with the PSNR that a function gives of each victim."""
    return with_victims(record, [v.model_copy(update={"psnr_db": psnr_db(v)}) for v in record.victims])


def with_training(
    record: Any, trainings: Sequence[SeedTraining], per_client: Sequence[list[float]] | None = None
) -> Any:
    """The same record with other trainings, one per seed, and other test accuracies."""
    per_client = per_client or [s.accuracy for s in record.seeds]
    seeds = [
        s.model_copy(update={"training": t, "accuracy": a})
        for s, t, a in zip(record.seeds, trainings, per_client, strict=True)
    ]
    return record.model_copy(update={"seeds": seeds})


def record(
    method: str = "fedavg",
    defense: str = "none",
    attack: str | None = "dlg",
    dataset: str = "cifar10",
    psnr: float = 15.0,
    round_: str = "best",
    seeds: Sequence[int] = (0, 1),
    **changes: Any,
) -> Any:
    """The record of a cell; without an attack of an accuracy cell."""
    rng = torch.Generator().manual_seed(len(method) + len(attack or ""))
    spec, per_seed = changes.pop("spec", {}), changes.pop("per_seed", {})
    facts = {name: spec.pop(name) for name in ("client_domains",) if name in spec}
    cell = cell_of(method, defense, attack, dataset, round_, seeds, spec)
    trials = list[dict[str, Any]]()
    for i, seed in enumerate(seeds):
        # Floors differ by seed, as they do; their mean does not depend on how many seeds there are.
        shift = 0.25 * (i - (len(seeds) - 1) / 2)
        noise = torch.randn(4, generator=rng).tolist()
        trials.append(
            {
                "seed": seed,
                "round": int(round_) if round_.isdigit() else 7 + seed,
                "classes": 10,
                "class_names": [str(y) for y in range(10)],
                **facts,
                "knowledge": KnowledgeUsed(
                    tag="gradient", tag_in_general="gradient", needs=["gradient:classifier"], uses=[], labels="recovered",
                    rung="L1", auxiliary=None, restart_chosen_by="attacker's own loss",
                ).model_dump(),
                "guarantee": "no (epsilon, delta) guarantee",
                "accuracy": [40.0 + seed % 50, 44.0],
                "training": training(seed, [40.0 + seed % 50, 44.0], generator=method == "fedcg"),
                "label_counts": [[30, 2], [1, 31]],
                "accuracy_at_round": [39.0, 41.0],
                "victims": [
                    {
                        "seed": seed, "client": v % 4, "psnr_db": psnr + noise[v], "psnr_raw_db": psnr - 1 + noise[v],
                        "images": [f"{dataset} {seed} {v}"], "in_auxiliary": False, "gradient_norm": 2.0, "loss_fell": True,
                        "ssim": 0.5, "lpips": None, "feature_error": 0.25, "identification": float(v == 0),
                        "label_accuracy": 1.0, "loss": 0.1, "outcome": "reconstructed",
                        "floors": {"grey": 11.0, "dataset-mean": 12.0 + v + shift, "class-mean": 12.5 + v + shift},
                    }
                    for v in range(4)
                ],
                "cost": {"train_seconds": 1.0, "attack_seconds": 2.0, "gradient_evaluations": 10, "peak_memory_mib": 5.0 + seed},
                "environment": {"device": "cpu", "machine": "test", "cores": 2, "torch": "2", "date": "2026-01-01"},
                "notes": ["half of the data"],
            }
        )  # fmt: skip
    for trial, environment in zip(trials, changes.pop("environments", []), strict=False):
        trial["environment"].update(environment)
    for trial in trials:
        trial.update(per_seed)
    for change in changes.pop("victims", []):
        trials[0]["victims"][0].update(change)
    assert not changes, f"unknown changes {sorted(changes)}"
    if attack is None:
        for trial in trials:
            del trial["victims"]
    return summarise(id=cell.id, cell=cell, trials=trials)


def with_models(record: Any, broadcast: Callable[[int], float]) -> Any:
    """The record with the accuracies of the three models in every round; the broadcast one's by seed."""
    seeds = []
    for s in record.seeds:
        rounds = [
            r.model_copy(
                update={
                    "models": {
                        name: ModelAccuracy(
                            validation=r.validation_accuracy,
                            test=[broadcast(s.seed) if name == "broadcast" else a for a in r.test_accuracy],
                        )
                        for name in MODELS
                    }
                }
            )
            for r in s.training.rounds
        ]
        seeds.append(s.model_copy(update={"training": s.training.model_copy(update={"rounds": rounds})}))
    return record.model_copy(update={"seeds": seeds})
