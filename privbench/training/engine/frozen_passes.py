"""A phase's mini-batches in order, with what losses take from networks that nobody trains: of many at once, and ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from privbench.methods.base import MiniBatch, Nets, Stage
from privbench.training.engine.plan import PhaseRun, Plan, StageContext
from privbench.training.engine.stage_state import nets_of

# Samples in one pass. A pass through the clients' generators takes half as long as in mini-batches of 16, and no less with more
# (docs/appendix/performance_log.md).
ROWS = 256

Step = tuple[MiniBatch, ...]  # one step's mini-batch as every stage of the phase sees it


def mini_batches(job: PhaseRun, plan: Plan, around: StageContext, *, ahead: bool) -> Iterator[Step]:
    """Every step's mini-batch, for each stage of the phase.

    `ahead`: those of the next steps are made in a thread while the caller is at the present ones. The numbers are the same.
    """
    stages = job.phase.stages
    if plan.sample is not None or not any(stage.frozen for stage in stages):
        yield from (_step(stages, plan, step) for step in range(plan.steps))
        return
    nets = nets_of(job.model, {}, {}, (), around)
    together = max(ROWS // plan.rows, 1)

    def block(first: int) -> list[Step]:
        steps = [_step(stages, plan, step) for step in range(first, min(first + together, plan.steps))]
        each = zip(stages, zip(*steps, strict=True), strict=True)
        return list(zip(*(_with_passes(stage, batches, nets) for stage, batches in each), strict=True))

    firsts = range(0, plan.steps, together)
    for steps in _one_ahead(block, firsts) if ahead and len(firsts) > 1 else map(block, firsts):
        yield from steps


def _step(stages: Sequence[Stage], plan: Plan, step: int) -> Step:
    seen = plan.seen(step)
    return tuple(plan.batch(stage, step, seen) for stage in stages)


def _with_passes(stage: Stage, batches: Sequence[MiniBatch], nets: Nets) -> Sequence[MiniBatch]:
    """The same mini-batches with what the stage's frozen passes return of each."""
    if not stage.frozen:
        return batches
    whole = MiniBatch(
        torch.cat([b.images for b in batches]),
        torch.cat([b.labels for b in batches]),
        {name: torch.cat([b.noise[name] for b in batches]) for name in batches[0].noise},
        None if batches[0].features is None else torch.cat([b.h for b in batches]),
    )
    rows = [len(b.labels) for b in batches]
    with torch.no_grad():
        passes = {each.__name__: each(nets, whole).split(rows) for each in stage.frozen}
    return [b._replace(frozen=_at(i, passes)) for i, b in enumerate(batches)]


def _at(index: int, passes: dict[str, tuple[Tensor, ...]]) -> dict[str, Tensor]:
    return {name: each[index] for name, each in passes.items()}


def _one_ahead(make: Callable[[int], list[Step]], arguments: Sequence[int]) -> Iterator[list[Step]]:
    """map(make, arguments), each made in a thread while the caller is at the one before it."""
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as thread:
        made = thread.submit(make, arguments[0])
        for argument in arguments[1:]:
            block = made.result()
            made = thread.submit(make, argument)
            yield block
        yield made.result()
