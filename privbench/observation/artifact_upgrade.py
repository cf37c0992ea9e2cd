"""Artifacts of before there were observations, one file each, written once more in today's form beside the old files.

An earlier privbench that works in the same folder continues with the old files; without one, they can be deleted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from privbench.errors import UserError
from privbench.networks.model import Model
from privbench.observation import artifact_files as artifacts
from privbench.observation.format.schema import Origin
from privbench.system import files
from privbench.types import Artifact, LocalSteps, LocalTraining, Truth

OLD, OLD_TRUTH = "artifact.safetensors", "truth.safetensors"


def upgrade(folder: Path, whose: Origin, preset: str | None = None) -> None:
    """Writes observation and truth of an artifact among results from its old files, where those are all there is.

    UserError where the old files are damaged or another run's.
    """
    if artifacts.complete(folder) or not is_old(folder):
        return
    tensors, info = files.load_tensors(folder / OLD, "artifact")
    if info.get("identity") != {"run": whose.run, "dataset": whose.dataset}:
        raise UserError(f"{folder / OLD} is not of run {whose.run}; remove {folder} and run the same command again")
    try:
        seen = _artifact(tensors, info)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / OLD} is damaged or foreign: its header lacks {error}") from error
    truth, _ = files.load_tensors(folder / OLD_TRUTH, "truth")
    if truth.keys() != {"images", "labels"}:
        raise UserError(f"{folder / OLD_TRUTH} is damaged or foreign: a truth holds images and labels")
    artifacts.save_with_truth(seen, Truth(truth["images"], truth["labels"]), folder, whose, preset)


def is_old(folder: Path) -> bool:
    """Whether an artifact lies there as an earlier privbench wrote it."""
    return (folder / OLD).is_file() and (folder / OLD_TRUTH).is_file()


def _artifact(tensors: dict[str, Tensor], info: dict[str, Any]) -> Artifact:
    channels, height, width = info["image_shape"]
    return Artifact(
        method=info["method"],
        dataset=info["dataset"],
        model=Model(**info["model"]),
        round=info["round"],
        shared_parts=tuple(info["shares"]),
        client=tensors["client"],
        batch_size=info["batch_size"],
        image_shape=(channels, height, width),
        labels=tensors.get("labels"),
        label_counts=tensors.get("label_counts"),
        defense=info["defense"],
        local=LocalSteps(**info["local"]) if "local" in info else None,
        imitated=info.get("imitated", 0),
        training=LocalTraining(**info["training"]) if "training" in info else None,
        member_weights=None,
        target=None,
        others=None,
        divided=None,
        upload_client=None,
        **{group: files.unflatten(tensors, group) for group in artifacts.GROUPS},
    )
