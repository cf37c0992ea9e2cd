"""Gradient matching to a given PSNR: privbench's `staged` against the package `breaching` on the same model and gradients.

`breaching` (Geiping, Fowl and others, 0.1.2, MIT) runs its own attack code, one victim after another, on benchmarks/plain.py's
LeNet-5 with privbench's untrained weights and the very gradients of the artifact. It needs neither its data sets nor its
models, so only its `attacks` are imported; that takes `pip install --no-deps breaching==0.1.2` and `pip install omegaconf`.

What favours `breaching`: its settings were searched on images that are no victims (`--search` repeats the search), a
different one may win each target, and it is stopped by the truth at the first moment at which the mean PSNR of all victims
passes the target. Every time of privbench is that of a whole run, and only the effort (`RUNGS`) differs between targets.
Both have double precision where it helps them, and `--cores` one-thread processes that share the victims. The settings were
chosen on 3-4 validation images, so that their order among near equals is not to be trusted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from attacks.staged import Staged
from benchmarks import plain, races, work
from benchmarks.breaching_settings import RUNGS, SETTINGS, Setting, search_grid
from benchmarks.races import Moment, Race, Row, Victim
from privbench.scoring import image_scores
from privbench.system import cpu, machine
from privbench.tensors import Parts
from privbench.types import Artifact, Knowledge, Truth

VERSION = "0.1.2"
INSTALL = f"pip install --no-deps breaching=={VERSION} && pip install omegaconf"
CPU = torch.device("cpu")
VICTIMS, PER_CLIENT = 16, 128
EVERY = 5  # objective evaluations between two snapshots of the candidate


class Network(nn.Module):
    """LeNet-5 as breaching's users hand it over: normalised images u = 2x - 1 [B, C, 32, 32] -> logits [B, Y]."""

    def __init__(self, weights: Parts, channels: int, classes: int) -> None:
        super().__init__()
        self.extractor = plain.load(plain.net("extractor", channels, classes), "extractor", weights["extractor"], {})
        self.classifier = plain.load(
            plain.net("classifier", channels, classes), "classifier", weights["classifier"], {}
        )

    def forward(self, u: Tensor) -> Tensor:
        """Logits of normalised images."""
        return self.classifier(self.extractor((u + 1) / 2))


def network(seen: Artifact) -> Network:
    """The network at which an artifact's gradients were taken."""
    return Network(seen.weights, seen.model.channels, seen.model.classes)


def gradients_in_order(seen: Artifact, victim: int, net: Network) -> list[Tensor]:
    """A victim's observed gradients in the order of `net.parameters()`."""
    by_name = {
        f"{part}.{plain.name_in_torch(part, name)}": t[victim]
        for part, params in seen.gradients.items()
        for name, t in params.items()
    }
    return [by_name[name] for name, _ in net.named_parameters()]


def undefended(dataset: str, victims: int, tuning: bool = False) -> tuple[Artifact, Truth]:
    """FedAvg's gradients of single images at the untrained network, and the images; with `tuning` of images that are no victims."""
    return work.observed(dataset, victims, PER_CLIENT, tuning=tuning)


def select(seen: Artifact, truth: Truth, rows: Sequence[int]) -> tuple[Artifact, Truth]:
    """The victims in `rows` alone."""
    index = torch.tensor(rows)
    return seen.select(index), Truth(truth.images[index], truth.labels[index])


def installed() -> bool:
    """Whether breaching's attacks can be imported."""
    return all(importlib.util.find_spec(name) for name in ("breaching", "omegaconf"))


@cache
def import_breaching() -> tuple[ModuleType, Path]:
    """(breaching.attacks, folder of the attack configurations), without the models and data sets that breaching imports.

    Those need packages (datasets, lpips, a torchvision that fits torch) which no attack here uses.
    """
    package_spec = importlib.util.find_spec("breaching")
    assert package_spec is not None
    assert package_spec.submodule_search_locations is not None
    root = Path(package_spec.submodule_search_locations[0])
    for name in ("breaching", "breaching.cases", "breaching.cases.models"):
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.script, which breaching uses, is deprecated
        return importlib.import_module("breaching.attacks"), root / "config" / "attack"


def configuration(folder: Path, setting: Setting) -> Any:
    """The configuration as hydra composes it: the default attack, the template's own values, the changes."""
    from omegaconf import OmegaConf

    base: Any
    template: Any
    base, template = (OmegaConf.load(folder / f"{n}.yaml") for n in ("_default_optimization_attack", setting.template))
    del template["defaults"]
    merged = OmegaConf.merge(base, template)
    for key, value in setting.changes.items():
        OmegaConf.update(merged, key, value, force_add=True)
    return merged


