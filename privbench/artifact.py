"""What the server sees, on disk: safetensors plus JSON, versioned and digested; the truth in a file of its own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from privbench import storage
from privbench.errors import UserError
from privbench.nets import Model
from privbench.types import Artifact, LocalSteps, Truth

GROUPS = ("gradients", "updates", "weights", "buffers", "uploads", "upload_buffers")


def save(artifact: Artifact, path: Path) -> None:
    """Writes one artifact."""
    tensors = {"client": artifact.client}
    for group in GROUPS:
        tensors |= storage.flatten(getattr(artifact, group), group)
    if artifact.labels is not None:
        tensors["labels"] = artifact.labels
    if artifact.label_counts is not None:
        tensors["label_counts"] = artifact.label_counts
    info = {
        "method": artifact.method,
        "dataset": artifact.dataset,
        "model": asdict(artifact.model),
        "round": artifact.round,
        "shares": list(artifact.shares),
        "batch_size": artifact.batch_size,
        "image_shape": list(artifact.image_shape),
        "defense": dict(artifact.defense),
    }
    if artifact.imitated:
        info["imitated"] = artifact.imitated
    if artifact.local is not None:
        info["local"] = {"steps": artifact.local.steps, "optimiser": dict(artifact.local.optimiser)}
    storage.save_tensors(path, "artifact", tensors, info)


def load(path: Path) -> Artifact:
    """Reads one artifact; UserError when it is missing, damaged, foreign, or its gradients or updates do not fit its networks."""
    tensors, info = storage.load_tensors(path, "artifact")
    try:
        groups = {group: storage.unflatten(tensors, group) for group in GROUPS}
        artifact = Artifact(
            method=info["method"],
            dataset=info["dataset"],
            model=Model(**info["model"]),
            round=int(info["round"]),
            shares=tuple(info["shares"]),
            client=tensors["client"],
            batch_size=int(info["batch_size"]),
            image_shape=(info["image_shape"][0], info["image_shape"][1], info["image_shape"][2]),
            labels=tensors.get("labels"),
            label_counts=tensors.get("label_counts"),
            defense=info["defense"],
            local=LocalSteps(**info["local"]) if "local" in info else None,
            imitated=int(info.get("imitated", 0)),
            **groups,
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UserError(f"{path} is damaged or foreign: its header lacks {error}") from error
    for part in artifact.weights:
        _, expected = artifact.model.net(part).init(torch.Generator())
        if set(artifact.buffers.get(part, {})) != set(expected):
            raise UserError(f"{path}: the {part} of {artifact.model.backbone} should come with {len(expected)} buffers")
    for part, gradient in (artifact.gradients | artifact.updates).items():
        expected, _ = artifact.model.net(part).init(torch.Generator())
        for name, tensor in expected.items():
            found = gradient.get(name)
            if found is None or tuple(found.shape) != (artifact.victims, *tensor.shape):
                shape = "nothing" if found is None else str(tuple(found.shape))
                wanted = (artifact.victims, *tensor.shape)
                raise UserError(
                    f"{path}: the gradient of {part}.{name} should have shape {wanted}, but the file has {shape}"
                )
    return artifact


def save_truth(truth: Truth, path: Path) -> None:
    """Writes the ground truth beside, never inside, the artifact."""
    storage.save_tensors(path, "truth", {"images": truth.images, "labels": truth.labels}, {})


def load_truth(path: Path) -> Truth:
    """Reads a ground truth; for scoring alone."""
    tensors, _ = storage.load_tensors(path, "truth")
    if set(tensors) != {"images", "labels"}:
        raise UserError(f"{path} is damaged or foreign: a truth holds images and labels, this file {sorted(tensors)}")
    return Truth(tensors["images"], tensors["labels"])
