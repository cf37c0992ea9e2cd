"""Records for the reports' tests."""

import torch

from privbench.record import summarise


def record(
    method="fedavg", defense="none", attack="dlg", dataset="cifar10", psnr=15.0, round_="best", seeds=(0, 1), **changes
):
    rng = torch.Generator().manual_seed(len(method) + len(attack))
    spec = {
        "preset": "quick", "dataset": dataset, "method": method, "defense": defense, "where": "update", "attack": attack,
        "round": round_, "victims": 4, "batch_size": 1, "labels_known": False, "seeds": list(seeds), "clients": 4,
        "classes": 10,
    }  # fmt: skip
    trials = []
    for seed in seeds:
        noise = torch.randn(4, generator=rng).tolist()
        trials.append(
            {
                "seed": seed,
                "round": 0 if round_ == "0" else 7 + seed,
                "knowledge": {"tag": "gradient", "needs": ["gradient:classifier"], "labels": "recovered"},
                "accuracy": [40.0 + seed, 44.0],
                "accuracy_at_round": [39.0, 41.0],
                "victims": [
                    {
                        "seed": seed, "client": v % 4, "psnr_db": psnr + noise[v], "psnr_raw_db": psnr - 1 + noise[v],
                        "ssim": 0.5, "label_accuracy": 1.0, "loss": 0.1, "failed": False,
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
    return summarise(id=f"{method}{attack}{round_}", spec=spec, trials=trials)
