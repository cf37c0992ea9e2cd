"""A `torch.nn.Module` as a network without state of its own: its parameters and buffers go in and come out by their names.

The module itself is never changed: every thread calls a copy that holds no numbers. What of a module does not survive `vmap`, a
second derivative or several threads is replaced in the copy:

    batch norm   a pure form of the same arithmetic; its count of batches, `num_batches_tracked`, is a buffer only where it is read,
                 which is where the momentum is None
    dropout      does nothing in train mode either, because it would draw from torch's global generator; `draws` names these layers
    attention    by torch's plain formula, since the fused kernels have no second derivative
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from privbench.errors import UserError
from privbench.networks.normalisation import batch_norm
from privbench.tensors import Params

COUNT = "num_batches_tracked"
LARGEST_SEED = 2**63 - 1


class ModuleNet:
    """A module as a `privbench.networks.base.Net`.

    Parameters and buffers have the names of `named_parameters` and `named_buffers`; one that two modules share has the first.
    """

    def __init__(self, module: nn.Module, fresh: Callable[[], nn.Module] | None = None) -> None:
        """`module` gives the structure, and is not changed; `fresh` makes another of the same structure with initial values.

        Without `fresh` the initial values are those of a copy whose layers were each given `reset_parameters`; what no layer resets
        stays as it is in the module. UserError for lazy parameters, which have no shape yet.
        """
        self._module, self._fresh = module, fresh
        if any(nn.parameter.is_lazy(t) for t in (*module.parameters(), *module.buffers())):
            raise UserError("a module with lazy parameters has no shapes yet; call it once on images first")
        self._outline = _without_numbers(module)
        self._copies = threading.local()
        self.parameter_names = tuple(name for name, _ in module.named_parameters())
        unread = {
            f"{name}.{COUNT}".lstrip(".")
            for name, each in module.named_modules()
            if isinstance(each, _BatchNorm) and each.momentum is not None
        }
        self.buffer_names = tuple(name for name, _ in module.named_buffers() if name not in unread)

    @property
    def draws(self) -> tuple[str, ...]:
        """The layers of torch.nn that drop in train mode, by name; here they do not."""
        return tuple(name for name, each in self._module.named_modules() if _rate(each) > 0)

    def values(self) -> tuple[Params, Params]:
        """(parameters, buffers) of the module as it is now, copied."""
        return _values(self._module, self.parameter_names, self.buffer_names)

    def init(self, rng: torch.Generator | None) -> tuple[Params, Params]:
        """Initial (parameters, buffers), drawn on a seed that `rng` draws; torch's global generator stays as it was.

        Under `torch.device("meta")`, where nothing is drawn and `rng` is None, they have shapes alone.
        """
        if rng is None:
            return _values(self._outline, self.parameter_names, self.buffer_names)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(LARGEST_SEED, (), generator=rng)))
            return _values(self._initial(), self.parameter_names, self.buffer_names)

    def initialised_by(self, fresh: Callable[[], nn.Module]) -> Self:
        """The same network with initial values by `fresh`."""
        other = copy.copy(self)
        other._fresh = fresh
        return other

    def _initial(self) -> nn.Module:
        if self._fresh is not None:
            return self._fresh()
        module = copy.deepcopy(self._module)
        for each in module.modules():
            reset = getattr(each, "reset_parameters", None)
            if callable(reset):
                reset()
        return module

    def apply(self, params: Params, buffers: Params, *inputs: Any, train: bool) -> tuple[Tensor, Params]:
        """What the module returns for `inputs`, in train or in eval mode, and its buffers after the call.

        Exactly the names of `parameter_names` and `buffer_names` are read. No given tensor is changed in place.
        """
        module = self._copy()
        if module.training != train:
            module.train(train)
        state = {name: params[name] for name in self.parameter_names}
        # Buffers that are indices or masks stay so, whatever the precision of the rest.
        kinds = {name: self._outline.get_buffer(name).dtype for name in self.buffer_names}
        state |= {
            n: buffers[n].clone() if k.is_floating_point else buffers[n].to(k, copy=True) for n, k in kinds.items()
        }
        with _plain_attention():
            output = functional_call(module, state, inputs)
        # torch writes into `state` what the module assigned to its buffers.
        return output, {name: state[name] for name in self.buffer_names}

    def _copy(self) -> nn.Module:
        """This thread's copy: a call puts the numbers into it, so that threads cannot share one."""
        if not hasattr(self._copies, "module"):
            # In another thread: what is made inside a transform of torch.func belongs to it, and may not be used after it.
            with ThreadPoolExecutor(1) as executor:
                self._copies.module = executor.submit(lambda: _pure(_without_numbers(self._outline))).result()
        module: nn.Module = self._copies.module
        return module


