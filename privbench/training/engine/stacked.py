"""All replicas at once, by vmap(grad): the only vmap over clients and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from privbench.tensors import Parts
from privbench.training import per_example
from privbench.training.engine.plan import LocalDefense, PhaseRun, Plan, StageContext
from privbench.training.engine.stage_state import StageState, mapped, merged, of_sample, replaced, stepped
from privbench.training.state import Replica


def run_stacked(
    job: PhaseRun,
    replicas: Sequence[Replica],
    around: Sequence[StageContext],
    plans: Sequence[Plan],
    defenses: Sequence[LocalDefense],
) -> list[dict[str, float]]:
    """One epoch of all replicas at once; a replica that has no more mini-batches rests untouched."""
    states = [StageState(stage, job, replicas) for stage in job.phase.stages]
    params = _stack([r.params for r in replicas])
    buffers = _stack([r.buffers for r in replicas])
    surroundings = _stack(around)
    steps = torch.tensor([plan.steps for plan in plans])
    rows = max(plan.rows for plan in plans)
    for step in range(int(steps.max())):
        active = torch.nonzero(steps > step).flatten().tolist()
        everyone = len(active) == len(replicas)

        def pick(tree: Any, rows: list[int] | None = None if everyone else active) -> Any:
            return tree if rows is None else mapped(lambda t: t[rows], tree)

        seen = [plans[i].seen(step) for i in active]
        for state in states:
            stage = state.stage
            by_image = plans[0].reads_images(stage)
            each_batch = [plans[i].batch(stage, step, s) for i, s in zip(active, seen, strict=True)]
            batch = _stack([mapped(lambda t: _padded(t, rows), b) for b in each_batch] if by_image else each_batch)
            trained = state.layout.views(pick(state.flat))
            fixed = pick(replaced(params, states, None))
            arguments = (trained, fixed, pick(buffers), pick(surroundings), batch)
            axes = torch.utils._pytree.tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, arguments)
            if by_image:
                each = vmap(partial(per_example.gradients, state.loss), in_dims=axes)(*arguments)
                included = torch.stack([_padded(plans[i].included(step), rows) for i in active])
                losses, after = vmap(per_example.mean)(each.loss, included), each.after
                one = [mapped(partial(_rows_of, j, plans[i].rows), each.gradients) for j, i in enumerate(active)]
                grads = _stack([of_sample(defenses[i], g, plans[i], step) for i, g in zip(active, one, strict=True)])
            else:
                gradient = vmap(grad_and_value(state.loss, has_aux=True), in_dims=axes)
                grads, (losses, after) = gradient(*arguments)
                whole = grads, (fixed, pick(buffers)), batch.images
                each_gradient = [(defenses[i], mapped(itemgetter(j), whole)) for j, i in enumerate(active)]
                grads = _stack([stepped(d, g, job, stage, nets, images) for d, (g, nets, images) in each_gradient])
            state.step(state.layout.flatten(grads, 1), None if everyone else active)
            state.total[active] += losses.detach()
            buffers = merged(buffers, after) if everyone else _scatter(buffers, after, active)
    for state in states:
        state.store(replicas)
    for i, replica in enumerate(replicas):
        replica.buffers = mapped(torch.clone, mapped(itemgetter(i), buffers))
    return [
        {state.stage.name: float(state.total[i]) / max(plans[i].steps, 1) for state in states}
        for i in range(len(replicas))
    ]


def _rows_of(replica: int, rows: int, t: Tensor) -> Tensor:
    """What is of one replica, without padding: [R, B, ...] -> [rows, ...]."""
    return t[replica, :rows]


def _padded(t: Tensor, rows: int) -> Tensor:
    """[rows, ...] with zeros after what there is."""
    return t if len(t) == rows else torch.cat([t, t.new_zeros(rows - len(t), *t.shape[1:])])


def _scatter(buffers: Parts, after: Parts, active: list[int]) -> Parts:
    scattered = dict(buffers)
    for part, changed in after.items():
        scattered[part] = {}
        for name, value in changed.items():
            whole = buffers[part][name].clone()
            whole[active] = value
            scattered[part][name] = whole
    return scattered


def _stack(trees: Sequence[Any]) -> Any:
    return torch.utils._pytree.tree_map(
        lambda *leaves: torch.stack(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *trees
    )
