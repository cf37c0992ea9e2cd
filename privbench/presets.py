"""Presets: the specification of a method, a data set and an attack under `smoke`, `quick` or `paper`.

`paper` is the published schedule (FedCG 5: 100 rounds, 20 local epochs, batch 16, Adam 3e-4, weight decay 1e-4, server
distillation of 2,000 steps; NFL-CGAN and FedMD-CG have their protocols, privbench/data/paper_setup.py). `quick` is ours: few
rounds at a higher learning rate, so that the sigmoid LeNet leaves its plateau. `smoke` runs in seconds and says nothing
about accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from privbench import data, registry
from privbench.data import partition
from privbench.data.paper_setup import OF_METHOD, PROTOCOLS
from privbench.errors import UserError
from privbench.networks.model import check_backbone
from privbench.spec import SGD, Adam, CellSpec, Schedule, TrainSpec, checked, nearest

PRESETS = ("smoke", "quick", "paper")
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
FIRST_SEED = 100  # of everything that is published; whatever is tuned or tried is tuned on seeds below
SEEDS = {
    preset: tuple(range(FIRST_SEED, FIRST_SEED + count)) for preset, count in (("smoke", 1), ("quick", 2), ("paper", 5))
}
VICTIMS = {"smoke": 2, "quick": 16, "paper": 64}  # per seed
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
# ResNet-18 is far slower to train and to attack on a CPU, and learns in fewer steps: what its quick preset has otherwise.
RESNET18_QUICK = {"rounds": 5, "local_epochs": 2, "task": _PAPER_ADAM.model_dump()}
RESNET18_QUICK_VICTIMS = 4
SMOKE_PER_CLIENT = 32
QUICK_PER_CLIENT = {"digits": 300, "photos": 300, "digits4": 300}  # other data sets: 1,000
QUICK_PER_CLIENT |= {"emnist": 300, "emnist-letters": 300, "emnist-balanced": 300}  # of 20 clients
QUICK_METHOD_SETTINGS: dict[str, dict[str, float]] = {
    "fedprox": {"mu": 0.001},
    "fedcg": {"ramp_rounds": 10},
    "nfl-cgan": {"ramp_rounds": 10},
}


def train_spec(
    preset: str,
    dataset: str,
    method: str,
    *,
    defense: str = "none",
    where: str = "update",
    seed: int = 0,
    backbone: str = "lenet5",
    image_size: int = 32,
    domains: tuple[str, ...] | None = None,
    how: str | None = None,
    omega: float | None = None,
    min_per_client: int | None = None,
    clients: int | None = None,
    per_client: int | None = None,
    method_settings: dict[str, Any] | None = None,
    protocol: str | None = None,
    flip: bool | None = None,
    measured: str = "personal",
    equal_work: bool = False,
    changes: Mapping[str, Any] | None = None,
) -> TrainSpec:
    """The preset's specification for one method and data set; `changes` overrides fields of the schedule (`changed`).

    how         the partition; without one, `omega` or `min_per_client` ask for "dirichlet", else it is the data set's default
    protocol    the paper whose sizes, split and schedule are taken; by default FedCG's, in the paper preset the method's own
    flip        by default as the protocol says
    equal_work  see `schedule_of`
    """
    if preset not in PRESETS:
        raise UserError(f"unknown preset '{preset}'; known: {', '.join(PRESETS)}")
    if protocol is None:
        protocol = OF_METHOD.get(method, "fedcg") if preset == "paper" else "fedcg"
    if protocol not in PROTOCOLS:
        raise UserError(f"unknown protocol '{protocol}'; {nearest(protocol, PROTOCOLS)}")
    check_backbone(backbone, image_size)
    default_how, default_clients, default_per_client = partition.defaults(dataset, protocol)
    dealt = omega is not None or min_per_client is not None
    how = how or ("dirichlet" if dealt else default_how)
    if dealt and how != "dirichlet":
        raise UserError(f"--omega and --min-per-client go with --partition dirichlet, but it is {how}")
    if how == "domain" and domains is not None:
        default_clients = len(domains)
    if default_how == "domain" and how != "domain":
        default_per_client = partition.POOLED_PER_CLIENT.get(dataset, default_per_client)
    limit = {"smoke": SMOKE_PER_CLIENT, "quick": QUICK_PER_CLIENT.get(dataset, 1000), "paper": default_per_client}[
        preset
    ]
    per_client = per_client or min(limit, default_per_client)
    if how == "dirichlet":
        omega = partition.OMEGA if omega is None else omega
        partition.check_omega(omega)
        # A client of few images on average need not have the usual minimum.
        min_per_client = min_per_client or min(partition.MINIMUM, max(1, per_client // 4))
    settings = dict(QUICK_METHOD_SETTINGS.get(method, {})) if preset != "paper" else {}
    return checked(
        TrainSpec,
        {
            "dataset": dataset,
            "domains": domains,
            "content": data.content(dataset),
            "partition": how,
            "omega": omega,
            "min_per_client": min_per_client,
            "clients": clients or default_clients,
            "per_client": per_client,
            "backbone": backbone,
            "image_size": image_size,
            "method": method,
            "method_settings": settings | (method_settings or {}),
            "defense": defense,
            "where": where,
            "protocol": protocol,
            "flip": PROTOCOLS[protocol].flip if flip is None else flip,
            "measured": measured,
            "schedule": changed(
                schedule_of(preset, dataset, method, backbone, protocol, equal_work=equal_work), changes
            ),
            "seed": seed,
        },
    )


def schedule_of(
    preset: str, dataset: str, method: str, backbone: str, protocol: str, *, equal_work: bool = False
) -> dict[str, Any]:
    """The fields of the schedule that a method has in a preset.

    In the paper preset it is the protocol's, but NFL-CGAN and FedMD-CG keep their own under any protocol: FedMD-CG's clients then
    take 20 x 64 = 1,280 images a round where FedCG's take 20 epochs. With `equal_work` every method goes through as many images a
    round as the protocol says, on the clients and on the server; its batch, optimisers and patience stay its own.
    """
    slow = RESNET18_QUICK if (preset, backbone) == ("quick", "resnet18") else {}
    common = SCHEDULES[preset].model_dump() | slow
    if preset != "paper":
        return common
    common |= PROTOCOL_SCHEDULES[protocol]
    if dataset in PROTOCOLS[protocol].rounds:
        common |= dict.fromkeys(("rounds", "patience"), PROTOCOLS[protocol].rounds[dataset])
    own = common | PROTOCOL_SCHEDULES[OF_METHOD.get(method, protocol)]
    if OF_METHOD.get(method, protocol) == protocol:
        return common
    if equal_work:
        ratio = common["batch"] / own["batch"]
        own |= {name: common[name] for name in ("local_epochs", "generator_epochs")}
        own |= {
            name: None if common[name] is None else math.ceil(common[name] * ratio)
            for name in ("client_steps", "server_steps")
        }
    return own


def changed(schedule: Mapping[str, Any], changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """A schedule's fields with some of them changed.

    A name is a field ("rounds"; "task" takes a whole optimiser) or one setting of an optimiser ("task.lr"). "task.kind" is "sgd" or
    "adam": the learning rate and the weight decay stay, Adam's betas go or come as torch has them.
    UserError: an unknown name, with the nearest one; a value that is none for it.
    """
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in schedule.items()}
    for name, value in sorted(
        (changes or {}).items(), key=lambda change: (change[0].count("."), "kind" not in change[0])
    ):
        field, dot, setting = name.partition(".")
        if name not in SCHEDULE_NAMES:
            raise UserError(f"a schedule has no '{name}'; {nearest(name, SCHEDULE_NAMES)}")
        if not dot:
            found[field] = dict(value) if isinstance(value, Mapping) else value
            continue
        optimiser: dict[str, Any] = found[field]
        if setting == "kind":
            if value not in ("sgd", "adam"):
                raise UserError(f"schedule.{name} should be 'sgd' or 'adam', but {value!r} was given")
            kept = {each: optimiser[each] for each in ("lr", "weight_decay") if each in optimiser}
            found[field] = kept | ({"kind": "sgd"} if value == "sgd" else {})
        elif setting not in (SGD if "kind" in optimiser else Adam).model_fields:
            raise UserError(f"schedule.{name} is Adam's, but schedule.{field} is SGD; set {field}.kind=adam as well")
        else:
            optimiser[setting] = value
    for field in OPTIMISERS:
        if isinstance(found[field], dict):
            kind = SGD if "kind" in found[field] else Adam
            found[field] = checked(kind, found[field], f"schedule.{field}.").model_dump()
    return found


def seeds_of(preset: str, count: int | None = None, first: int | None = None) -> tuple[int, ...]:
    """`count` seeds from `first` on; by default as many as the preset has, from 100 on."""
    if preset not in PRESETS:
        raise UserError(f"unknown preset '{preset}'; known: {', '.join(PRESETS)}")
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


def settings_of_attack(preset: str, attack: str, backbone: str = "lenet5") -> dict[str, int]:
    """What an attack's class sets otherwise in a preset than by default; a slow backbone has a preset of its own there."""
    slow = (preset, backbone) == ("quick", "resnet18")
    presets = getattr(registry.resolve("attack", attack), "presets", {})
    return dict(presets.get("quick-resnet18" if slow else preset, {}))


