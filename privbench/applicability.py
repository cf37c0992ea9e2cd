"""Conditions of an attack beyond its `needs`: its class declares them as `limits`, so that it is refused before training."""

from __future__ import annotations

from typing import NamedTuple

from privbench import registry, written_defense
from privbench.methods.base import RoundClock
from privbench.networks.base import LinearClassifier
from privbench.networks.model import Model
from privbench.spec import CellSpec
from privbench.types import Artifact


class Limits(NamedTuple):
    """Conditions of one attack; by default none."""

    private_extractor: bool = False  # the clients must keep their extractors
    noise: bool = False  # uploads must carry noise of known variance
    linear_classifier: bool = False  # the classifier must begin with a linear layer, as LeNet-5's does
    most_images: int | None = None  # images per gradient
    undefended_batches: bool = False  # gradients of several images must be exact
    unmixed: bool = (
        False  # where clients keep their extractors, gradients must be of no imitated features besides the images'
    )


NONE = Limits()


def of(attack: object) -> Limits:
    """The limits that a class declares."""
    found: Limits = getattr(attack, "limits", NONE)
    return found


def exceeded(name: str, limits: Limits, cell: CellSpec) -> str:
    """Which limit a cell exceeds, with the way out, in a line; nothing where it keeps to all."""
    train = cell.train
    private = "extractor" not in registry.resolve("method", train.method).shared_parts
    made = written_defense.create(train.defense, train.where)
    variance = written_defense.noise_variance(made.describe())
    if fault := _at_odds(name, limits, train.method, private=private, variance=variance):
        return fault
    if limits.linear_classifier:
        classifier = Model(train.backbone, 3, 10, image_size=train.image_size).classifier
        if not isinstance(classifier, LinearClassifier):
            return (
                f"{name} needs a classifier that begins with a linear layer, but {train.backbone}'s begins with convolutions; "
                "leave out --backbone, or try --attack staged"
            )
    if limits.most_images is not None and cell.batch_size > limits.most_images:
        return (
            f"{name} inverts gradients of at most {limits.most_images} image(s), but --batch-size {cell.batch_size} was asked "
            "for; try --attack staged"
        )
    if limits.undefended_batches and cell.batch_size > 1 and train.defense != "none":
        return (
            f"{name} takes gradients of several images apart only where no defence changes them, but --defense {train.defense} "
            "was asked for; leave out --batch-size, or try --attack staged"
        )
    if limits.unmixed and private and _is_mixed(cell):
        return (
            f"{name} needs the gradients of the images alone, but with observe_loss=task those of {train.method} at round "
            f"{cell.round} are of imitated features besides; leave observe_loss at classification, the upper bound, or try "
            "--attack dlg"
        )
    return ""


def _is_mixed(cell: CellSpec) -> bool:
    """Whether the gradients of a cell are of imitated features besides, in whichever round "best" or "last" will be."""
    train, rounds = cell.train, cell.train.schedule.rounds
    if cell.observe != "gradient":
        return False
    method = registry.create(registry.resolve("method", train.method), train.method_settings)
    able = [int(cell.round)] if cell.round.isdigit() else range(min(1, rounds), rounds + 1)
    return all(method.imitated(RoundClock(r + 1, rounds)) for r in able)


def exceeded_by(name: str, limits: Limits, seen: Artifact) -> str:
    """The same of an artifact that is at hand: whose extractor is broadcast, and whether uploads carry noise."""
    variance = written_defense.noise_variance(seen.defense)
    return _at_odds(name, limits, seen.method, private="extractor" not in seen.weights, variance=variance)


def _at_odds(name: str, limits: Limits, method: str, *, private: bool, variance: float) -> str:
    if limits.private_extractor and not private:
        return f"{name} attacks private extractors, but {method} broadcasts its extractor; try --attack staged"
    if limits.noise and not variance:
        return f"{name} weighs the noise that uploads carry, but these carry none; try --attack staged"
    return ""
