"""Descends one phase's losses over R replicas (clients, or servers of several seeds): alone, or stacked.

The only vmap over clients and seeds. Both paths evaluate the same loss and the same optimiser; `alone` takes one replica after
the other through plain autograd (fastest on a CPU), `stacked` all at once through vmap(grad) (fastest on a GPU).
Tests hold them equal, in double precision, to each other and to a plain torch.nn loop. In single precision their rounding differs,
and where training amplifies it, as that of generators does, so do the networks after some rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from privbench.methods.base import MiniBatch, Nets, Phase, RoundClock, Stage
from privbench.networks.model import Model
from privbench.spec import SGD, Adam, Optimiser
from privbench.tensors import Parts
from privbench.training import per_example
from privbench.training.state import Moments, Replica

ADAM_EPS = 1e-8
LATE = 1e9
KERNEL_AXES = 4  # of a convolution's weight, [o, i, k, k]
PRODUCTS = ("generator", "discriminator")  # parts whose convolutions are matrix products (privbench/networks/layers.py)


class LocalDefense(NamedTuple):
    """A defence bound to one replica's random stream, at its places in local training; None where it has none there."""

    step: Callable[[Parts], Parts] | None = None  # of the gradient over the shared parts
    example: Callable[[Parts, Tensor, float], Parts] | None = None  # privbench.defense.Defense.example
    representation: Callable[[Parts, Model, tuple[Parts, Parts], Tensor], Parts] | None = (
        None  # the same, representation
    )


UNDEFENDED = LocalDefense()


class StageContext(NamedTuple):
    """What a loss may see in addition to the replica."""

    received: tuple[Parts, Parts] | None  # (parameters, buffers) of the broadcast; client stages
    clients: tuple[tuple[Parts, Parts], ...]  # the uploads; server stages
    weights: Tensor | None  # [K]; server stages
    counts: Tensor | None = None  # [K, Y]; server stages of methods that upload label counts


class PrivateSample(NamedTuple):
    """Which rows of a plan's mini-batches were drawn, for a defence that acts on every image."""

    included: Tensor  # [steps, B] bool
    expected: float  # images per mini-batch
    labels: Tensor  # [steps, L] drawn uniformly, for stages that read labels alone: they are to learn nothing of the client's


class Plan(NamedTuple):
    """One replica's mini-batches of one epoch, all drawn beforehand."""

    images: Callable[[int], Tensor]  # step -> [B, C, H, W] in [0, 1]
    labels: Tensor  # [steps, B]
    noise: Mapping[str, Mapping[str, Tensor]]  # stage -> draw -> [steps, B, ...]
    # step -> [B, c, s, s] in place of the images, in phases with `features`
    features: Callable[[int], Tensor] | None = None
    # Of mini-batches that are Poisson samples, whose rows are padded.
    sample: PrivateSample | None = None

    @property
    def steps(self) -> int:
        """How many mini-batches."""
        return len(self.labels)

    @property
    def rows(self) -> int:
        """B, padding included."""
        return self.labels.shape[1]

    def included(self, step: int) -> Tensor:
        """Which rows of a Poisson sample are images of the mini-batch: [B] bool."""
        assert self.sample is not None, "only Poisson samples are padded"
        return self.sample.included[step]

    def reads_images(self, stage: Stage) -> bool:
        """Whether the stage's gradients are taken image by image."""
        return self.sample is not None and stage.reads == "images"

    def batch(self, stage: Stage, step: int, seen: tuple[Tensor, Tensor | None]) -> MiniBatch:
        """One mini-batch as the stage sees it, of what `seen` gave.

        With Poisson samples a stage that reads labels alone gets uniform ones, and neither images nor features.
        """
        noise = {name: t[step] for name, t in self.noise[stage.name].items()}
        if self.sample is not None and stage.reads == "labels":
            return MiniBatch(self.labels.new_zeros(0, dtype=torch.float32), self.sample.labels[step], noise, None)
        images, features = seen
        return MiniBatch(images, self.labels[step], noise, features)

    def seen(self, step: int) -> tuple[Tensor, Tensor | None]:
        """(images, features) of one mini-batch, of which the phase sees one kind."""
        if self.features is None:
            return self.images(step), None
        features = self.features(step)
        return features.new_zeros(0), features


class PhaseRun(NamedTuple):
    """A phase to run: everything that is the same for all replicas."""

    model: Model
    phase: Phase
    clock: RoundClock
    optimisers: Mapping[str, Optimiser]  # by stage


Pieces = list[Tensor]


def adam(params: Pieces, grads: Pieces, means: Pieces, squares: Pieces, steps: Pieces, setting: Adam) -> None:
    """Adam's step `steps` (the first is 1) in place, each tensor with its own count: torch's fused Adam."""
    if not setting.bias_correction:
        # After that many steps 1 - beta^t is 1.
        steps = [torch.full_like(step, LATE) for step in steps]
    torch._fused_adam_(
        params, grads, means, squares, [], steps, amsgrad=False, maximize=False,
        lr=setting.lr, beta1=setting.beta1, beta2=setting.beta2, eps=ADAM_EPS, weight_decay=setting.weight_decay,
    )  # fmt: skip


