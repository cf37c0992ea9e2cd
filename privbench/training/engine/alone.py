"""One replica after the other, by plain autograd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from privbench.system import cpu
from privbench.tensors import Parts
from privbench.training import per_example
from privbench.training.engine.frozen_passes import mini_batches
from privbench.training.engine.plan import LocalDefense, PhaseRun, Plan, StageContext
from privbench.training.engine.stage_state import KERNEL_AXES, StageState, mapped, merged, of_sample, replaced, stepped
from privbench.training.state import Replica

PRODUCTS = ("generator", "discriminator")  # parts whose convolutions are matrix products (privbench/networks/layers.py)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch's operations on one thread each, so that sums are taken in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_alone(
    job: PhaseRun,
    replicas: Sequence[Replica],
    around: Sequence[StageContext],
    plans: Sequence[Plan],
    defenses: Sequence[LocalDefense],
) -> list[dict[str, float]]:
    """One epoch, every replica by itself; returns each replica's mean loss by stage.

    On one thread, as networks this small gain nothing from two; so the numbers do not depend on how many there are. Where there is
    a second, the passes through frozen networks are made on it, ahead of the steps that need them.
    """
    each = zip(replicas, around, plans, defenses, strict=True)
    ahead = cpu.threads(torch.get_num_threads()) > 1
    with one_thread():
        return [_run_one(job, *one, ahead=ahead) for one in each]


def _run_one(
    job: PhaseRun, replica: Replica, around: StageContext, plan: Plan, defense: LocalDefense, *, ahead: bool
) -> dict[str, float]:
    states = [StageState(stage, job, [replica]) for stage in job.phase.stages]
    around = _as_products_take_it(around)
    # Views, made once: steps are taken in place, so that they always show the parameters as they are.
    fixed = replaced(replica.params, states, 0)
    trained = [mapped(lambda t: t.detach().requires_grad_(), state.layout.views(state.flat[0])) for state in states]
    for step, batches in enumerate(mini_batches(job, plan, around, ahead=ahead)):
        for state, leaves, batch in zip(states, trained, batches, strict=True):
            arguments = (leaves, fixed, replica.buffers, around, batch)
            if plan.reads_images(state.stage):
                included = plan.included(step)
                each = per_example.gradients(state.loss, *arguments)
                gradient = of_sample(defense, each.gradients, plan, step)
                loss, after = per_example.mean(each.loss, included), each.after
            else:
                loss, after = state.loss(*arguments)
                nets = fixed, replica.buffers
                gradient = stepped(defense, state.gradient(loss, leaves), job, state.stage, nets, batch.images)
            state.step_one(gradient)
            state.total += loss.detach()[None]
            replica.buffers = merged(replica.buffers, after)
    for state in states:
        state.store([replica])
    return {state.stage.name: float(state.total[0]) / max(plan.steps, 1) for state in states}


def _as_products_take_it(around: StageContext) -> StageContext:
    """The same numbers with kernels channels last in memory, once for all steps, of networks whose convolutions are products."""

    def laid_out(networks: tuple[Parts, Parts]) -> tuple[Parts, Parts]:
        params, buffers = networks
        changed = {part: mapped(_channels_last, params[part]) for part in PRODUCTS if part in params}
        return params | changed, buffers

    received = None if around.received is None else laid_out(around.received)
    return around._replace(received=received, clients=tuple(map(laid_out, around.clients)))


def _channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.ndim == KERNEL_AXES else t
