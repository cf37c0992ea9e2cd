"""Which attacks a ladder makes: every one, or those that have been the best of what knows as much.

`ladder:all` is every attack. `ladder` leaves out those of registry.NEVER_BEST where that was measured: one image's gradient of
LeNet-5, without a defence or under Gaussian noise. Where the classifier is shared, it leaves out registry.OF_EXTRACTORS there as
well. Without a defence it also leaves out of untrained networks those of registry.NEVER_ABOVE_UNTRAINED, and of trained ones those
of registry.NEVER_BEST_TRAINED, where a round is as long as those measured (docs/appendix/ladder_members.md). Elsewhere both are the
same.
"""

from __future__ import annotations

from collections.abc import Iterable

from privbench import registry, written_defense
from privbench.defending import described
from privbench.spec import TrainSpec
from privbench.types import Artifact

MEASURED_BACKBONE = "lenet5"
# What a defence may do to a gradient there.
MEASURED_DEFENCE = frozenset({"noise"})
# Of a client in a round, at least. After less training the initial extractor may still serve an attack.
MEASURED_EPOCHS = 5
UNTRAINED = "0"
NOTHING: frozenset[str] = frozenset()


def left_out_of_training(train: TrainSpec, round_: str, batch_size: int, observe: str) -> frozenset[str]:
    """What `ladder` leaves out of uploads of a training run at a named round: a "gradient" or an "update" of so many images."""
    defence = written_defense.create(train.defense, train.where)
    method = registry.create(registry.resolve("method", train.method), train.method_settings)
    is_measured = (
        train.backbone == MEASURED_BACKBONE
        and batch_size == 1
        and observe == "gradient"
        and not defence.is_private
        and "aggregate" not in defence.places
    )
    if not is_measured:
        return NOTHING
    is_private_classifier = "classifier" not in method.shared_parts
    is_long = train.schedule.local_epochs >= MEASURED_EPOCHS and train.schedule.client_steps is None
    at_round = NOTHING
    if round_ == UNTRAINED:
        at_round = registry.NEVER_ABOVE_UNTRAINED
    elif is_long:
        at_round = registry.NEVER_BEST_TRAINED
    return _never_best(described.kinds(defence.describe()), at_round, is_private_classifier)


def left_out_of_artifact(seen: Artifact) -> frozenset[str]:
    """The same of uploads that are at hand, which do not say how training began and how far it has gone from there."""
    is_measured = (
        seen.model.backbone == MEASURED_BACKBONE
        and seen.batch_size == 1
        and bool(seen.gradients)
        and seen.member_weights is None
    )
    if not is_measured:
        return NOTHING
    is_private_classifier = "classifier" not in seen.shared_parts
    return _never_best(described.kinds(seen.defense), NOTHING, is_private_classifier)


def _never_best(defence: frozenset[str], at_round: frozenset[str], is_private_classifier: bool) -> frozenset[str]:
    """The attacks that were never the best where a defence does what it does; those of the round count without a defence alone."""
    if not defence <= MEASURED_DEFENCE:
        return NOTHING
    of_extractors = NOTHING if is_private_classifier else {registry.OF_EXTRACTORS}
    return registry.NEVER_BEST | of_extractors | (NOTHING if defence else at_round)


def members(named: Iterable[str], left_out: frozenset[str]) -> list[str]:
    """The attacks that are meant, each once: names stay, a ladder becomes its members."""
    chosen: list[str] = []
    for name in named:
        if name == registry.WHOLE_LADDER:
            chosen += registry.ATTACKS
        elif name == registry.LADDER:
            chosen += [each for each in registry.ATTACKS if each not in left_out]
        else:
            chosen.append(name)
    return list(dict.fromkeys(chosen))


def every(named: Iterable[str]) -> list[str]:
    """The attacks that are meant in whatever setting, each once."""
    return members(named, NOTHING)
