"""Networks, replicas and predictions as the named tensors of a file, and back."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from privbench.system import files
from privbench.tensors import Parts
from privbench.training.state import Moments, Prediction, Replica


def prediction_tensors(each: Sequence[Prediction]) -> dict[str, Tensor]:
    """`prediction<k>/logits` and `prediction<k>/labels` of every client k."""
    return {f"prediction{k}/{name}": t for k, one in enumerate(each) for name, t in one._asdict().items()}


def predictions(tensors: dict[str, Tensor]) -> list[Prediction]:
    """Every client's prediction, on the CPU; none where the file holds none."""
    clients = sum(name.startswith("prediction") for name in tensors) // len(Prediction._fields)
    return [
        Prediction(**{name: tensors[f"prediction{k}/{name}"].cpu() for name in Prediction._fields})
        for k in range(clients)
    ]


def network_tensors(networks: tuple[Parts, Parts], name: str) -> dict[str, Tensor]:
    """`<name>/params/<part>/<entry>` and `<name>/buffers/<part>/<entry>` of some networks."""
    params, buffers = networks
    return files.flatten(params, f"{name}/params") | files.flatten(buffers, f"{name}/buffers")


def replica_tensors(replica: Replica, name: str) -> dict[str, Tensor]:
    """The same of a replica, with its optimiser's `<name>/mean/<stage>` and `<name>/square/<stage>`."""
    tensors = network_tensors((replica.params, replica.buffers), name)
    for stage, m in replica.moments.items():
        tensors |= {f"{name}/mean/{stage}": m.mean, f"{name}/square/{stage}": m.square}
    return tensors


def networks_of(tensors: dict[str, Tensor], name: str) -> tuple[Parts, Parts]:
    """(parameters, buffers) of the networks `name`."""
    params = files.unflatten(tensors, f"{name}/params")
    buffers = files.unflatten(tensors, f"{name}/buffers")
    return params, {part: buffers.get(part, {}) for part in params}


def replica_of(tensors: dict[str, Tensor], name: str, steps: dict[str, int]) -> Replica:
    """The replica `name`; `steps` are those of its optimiser, by stage."""
    moments = {s: Moments(tensors[f"{name}/mean/{s}"], tensors[f"{name}/square/{s}"], n) for s, n in steps.items()}
    return Replica(*networks_of(tensors, name), moments)
