"""Attacks an artifact that is given as a folder; with its truth file, scores the result and checks it as a record does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from privbench import names, registry, seeds, trust
from privbench.auditing.attack_series import SEED, AttackFailure, AttackSeries
from privbench.errors import UserError
from privbench.observation import artifact_files as artifacts
from privbench.observation import knowledge
from privbench.presets import train_spec
from privbench.records.checks import CheckMessage
from privbench.records.store import Store
from privbench.spec import TrainSpec
from privbench.system import console, machine
from privbench.system.console import Console
from privbench.training import federation
from privbench.types import Artifact, Batch
from reports.records.measured import Measured
from reports.records.number_text import range_text
from reports.records.quotable import SMOKE_NOTE, is_quotable


def attack_file(  # noqa: PLR0913 (options)
    path: Path,
    truth: Path | None,
    attacks: Sequence[str],
    settings: dict[str, Any],
    dataset: str | None,
    auxiliary: str,
    device: str,
    data_dir: Path | None,
    out: Path,
) -> None:
    """Attacks the artifact in a folder, for a ladder by those of its attacks whose needs it meets; with a truth file, scores it.

    Auxiliary images are those of `dataset` or, where that is None, of the artifact's own data set.
    """
    seen = artifacts.load(path)
    true = artifacts.load_truth(truth, path) if truth is not None else None
    to, place, origin = console.results(), machine.device(device), artifacts.origin(path)
    if true is not None and not is_quotable(artifacts.preset(path)):
        to.say(f"note: {SMOKE_NOTE}")
        true = None
    # The seed that an attack within the run has, so that it gives the same images here; of an export, any.
    seed = SEED if origin is None else seeds.of_attacker(origin.run, seen.round)
    # Once, and only where an attack asks for them.
    auxiliary_images = cache(lambda: _auxiliary(path, seen, dataset, auxiliary, data_dir))
    floor_images = None if true is None else _floor_images(path, seen, data_dir, to)
    # Each attack has the file to itself: what one writes into it, no other sees and no check reports.
    series = AttackSeries(
        _name(path), lambda: artifacts.load(path), out, place, seed, true, auxiliary_images, floor_images
    )
    is_ladder, members = bool(registry.LADDERS & set(attacks)), series.members(attacks, settings)
    each = registry.settings_of_each(members, settings) if is_ladder else dict.fromkeys(members, settings)
    for result in series.each(each, is_ladder=is_ladder):
        if isinstance(result, AttackFailure):
            to.say(f"{result.attack}: not run: {result.reason}")
            continue
        loss = float(result.reconstruction.loss.nanmedian())
        line = "" if result.measured is None else _in_words(result.measured)
        to.say(f"{result.attack}: {seen.victims} victims, median objective {loss:.3g}{line}; wrote {result.path}")
        _print_messages(result.messages, result.notes, to)


def _name(path: Path) -> str:
    """Of an artifact, also of one among results, whose folders all have the same name."""
    whole = path.resolve()
    return whole.parent.name if whole.name == artifacts.OBSERVATION else whole.name


def _print_messages(messages: Sequence[CheckMessage], notes: Sequence[str], to: Console) -> None:
    for line in [*(f"{flag.name}: {flag.sentence}" for flag in messages), *(f"note: {note}" for note in notes)]:
        to.say(f"  {line}")


def _auxiliary(path: Path, seen: Artifact, dataset: str | None, choice: str, data_dir: Path | None) -> Batch:
    """Auxiliary images as the artifact's own run has them; where that is not beside it, as the data set's default layout has them.

    UserError: no data set is known, or its images are not of the artifact's kind.
    """
    run = _run_of(path)
    if run is None or (dataset is not None and dataset != run.dataset):
        name = dataset or _declared_data_set(path, seen)
        run = train_spec("quick", name, seen.method).model_copy(
            update={"image_size": seen.model.image_size, "seed": SEED}
        )
    fed = federation.as_known(run, federation.of(run, data_dir)[0])
    channels, classes = int(fed.clients[0].train.images.shape[1]), len(fed.classes)
    if channels != seen.image_shape[0] or classes > seen.model.classes:
        raise UserError(
            f"{path} is of images with {seen.image_shape[0]} channel(s) and {seen.model.classes} classes, but "
            f"{registry.short(run.dataset)} has {channels} and {classes}; name a data set of the same kind with --dataset"
        )
    return knowledge.auxiliary(fed, choice, data_dir, seen.image_shape, run.seed)[0]


def _declared_data_set(path: Path, seen: Artifact) -> str:
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


def _floor_images(path: Path, seen: Artifact, data_dir: Path | None, to: Console) -> Batch | None:
    """Images of the artifact's own data set, for the floors; None, with a line that says so, where there are none."""
    try:
        return _auxiliary(path, seen, None, knowledge.SAME, data_dir)
    except UserError as error:
        to.say(f"note: the floor is that of a grey image alone, because there are no images of {seen.dataset}: {error}")
        return None


def _in_words(measured: Measured) -> str:
    """The scores of one attack."""
    return (
        f", PSNR {range_text(measured.psnr_db)} dB, floor {measured.floor.psnr_db:.2f} dB ({measured.floor.name}), gain "
        f"{range_text(measured.gain_db, sign=True)} dB, failures {measured.scores.failures}"
    )