def cell_spec(
    preset: str,
    train: TrainSpec,
    attack: str | None,
    *,
    seeds: int | None = None,
    first_seed: int | None = None,
    round_: str = "best",
    victims: int | None = None,
    batch_size: int = 1,
    labels_known: bool = False,
    auxiliary: str = "same",
    observe: str = "gradient",
    local_steps: int | None = None,
    local_lr: float | None = None,
    local_batch: int | None = None,
    wire: str = "float32",
    attack_settings: dict[str, Any] | None = None,
) -> CellSpec:
    """The preset's cell for one training specification and attack, or None; `seeds` and `first_seed` as `seeds_of` takes them."""
    if observe == "gradient" and (local_steps or local_lr or local_batch):
        raise UserError("--local-steps, --local-lr and --local-batch go with --observe update")
    slow = (preset, train.backbone) == ("quick", "resnet18")
    defaults = {} if attack is None else settings_of_attack(preset, attack, train.backbone)
    every = seeds_of(preset, seeds, first_seed)
    usual = (RESNET18_QUICK_VICTIMS if slow else VICTIMS[preset]) if attack is not None else 0
    return checked(
        CellSpec,
        {
            "preset": preset,
            "train": train.model_copy(update={"seed": every[0]}).model_dump(),
            "seeds": every,
            "attack": attack,
            "attack_settings": defaults | (attack_settings or {}),
            "round": attacked_round(round_, train.schedule.rounds),
            "victims": victims or usual,
            "batch_size": batch_size,
            "labels_known": labels_known,
            "auxiliary": auxiliary,
            "observe": observe,
            "local_steps": local_steps,
            "local_lr": local_lr,
            "local_batch": local_batch,
            "wire": wire,
            "attack_revision": 0 if attack is None else registry.revision(attack),
            "active": attack is not None and registry.is_active(attack),
        },
    )
