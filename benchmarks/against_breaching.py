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
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from attacks.staged import Staged
from benchmarks import plain, work
from benchmarks.breaching_settings import RUNGS, SETTINGS, Setting, search_grid
from privbench.scoring import image_scores
from privbench.system import cpu, machine
from privbench.tensors import Parts
from privbench.types import Artifact, Knowledge, Truth

VERSION = "0.1.2"
INSTALL = f"pip install --no-deps breaching=={VERSION} && pip install omegaconf"
CPU = torch.device("cpu")
VICTIMS, PER_CLIENT = 16, 128
TARGETS_DB = (15.0, 18.0, 20.0, 22.0, 24.0, 26.0, 28.0, 30.0)
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


class Moment(NamedTuple):
    """How far one victim had come at one moment of its own run."""

    seconds: float
    cpu_seconds: float
    psnr_db: float


class Victim(NamedTuple):
    """One victim's run; its moments begin with the start and end with the reconstruction that was returned."""

    moments: list[Moment]
    evaluations: int


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


def reached(workers: Sequence[Sequence[Victim]], target_db: float, clock: str = "seconds") -> float | None:
    """Seconds of the slowest worker until the mean PSNR of all victims passes the target; None if it never does.

    Every victim gets the same time t, or less where its run ends sooner; the smallest t that does is taken.
    """
    moments = [victim.moments for victims in workers for victim in victims]
    for t in sorted({getattr(moment, clock) for run in moments for moment in run}):
        latest = [[moment.psnr_db for moment in run if getattr(moment, clock) <= t] for run in moments]
        if all(latest) and sum(psnr_db[-1] for psnr_db in latest) >= target_db * len(moments):
            return max(sum(min(t, getattr(victim.moments[-1], clock)) for victim in victims) for victims in workers)
    return None


@dataclass
class Row:
    """One way of attacking the victims."""

    side: str
    way: str
    psnr_db: list[float]
    evaluations: list[int]
    seconds: float  # of the slowest worker
    cpu_seconds: float
    to_target: dict[str, float | None]  # seconds until the mean PSNR passes so many dB
    cpu_to_target: dict[str, float | None]

    @property
    def mean_db(self) -> float:
        """Mean PSNR of the reconstructions returned."""
        return sum(self.psnr_db) / len(self.psnr_db)


def summarise(side: str, way: str, workers: Sequence[Sequence[Victim]]) -> Row:
    """A row of the table from the victims of every worker."""
    victims = [victim for share in workers for victim in share]
    wall, cpu = (max(sum(v.moments[-1][clock] for v in share) for share in workers) for clock in (0, 1))
    return Row(
        side, way, [v.moments[-1].psnr_db for v in victims], [v.evaluations for v in victims], wall, cpu,
        {f"{t:g}": reached(workers, t) for t in TARGETS_DB},
        {f"{t:g}": reached(workers, t, "cpu_seconds") for t in TARGETS_DB},
    )  # fmt: skip


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
            rows.append(summarise(side, way, list(executor.map(go, shares))))
            print(f"{side}, {way}: {rows[-1].mean_db:.2f} dB, {rows[-1].seconds:.1f} s", flush=True)
    return rows


class Reach(NamedTuple):
    """The way of one side that passes a target in the fewest CPU seconds, by the median of its repetitions."""

    way: str
    cpu_seconds: list[float]  # of every repetition

    @property
    def median(self) -> float:
        """CPU seconds."""
        return statistics.median(self.cpu_seconds)


class Race(NamedTuple):
    """Who passes a target first; None where no way of that side gets there in every repetition."""

    target: str
    breaching: Reach | None
    privbench: Reach | None


def fastest(repetitions: Sequence[Sequence[Row]], side: str, target: str) -> Reach | None:
    """The best way of one side to a target; every repetition holds the same ways in the same order."""
    reaches = []
    for same in zip(*repetitions, strict=True):
        spent = [row.cpu_to_target[target] for row in same if row.side == side]
        times = [cpu for cpu in spent if cpu is not None]
        if len(times) == len(repetitions):
            reaches.append(Reach(same[0].way, times))
    return min(reaches, key=lambda each: each.median) if reaches else None


def races(repetitions: Sequence[Sequence[Row]]) -> list[Race]:
    """A race for every target.

    CPU seconds of a one-thread process are its seconds on an idle machine, whatever else runs now.
    """
    targets = repetitions[0][0].cpu_to_target
    return [Race(t, *(fastest(repetitions, side, t) for side in ("breaching", "privbench"))) for t in targets]


def compare(dataset: str, victims: int, repeats: int) -> list[Race]:
    """The races at the chosen settings on one core."""
    ways: list[tuple[str, str, Any]] = [("breaching", setting.name, setting) for setting in SETTINGS]
    ways += [("privbench", name, changes) for name, changes in RUNGS]
    observed = undefended(dataset, victims)
    return races([measure(ways, *observed, cores=1) for _ in range(repeats)])


def table(title: str, left_columns: Sequence[str], right_columns: Sequence[str]) -> Table:
    """An empty table with words to the left and numbers to the right."""
    result = Table(title=title)
    for column in left_columns:
        result.add_column(column, no_wrap=True)
    for column in right_columns:
        result.add_column(column, justify="right")
    return result


def show(rows: Sequence[Row], title: str) -> None:
    """Prints where every way ends, and who passes each target first."""
    console = Console(width=120)
    numbers = ("mean dB", "worst dB", "s / victim", "CPU s / victim", "evaluations")
    ends = table(title, ("", "way"), numbers)
    for row in rows:
        n = len(row.psnr_db)
        seconds = (f"{total / n:.3f}" for total in (row.seconds, row.cpu_seconds))
        evaluations = f"{sum(row.evaluations) / n:.0f}"
        ends.add_row(row.side, row.way, f"{row.mean_db:.2f}", f"{min(row.psnr_db):.1f}", *seconds, evaluations)
    console.print(ends)
    race = table(
        "CPU s until the mean PSNR of all victims passes", ("dB", "breaching", "privbench"), ("CPU s", "CPU s", "x")
    )
    for target, *sides in races([rows]):
        breaching, privbench = sides
        ratio = f"{breaching.median / privbench.median:.1f}" if breaching and privbench else "-"
        names = (each.way if each else "never" for each in sides)
        race.add_row(target, *names, *(f"{each.median:.2f}" if each else "-" for each in sides), ratio)
    console.print(race)


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
    show(rows, f"{title} ({environment['machine']}), {versions}")
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
