"""An artifact and its truth on disk: an observation of one round, one client or all behind each message, and a file apart from it.

observation/                   what the server saw (privbench/observation/format/)
observation-truth.safetensors  the victims' images and labels by round and table of messages, and the id of the observation
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privbench.errors import Damaged, UserError
from privbench.observation import artifact_tables
from privbench.observation.artifact_tables import OTHERS
from privbench.observation.format import files, schema
from privbench.observation.format.files import NewRound, Stored
from privbench.observation.format.networks import model_of
from privbench.observation.format.schema import COUNTS, DOWN, Broadcast, Messages, Origin, SetupEntry
from privbench.spec import TrainSpec
from privbench.system import files as storage
from privbench.system.file_headers import Declared
from privbench.tensors import Parts
from privbench.types import Artifact, LocalSteps, LocalTraining, Networks, Truth

# Of an artifact among results: the folder, and the file beside it.
OBSERVATION = "observation"
TRUTH = "observation-truth.safetensors"
GROUPS = ("gradients", "updates", "update_buffers", "weights", "buffers", "uploads", "upload_buffers")
AGAIN = "attack what it was made of again to have both"


def save(artifact: Artifact, folder: Path, origin: Origin | None = None, preset: str | None = None) -> str:
    """Writes an artifact as an observation and returns its id; origin and preset are for those who load it.

    UserError where it does not keep to the format.
    """
    setup, one = files.unfitting(folder, lambda: _described(artifact))
    rounds = [one]
    observation: str = files.unfitting(folder, lambda: files.write(folder, setup, rounds, origin, preset))
    return observation


def load(folder: Path) -> Artifact:
    """Reads an artifact; UserError when it is missing, damaged, foreign, not sound, or more than one round."""
    return of(files.read(folder))


def of(stored: Stored) -> Artifact:
    """The artifact of an observation whose index is read; UserError as `load`."""
    setup = stored.index.setup
    entry, victims, weights = artifact_tables.single(stored)
    tensors = files.read_round(stored, entry)
    assert setup.networks is not None, "checked by artifact_tables.single"
    channels, height, width = setup.image_shape
    # The content of a message is in its own groups; the other stays empty.
    kinds: dict[str, Parts] = {"gradient": {}, "update": {}}
    if victims.kind in kinds:
        kinds[victims.kind] = _group(tensors, victims.name, "parameters")
    message_of = range(len(victims.members)) if victims.victims is None else victims.victims
    local, training, target = victims.local, setup.training, victims.target
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
        client=torch.tensor([victims.members[m][0] if target is None else target for m in message_of]),
        batch_size=victims.attacked_images or 0,
        image_shape=(channels, height, width),
        labels=tensors.get(f"{victims.name}/labels"),
        defense=setup.defense.model_dump(exclude_unset=True),
        label_counts=tensors.get(COUNTS),
        updates=kinds["update"],
        update_buffers=_group(tensors, victims.name, "buffers") if victims.kind == "update" else {},
        local=None
        if local is None
        else LocalSteps(
            local.steps, local.optimiser.model_dump(exclude_unset=True), local.batch, proximal=local.proximal
        ),
        imitated=victims.imitated,
        training=None
        if training is None
        else LocalTraining(training.optimiser.model_dump(exclude_unset=True), training.batch, training.steps),
        member_weights=None
        if victims.weights is None
        else torch.tensor([victims.weights[m] for m in message_of], dtype=torch.float64),
        target=target,
        others=None
        if target is None
        else Networks(_group(tensors, OTHERS, "parameters"), _group(tensors, OTHERS, "buffers")),
        divided=_divided(tensors, victims) if entry.broadcasts and target is None else None,
        upload_client=None
        if victims.victims is None or victims.weights is not None
        else torch.tensor([each[0] for each in victims.members]),
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
    entry, victims, _ = artifact_tables.single(stored)
    info = {"observation": stored.id, "victims": [{"round": entry.round, "messages": victims.name}]}
    prefix = f"{entry.round}/{victims.name}"
    tensors = {f"{prefix}/images": truth.images, f"{prefix}/labels": truth.labels}
    storage.save_tensors(path, "truth", tensors, info)


def load_truth(path: Path, observation: Path) -> Truth:
    """Reads the ground truth of an observation, for scoring alone; UserError where it is that of another, or damaged."""
    return _truth(path, files.read(observation))


def _truth(path: Path, stored: Stored) -> Truth:
    entry, victims, _ = artifact_tables.single(stored)
    declared, info = storage.load_header(path, "truth")
    if not info:
        raise UserError(f"{path} is of an earlier privbench and does not say whose truth it is; {AGAIN}")
    if info.get("observation") != stored.id:
        raise UserError(f"{path} is the truth of another observation than {stored.folder}; {AGAIN}")
    prefix, count, size = f"{entry.round}/{victims.name}", victims.scored, victims.attacked_images or 0
    expected = {
        f"{prefix}/images": Declared(torch.float32, (count, size, *stored.index.setup.image_shape)),
        f"{prefix}/labels": Declared(torch.int64, (count, size)),
    }
    if info != {"observation": stored.id, "victims": [{"round": entry.round, "messages": victims.name}]}:
        raise Damaged(f"{path} is damaged (it does not name the victims of round {entry.round})")
    if declared != expected:
        raise Damaged(f"{path} is damaged or foreign: it does not hold {count} x {size} images and labels")
    tensors, _ = storage.load_tensors(path, "truth")
    images, labels = (tensors[name] for name in expected)
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
        origin = stored.index.origin
        source = "no run" if origin is None else f"{origin.artifact} (run {origin.run}, seed {origin.seed})"
        raise UserError(
            f"{stored.folder} holds the observation of {source}, not of {whose.artifact} (run {whose.run}, seed {whose.seed}); "
            f"remove {stored.folder.parent} and run the same command again"
        )


def _written(local: LocalSteps) -> dict[str, Any]:
    """Local steps as an index has them: what few of them have is left out where it is not there."""
    fields = local._asdict() | {"optimiser": dict(local.optimiser)}
    return fields if local.proximal else {name: value for name, value in fields.items() if name != "proximal"}


def _described(artifact: Artifact) -> tuple[SetupEntry, NewRound]:
    """(set-up, round) of an artifact; ValueError where a number is out of bounds."""
    training, local = artifact.training, artifact.local
    setup: dict[str, Any] = {
        "method": artifact.method,
        "dataset": artifact.dataset,
        "networks": artifact.model.written(),
        "image_shape": list(artifact.image_shape),
        "classes": artifact.model.classes,
        "shared_parts": list(artifact.shared_parts),
        "defense": dict(artifact.defense),
        "training": None if training is None else training._asdict() | {"optimiser": dict(training.optimiser)},
    }
    if not artifact.gradients and not artifact.updates:
        return _of_weights(artifact, setup)
    kind, sent = ("gradient", artifact.gradients) if local is None else ("update", artifact.updates)
    victims: dict[str, Any] = {
        "name": kind,
        "kind": kind,
        "members": _members(artifact),
        "batch_size": artifact.batch_size * (1 if artifact.target is None else len(_members(artifact)[0])),
        "local": None if local is None else _written(local),
        "imitated": artifact.imitated,
    }
    if artifact.member_weights is not None:
        victims["weights"] = artifact.member_weights.tolist()
    if artifact.target is not None:
        victims["target"] = artifact.target
    tables = [victims]
    tensors = _networks(DOWN, artifact.weights, artifact.buffers)
    tensors |= _networks(kind, sent, artifact.update_buffers)
    entries: list[dict[str, Any]] = []
    if artifact.others is not None:
        entries = [{"name": OTHERS, "clients": [each for each in _members(artifact)[0] if each != artifact.target]}]
        tensors |= _networks(OTHERS, artifact.others.params, artifact.others.buffers)
    for k, each in enumerate(artifact.divided or ()):
        if k:
            entries.append({"name": f"client-{k}", "clients": [k]})
            tensors |= _networks(f"client-{k}", each.params, each.buffers)
    if artifact.uploads:
        clients = len(next(iter(next(iter(artifact.uploads.values())).values())))
        summed = artifact.member_weights is not None
        members = _members(artifact)[:1] if summed else [[client] for client in range(clients)]
        empty = {"batch_size": None, "local": None, "imitated": 0}
        tables.append({"name": "weights", "kind": "weights", "members": members, **empty})
        tensors |= _networks("weights", artifact.uploads, artifact.upload_buffers)
    if artifact.labels is not None:
        tensors[f"{kind}/labels"] = artifact.labels
    if artifact.label_counts is not None:
        tensors[COUNTS] = artifact.label_counts
    messages = tuple(Messages.model_validate(table, strict=True) for table in tables)
    broadcasts = tuple(Broadcast.model_validate(each, strict=True) for each in entries)
    return SetupEntry.model_validate(setup, strict=True), NewRound(artifact.round, messages, tensors, broadcasts)


def _of_weights(artifact: Artifact, setup: dict[str, Any]) -> tuple[SetupEntry, NewRound]:
    """The same of an artifact whose weights are attacked themselves."""
    table: dict[str, Any] = {
        "name": "weights", "kind": "weights", "batch_size": artifact.batch_size, "local": None, "imitated": 0,
        "victims": artifact.upload_of.tolist(),
    }  # fmt: skip
    if artifact.member_weights is not None:
        table |= {"members": _members(artifact)[:1], "weights": artifact.member_weights[:1].tolist()}
    elif artifact.upload_client is not None:
        table["members"] = [[client] for client in artifact.upload_client.tolist()]
    tensors = _networks(DOWN, artifact.weights, artifact.buffers)
    tensors |= _networks("weights", artifact.uploads, artifact.upload_buffers)
    if artifact.labels is not None:
        tensors["weights/labels"] = artifact.labels
    if artifact.label_counts is not None:
        tensors[COUNTS] = artifact.label_counts
    messages = (Messages.model_validate(table, strict=True),)
    return SetupEntry.model_validate(setup, strict=True), NewRound(artifact.round, messages, tensors)


def _networks(table: str, params: Parts, buffers: Parts) -> dict[str, Tensor]:
    """Parameters and buffers by their names in a table."""
    return storage.flatten(params, f"{table}/parameters") | storage.flatten(buffers, f"{table}/buffers")


def _divided(tensors: dict[str, Tensor], victims: Messages) -> tuple[Networks, ...]:
    """What each client received, the first one in the place of a common broadcast."""
    names = [DOWN, *(name for name, _ in artifact_tables.divided_names(victims))]
    return tuple(Networks(_group(tensors, name, "parameters"), _group(tensors, name, "buffers")) for name in names)


def _members(artifact: Artifact) -> list[list[int]]:
    """The clients behind each upload, ascending."""
    if artifact.member_weights is None:
        return [[client] for client in artifact.client.tolist()]
    return [torch.nonzero(row)[:, 0].tolist() for row in artifact.member_weights]


def _group(tensors: dict[str, Tensor], table: str, group: str) -> Parts:
    """Part -> parameter -> tensor, in the order of their names: sums over them are taken in this order."""
    return storage.unflatten(dict(sorted(tensors.items())), f"{table}/{group}")
