"""How long a study will take, printed before it starts: an estimate from measured costs, for this machine and what is left to do.

Every kind of work has a cost in CPU seconds, measured in the quick preset on `photos` (GANs of images on `digits`) with one thread
of a reference machine (AMD EPYC, 2026-11-22): of a mini-batch of a client's training and of its generator's, and of an attacked
victim. A fixed piece of training, timed there and here, says how many times slower this machine is. Jobs are distributed as
privbench/execution/worker_pool.py does, one a core, so that the longest may decide.

What the estimate leaves out: early stopping (the number is then too high), other work on the machine, and a machine whose
attacks (double precision) are slower against the reference than its training (single precision) is. Where a cost was not
measured (other presets, networks and attacks, a GPU) there is no estimate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from privbench import registry, written_defense
from privbench.execution.cell_jobs import Trial
from privbench.methods import participation
from privbench.methods.base import Method
from privbench.networks.model import Model
from privbench.records.store import Store
from privbench.seeds import stream
from privbench.spec import CellSpec, TrainSpec
from privbench.system import cpu, machine
from privbench.training import checkpoint

# CPU seconds on the reference machine.
CALIBRATION = 0.19
STEP = 0.0033  # of a mini-batch of a client
GENERATOR_STEP = 0.072  # the same of FedCG's generator and discriminator, with its share of the server's distillation
# Of a GAN of images, by mini-batch of 16: of D and G, the same where D's gradients are clipped one by one, and of the classifier
# that measures what G is worth.
IMAGE_GAN_STEP, CLIPPED_GAN_STEP, MEASURING_STEP = 0.026, 0.075, 0.0058
IMAGE_GANS, IMAGE_GAN_BATCH = ("dp-gan", "secure-gan"), 16
# Of one step of L-BFGS on one victim.
ATTACK_STEP = {"dlg": 0.0034, "feature-statistics": 0.0036}
# Of one victim as a whole, by what `staged` sees: after training, and in round 0.
STAGED = {"plain": (0.70, 0.40), "noisy": (3.6, 0.05), "private": (0.04, 0.04)}
START, REPORTS = 4.0, 17.0  # of a worker's start, and of the tables and figures in the end


def calibration() -> float:
    """CPU seconds of a fixed piece of training here: the best of three, so that a first call and a hiccup do not count."""
    model, rng = Model("lenet5", 3, 10), stream(0, "calibration")
    params = {
        f"{part}/{n}": t.requires_grad_()
        for part in ("extractor", "classifier")
        for n, t in model.net(part).init(rng)[0].items()
    }
    extractor, classifier = (
        {n.partition("/")[2]: t for n, t in params.items() if n.startswith(part)}
        for part in ("extractor", "classifier")
    )
    x, y = torch.rand(16, 3, 32, 32, generator=rng), torch.randint(10, (16,), generator=rng)
    before, spent = torch.get_num_threads(), list[float]()
    torch.set_num_threads(1)
    try:
        for _ in range(3):
            started = time.process_time()
            for _ in range(100):
                h, _ = model.net("extractor").apply(extractor, {}, x, train=True)
                logits, _ = model.net("classifier").apply(classifier, {}, h, train=True)
                torch.autograd.grad(F.cross_entropy(logits, y), list(params.values()))
            spent.append(time.process_time() - started)
    finally:
        torch.set_num_threads(before)
    return min(spent)


def seconds(trials: Sequence[Trial], device: str) -> float | None:
    """Expected seconds of all trials on the cores at hand, nothing else running; None where a cost is not known."""
    costs = [cost(trial) for trial in trials]
    seconds = [each for each in costs if each is not None]
    if machine.device(device).type != "cpu" or len(seconds) < len(costs):
        return None
    slower = calibration() / CALIBRATION
    return slower * (makespan(seconds, cpu.cores()) + (START if trials else 0.0) + REPORTS)


def makespan(costs: Sequence[float], workers: int) -> float:
    """When the last worker ends: each takes the next job as soon as it is free."""
    busy = [0.0] * max(workers, 1)
    for each in costs:
        busy[busy.index(min(busy))] += each
    return max(busy)


def cost(trial: Trial) -> float | None:
    """CPU seconds of one job on the reference machine; None where they are not known."""
    if any(cell.preset != "quick" for cell in trial.cells):
        return None
    store = Store(trial.root)
    untrained = [spec for spec in trial.specs if not checkpoint.is_finished(store.train(spec))]
    costs = [training(spec) for spec in untrained]
    costs += [
        attacking(cell) for cell in trial.cells for spec in trial.specs if not store.result(cell, spec.seed).exists()
    ]
    seconds = [each for each in costs if each is not None]
    return sum(seconds) if len(seconds) == len(costs) else None


def training(spec: TrainSpec) -> float | None:
    """The whole schedule of the methods of the attack table."""
    if spec.backbone == "lenet5" and spec.method in IMAGE_GANS:
        return generative_training(spec)
    if spec.backbone != "lenet5" or spec.method not in ("fedavg", "fedsplit", "lg-fedavg", "fedcg"):
        return None
    schedule = spec.schedule
    steps = spec.clients * -(-spec.per_client // schedule.batch)
    of_a_round = schedule.local_epochs * steps * STEP
    if spec.method == "fedcg":
        of_a_round += schedule.generator_epochs * steps * GENERATOR_STEP
    return schedule.rounds * of_a_round


def generative_training(spec: TrainSpec) -> float:
    """The whole schedule of a GAN of images, of each client in the rounds in which it takes part, and of all that measures it."""
    schedule, clients = spec.schedule, range(spec.clients)
    method: Method = registry.create(registry.resolve("method", spec.method), spec.method_settings)
    clipped = "example" in written_defense.create(spec.defense, spec.where).places
    steps = schedule.client_steps or -(-spec.per_client // schedule.batch)
    epochs = (1, 1) if schedule.client_steps else (schedule.generator_epochs, schedule.local_epochs)
    turns = sum(participation.rounds_of(method, k, spec.clients, schedule.rounds) for k in clients)
    gan = turns * epochs[0] * steps * (CLIPPED_GAN_STEP if clipped else IMAGE_GAN_STEP)
    measuring = schedule.rounds * spec.clients * epochs[1] * steps * MEASURING_STEP
    return (gan + measuring) * schedule.batch / IMAGE_GAN_BATCH


def attacking(cell: CellSpec) -> float | None:
    """All victims of one seed; nothing where none is attacked, or no descent is made."""
    if cell.attack in (None, "generated-images"):
        return 0.0
    if cell.batch_size > 1 or cell.observe != "gradient" or cell.train.backbone != "lenet5":
        return None
    if cell.attack in ATTACK_STEP:
        steps = cell.attack_settings.get("steps")
        return None if steps is None else cell.victims * float(steps) * ATTACK_STEP[cell.attack]
    if cell.attack != "staged" or cell.attack_settings:
        return None
    seen = "private" if cell.train.method != "fedavg" else "plain" if cell.train.defense == "none" else "noisy"
    return cell.victims * STAGED[seen][cell.round == "0"]


def lines(trials: Sequence[Trial], device: str) -> list[str]:
    """What to print before the work starts: the expected time, or nothing where it is not known or nothing is left to do."""
    expected = seconds(trials, device) if trials else None
    if expected is None:
        return []
    return [f"Expected: {in_words(expected)} on {cpu.cores()} core(s) with nothing else running ({len(trials)} jobs)."]


def in_words(expected: float) -> str:
    """An expectation to be printed: no digit that it does not have."""
    if expected < 90:
        return f"about {10 * max(round(expected / 10), 1)} s"
    return f"about {round(expected / 60)} min" if expected < 5400 else f"about {expected / 3600:.1f} h"
