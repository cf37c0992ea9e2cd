"""What clients do in a round: all epochs of their phases, alone, stacked, or each client in a process of its own.

A client's numbers are the same in every process, as each of them uses one thread, and every draw comes from a stream that the
client's name is part of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch

from privbench import trust
from privbench.methods.base import Phase, RoundClock
from privbench.system import cpu, side_by_side
from privbench.training import defended
from privbench.training.engine.alone import run_alone
from privbench.training.engine.plan import UNDEFENDED, PhaseRun, StageContext
from privbench.training.engine.stacked import run_stacked
from privbench.training.phase_plans import client_plan, epochs, features_of, of_round
from privbench.training.state import Replica, Setup
from privbench.types import Progress, no_progress

Execution = Literal["alone", "stacked"]
ENGINES = {"alone": run_alone, "stacked": run_stacked}
Losses = dict[str, list[float]]  # by stage
# Mini-batches of all clients from which on processes are worth what they cost: a start of some four seconds, and each round what
# travels. Rounds of the quick preset have some 400, and are faster without; those of the published setting have more than 10,000.
LONG_RUN, LONG_ROUND = 20_000, 2_000


def usual(device: torch.device) -> Execution:
    """How runs train on a device: stacked on a GPU, where seeds train together, else each client alone."""
    return "stacked" if device.type == "cuda" else "alone"


class Learner(NamedTuple):
    """A client that trains in a round."""

    setup: Setup
    k: int  # which client
    server: Replica  # the broadcast, as it was received
    replica: Replica  # its networks, which training replaces

    def steps(self, round_: int, phases: Sequence[Phase]) -> int:
        """How many mini-batches it takes in a round."""
        return of_round(self.setup, self.k, round_).steps * sum(
            epochs(each, self.setup.spec.schedule) for each in phases
        )

    def by_itself(self) -> Learner:
        """The same without what is of other clients alone, as it travels to a process."""
        images, labels = (
            tuple(each if i == self.k else each[:0] for i, each in enumerate(every))
            for every in (self.setup.images, self.setup.labels)
        )
        federation = self.setup.federation._replace(clients=(), public=None)
        return self._replace(
            setup=replace(self.setup, images=images, labels=labels, federation=federation, public=None)
        )


def run(
    learners: Sequence[Learner],
    round_: int,
    phases: Sequence[Phase],
    execution: Execution,
    progress: Progress = no_progress,
    *,
    undefended: bool = False,
) -> Losses:
    """Runs phases of round r = 1, 2, ... at some clients, whose setups differ in the seed alone, and replaces their networks.

    Gives each stage's mean losses of the last epoch, one per client. In a long run, clients that train alone do so side by side, as
    far as there are threads for it.
    """
    on_cpu = learners[0].setup.device.type == "cpu"
    at_once = min(cpu.threads(torch.get_num_threads()), len(learners)) if on_cpu else 1
    if execution == "stacked" or at_once == 1 or not _is_long(learners, round_, phases):
        return _here(learners, round_, phases, execution, progress, undefended=undefended)
    rounds, title = learners[0].setup.spec.schedule.rounds, learners[0].setup.spec.method

    def ended(count: int) -> None:
        progress(round_ - 1, rounds, f"{title} {count} of {len(learners)} clients")

    progress(round_ - 1, rounds, f"{title} {len(learners)} clients, {at_once} at a time")
    each = [(one.by_itself(), round_, phases, undefended) for one in learners]
    prepared = trust.added(), torch.get_default_dtype()
    losses: Losses = {}
    for learner, (replica, own) in zip(
        learners, side_by_side.call_each(_elsewhere, each, at_once, ended, _prepare, *prepared), strict=True
    ):
        learner.replica.take(replica)
        for stage, values in own.items():
            losses.setdefault(stage, []).extend(values)
    return losses


def _prepare(trusted: Sequence[str], precision: torch.dtype) -> None:
    """Of a new process: what it may import, and how it computes."""
    trust.add(*trusted)
    torch.set_default_dtype(precision)


def _is_long(learners: Sequence[Learner], round_: int, phases: Sequence[Phase]) -> bool:
    steps = sum(learner.steps(round_, phases) for learner in learners)
    return steps >= LONG_ROUND and steps * learners[0].setup.spec.schedule.rounds >= LONG_RUN


def _elsewhere(learner: Learner, round_: int, phases: Sequence[Phase], undefended: bool) -> tuple[Replica, Losses]:
    """One client in a process of its own: what its networks have become, and its losses."""
    losses = _here([learner], round_, phases, "alone", no_progress, undefended=undefended)
    return learner.replica, losses


def _here(
    learners: Sequence[Learner],
    round_: int,
    phases: Sequence[Phase],
    execution: Execution,
    progress: Progress,
    *,
    undefended: bool,
) -> Losses:
    setup = learners[0].setup
    clock = RoundClock(round_, setup.spec.schedule.rounds)
    replicas = [one.replica for one in learners]
    around = [StageContext((one.server.params, one.server.buffers), (), None) for one in learners]
    defenses = [UNDEFENDED if undefended else defended.in_round(one.setup, one.k, round_) for one in learners]
    losses: Losses = {}
    for phase in phases:
        job = PhaseRun(setup.model, phase, clock, defended.optimisers(setup, phase, defended=not undefended))
        features = [features_of(one.setup, one.k, one.replica) if phase.features else None for one in learners]
        count = epochs(phase, setup.spec.schedule)
        for epoch in range(count):
            what = f"{setup.spec.method} {phase.stages[0].name} epoch {epoch + 1}/{count}"
            progress(clock.round - 1, clock.rounds, what)
            plans = [
                client_plan(one.setup, one.k, round_, phase, epoch, own)
                for one, own in zip(learners, features, strict=True)
            ]
            losses |= columns(ENGINES[execution](job, replicas, around, plans, defenses))
    return losses


def columns(rows: list[dict[str, float]]) -> Losses:
    """The losses of several replicas, by stage."""
    return {name: [row[name] for row in rows] for name in rows[0]}
