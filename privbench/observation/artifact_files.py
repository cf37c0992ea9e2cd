"""An artifact and its truth on disk: an observation of one round, with one client behind each message, and a file apart from it.

observation/                   what the server saw (privbench/observation_format)
observation-truth.safetensors  the victims' images and labels by round and table of messages, and the id of the observation
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privbench.errors import Damaged, UserError
from privbench.observation.format import files, schema
from privbench.observation.format.files import NewRound, Stored
from privbench.observation.format.networks import model_of
from privbench.observation.format.schema import COUNTS, DOWN, Messages, Origin, RoundEntry, SetupEntry
from privbench.spec import TrainSpec
from privbench.system import files as storage
from privbench.system.file_headers import Declared
from privbench.tensors import Parts
from privbench.types import Artifact, LocalSteps, LocalTraining, Truth

# Of an artifact among results: the folder, and the file beside it.
OBSERVATION = "observation"
TRUTH = "observation-truth.safetensors"
GROUPS = ("gradients", "updates", "weights", "buffers", "uploads", "upload_buffers")
AGAIN = "attack what it was made of again to have both"


def save(artifact: Artifact, folder: Path, origin: Origin | None = None, preset: str | None = None) -> str:
    """Writes an artifact as an observation and returns its id; origin and preset are for those who load it.

    UserError where it does not keep to the format.
    """
    setup, messages, tensors = files.unfitting(folder, lambda: _described(artifact))
    rounds = [NewRound(artifact.round, messages, tensors)]
    observation: str = files.unfitting(folder, lambda: files.write(folder, setup, rounds, origin, preset))
    return observation


def load(folder: Path) -> Artifact:
    """Reads an artifact; UserError when it is missing, damaged, foreign, not sound, or more than one round of single clients."""
    return of(files.read(folder))


def of(stored: Stored) -> Artifact:
    """The artifact of an observation whose index is read; UserError as `load`."""
    setup = stored.index.setup
    entry, victims, weights = _single(stored)
    tensors = files.read_round(stored, entry)
    assert setup.networks is not None, "checked by _single"
    channels, height, width = setup.image_shape
    # The content of a message is in its own groups; the other stays empty.
    kinds: dict[str, Parts] = {"gradient": {}, "update": {}}
    kinds[victims.kind] = _group(tensors, victims.name, "parameters")
    local, training = victims.local, setup.training
    return Artifact(
        method=setup.method,
        dataset=setup.dataset,
        model=model_of(setup.networks),
        round=entry.round,
        shared_parts=tuple(setup.shared_parts),
        gradients=kinds["gradient"],
        weights=_group(tensors, DOWN, "parameters"),
        buffers=_group(tensors, DOWN, "buffers"),
        uploads={} if weights is None else _group(tensors, weights.name, "parameters"),
        upload_buffers={} if weights is None else _group(tensors, weights.name, "buffers"),
        client=torch.tensor([client for (client,) in victims.members]),
        batch_size=victims.batch_size or 0,
        image_shape=(channels, height, width),
        labels=tensors.get(f"{victims.name}/labels"),
        defense=setup.defense.model_dump(exclude_unset=True),
        label_counts=tensors.get(COUNTS),
        updates=kinds["update"],
        local=None
        if local is None
        else LocalSteps(local.steps, local.optimiser.model_dump(exclude_unset=True), local.batch),
        imitated=victims.imitated,
        training=None
        if training is None
        else LocalTraining(training.optimiser.model_dump(exclude_unset=True), training.batch, training.steps),
    )


def origin(folder: Path) -> Origin | None:
    """Whose observation it is, None where it does not say; UserError as `load`."""
    return files.read(folder).index.origin


def preset(folder: Path) -> str | None:
    """The preset in which an observation was made, None where it does not say; UserError as `load`."""
    return files.read(folder).index.preset


def save_truth(truth: Truth, path: Path, observation: Path) -> None:
    """Writes the ground truth of an observation beside, never inside, it."""
    stored = files.read(observation)
    entry, victims, _ = _single(stored)
    info = {"observation": stored.id, "victims": [{"round": entry.round, "messages": victims.name}]}
    prefix = f"{entry.round}/{victims.name}"
    tensors = {f"{prefix}/images": truth.images, f"{prefix}/labels": truth.labels}
    storage.save_tensors(path, "truth", tensors, info)


def load_truth(path: Path, observation: Path) -> Truth:
    """Reads the ground truth of an observation, for scoring alone; UserError where it is that of another, or damaged."""
    return _truth(path, files.read(observation))


def _truth(path: Path, stored: Stored) -> Truth:
    entry, victims, _ = _single(stored)
    declared, info = storage.load_header(path, "truth")
    if not info:
        raise UserError(f"{path} is of an earlier privbench and does not say whose truth it is; {AGAIN}")
    if info.get("observation") != stored.id:
        raise UserError(f"{path} is the truth of another observation than {stored.folder}; {AGAIN}")
    prefix, count, size = f"{entry.round}/{victims.name}", len(victims.members), victims.batch_size or 0
    wanted = {
        f"{prefix}/images": Declared(torch.float32, (count, size, *stored.index.setup.image_shape)),
        f"{prefix}/labels": Declared(torch.int64, (count, size)),
    }
    if info != {"observation": stored.id, "victims": [{"round": entry.round, "messages": victims.name}]}:
        raise Damaged(f"{path} is damaged (it does not name the victims of round {entry.round})")
    if declared != wanted:
        raise Damaged(f"{path} is damaged or foreign: it does not hold {count} x {size} images and labels")
    tensors, _ = storage.load_tensors(path, "truth")
    images, labels = (tensors[name] for name in wanted)
    # Comparisons with NaN are false.
    if not bool(((images >= 0) & (images <= 1)).all()):
        raise Damaged(f"{path} is damaged: images are numbers from 0 to 1")
    if not files.are_classes(labels, stored.index.setup.classes):
        raise Damaged(f"{path} is damaged: labels are numbers from 0 to {stored.index.setup.classes - 1}")
    return Truth(images, labels)


def origin_of(spec: TrainSpec, folder: Path) -> Origin:
    """Whose observation lies in the `folder` that privbench/records/store.py names for it."""
    return Origin(run=spec.id, seed=spec.seed, dataset=spec.dataset, artifact=folder.name)


def save_with_truth(artifact: Artifact, truth: Truth, folder: Path, whose: Origin, preset: str | None = None) -> None:
    """Writes an artifact of a run and its truth among results, the truth last."""
    save(artifact, storage.inside(folder, OBSERVATION), whose, preset)
    save_truth(truth, folder / TRUTH, folder / OBSERVATION)


def load_with_truth(folder: Path, whose: Origin) -> tuple[Artifact, Truth]:
    """Both of them; UserError also where an intact observation is another run's, seed's, round's or choice of victims'."""
    stored = files.read(storage.inside(folder, OBSERVATION))
    check_origin(stored, whose)
    return of(stored), _truth(folder / TRUTH, stored)


def truth_of(folder: Path, whose: Origin) -> Truth:
    """The truth alone; UserError as `load_with_truth`."""
    stored = files.read(storage.inside(folder, OBSERVATION))
    check_origin(stored, whose)
    return _truth(folder / TRUTH, stored)


def complete(folder: Path) -> bool:
    """Whether an artifact among results is there with its round and its truth, all written to the end; none is opened."""
    observation = folder / OBSERVATION
    written = (observation / files.INDEX).is_file() and (folder / TRUTH).is_file()
    return written and next(observation.glob(schema.FILES), None) is not None


def check_origin(stored: Stored, whose: Origin) -> None:
    """UserError where an observation is not the one that should lie in its place."""
    if stored.index.origin != whose:
        found = stored.index.origin
        said = "no run" if found is None else f"{found.artifact} (run {found.run}, seed {found.seed})"
        raise UserError(
            f"{stored.folder} holds the observation of {said}, not of {whose.artifact} (run {whose.run}, seed {whose.seed}); "
            f"remove {stored.folder.parent} and run the same command again"
        )


def _single(stored: Stored) -> tuple[RoundEntry, Messages, Messages | None]:
    """(the round, the attacked messages, the weights that clients sent) of an observation that is an artifact; else UserError."""
    index, folder = stored.index, stored.folder
    if len(index.rounds) != 1:
        raise UserError(f"{folder} holds {len(index.rounds)} rounds; attacks of this privbench take one")
    entry, networks = index.rounds[0], index.setup.networks
    if networks is None:
        raise UserError(f"{folder} names no networks; attacks of this privbench take its own alone")
    if any(len(each) > 1 for table in entry.messages for each in table.members):
        raise UserError(f"{folder} holds sums over clients; attacks of this privbench take messages of one")
    victims = [table for table in entry.messages if table.kind != "weights"]
    weights = [table for table in entry.messages if table.kind == "weights"]
    if len(victims) != 1 or len(weights) > 1:
        raise UserError(
            f"{folder} holds {len(victims)} tables of gradients or updates and {len(weights)} of weights; attacks of this "
            "privbench take one, and at most one"
        )
    if victims[0].batch_size is None or (victims[0].kind == "update") != (victims[0].local is not None):
        raise UserError(f"{folder} does not say how its messages came about; attacks of this privbench ask for it")
    clients = [client for (client,) in victims[0].members]
    if weights and [client for (client,) in weights[0].members] != list(range(len(weights[0].members))):
        raise UserError(f"{folder} does not hold the weights of every client in turn; attacks of this privbench do")
    if weights and max(clients) >= len(weights[0].members):
        raise UserError(f"{folder} holds no weights of client {max(clients)}, whose message is there")
    if wrong := {t.dtype for t in entry.tensors.values()} - {"float32", "int64"}:
        raise UserError(f"{folder} holds {', '.join(sorted(wrong))}; attacks of this privbench take float32")
    if sum(split is not None and split[0] == victims[0].name and split[1] == "buffers"
           for split in map(schema.split, entry.tensors)):  # fmt: skip
        raise UserError(f"{folder} holds buffers of {victims[0].name}; attacks of this privbench know none")
    return entry, victims[0], weights[0] if weights else None


def _described(artifact: Artifact) -> tuple[SetupEntry, tuple[Messages, ...], dict[str, Tensor]]:
    """(set-up, tables of messages, tensors) of an artifact; ValueError where a number is out of bounds."""
    training, local = artifact.training, artifact.local
    setup: dict[str, Any] = {
        "method": artifact.method,
        "dataset": artifact.dataset,
        "networks": asdict(artifact.model),
        "image_shape": list(artifact.image_shape),
        "classes": artifact.model.classes,
        "shared_parts": list(artifact.shared_parts),
        "defense": dict(artifact.defense),
        "training": None if training is None else training._asdict() | {"optimiser": dict(training.optimiser)},
    }
    kind, sent = ("gradient", artifact.gradients) if local is None else ("update", artifact.updates)
    victims: dict[str, Any] = {
        "name": kind,
        "kind": kind,
        "members": [[client] for client in artifact.client.tolist()],
        "batch_size": artifact.batch_size,
        "local": None if local is None else local._asdict() | {"optimiser": dict(local.optimiser)},
        "imitated": artifact.imitated,
    }
    tables = [victims]
    tensors = storage.flatten(artifact.weights, f"{DOWN}/parameters") | storage.flatten(
        artifact.buffers, f"{DOWN}/buffers"
    )
    tensors |= storage.flatten(sent, f"{kind}/parameters")
    if artifact.uploads:
        clients = len(next(iter(next(iter(artifact.uploads.values())).values())))
        members = [[client] for client in range(clients)]
        empty = {"batch_size": None, "local": None, "imitated": 0}
        tables.append({"name": "weights", "kind": "weights", "members": members, **empty})
        tensors |= storage.flatten(artifact.uploads, "weights/parameters")
        tensors |= storage.flatten(artifact.upload_buffers, "weights/buffers")
    if artifact.labels is not None:
        tensors[f"{kind}/labels"] = artifact.labels
    if artifact.label_counts is not None:
        tensors[COUNTS] = artifact.label_counts
    messages = tuple(Messages.model_validate(table, strict=True) for table in tables)
    return SetupEntry.model_validate(setup, strict=True), messages, tensors


def _group(tensors: dict[str, Tensor], table: str, group: str) -> Parts:
    """Part -> parameter -> tensor, in the order of their names: sums over them are taken in this order."""
    return storage.unflatten(dict(sorted(tensors.items())), f"{table}/{group}")
