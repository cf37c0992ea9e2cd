"""Records for the reports' tests."""

from collections.abc import Sequence
from typing import Any

import torch

from privbench.record import ClientMetrics, Curve, Round, Training, summarise


def training(seed: int, accuracies: Sequence[float], rounds: int = 3, generator: bool = False) -> Training:
    """One seed's training: two classes, five test images of each class per client."""
    clients = [
        ClientMetrics(
            round=2, samples=10, accuracy=a, precision=a - 1, recall=a, f1=a - 0.5, false_positive_rate=100 - a,
            auc=0.9 + seed / 100, auc_by_class=[0.9, 0.9], confusion=[[4, 1], [2, 3]], consistency=0.5 + k if generator else None,
            roc=[Curve(false_positive_rate=[0.0, 0.2, 1.0], true_positive_rate=[0.0, 0.8, 1.0])] * 2,
        )
        for k, a in enumerate(accuracies)
    ]  # fmt: skip
    each = [
        Round(
            round=r + 1, loss={"task": [2.0 / (r + 1)] * len(accuracies), "distillation": [1.0]}, seconds=2.0 + r,
            validation_accuracy=[a - abs(r - 1) for a in accuracies], test_accuracy=[a - abs(r - 1) for a in accuracies],
            global_accuracy=30.0 + r, consistency=[1.0 / (r + 1)] * len(accuracies) if generator else [],
            bytes_up=[1000] * len(accuracies), bytes_down=[1200] * len(accuracies),
        )
        for r in range(rounds)
    ]  # fmt: skip
    return Training(seed=seed, best_round=2, global_accuracy=31.0 + seed, clients=clients, rounds=each)


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
    spec = {
        "preset": "quick", "dataset": dataset, "method": method, "defense": defense, "where": "update", "attack": attack,
        "round": round_, "victims": 4, "batch_size": 1, "labels_known": False, "seeds": list(seeds), "clients": 4,
        "classes": 10,
    }  # fmt: skip
    trials = list[dict[str, Any]]()
    for seed in seeds:
        noise = torch.randn(4, generator=rng).tolist()
        trials.append(
            {
                "seed": seed,
                "round": 0 if round_ == "0" else 7 + seed,
                "knowledge": {"tag": "gradient", "needs": ["gradient:classifier"], "labels": "recovered", "rung": "L1"},
                "guarantee": "no (epsilon, delta) guarantee",
                "accuracy": [40.0 + seed, 44.0],
                "training": training(seed, [40.0 + seed, 44.0], generator=method == "fedcg"),
                "label_counts": [[30, 2], [1, 31]],
                "accuracy_at_round": [39.0, 41.0],
                "victims": [
                    {
                        "seed": seed, "client": v % 4, "psnr_db": psnr + noise[v], "psnr_raw_db": psnr - 1 + noise[v],
                        "images": [f"{dataset} {seed} {v}"], "in_auxiliary": False, "gradient_norm": 2.0, "loss_fell": True,
                        "ssim": 0.5, "lpips": None, "feature_error": 0.25, "identification": float(v == 0),
                        "label_accuracy": 1.0, "loss": 0.1, "failed": False,
                        "floors": {"grey": 11.0, "dataset-mean": 12.0 + v, "class-mean": 12.5 + v},
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
    spec.update(changes.pop("spec", {}))
    for change in changes.pop("victims", []):
        trials[0]["victims"][0].update(change)
    assert not changes, f"unknown changes {sorted(changes)}"
    if attack is None:
        for trial in trials:
            del trial["victims"]
    return summarise(id=f"{method}{attack}{round_}", spec=spec, trials=trials)
