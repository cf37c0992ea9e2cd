"""Which attacks a ladder makes: every one, or those that have been the best of what knows as much.

`ladder:all` is every attack. `ladder` leaves out those of registry.NEVER_BEST where that was measured: one image's gradient of
LeNet-5, without a defence or under Gaussian noise (docs/appendix/ladder_members.md). Elsewhere both are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from privbench import registry, written_defense
from privbench.defending import described
from privbench.spec import TrainSpec
from privbench.types import Artifact

MEASURED_BACKBONE = "lenet5"
# What a defence may do to a gradient there.
MEASURED_DEFENCE = frozenset({"noise"})


class LadderSetting(NamedTuple):
    """What the members of a ladder depend on."""

    is_measured: bool  # whether it is known which attacks are never the best
    private_classifier: bool


def of_training(train: TrainSpec, batch_size: int, observe: str) -> LadderSetting:
    """The setting of uploads of a training run, of so many images, that are each a "gradient" or an "update"."""
    defence = written_defense.create(train.defense, train.where)
    method = registry.create(registry.resolve("method", train.method), train.method_settings)
    is_measured = (
        train.backbone == MEASURED_BACKBONE
        and batch_size == 1
        and observe == "gradient"
        and not defence.is_private
        and "aggregate" not in defence.places
        and described.kinds(defence.describe()) <= MEASURED_DEFENCE
    )
    return LadderSetting(is_measured, "classifier" not in method.shared_parts)


def of_artifact(seen: Artifact) -> LadderSetting:
    """The setting of uploads that are at hand."""
    is_measured = (
        seen.model.backbone == MEASURED_BACKBONE
        and seen.batch_size == 1
        and bool(seen.gradients)
        and seen.member_weights is None
        and described.kinds(seen.defense) <= MEASURED_DEFENCE
    )
    return LadderSetting(is_measured, "classifier" not in seen.shared_parts)


def members(named: Iterable[str], setting: LadderSetting) -> list[str]:
    """The attacks that are meant, each once: names stay, a ladder becomes its members."""
    chosen: list[str] = []
    for name in named:
        if name == registry.WHOLE_LADDER or (name == registry.LADDER and not setting.is_measured):
            chosen += registry.ATTACKS
        elif name == registry.LADDER:
            chosen += [each for each in registry.ATTACKS if not _is_never_best(each, setting)]
        else:
            chosen.append(name)
    return list(dict.fromkeys(chosen))


def every(named: Iterable[str]) -> list[str]:
    """The attacks that are meant in whatever setting, each once."""
    return members(
        (registry.WHOLE_LADDER if name == registry.LADDER else name for name in named), LadderSetting(False, False)
    )


def _is_never_best(attack: str, setting: LadderSetting) -> bool:
    if attack == registry.OF_EXTRACTORS:
        return not setting.private_classifier
    return attack in registry.NEVER_BEST