class _PureBatchNorm(_BatchNorm):
    """Batch norm that assigns its statistics instead of changing them in place, which `vmap` refuses."""

    def forward(self, x: Tensor) -> Tensor:
        """As torch.nn.BatchNorm*d, and also of one value per channel, whose normalisation is 0."""
        mean, var = self.running_mean, self.running_var
        by_batch = self.training or mean is None or var is None
        if mean is None or var is None:
            mean = var = x.new_zeros(x.shape[1])
        momentum: float | Tensor = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.momentum is None:
            assert self.num_batches_tracked is not None, "batch norm that tracks counts"
            self.num_batches_tracked = self.num_batches_tracked + 1
            momentum = 1 / self.num_batches_tracked.to(x.dtype)
        output, mean, var = batch_norm(
            x, self.weight, self.bias, mean, var, train=by_batch, momentum=momentum, eps=self.eps
        )
        if self.training and self.track_running_stats:
            self.running_mean, self.running_var = mean, var
        return output


def _rate(module: nn.Module) -> float:
    """At which rate a layer of torch.nn drops."""
    if isinstance(module, _DropoutNd):
        return module.p
    return float(module.dropout) if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)) else 0.0


def _pure(module: nn.Module) -> nn.Module:
    """The same module, its batch norms pure, and without dropout."""
    for each in module.modules():
        if isinstance(each, _BatchNorm):
            each.__class__ = _PureBatchNorm
        elif isinstance(each, _DropoutNd):
            each.__class__ = nn.Identity  # type: ignore[assignment]
        elif isinstance(each, (nn.MultiheadAttention, nn.RNNBase)):
            each.dropout = 0.0
    return module


def _without_numbers(module: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers have shapes alone; what modules share stays shared."""
    meta = torch.device("meta")
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach().to(meta), p.requires_grad) for p in module.parameters()}
    memo |= {id(b): b.detach().to(meta) for b in module.buffers()}
    return copy.deepcopy(module, memo)


def _values(module: nn.Module, parameters: tuple[str, ...], buffers: tuple[str, ...]) -> tuple[Params, Params]:
    params = {name: module.get_parameter(name).detach().clone() for name in parameters}
    return params, {name: module.get_buffer(name).detach().clone() for name in buffers}


class _Attention:
    """How many calls of modules are under way; the settings of attention are torch's, for all threads at once."""

    lock: ClassVar[threading.Lock] = threading.Lock()
    calls: ClassVar[int] = 0
    restore: ClassVar[Callable[[], object]]


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention by torch's plain formula while any thread is in here."""
    with _Attention.lock:
        if not _Attention.calls:
            before = ExitStack()
            before.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
            before.enter_context(sdpa_kernel(SDPBackend.MATH))
            torch.backends.mha.set_fastpath_enabled(False)
            _Attention.restore = before.close
        _Attention.calls += 1
    try:
        yield
    finally:
        with _Attention.lock:
            _Attention.calls -= 1
            if not _Attention.calls:
                _Attention.restore()