def sgd(params: Pieces, grads: Pieces, setting: SGD) -> None:
    """One step of plain stochastic gradient descent in place."""
    for flat, grad in zip(params, grads, strict=True):
        flat.sub_(setting.lr * (grad + setting.weight_decay * flat))


def descend(params: Pieces, grads: Pieces, means: Pieces, squares: Pieces, steps: Pieces, setting: Optimiser) -> None:
    """Step `steps` in place by the optimiser of a stage; SGD leaves the moments alone."""
    if isinstance(setting, Adam):
        adam(params, grads, means, squares, steps, setting)
    else:
        sgd(params, grads, setting)


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


def loss_of(
    stage: Stage, job: PhaseRun
) -> Callable[[Parts, Parts, Parts, StageContext, MiniBatch], tuple[Tensor, Parts]]:
    """The stage's loss of one replica as a pure function: (trained, fixed, buffers, around, batch) -> (loss, state)."""

    def loss(
        trained: Parts, fixed: Parts, buffers: Parts, around: StageContext, batch: MiniBatch
    ) -> tuple[Tensor, Parts]:
        received = Nets(job.model, *around.received) if around.received is not None else None
        clients = tuple(Nets(job.model, *upload) for upload in around.clients)
        nets = Nets(
            job.model,
            fixed | trained,
            buffers,
            stage.trains,
            received=received,
            clients=clients,
            weights=around.weights,
            counts=around.counts,
        )
        return nets.penalised(stage.loss(nets, batch, job.clock)), nets.after

    return loss


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

    On one thread, as networks this small gain nothing from two; so the numbers do not depend on how many there are.
    """
    each = zip(replicas, around, plans, defenses, strict=True)
    with one_thread():
        return [_run_one(job, *one) for one in each]


def _run_one(
    job: PhaseRun, replica: Replica, around: StageContext, plan: Plan, defense: LocalDefense
) -> dict[str, float]:
    workings = [_Working(stage, job, [replica]) for stage in job.phase.stages]
    around = _as_products_take_it(around)
    # Views, made once: steps are taken in place, so that they always show the parameters as they are.
    fixed = _replace(replica.params, workings, 0)
    trained = [_map(lambda t: t.detach().requires_grad_(), w.layout.views(w.flat[0])) for w in workings]
    for step in range(plan.steps):
        seen = plan.seen(step)
        for working, leaves in zip(workings, trained, strict=True):
            batch = plan.batch(working.stage, step, seen)
            arguments = (leaves, fixed, replica.buffers, around, batch)
            if plan.reads_images(working.stage):
                included = plan.included(step)
                each = per_example.gradients(working.loss, *arguments)
                gradient = _of_sample(defense, each.gradients, plan, step)
                loss, after = per_example.mean(each.loss, included), each.after
            else:
                loss, after = working.loss(*arguments)
                nets = fixed, replica.buffers
                gradient = _stepped(defense, working.gradient(loss, leaves), job, working.stage, nets, batch.images)
            working.step_one(gradient)
            working.total += loss.detach()[None]
            replica.buffers = _merge(replica.buffers, after)
    for working in workings:
        working.store([replica])
    return {w.stage.name: float(w.total[0]) / max(plan.steps, 1) for w in workings}


def _as_products_take_it(around: StageContext) -> StageContext:
    """The same numbers with kernels channels last in memory, once for all steps, of networks whose convolutions are products."""

    def laid_out(networks: tuple[Parts, Parts]) -> tuple[Parts, Parts]:
        params, buffers = networks
        changed = {part: _map(_channels_last, params[part]) for part in PRODUCTS if part in params}
        return params | changed, buffers

    received = None if around.received is None else laid_out(around.received)
    return around._replace(received=received, clients=tuple(map(laid_out, around.clients)))


def _channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last) if t.ndim == KERNEL_AXES else t


def _stepped(
    defense: LocalDefense, gradient: Parts, job: PhaseRun, stage: Stage, nets: tuple[Parts, Parts], images: Tensor
) -> Parts:
    """A step's gradient after the defence; a stage that sees no images has no representation of one."""
    if defense.representation is not None and images.numel() and stage.reads == "images":
        gradient = defense.representation(gradient, job.model, nets, images)
    return gradient if defense.step is None else defense.step(gradient)


def _of_sample(defense: LocalDefense, gradients: Parts, plan: Plan, step: int) -> Parts:
    assert plan.sample is not None, "only Poisson samples are padded"
    assert defense.example is not None, "Poisson samples come with a defence of every image"
    gradient = defense.example(gradients, plan.included(step), plan.sample.expected)
    return gradient if defense.step is None else defense.step(gradient)