def by_breaching(setting: Setting, seen: Artifact, truth: Truth) -> list[Victim]:
    """Every victim through breaching's own attack, one after another."""
    from omegaconf import OmegaConf

    attacks, folder = import_breaching()
    net, channels = network(seen), seen.image_shape[0]
    about = OmegaConf.create({
        "shape": list(seen.image_shape), "classes": seen.model.classes, "modality": "vision", "task": "classification",
        "mean": [0.5] * channels, "std": [0.5] * channels,
    })  # fmt: skip
    payload = {"parameters": [p.detach() for p in net.parameters()], "buffers": [], "metadata": about}
    runs = []
    for v in range(seen.victims):
        facts = {"num_data_points": 1, "labels": None, "local_hyperparams": None}
        shared = {"gradients": gradients_in_order(seen, v, net), "buffers": None, "metadata": facts}
        attacker = attacks.prepare_attack(net, nn.CrossEntropyLoss(), configuration(folder, setting))
        seeing: list[tuple[float, float, Tensor]] = []
        count = 0
        torch.manual_seed(v)
        started = time.perf_counter(), time.process_time()

        def elapsed(started: tuple[float, float] = started) -> tuple[float, float]:
            return time.perf_counter() - started[0], time.process_time() - started[1]

        def moment(
            module: nn.Module, inputs: tuple[Any, ...], output: Any, seeing: Any = seeing, elapsed: Any = elapsed
        ) -> None:
            nonlocal count
            if count % EVERY == 0:
                seeing.append((*elapsed(), inputs[2].detach().clone()))
            count += 1

        attacker.objective.register_forward_hook(moment)
        reconstruction, _ = attacker.reconstruct([payload], [shared], {})
        seeing.append((*elapsed(), reconstruction["data"]))
        images = torch.cat([(u + 1) / 2 for _, _, u in seeing])
        psnr = image_scores.psnr_db(images, truth.images[v].expand(len(images), -1, -1, -1)).tolist()
        moments = [Moment(wall, cpu, value) for (wall, cpu, _), value in zip(seeing, psnr, strict=True)]
        runs.append(Victim(moments, count))
    return runs


def by_privbench(settings: Mapping[str, int], seen: Artifact, truth: Truth) -> list[Victim]:
    """All victims at once through `staged`; each is charged its share of the time, and nothing is measured before the end."""
    started = time.perf_counter(), time.process_time()
    reconstruction = Staged(**settings).reconstruct(seen, Knowledge(), 0)
    wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
    psnr = image_scores.score(reconstruction, truth).psnr_db.tolist()
    return [
        Victim([Moment(wall / len(psnr), cpu / len(psnr), value)], reconstruction.gradient_evaluations // len(psnr))
        for value in psnr
    ]


def _work(way: Setting | Mapping[str, int], seen: Artifact, truth: Truth, rows: Sequence[int]) -> list[Victim]:
    attack = by_breaching if isinstance(way, Setting) else by_privbench
    return attack(way, *select(seen, truth, rows))  # type: ignore[arg-type]


def measure(ways: Sequence[tuple[str, str, Any]], seen: Artifact, truth: Truth, cores: int) -> list[Row]:
    """Every way on all victims, dealt out to `cores` one-thread processes; a first victim warms each process up."""
    rows = list[Row]()
    shares = [list(range(first, seen.victims, cores)) for first in range(cores)]
    with ProcessPoolExecutor(cores, get_context("spawn"), torch.set_num_threads, (1,)) as executor:
        for side, way, what in ways:
            go = partial(_work, what, seen, truth)
            if side != rows[-1].side if rows else True:
                list(executor.map(go, [[0]] * cores))
            rows.append(races.summarise(side, way, list(executor.map(go, shares))))
            print(f"{side}, {way}: {rows[-1].mean_db:.2f} dB, {rows[-1].seconds:.1f} s", flush=True)
    return rows


def compare(dataset: str, victims: int, repeats: int) -> list[Race]:
    """The races at the chosen settings on one core."""
    ways: list[tuple[str, str, Any]] = [("breaching", setting.name, setting) for setting in SETTINGS]
    ways += [("privbench", name, changes) for name, changes in RUNGS]
    observed = undefended(dataset, victims)
    return races.all_targets([measure(ways, *observed, cores=1) for _ in range(repeats)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints, writes; without breaching it says how to get it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default=work.dataset())
    parser.add_argument("--victims", type=int, default=VICTIMS)
    parser.add_argument("--cores", type=int, default=1, help="one-thread processes, for both sides alike")
    parser.add_argument("--search", action="store_true", help="breaching's settings, on images that are no victims")
    parser.add_argument("--out", type=Path, default=Path("runs") / "against_breaching.json")
    options = parser.parse_args(arguments)
    if not installed():
        print(f"not measured: the package breaching is not installed; {INSTALL}")
        return
    settings = search_grid() if options.search else SETTINGS
    ways: list[tuple[str, str, Any]] = [("breaching", setting.name, setting) for setting in settings]
    if not options.search:
        ways += [("privbench", name, changes) for name, changes in RUNGS]
    seen, truth = undefended(options.dataset, options.victims, tuning=options.search)
    rows = measure(ways, seen, truth, options.cores)
    versions = f"breaching {importlib.metadata.version('breaching')}, torch {torch.__version__}"
    images = "tuning images" if options.search else "victims"
    environment = machine.environment(CPU)
    title = f"{options.dataset}, {options.victims} {images}, {options.cores} of {cpu.cores()} cores"
    races.show(rows, f"{title} ({environment['machine']}), {versions}")
    content = {
        "environment": environment | {"breaching": versions}, "dataset": options.dataset, "victims": options.victims,
        "cores": options.cores, "tuning": options.search, "rows": [asdict(r) | {"mean_db": r.mean_db} for r in rows],
        "settings": [s._asdict() for s in settings],
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
