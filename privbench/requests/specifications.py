"""From options to specifications: what a command line or a Python call asks for, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from privbench import registry, spec, written_defense
from privbench.errors import UserError
from privbench.observation import knowledge
from privbench.requests.options import AttackOptions, RunOptions, TrainingOptions, settings
from privbench.spec import CellSpec, TrainSpec


def attack_cells(run: RunOptions, attacks: AttackOptions, training: TrainingOptions) -> list[CellSpec]:
    """Every attack on every defence at every attacked round; UserError for what cannot be, before anything is computed."""
    sent = shared_parts(registry.typed("method", run.method))
    for name in attacks.named():
        registry.typed("attack", name)
    images = auxiliary(attacks.auxiliary)
    trains = [train_spec(run, training, defense) for defense in defenses(run.defenses(), training.where)]
    usual = ["update-matching"] if attacks.observe == "update" else default_attacks(sent)
    names = [*registry.ATTACKS, *attacks.named()] if attacks.is_ladder() else attacks.named() or usual
    given = settings(attacks.attack_set)
    of_each = registry.settings_of_each(names, given) if attacks.is_ladder() else dict.fromkeys(names, given)
    for name, own in of_each.items():
        registry.create(registry.resolve("attack", name), own)
    return [
        spec.cell_spec(
            training.preset,
            train,
            name,
            seeds=training.seeds,
            first_seed=training.first_seed,
            round_=round_,
            victims=attacks.victims,
            batch_size=attacks.batch_size,
            labels_known=attacks.labels_known,
            auxiliary=images,
            observe=attacks.observe,
            local_steps=attacks.local_steps,
            local_lr=attacks.local_lr,
            local_batch=attacks.local_batch,
            wire=attacks.wire,
            attack_settings=of_each[name],
        )
        for round_ in attacks.rounds()
        for train in trains
        for name in dict.fromkeys(names)
    ]


def train_specs(run: RunOptions, training: TrainingOptions, searched: str | None = None) -> list[TrainSpec]:
    """Every seed of every defence; `searched` as in `train_spec`."""
    seeds = spec.seeds_of(training.preset, training.seeds, training.first_seed)
    return [
        train_spec(run, training, defense, searched).model_copy(update={"seed": seed})
        for defense in defenses(run.defenses(), training.where)
        for seed in seeds
    ]


def train_spec(
    run: RunOptions, training: TrainingOptions, defense: str = "none", searched: str | None = None
) -> TrainSpec:
    """The specification of a run; `searched` is one more setting, name=value, of the method or else of the schedule."""
    method = registry.resolve("method", registry.typed("method", run.method))
    own, changes = settings(run.set_), training.changes()
    for name, value in settings([searched] if searched else []).items():
        of_method = [field.name for field in fields(method)]
        if name not in (*of_method, *spec.SCHEDULE_NAMES):
            known = (*of_method, *spec.SCHEDULE_NAMES)
            raise UserError(f"neither {method.__name__} nor a schedule has a '{name}'; {spec.nearest(name, known)}")
        (own if name in of_method else changes)[name] = value
    registry.create(method, own)
    return spec.train_spec(
        training.preset,
        registry.typed("dataset", run.dataset),
        run.method,
        backbone=run.backbone,
        image_size=run.image_size,
        defense=defense,
        where=training.where,
        domains=run.chosen_domains(),
        how=training.partition,
        omega=training.omega,
        min_per_client=training.min_per_client,
        clients=run.clients,
        per_client=run.per_client,
        method_settings=own,
        protocol=training.protocol,
        flip=training.flip,
        measured=training.measured,
        equal_work=training.equal_work,
        changes=changes,
    )


def defenses(texts: Sequence[str], where: str) -> list[str]:
    """Defences as specifications write them, each once; UserError for a wrong name or value, or a place that none of them has."""
    found = list(dict.fromkeys(written_defense.canonical(registry.typed("defense", each), where) for each in texts))
    if where != "update" and texts and not written_defense.has_place(found):
        raise UserError(
            f"--where {where} is where a defence acts, but {', '.join(found)} has no such choice; leave it out"
        )
    return found


def auxiliary(text: str) -> str:
    """An auxiliary choice as specifications write it; its data set is the caller's to name (privbench/trust.py)."""
    name = knowledge.parse_auxiliary(text)[0]
    if name != knowledge.SAME:
        registry.typed("dataset", name)
    return knowledge.canonical(text)


def default_attacks(sent: Sequence[str]) -> list[str]:
    """The paper's own attack on what a method sends, and the strong one."""
    if "classifier" not in sent:
        return ["dlg", "extractor-matching"]
    return ["feature-statistics" if "generator" in sent else "dlg", "staged"]


def shared_parts(method: str) -> tuple[str, ...]:
    """The parts that a method sends; UserError where it sends none, so that there is nothing to attack."""
    shares: tuple[str, ...] = registry.resolve("method", method).shares
    if not shares:
        raise UserError(f"{method} sends nothing that depends on a training image, so there is nothing to attack")
    return shares
