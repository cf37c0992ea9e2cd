"""From options to specifications: what a command line or a Python call asks for, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from privbench import presets, registry, spec, written_defense
from privbench.data import auxiliary_choice
from privbench.errors import UserError
from privbench.execution import ladder
from privbench.requests.options import AttackOptions, RunOptions, TrainingOptions
from privbench.requests.words import settings
from privbench.spec import CellSpec, Strict, TrainSpec

# Of AttackOptions, by the field of Knowledge that they are about.
KNOWLEDGE_OPTIONS = {
    "known": ("known_images", "known_quality_db"),
    "rounds": ("observed_rounds", "uploads_per_round"),
}


def attack_cells(run: RunOptions, attacks: AttackOptions, training: TrainingOptions) -> list[CellSpec]:
    """Every attack on every defence at every attacked round; UserError for what cannot be, before anything is computed."""
    sent = shared_parts(registry.typed("method", run.method))
    named = attacks.named()
    images = auxiliary(attacks.auxiliary)
    trains = [train_spec(run, training, defense) for defense in defenses(run.defenses(), training.where)]
    usual = [registry.OF_UPDATES] if attacks.observe == "update" else default_attacks(sent)
    attack_names, attack_settings = named or usual, settings(attacks.attack_set)
    every = ladder.every(attack_names)
    of_each = (
        registry.settings_of_each(every, attack_settings)
        if attacks.is_ladder()
        else dict.fromkeys(every, attack_settings)
    )
    for name, settings_of_attack in of_each.items():
        registry.create(registry.resolve("attack", name), settings_of_attack)
    _check_needed(of_each, attacks)
    _check_observed(attacks)
    seen = fields_of(CellSpec, attacks) | {"auxiliary": images, "observed_rounds": attacks.kept_rounds()}
    return [
        presets.cell_spec(
            training.preset, train, round_=round_, seeds=training.seeds, first_seed=training.first_seed,
            **seen | {"attack": name, "attack_settings": of_each[name]},
        )
        for round_ in attacks.rounds()
        for train in trains
        for name in ladder.members(
            attack_names, ladder.left_out_of_training(train, round_, attacks.batch_size, attacks.observe)
        )
    ]  # fmt: skip


def _check_needed(of_each: Mapping[str, Mapping[str, Any]], attacks: AttackOptions) -> None:
    """UserError for an option about images that none of the attacks has."""
    for need, names in KNOWLEDGE_OPTIONS.items():
        options = [name for name in names if getattr(attacks, name) is not None]
        if options and not any(need in registry.needs(name, each) for name, each in of_each.items()):
            able = next(name for name in registry.ATTACKS if need in registry.resolve("attack", name).needs)
            raise UserError(
                f"--{options[0].replace('_', '-')} goes with --attack {able}, or a ladder; nothing else that was asked for has "
                "use for it"
            )


def _check_observed(attacks: AttackOptions) -> None:
    """UserError for an observed round that is after every attacked one, so that nothing would be made of it."""
    rounds, kept = attacks.rounds(), attacks.kept_rounds() or (0,)
    if all(each.isascii() and each.isdigit() for each in rounds) and kept[-1] > (last := max(map(int, rounds))):
        raise UserError(
            f"--observed-rounds {kept[-1]} is after the attacked round {last}, so that no upload of it is known yet; leave it "
            "out, or attack a later --round"
        )


def train_specs(run: RunOptions, training: TrainingOptions, searched: str | None = None) -> list[TrainSpec]:
    """Every seed of every defence; `searched` as in `train_spec`."""
    seeds = presets.seeds_of(training.preset, training.seeds, training.first_seed)
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
    method_settings, changes = settings(run.set_), training.changes()
    for name, value in settings([searched] if searched else []).items():
        of_method = [field.name for field in fields(method)]
        if name not in (*of_method, *presets.SCHEDULE_NAMES):
            known = (*of_method, *presets.SCHEDULE_NAMES)
            raise UserError(f"neither {method.__name__} nor a schedule has a '{name}'; {spec.nearest(name, known)}")
        (method_settings if name in of_method else changes)[name] = value
    registry.create(method, method_settings)
    of_run = fields_of(TrainSpec, run) | {
        "dataset": registry.typed("dataset", run.dataset),
        "backbone": registry.typed_backbone(run.backbone),
        "domains": run.chosen_domains(),
        "defense": defense,
        "method_settings": method_settings,
    }
    return presets.train_spec(training.preset, **of_run, **choices(training) | {"changes": changes})


def choices(training: TrainingOptions) -> dict[str, Any]:
    """What is asked of a run whatever is trained on whatever, as `presets.train_spec` takes it."""
    return fields_of(TrainSpec, training) | {"equal_work": training.equal_work, "changes": training.changes()}


def fields_of(kind: type[Strict], options: RunOptions | TrainingOptions | AttackOptions) -> dict[str, Any]:
    """The options that are fields of a specification: both have the same names."""
    return {field.name: getattr(options, field.name) for field in fields(options) if field.name in kind.model_fields}


def defenses(texts: Sequence[str], where: str) -> list[str]:
    """Defences as specifications write them, each once; UserError for a wrong name or value, or a place that none of them has."""
    written = list(dict.fromkeys(written_defense.canonical(written_defense.typed(each), where) for each in texts))
    if where != "update" and texts and not written_defense.has_place(written):
        raise UserError(
            f"--where {where} is where a defence acts, but {', '.join(written)} has no such choice; leave it out"
        )
    return written


def auxiliary(text: str) -> str:
    """An auxiliary choice as specifications write it; its data set is the caller's to name (privbench/trust.py)."""
    name = auxiliary_choice.parsed(text)[0]
    if name != auxiliary_choice.SAME:
        registry.typed("dataset", name)
    return auxiliary_choice.canonical(text)


def default_attacks(sent: Sequence[str]) -> list[str]:
    """The paper's own attack on what a method sends, and the strong one."""
    if "classifier" not in sent:
        return [registry.OF_GRADIENTS, registry.OF_EXTRACTORS]
    return [registry.OF_GENERATORS if "generator" in sent else registry.OF_GRADIENTS, registry.STRONG]


def shared_parts(method: str) -> tuple[str, ...]:
    """The parts that a method sends; UserError where it sends none, so that there is nothing to attack."""
    shared: tuple[str, ...] = registry.resolve("method", method).shared_parts
    if not shared:
        raise UserError(f"{method} sends nothing that depends on a training image, so there is nothing to attack")
    return shared
