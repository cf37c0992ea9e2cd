"""Attacks an artifact that is given as a folder; with its truth file, scores the result and checks it as a record does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from privbench import names, registry, seeds, trust
from privbench.errors import UserError
from privbench.execution import one_attack, worker_pool
from privbench.observation import artifact_files as artifacts
from privbench.observation import knowledge
from privbench.presets import train_spec
from privbench.records import checks, victims
from privbench.records.checks import CheckMessage
from privbench.records.schema import Victim
from privbench.records.store import Store
from privbench.scoring import image_scores
from privbench.spec import TrainSpec
from privbench.system import console, files, machine
from privbench.system.console import Console
from privbench.training import federation
from privbench.types import Artifact, Batch, Knowledge, Reconstruction, Truth, no_progress
from reports.records import table_checks
from reports.records.labels import range_text
from reports.records.measured import Measured
from reports.records.quotable import PLUMBING, is_quotable

SEED = 0  # of all other draws here: an artifact does not name its seed


class _Floors(NamedTuple):
    """What anybody scores on the victims of a file."""

    psnr_db: dict[str, list[float]]  # floor -> victims
    auxiliary: set[str]  # digests of the images that they were made of
    note: str  # why some floors are missing; else nothing


def attack_file(  # noqa: PLR0913 (options)
    path: Path,
    truth: Path | None,
    attacks: Sequence[str],
    is_ladder: bool,
    settings: dict[str, Any],
    dataset: str | None,
    auxiliary: str,
    device: str,
    data_dir: Path | None,
    out: Path,
) -> None:
    """Attacks the artifact in a folder, for the ladder by every attack whose needs it meets; with a truth file, scores it.

    Auxiliary images are those of `dataset` or, where that is None, of the artifact's own data set.
    """
    seen = artifacts.load(path)
    known = artifacts.load_truth(truth, path) if truth is not None else None
    to, place, origin = console.results(), machine.device(device), artifacts.origin(path)
    if known is not None and not is_quotable(artifacts.preset(path)):
        to.say(f"note: {PLUMBING}")
        known = None
    # The seed that an attack within the run has, so that it gives the same images here; of an export, any.
    seed = SEED if origin is None else seeds.of_attacker(origin.run, seen.round)
    Store(out).check_writable()
    if is_ladder:
        met = seen.offers() | {"auxiliary"}
        attacks = [*(a for a in registry.ATTACKS if registry.resolve("attack", a).needs <= met), *attacks]
    each = registry.settings_of_each(attacks, settings) if is_ladder else dict.fromkeys(attacks, settings)
    floors = None if known is None else _floors(path, seen, known, place, data_dir)
    if floors is not None and floors.note:
        to.say(f"note: {floors.note}")
    # Once, and only where an attack asks for them.
    images = cache(lambda: _auxiliary(path, seen, dataset, auxiliary, data_dir))
    for name in each:
        stem = f"{_name(path)}-{name.replace(':', '.')}"  # not every system has colons in file names
        whole = Knowledge(cache=Store(out).cache)
        if "auxiliary" in registry.resolve("attack", name).needs:
            whole = replace(whole, auxiliary=images())
        try:
            # Each attack has the file to itself: what one writes into it, no other sees and no check reports.
            found = one_attack.attack_artifact(name, each[name], artifacts.load(path), whole, seed, place, no_progress)
        except Exception as error:
            if not is_ladder and isinstance(error, UserError):
                raise
            reason = worker_pool.logged(error, files.inside(out, f"{stem}-error.txt"))
            if not is_ladder:
                raise UserError(f"{name}: {reason}") from error
            to.say(f"{name}: not run: {reason}")
            continue
        target = files.inside(out, f"{stem}.safetensors")
        tensors = {"images": found.images, "labels": found.labels, "loss": found.loss}
        files.save_tensors(target, "reconstruction", tensors, {"artifact": _name(path), "attack": name})
        line, told = "", victims.checks_without_truth(seen, found)
        if known is not None and floors is not None:
            line, told = _scored(name, seen, known, found, floors, whole.auxiliary)
        to.say(
            f"{name}: {seen.victims} victims, median objective {float(found.loss.nanmedian()):.3g}{line}; wrote {target}"
        )
        _print_messages(told, found.notes, to)


def _name(path: Path) -> str:
    """Of an artifact, also of one among results, whose folders all have the same name."""
    whole = path.resolve()
    return whole.parent.name if whole.name == artifacts.OBSERVATION else whole.name


def _print_messages(told: Sequence[CheckMessage], notes: Sequence[str], to: Console) -> None:
    for line in [*(f"{flag.name}: {flag.sentence}" for flag in told), *(f"note: {note}" for note in notes)]:
        to.say(f"  {line}")


def _auxiliary(path: Path, seen: Artifact, dataset: str | None, choice: str, data_dir: Path | None) -> Batch:
    """Auxiliary images as the artifact's own run has them; where that is not beside it, as the data set's default layout has them.

    UserError: no data set is known, or its images are not of the artifact's kind.
    """
    run = _run_of(path)
    if run is None or (dataset is not None and dataset != run.dataset):
        name = dataset or _own_data_set(path, seen)
        run = train_spec("quick", name, seen.method).model_copy(
            update={"image_size": seen.model.image_size, "seed": SEED}
        )
    fed, _ = federation.of(run, data_dir)
    channels, classes = int(fed.clients[0].train.images.shape[1]), len(fed.classes)
    if channels != seen.image_shape[0] or classes > seen.model.classes:
        raise UserError(
            f"{path} is of images with {seen.image_shape[0]} channel(s) and {seen.model.classes} classes, but "
            f"{registry.short(run.dataset)} has {channels} and {classes}; name a data set of the same kind with --dataset"
        )
    return knowledge.auxiliary(fed, choice, data_dir, seen.image_shape, run.seed)[0]


def _own_data_set(path: Path, seen: Artifact) -> str:
    """The data set that an artifact says it is of; UserError where only the file names it, or nobody knows it."""
    origin = artifacts.origin(path)
    name = seen.dataset if origin is None else origin.dataset
    if name in registry.DATASETS:
        return name
    # An export has the last part of a folder's path alone.
    is_path, is_code = name.startswith(f"{registry.FOLDER}/"), re.fullmatch(names.CODE, name)
    if not is_path and (name.startswith(registry.FOLDER) or not is_code):
        raise UserError(f"{path} is of the data set '{name}', which is not built in; name its images with --dataset")
    trust.check("dataset", name)
    return name


def _run_of(path: Path) -> TrainSpec | None:
    """The training run that an artifact among results is of; None of a copy or an export, which lie elsewhere."""
    origin, whole = artifacts.origin(path), path.resolve()
    if origin is None or whole.name != artifacts.OBSERVATION or whole.parent.parent.name != "artifacts":
        return None
    return Store(whole.parent.parent.parent).run(origin.run)


def _floors(path: Path, seen: Artifact, truth: Truth, place: torch.device, data_dir: Path | None) -> _Floors:
    """The floors of the artifact's own data set; where that is not available, those that need no images."""
    images, note = None, ""
    try:
        images = _auxiliary(path, seen, None, knowledge.SAME, data_dir)
    except UserError as error:
        note = f"the floor is that of a grey image alone, because there are no images of {seen.dataset}: {error}"
    met = seen.offers() | ({"auxiliary"} if images is not None else set())
    psnr_db = {}
    for name in registry.FLOORS:
        if registry.resolve("attack", name).needs <= met:
            found = one_attack.attack_artifact(name, {}, seen, Knowledge(auxiliary=images), SEED, place, no_progress)
            psnr_db[name] = image_scores.psnr_of(found, truth).tolist()
    return _Floors(psnr_db, set() if images is None else set(image_scores.digests(images.images)), note)


def _scored(
    attack: str, seen: Artifact, truth: Truth, found: Reconstruction, floors: _Floors, auxiliary: Batch | None
) -> tuple[str, list[CheckMessage]]:
    """(the scores in words; every check message of a record of these victims, and whether the attack is below the floor)."""
    scores = image_scores.score(found, truth)
    images = floors.auxiliary | (set() if auxiliary is None else set(image_scores.digests(auxiliary.images)))
    each = [
        Victim(**entry)
        for entry in victims.described(
            seen,
            truth,
            found,
            scores,
            seed=SEED,
            floors=floors.psnr_db,
            auxiliary=images,
            is_floor=attack in registry.FLOORS,
        )
    ]
    own = Measured((), tuple(each))
    line = (
        f", PSNR {range_text(own.psnr_db)} dB, floor {own.floor.psnr_db:.2f} dB ({own.floor.name}), gain "
        f"{range_text(own.gain_db, sign=True)} dB, failures {own.scores.failures}"
    )
    s = own.scores
    below = table_checks.gain_below_floor(attack, own.gain_here_db, s.identification, s.n, s.identification_chance)
    return line, [*checks.of_victims(each), *below]
