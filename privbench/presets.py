"""Presets: the specification of a method, a data set and an attack under `smoke`, `quick`, `standard` or `paper`.

`paper` is the published schedule (FedCG 5: 100 rounds, 20 local epochs, batch 16, Adam 3e-4, weight decay 1e-4, server
distillation of 2,000 steps; NFL-CGAN and FedMD-CG have their protocols, privbench/data/paper_setup.py; Reptile has the schedule
of its authors' code; SecureGAN and DP-GAN have FedCG's, as their paper prints no more than numbers of epochs).
`standard` is that with a third of the rounds (docs/results/published-cifar10.md says what this changes). `quick` is ours: few
rounds at a higher learning rate, so that the sigmoid LeNet leaves its plateau. `smoke` runs in seconds and says nothing
about accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from privbench import data, registry, written_defense
from privbench.data import auxiliary_choice, client_shares, partition
from privbench.data.paper_setup import OF_METHOD, PROTOCOLS
from privbench.errors import UserError
from privbench.spec import FULL_ROUNDS, SGD, Adam, CellSpec, Schedule, TrainSpec, checked, nearest

PRESETS = ("smoke", "quick", "standard", "paper")
# Those with the papers' layouts, settings and schedules, up to the number of rounds.
AS_PUBLISHED = ("standard", "paper")
STANDARD_SHARE = 3  # one in so many of the published rounds
OPTIMISERS = ("task", "generator", "server")
# What `changed` takes: every field of a schedule, and every setting of its optimisers.
SCHEDULE_NAMES = (
    *Schedule.model_fields,
    *(f"{field}.{name}" for field in OPTIMISERS for name in ("kind", *Adam.model_fields)),
)

_PAPER_ADAM = Adam(lr=3e-4, weight_decay=1e-4)
_GAN_ADAM = Adam(lr=3e-4, beta1=0.5)
SCHEDULES = {
    "smoke": Schedule(
        rounds=2, local_epochs=1, generator_epochs=1, server_steps=2, batch=16, patience=20, keep_every=1,
        task=Adam(lr=3e-3, weight_decay=1e-4), generator=_GAN_ADAM, server=Adam(lr=3e-4),
    ),
    "quick": Schedule(
        rounds=10, local_epochs=5, generator_epochs=1, server_steps=20, batch=16, patience=20, keep_every=5,
        task=Adam(lr=3e-3, weight_decay=1e-4), generator=_GAN_ADAM, server=Adam(lr=3e-4),
    ),
    "paper": Schedule(
        rounds=100, local_epochs=20, generator_epochs=20, server_steps=2000, batch=16, patience=20, keep_every=10,
        task=_PAPER_ADAM, generator=_GAN_ADAM, server=Adam(lr=3e-4),
    ),
}  # fmt: skip
# More is a slip of the keyboard: each seed is a training run of its own.
MOST_SEEDS = 10_000
FIRST_SEED = 100  # of everything that is published; whatever is tuned or tried is tuned on seeds below
SEEDS = {
    preset: tuple(range(FIRST_SEED, FIRST_SEED + count))
    for preset, count in (("smoke", 1), ("quick", 2), ("standard", 5), ("paper", 5))
}
VICTIMS = {"smoke": 2, "quick": 16, "standard": 64, "paper": 64}  # per seed
# NFL-CGAN's and FedMD-CG's published schedules where they are not FedCG's. Neither paper names an early stop, so that all rounds
# are trained; FedMD-CG's ramp ends with the last. FedMD-CG searches the SGD rate over 0.01, 0.05 and 0.08 and does not say which is
# whose: 0.05 unless searched.
PROTOCOL_SCHEDULES: dict[str, dict[str, Any]] = {
    "fedcg": {},
    "nfl-cgan": {"local_epochs": 10, "generator_epochs": 10, "batch": 8, "patience": 100},
    "fedmd-cg": {
        "client_steps": 20, "server_steps": 50, "batch": 64, "patience": 100,
        "task": SGD(kind="sgd", lr=0.05, weight_decay=1e-4).model_dump(),
        "generator": Adam(lr=3e-4, weight_decay=1e-4).model_dump(), "server": Adam(lr=3e-4, weight_decay=1e-4).model_dump(),
    },
}  # fmt: skip
# What the quick preset of a backbone has otherwise than LeNet-5's: slow ones learn in fewer steps. The rate of `vit`
# was chosen on `digits` (docs/appendix/tuning.md), that of `mlp` compared with 3e-3 there (seed 7); that of `convnet` is torch's.
_LOW_RATE = Adam(lr=1e-3, weight_decay=1e-4).model_dump()
QUICK_BACKBONES: dict[str, dict[str, Any]] = {
    "resnet18": {"rounds": 5, "local_epochs": 2, "task": _PAPER_ADAM.model_dump()},
    "resnet18-torchvision": {"rounds": 5, "local_epochs": 2, "task": _PAPER_ADAM.model_dump()},
    "convnet": {"rounds": 5, "local_epochs": 2, "task": _LOW_RATE},
    "mlp": {"task": _LOW_RATE},
    "vit": {"rounds": 5, "local_epochs": 4, "task": _LOW_RATE},
}
# Far slower to train and to attack on a CPU.
SLOW_BACKBONES = ("resnet18", "resnet18-torchvision", "convnet", "vit")
SLOW_QUICK_VICTIMS = 4
# Which have batch norm, of whose whole updates UPDATES_REVISION is.
NORMALISED_BACKBONES = ("resnet18", "resnet18-torchvision", "convnet")
UPDATES_REVISION = 2  # 1: steps on one image are taken in eval mode; 2: running statistics are observed
PROXIMAL_REVISION = 1  # 1: simulated steps have the proximal term of the loss
WIRE_REVISION = 1  # 1: features behind a number format have the variance of its rounding
STEPS_REVISION = 1  # 1: behind several defences, too, noise of single steps is known as such
LABELS_REVISION = 1  # 1: of batches behind a loss on imitated features no class is certain
KNOWN_IMAGES = 8  # of each attacked client, of an attacker who knows some
UPLOADS_PER_ROUND = 12  # of each attacked client, of a server that keeps what it was sent
SMOKE_PER_CLIENT = 32
QUICK_PER_CLIENT = {"digits": 300, "photos": 300, "digits4": 300}  # other data sets: 1,000
QUICK_PER_CLIENT |= {"emnist": 300, "emnist-letters": 300, "emnist-balanced": 300}  # of 20 clients
QUICK_METHOD_SETTINGS: dict[str, dict[str, float]] = {
    "fedprox": {"mu": 0.001},
    "fedcg": {"ramp_rounds": 10},
    "nfl-cgan": {"ramp_rounds": 10},
}
# A GAN of images takes some 1,500 steps before a classifier learns from what it makes (chosen on `digits`, seed 0).
_QUICK_GAN = {"generator_epochs": 15, "batch": 32, "generator": Adam(lr=1e-3, beta1=0.5).model_dump()}
QUICK_METHOD_SCHEDULES: dict[str, dict[str, Any]] = {
    "dp-gan": _QUICK_GAN,
    "secure-gan": _QUICK_GAN,
    # Fewer or shorter rounds hardly leave the plateau on which its sigmoids begin (chosen on `glyphs`, seed 0).
    "reptile": {
        "rounds": 25, "client_steps": 50, "patience": 25, "task": Adam(lr=3e-3, beta1=0).model_dump(),
    },
}  # fmt: skip
# Reptile's of Omniglot, 5-way with one shot or five, by the commands beside the authors' code: 100,000 rounds of five steps of ten
# images, tasks of ten images a class, 50 steps on a test task, and no early stop.
PAPER_METHOD_SETTINGS: dict[str, dict[str, float]] = {"reptile": {"train_shots": 10, "tuning_steps": 50}}
PAPER_METHOD_SCHEDULES: dict[str, dict[str, Any]] = {
    "reptile": {
        "rounds": 100_000, "client_steps": 5, "batch": 10, "patience": 100_000, "keep_every": 10_000,
        "task": Adam(lr=1e-3, beta1=0).model_dump(),
    },
}  # fmt: skip


# Whose paper prints numbers of epochs alone: their paper preset has FedCG's schedule.
WITHOUT_PUBLISHED_SCHEDULE = ("secure-gan", "dp-gan")


def train_spec(
    preset: str,
    dataset: str,
    method: str,
    *,
    equal_work: bool = False,
    changes: Mapping[str, Any] | None = None,
    **chosen: Any,
) -> TrainSpec:
    """The preset's specification for one method and data set.

    Args:
        preset: "smoke", "quick", "standard" or "paper".
        dataset: Its name.
        method: Its name.
        equal_work: See `schedule_of`.
        changes: Fields of the schedule in place of the preset's (`changed`).
        **chosen: Other fields of TrainSpec in place of the preset's, None for each that stays. Without a `partition`, `omega` or
            `min_per_client` ask for "dirichlet". `protocol` is FedCG's unless chosen; as published (AS_PUBLISHED) the method's own.

    Raises:
        UserError: A name that is no field, a value that is none for its field, or choices that exclude each other.
    """
    if preset not in PRESETS:
        raise UserError(f"unknown preset '{preset}'; known: {', '.join(PRESETS)}")
    chosen = {name: value for name, value in chosen.items() if value is not None}
    usual = OF_METHOD.get(method, "fedcg") if preset in AS_PUBLISHED else "fedcg"
    protocol = chosen.get("protocol", usual)
    if protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol '{protocol}'; {nearest(protocol, PROTOCOLS)}")
    backbone, image_size = (
        chosen.get(name, TrainSpec.model_fields[name].default) for name in ("backbone", "image_size")
    )
    registry.check_backbone(backbone, image_size)
    schedule = schedule_of(preset, dataset, method, backbone, protocol, equal_work=equal_work)
    fields = {
        "content": data.content(dataset),
        "flip": PROTOCOLS[protocol].flip,
        "seed": 0,
        **chosen,
        **_layout(preset, dataset, protocol, chosen),
        "dataset": dataset,
        "method": method,
        "method_settings": {**method_settings(preset, method), **chosen.get("method_settings", {})},
        "protocol": protocol,
        "schedule": changed(schedule, changes),
    }
    spec = checked(TrainSpec, fields)
    if spec.where != "update" and not written_defense.has_place([spec.defense]):
        # It would give one run two names.
        return spec.model_copy(update={"where": "update"})
    return spec


def method_settings(preset: str, method: str) -> dict[str, float]:
    """The settings of a method that a preset has otherwise than the method's class."""
    return dict((PAPER_METHOD_SETTINGS if preset in AS_PUBLISHED else QUICK_METHOD_SETTINGS).get(method, {}))


