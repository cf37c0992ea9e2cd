"""A stage's trained parameters and their moments while an epoch runs, laid end to end; and its loss as a pure function of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from privbench.methods.base import MiniBatch, Nets, Stage
from privbench.networks.model import Model
from privbench.tensors import Parts
from privbench.training.engine.descent import descend
from privbench.training.engine.plan import LocalDefense, PhaseRun, Plan, StageContext
from privbench.training.state import Moments, Replica

KERNEL_AXES = 4  # of a convolution's weight, [o, i, k, k]


class ParameterLayout:
    """Lays a stage's trained parameters end to end as [R, P], and gives them back as named views.

    Kernels lie channels last, [o, k, k, i] in memory, as the products of privbench/networks/layers.py take them.
    """

    def __init__(self, parts: Parts, trains: Sequence[str]) -> None:
        # Sorted, so that Adam's moments mean the same parameters after a checkpoint was read back in another order.
        self.entries = [(part, name, t.shape) for part in trains for name, t in sorted(parts[part].items())]
        self.sizes = [math.prod(shape) for _, _, shape in self.entries]

    def flatten(self, parts: Parts, axes: int = 0, out: Tensor | None = None) -> Tensor:
        """[*lead, P] of parameters that have `axes` leading axes; written to `out` where there is one."""
        each = self.in_memory_order(parts, axes)
        return torch.cat([t.reshape(*t.shape[:axes], -1) for t in each], axes, out=out)

    def in_memory_order(self, parts: Parts, axes: int = 0) -> list[Tensor]:
        """The parameters in order, each [*lead, ...] with its axes as they lie in memory."""
        each = [parts[part][name] for part, name, _ in self.entries]
        return [t.movedim(axes + 1, -1) if t.ndim - axes == KERNEL_AXES else t for t in each]

    def views(self, flat: Tensor) -> Parts:
        """Named views of flat [*lead, P]."""
        parts: Parts = {}
        for (part, name, shape), piece in zip(self.entries, flat.split(self.sizes, -1), strict=True):
            if len(shape) == KERNEL_AXES:
                view = piece.unflatten(-1, (shape[0], *shape[2:], shape[1])).movedim(-1, -3)
            else:
                view = piece.unflatten(-1, shape) if shape else piece.squeeze(-1)
            parts.setdefault(part, {})[name] = view
        return parts


def nets_of(model: Model, params: Parts, buffers: Parts, trains: tuple[str, ...], around: StageContext) -> Nets:
    """A replica's networks beside the frozen ones around it."""
    return Nets(
        model,
        params,
        buffers,
        trains,
        received=None if around.received is None else Nets(model, *around.received),
        clients=tuple(Nets(model, *upload) for upload in around.clients),
        weights=around.weights,
        counts=around.counts,
    )


def loss_of(
    stage: Stage, job: PhaseRun
) -> Callable[[Parts, Parts, Parts, StageContext, MiniBatch], tuple[Tensor, Parts]]:
    """The stage's loss of one replica as a pure function: (trained, fixed, buffers, around, batch) -> (loss, state)."""

    def loss(
        trained: Parts, fixed: Parts, buffers: Parts, around: StageContext, batch: MiniBatch
    ) -> tuple[Tensor, Parts]:
        nets = nets_of(job.model, fixed | trained, buffers, stage.trains, around)
        return nets.penalised(stage.loss(nets, batch, job.clock)), nets.after

    return loss