def run_stacked(
    job: PhaseRun,
    replicas: Sequence[Replica],
    around: Sequence[StageContext],
    plans: Sequence[Plan],
    defenses: Sequence[LocalDefense],
) -> list[dict[str, float]]:
    """One epoch of all replicas at once; a replica that has no more mini-batches rests untouched."""
    workings = [_Working(stage, job, replicas) for stage in job.phase.stages]
    params = _stack([r.params for r in replicas])
    buffers = _stack([r.buffers for r in replicas])
    surroundings = _stack(around)
    steps = torch.tensor([plan.steps for plan in plans])
    rows = max(plan.rows for plan in plans)
    for step in range(int(steps.max())):
        active = torch.nonzero(steps > step).flatten().tolist()
        everyone = len(active) == len(replicas)

        def pick(tree: Any, rows: list[int] | None = None if everyone else active) -> Any:
            return tree if rows is None else _map(lambda t: t[rows], tree)

        seen = [plans[i].seen(step) for i in active]
        for working in workings:
            stage = working.stage
            by_image = plans[0].reads_images(stage)
            each_batch = [plans[i].batch(stage, step, s) for i, s in zip(active, seen, strict=True)]
            batch = _stack([_map(lambda t: _padded(t, rows), b) for b in each_batch] if by_image else each_batch)
            trained = working.layout.views(pick(working.flat))
            fixed = pick(_replace(params, workings, None))
            arguments = (trained, fixed, pick(buffers), pick(surroundings), batch)
            axes = torch.utils._pytree.tree_map(lambda leaf: 0 if isinstance(leaf, Tensor) else None, arguments)
            if by_image:
                each = vmap(partial(per_example.gradients, working.loss), in_dims=axes)(*arguments)
                included = torch.stack([_padded(plans[i].included(step), rows) for i in active])
                losses, after = vmap(per_example.mean)(each.loss, included), each.after
                one = [_map(partial(_rows_of, j, plans[i].rows), each.gradients) for j, i in enumerate(active)]
                grads = _stack([_of_sample(defenses[i], g, plans[i], step) for i, g in zip(active, one, strict=True)])
            else:
                gradient = vmap(grad_and_value(working.loss, has_aux=True), in_dims=axes)
                grads, (losses, after) = gradient(*arguments)
                whole = grads, (fixed, pick(buffers)), batch.images
                each_gradient = [(defenses[i], _map(itemgetter(j), whole)) for j, i in enumerate(active)]
                grads = _stack([_stepped(d, g, job, stage, nets, images) for d, (g, nets, images) in each_gradient])
            working.step(working.layout.flatten(grads, 1), None if everyone else active)
            working.total[active] += losses.detach()
            buffers = _merge(buffers, after) if everyone else _scatter(buffers, after, active)
    for working in workings:
        working.store(replicas)
    for i, replica in enumerate(replicas):
        replica.buffers = _map(torch.clone, _map(itemgetter(i), buffers))
    return [{w.stage.name: float(w.total[i]) / max(plans[i].steps, 1) for w in workings} for i in range(len(replicas))]


def _rows_of(replica: int, rows: int, t: Tensor) -> Tensor:
    """What is of one replica, without padding: [R, B, ...] -> [rows, ...]."""
    return t[replica, :rows]


def _padded(t: Tensor, rows: int) -> Tensor:
    """[rows, ...] with zeros after what there is."""
    return t if len(t) == rows else torch.cat([t, t.new_zeros(rows - len(t), *t.shape[1:])])


class _Working:
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
        for i, replica in enumerate(replicas):
            flat, mean, square = (
                t[i].clone() if len(replicas) > 1 else t[0] for t in (self.flat, self.mean, self.square)
            )
            replica.params = replica.params | self.layout.views(flat)
            replica.moments = replica.moments | {self.stage.name: Moments(mean, square, int(self.steps[i]))}


def _rows(each: list[Tensor]) -> Tensor:
    """[R, ...]; a single replica's moments go on in place."""
    return torch.stack(each) if len(each) > 1 else each[0][None]


def _replace(params: Parts, workings: Sequence[_Working], row: int | None) -> Parts:
    """The parameters, with those under training (by any stage of the phase) as they are now."""
    for working in workings:
        flat = working.flat if row is None else working.flat[row]
        params = params | working.layout.views(flat)
    return params


def _merge(buffers: Parts, after: Parts) -> Parts:
    return buffers | after if after else buffers


def _scatter(buffers: Parts, after: Parts, active: list[int]) -> Parts:
    merged = dict(buffers)
    for part, state in after.items():
        merged[part] = {}
        for name, value in state.items():
            whole = buffers[part][name].clone()
            whole[active] = value
            merged[part][name] = whole
    return merged


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def _stack(trees: Sequence[Any]) -> Any:
    return torch.utils._pytree.tree_map(
        lambda *leaves: torch.stack(leaves) if isinstance(leaves[0], Tensor) else leaves[0], *trees
    )