def _layout(preset: str, dataset: str, protocol: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """How the data set is laid out over clients: those fields of TrainSpec, as chosen or else as published."""
    how, clients, most = partition.defaults(dataset, protocol, chosen.get("clients"))
    omega, least = chosen.get("omega"), chosen.get("min_per_client")
    dealt = omega is not None or least is not None
    partitioned = chosen.get("partition") or ("dirichlet" if dealt else how)
    if dealt and partitioned != "dirichlet":
        raise UserError(f"--omega and --min-per-client go with --partition dirichlet, but it is {partitioned}")
    if partitioned == "domain" and chosen.get("domains") is not None:
        clients = len(chosen["domains"])
    if how == "domain" and partitioned != "domain":
        most = partition.POOLED_PER_CLIENT.get(dataset, most)
    limits = {"smoke": SMOKE_PER_CLIENT, "quick": QUICK_PER_CLIENT.get(dataset, 1000)}
    # Whole classes: fewer images of each would leave no tasks.
    usual = most if partitioned == "classes" else min(limits.get(preset, most), most)
    per_client = chosen.get("per_client", usual)
    if partitioned == "dirichlet":
        omega = client_shares.OMEGA if omega is None else omega
        client_shares.check_omega(omega)
        # A client of few images on average need not have the usual minimum.
        least = least or min(client_shares.MINIMUM, max(1, per_client // 4))
    return {
        "partition": partitioned,
        "omega": omega,
        "min_per_client": least,
        "clients": chosen.get("clients", clients),
        "per_client": per_client,
    }


def schedule_of(
    preset: str, dataset: str, method: str, backbone: str, protocol: str, *, equal_work: bool = False
) -> dict[str, Any]:
    """The fields of the schedule that a method has in a preset; in the standard preset `shortened` from the paper preset's.

    In the paper preset it is the protocol's, but NFL-CGAN and FedMD-CG keep their own under any protocol: FedMD-CG's clients then
    take 20 x 64 = 1,280 images a round where FedCG's take 20 epochs. With `equal_work` every method goes through as many images a
    round as the protocol says, on the clients and on the server; its batch, optimisers and patience stay its own.
    """
    if preset == "standard":
        return shortened(schedule_of("paper", dataset, method, backbone, protocol, equal_work=equal_work))
    common = SCHEDULES[preset].model_dump() | (QUICK_BACKBONES.get(backbone, {}) if preset == "quick" else {})
    if preset != "paper":
        return common | (QUICK_METHOD_SCHEDULES.get(method, {}) if preset == "quick" else {})
    own = OF_METHOD.get(method, protocol)
    method_fields = common | PROTOCOL_SCHEDULES[own]
    common |= PROTOCOL_SCHEDULES[protocol]
    if dataset in PROTOCOLS[protocol].rounds:
        common |= dict.fromkeys(("rounds", "patience"), PROTOCOLS[protocol].rounds[dataset])
    if own == protocol:
        return common | PAPER_METHOD_SCHEDULES.get(method, {})
    # The rounds are the protocol's, all of them, as neither paper names an early stop.
    method_fields |= dict.fromkeys(("rounds", "patience"), common["rounds"])
    if equal_work:
        ratio = common["batch"] / method_fields["batch"]
        method_fields |= {name: common[name] for name in ("local_epochs", "generator_epochs")}
        method_fields |= {
            name: None if common[name] is None else math.ceil(common[name] * ratio)
            for name in ("client_steps", "server_steps")
        }
    return method_fields


def shortened(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a published schedule as the standard preset has them: a third of the rounds, rounded up, and no early stop."""
    if "rounds" not in fields:
        return dict(fields)
    rounds = math.ceil(fields["rounds"] / STANDARD_SHARE)
    return {**fields, "rounds": rounds, "patience": rounds}


def changed(schedule: Mapping[str, Any], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """A schedule's fields with some of them changed.

    A name is a field ("rounds"; "task" takes a whole optimiser) or one setting of an optimiser ("task.lr"). "task.kind" is "sgd" or
    "adam": the learning rate and the weight decay stay, Adam's betas go or come as torch has them.
    UserError: an unknown name, with the nearest one; a value that is none for it.
    """
    fields = {name: dict(value) if isinstance(value, Mapping) else value for name, value in schedule.items()}
    for name, value in sorted(
        (changes or {}).items(), key=lambda change: (change[0].count("."), "kind" not in change[0])
    ):
        field, dot, setting = name.partition(".")
        if name not in SCHEDULE_NAMES:
            raise UserError(f"a schedule has no '{name}'; {nearest(name, SCHEDULE_NAMES)}")
        if not dot:
            fields[field] = dict(value) if isinstance(value, Mapping) else value
            continue
        optimiser: dict[str, Any] = fields[field]
        if setting == "kind":
            if value not in ("sgd", "adam"):
                raise UserError(f"schedule.{name} should be 'sgd' or 'adam', but {value!r} was given")
            remaining = {each: optimiser[each] for each in ("lr", "weight_decay") if each in optimiser}
            fields[field] = remaining | ({"kind": "sgd"} if value == "sgd" else {})
        elif setting not in (SGD if "kind" in optimiser else Adam).model_fields:
            raise UserError(f"schedule.{name} is Adam's, but schedule.{field} is SGD; set {field}.kind=adam as well")
        else:
            optimiser[setting] = value
    for field in OPTIMISERS:
        if isinstance(fields[field], dict):
            kind = SGD if "kind" in fields[field] else Adam
            fields[field] = checked(kind, fields[field], f"schedule.{field}.").model_dump()
    return fields


def seeds_of(preset: str, count: int | None = None, first: int | None = None) -> tuple[int, ...]:
    """`count` seeds from `first` on; by default as many as the preset has, from 100 on.

    UserError for an unknown preset, and for more than MOST_SEEDS.
    """
    if preset not in PRESETS:
        raise UserError(f"unknown preset '{preset}'; known: {', '.join(PRESETS)}")
    if count is not None and count > MOST_SEEDS:
        raise UserError(f"--seeds takes at most {MOST_SEEDS}, but {count} was given")
    start = FIRST_SEED if first is None else first
    return tuple(range(start, start + (len(SEEDS[preset]) if count is None else count)))


def attacked_round(text: str, rounds: int) -> str:
    """A round as a specification writes it, of a training of at most that many rounds; UserError for one that is none."""
    if text in ("best", "last"):
        return text
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"--round takes 0, a number, 'last' or 'best', but '{text}' was given")
    if int(text) > rounds:
        raise UserError(f"--round {text} was asked for, but training ends after {rounds} rounds at the latest")
    return str(int(text))


def settings_of_attack(preset: str, attack: str, backbone: str = "lenet5") -> dict[str, Any]:
    """What an attack's class sets otherwise in a preset than by default; a slow backbone has a preset of its own there."""
    slow = preset == "quick" and backbone in SLOW_BACKBONES
    presets = getattr(registry.resolve("attack", attack), "presets", {})
    name = "quick-slow" if slow else "paper" if preset in AS_PUBLISHED else preset
    return dict(presets.get(name, {}))


def _other_images(
    attack: str | None, settings: Mapping[str, Any], preset: str, rounds: int, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a cell about images that are no victims, for an attack that needs them; nothing for all others.

    By default as many images as fill whole batches and are at least KNOWN_IMAGES, or UPLOADS_PER_ROUND. As published the observed
    rounds are by default those that a run keeps: to train others again takes minutes each.
    """
    needs = frozenset() if attack is None else registry.needs(attack, settings)
    batch, fields = chosen.get("batch_size", 1), dict[str, Any]()
    if preset in AS_PUBLISHED:
        chosen = {"observed_rounds": tuple(r for r in FULL_ROUNDS if r <= rounds), **chosen}
    for need, count, least, other in (
        ("known", "known_images", KNOWN_IMAGES, "known_quality_db"),
        ("rounds", "uploads_per_round", UPLOADS_PER_ROUND, "observed_rounds"),
    ):
        usual = batch * math.ceil(least / batch)
        fields |= (
            {count: chosen.get(count, usual), other: chosen.get(other)} if need in needs else {count: None, other: None}
        )
    return fields


def revision_of(cell: CellSpec) -> int:
    """How often what a cell's attack returns has changed since spec.ATTACK_REVISION was raised; part of the cell's name.

    0 without an attack, and of a class that says none. A class says of which cells its numbers changed: of all, or of one kind of
    them, so that all others keep their names. This is the highest of those that it declares among REVISIONS and whose kind the cell
    is of, and SHARED_REVISIONS are added, of what all attacks share. UserError where the attack cannot be imported.
    """
    if cell.attack is None:
        return 0
    plugin = registry.resolve("attack", cell.attack)
    own = max(int(getattr(plugin, name, 0)) for name, belongs in REVISIONS.items() if belongs(cell))
    return own + sum(times for times, belongs in SHARED_REVISIONS if belongs(cell))


def observed_revision(cell: CellSpec) -> int:
    """How often what a server sees of a cell has changed: part of the names of observations that are kept."""
    return sum(times for times, belongs in OBSERVED_REVISIONS if belongs(cell))


def is_of_today(cell: CellSpec) -> bool:
    """Whether today's code returns what the cell's attack did; of a user's own code nothing is imported, and it counts."""
    own = cell.attack is not None and cell.attack not in registry.ATTACKS | registry.INFERENCES
    return own or revision_of(cell) == cell.attack_revision


def _trains_on_imitated_features(train: TrainSpec) -> bool:
    """Whether the observed loss has a part of them."""
    return train.method_settings.get("observe_loss") == "task"


def _noises_among_others(train: TrainSpec) -> bool:
    """Whether one of several defences adds noise."""
    members = written_defense.members(train.defense)
    return len(members) > 1 and any(registry.may_add_noise(*one) for one in members)


def _shows_noised_features(cell: CellSpec) -> bool:
    """Whether all that a server sees of features is noised: of extractors that clients keep, under a defence that adds noise."""
    if not any(registry.may_add_noise(*one) for one in written_defense.members(cell.train.defense)):
        return False
    return _keeps_extractors(cell.train)


def _keeps_extractors(train: TrainSpec) -> bool:
    """Whether no server sees a client's extractor. Of a user's own code nothing is imported, and it may be so."""
    return (
        train.method not in registry.METHODS or "extractor" not in registry.resolve("method", train.method).shared_parts
    )


def _drops_features(cell: CellSpec) -> bool:
    """Whether the observed loss drops features; of a user's own method nothing is imported, and its settings alone say so."""
    train = cell.train
    said = train.method_settings.get("dropout")
    if said is None and train.method in registry.METHODS:
        said = registry.resolve("method", train.method).usual_dropout.get(train.backbone, 0)
    return bool(said)


# Data sets whose test images are unlike their training images (privbench.data.dataset.Dataset.test_alike), by their names here.
TEST_UNLIKE = ("photos",)

# What a class may declare, and of which cells it is.
REVISIONS: dict[str, Callable[[CellSpec], bool]] = {
    "revision": lambda cell: True,
    "noised_features_revision": _shows_noised_features,
    "defended_revision": lambda cell: cell.train.defense != "none",
    "batches_revision": lambda cell: cell.batch_size > 1,
    "updates_revision": lambda cell: cell.observe == "update",
    "update_batches_revision": lambda cell: cell.observe == "update" and cell.batch_size > 1,
    "wire_revision": lambda cell: cell.wire != "float32",
    "dropout_revision": _drops_features,
    "private_dropout_revision": lambda cell: _drops_features(cell) and _keeps_extractors(cell.train),
    "labels_known_revision": lambda cell: cell.labels_known,
    "defended_updates_revision": lambda cell: cell.observe == "update" and cell.train.defense != "none",
    "update_wire_revision": lambda cell: cell.observe == "update" and cell.wire != "float32",
    "epsilon_revision": lambda cell: written_defense.keeps_epsilon(cell.train.defense),
    "test_unlike_revision": lambda cell: cell.train.dataset in TEST_UNLIKE,
}

Revisions = tuple[tuple[int, Callable[[CellSpec], bool]], ...]
# How often what is observed has changed, and of which cells.
OBSERVED_REVISIONS: Revisions = (
    (UPDATES_REVISION, lambda cell: cell.observe == "update" and cell.train.backbone in NORMALISED_BACKBONES),
    (PROXIMAL_REVISION, lambda cell: cell.observe == "update" and cell.train.method == "fedprox"),
)
# The same of all that attacks share.
SHARED_REVISIONS: Revisions = (
    *OBSERVED_REVISIONS,
    (LABELS_REVISION, lambda cell: cell.batch_size > 1 and _trains_on_imitated_features(cell.train)),
    (WIRE_REVISION, lambda cell: cell.wire != "float32" and _keeps_extractors(cell.train)),
    (STEPS_REVISION, lambda cell: cell.observe == "update" and _noises_among_others(cell.train)),
)


def cell_spec(
    preset: str,
    train: TrainSpec,
    attack: str | None,
    *,
    seeds: int | None = None,
    first_seed: int | None = None,
    round_: str = "best",
    **chosen: Any,
) -> CellSpec:
    """The preset's cell for one training specification and attack, or None.

    Args:
        preset: "smoke", "quick", "standard" or "paper".
        train: What is trained; its seed is replaced.
        attack: Its name; None for an accuracy cell.
        seeds: How many, as `seeds_of` takes it.
        first_seed: The same.
        round_: The attacked round.
        **chosen: Other fields of CellSpec in place of the preset's, None for each that stays.

    Raises:
        UserError: A name that is no field, or a value that is none for its field.
    """
    chosen = {name: value for name, value in chosen.items() if value is not None}
    of_updates = any(chosen.get(name) for name in ("local_steps", "local_lr", "local_batch"))
    if of_updates and chosen.get("observe", "gradient") == "gradient":
        raise UserError("--local-steps, --local-lr and --local-batch go with --observe update")
    batch, local_batch = chosen.get("batch_size", 1), chosen.get("local_batch") or 0
    if local_batch > batch:
        raise UserError(f"--local-batch {local_batch} is more than the images of an update, --batch-size {batch}")
    slow = preset == "quick" and train.backbone in SLOW_BACKBONES
    defaults = {} if attack is None else settings_of_attack(preset, attack, train.backbone)
    every = seeds_of(preset, seeds, first_seed)
    attack_settings = {**defaults, **chosen.get("attack_settings", {})}
    usual = (SLOW_QUICK_VICTIMS if slow else VICTIMS[preset]) if attack is not None else 0
    fields = {
        **chosen,
        "preset": preset,
        "train": train.model_copy(update={"seed": every[0]}).model_dump(),
        "seeds": every,
        "attack": attack,
        "attack_settings": attack_settings,
        "round": attacked_round(round_, train.schedule.rounds),
        "victims": chosen.get("victims") or usual,
        "auxiliary_content": data.content(auxiliary_choice.parsed(chosen.get("auxiliary", auxiliary_choice.SAME))[0]),
        "active": attack is not None and registry.is_active(attack),
        **_other_images(attack, attack_settings, preset, train.schedule.rounds, chosen),
    }
    kept, last = max(fields["observed_rounds"] or (0,)), train.schedule.rounds
    if kept > last:
        raise UserError(f"--observed-rounds {kept} was asked for, but training ends after {last} rounds at the latest")
    cell = checked(CellSpec, fields)
    return cell.model_copy(update={"attack_revision": revision_of(cell)})