class StageState:
    """One stage's trained parameters and moments of R replicas, laid out as [R, P] for the length of an epoch."""

    def __init__(self, stage: Stage, job: PhaseRun, replicas: Sequence[Replica]) -> None:
        self.stage, self.setting, self.loss = stage, job.optimisers[stage.name], loss_of(stage, job)
        self.layout = ParameterLayout(replicas[0].params, stage.trains)
        self.flat = _rows([self.layout.flatten(r.params) for r in replicas])
        moments = [r.moments.get(stage.name) or self._fresh() for r in replicas]
        self.mean = _rows([m.mean for m in moments])
        self.square = _rows([m.square for m in moments])
        self.steps = torch.tensor([m.steps for m in moments], dtype=torch.float32, device=self.flat.device)
        self.total = torch.zeros(len(replicas), device=self.flat.device)

    def _fresh(self) -> Moments:
        return Moments(torch.zeros_like(self.flat[0]), torch.zeros_like(self.flat[0]), 0)

    def gradient(self, loss: Tensor, leaves: Parts) -> Parts:
        """d loss / d leaves, by part and parameter."""
        flat_leaves = [leaves[part][name] for part, name, _ in self.layout.entries]
        named: Parts = {}
        for (part, name, _), grad in zip(
            self.layout.entries, torch.autograd.grad(loss, flat_leaves, materialize_grads=True), strict=True
        ):
            named.setdefault(part, {})[name] = grad
        return named

    def step(self, grad: Tensor, active: list[int] | None = None) -> None:
        """One step of the `active` replicas (all by default) by gradients [R, P]."""
        if active is None:
            self.steps.add_(1)
            descend(list(self.flat), list(grad), list(self.mean), list(self.square), list(self.steps), self.setting)
            return
        self.steps[active] += 1
        state = self.flat, self.mean, self.square
        flat, mean, square = (t[active] for t in state)
        descend(list(flat), list(grad), list(mean), list(square), list(self.steps[active]), self.setting)
        for whole, piece in zip(state, (flat, mean, square), strict=True):
            whole[active] = piece

    def step_one(self, grads: Parts) -> None:
        """One step of a single replica, by gradients that are not copied together."""
        each = [grad.reshape(-1) for grad in self.layout.in_memory_order(grads)]
        state = [list(t[0].split(self.layout.sizes)) for t in (self.flat, self.mean, self.square)]
        self.steps.add_(1)
        descend(state[0], each, state[1], state[2], [self.steps[0]] * len(each), self.setting)

    def store(self, replicas: Sequence[Replica]) -> None:
        """Gives the replicas what the epoch has made of their parameters and moments."""
        for i, replica in enumerate(replicas):
            flat, mean, square = (
                t[i].clone() if len(replicas) > 1 else t[0] for t in (self.flat, self.mean, self.square)
            )
            replica.params = replica.params | self.layout.views(flat)
            replica.moments = replica.moments | {self.stage.name: Moments(mean, square, int(self.steps[i]))}


def _rows(each: list[Tensor]) -> Tensor:
    """[R, ...]; a single replica's moments go on in place."""
    return torch.stack(each) if len(each) > 1 else each[0][None]


def replaced(params: Parts, states: Sequence[StageState], row: int | None) -> Parts:
    """The parameters, with those under training (by any stage of the phase) as they are now."""
    for state in states:
        flat = state.flat if row is None else state.flat[row]
        params = params | state.layout.views(flat)
    return params


def merged(buffers: Parts, after: Parts) -> Parts:
    """The buffers with those that a step has changed."""
    return buffers | after if after else buffers


def mapped(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """A tree with every tensor of it replaced."""
    return torch.utils._pytree.tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def stepped(
    defense: LocalDefense, gradient: Parts, job: PhaseRun, stage: Stage, nets: tuple[Parts, Parts], images: Tensor
) -> Parts:
    """A step's gradient after the defence; a stage that sees no images has no representation of one."""
    if defense.representation is not None and images.numel() and stage.reads == "images":
        gradient = defense.representation(gradient, job.model, nets, images)
    return gradient if defense.step is None else defense.step(gradient)


def of_sample(defense: LocalDefense, gradients: Parts, plan: Plan, step: int) -> Parts:
    """A step's gradient after the defence, from those of every image of a Poisson sample."""
    assert plan.sample is not None, "only Poisson samples are padded"
    assert defense.example is not None, "Poisson samples come with a defence of every image"
    gradient = defense.example(gradients, plan.included(step), plan.sample.expected)
    return gradient if defense.step is None else defense.step(gradient)
