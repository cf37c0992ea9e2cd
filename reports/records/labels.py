"""What tables and figures call a cell: its column, its group, its round, and what its attacker knows, in words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from privbench import registry, written_defense
from privbench.data import partition
from privbench.data.paper_setup import PROTOCOLS
from privbench.defending.described import JOINED, NONE
from privbench.errors import UserError
from privbench.observation.knowledge import WHERE_SHARED
from privbench.observation.local_update import local_steps
from privbench.records.schema import AttackRecord, InferenceRecord
from privbench.spec import CellSpec
from reports.records.published import Published, of

# In the published order.
NAMES = {
    "local": "Local", "fedavg": "FedAvg", "fedprox": "FedProx", "feddf": "FedDF", "fedper": "FedPer", "fedsplit": "FedSplit",
    "lg-fedavg": "LG-FedAvg", "fedgen": "FedGen", "fedcg": "FedCG", "nfl-cgan": "NFL-CGAN", "fedmd-cg": "FedMD-CG",
    "dp-gan": "DP-GAN", "secure-gan": "SecureGAN", "reptile": "Reptile",
}  # fmt: skip
DEFENSES = {"dp-sgd": "DP-SGD", "dp-adam": "DP-Adam", "dp-fedavg": "DP-FedAvg"}
SEARCHED = ("mu", "ramp_rounds")  # settings of a method that the papers searched, or that belong to a preset
SPECIFICATION = "training specification"  # as tags write it
FIRST = ("FedCG 2", "FedCG-arXiv 2")  # beside attacks, accuracy is that of the papers' table of attacks
DIGITS = 6  # of what distinguishes one content of a folder from another
MISSING = "missing"  # there should be one; the reason stands under "Gaps"
REFUSED = "refused"  # there cannot be one: the attack's needs are not met

T = TypeVar("T")


class Gap(NamedTuple):
    """A cell without a record."""

    cell: CellSpec
    reason: str
    state: str = MISSING  # in one or two words; REFUSED where the attack cannot be made on what the method sends

    @property
    def attack(self) -> str:
        """The attack's name; nothing of an accuracy cell."""
        return self.cell.attack or ""


def group(cell: CellSpec) -> tuple[Any, ...]:
    """What the records of one table have in common."""
    domains = cell.train.domains
    return (
        cell.train.dataset,
        tuple(domains) if domains else (),
        cell.round,
        cell.preset,
        networks(cell),
        cell.train.clients,
        conditions_text(cell),
        *observed_words(cell),
    )


def networks(cell: CellSpec) -> str:
    """The backbone where it is not LeNet-5, which the published numbers are of, e.g. "resnet18 at 32x32"; else nothing."""
    backbone, side = cell.train.backbone, cell.train.image_size
    return "" if backbone == "lenet5" else f"{backbone} at {side}x{side}"


def update_text(cell: CellSpec) -> str:
    """What the server saw where it was whole local updates, e.g. "whole updates of 3 SGD steps at 0.1"; nothing of gradients."""
    local = local_steps(cell)
    if local is None:
        return ""
    steps, optimiser = local.steps, local.optimiser
    sgd = optimiser.get("kind") == "sgd"
    kind, rate = ("SGD ", f" at {optimiser['lr']:g}") if sgd else ("", "")
    part = f" on {local.batch} images each" if local.batch else ""
    return f"whole updates of {steps} {kind}{'step' if steps == 1 else 'steps'}{rate}{part}"


def observed_words(cell: CellSpec) -> list[str]:
    """What the server saw where it was not the gradient of one image, e.g. ["whole updates of 3 steps", "4 images per update"]."""
    update, batch = update_text(cell), cell.batch_size
    parts = [update] if update else []
    parts += [f"{batch} images per {'update' if update else 'gradient'}"] if batch > 1 else []
    parts += ["labels known"] if cell.labels_known else []
    parts += [f"sent in {cell.wire}"] if cell.wire != "float32" else []
    return parts


def fields_of(cell: CellSpec, names: Sequence[str]) -> dict[str, Any]:
    """Some fields of a cell, or else of its training, by name."""
    return {name: getattr(cell if name in CellSpec.model_fields else cell.train, name) for name in names}


def groups(records: Sequence[AttackRecord]) -> list[tuple[Any, ...]]:
    """The tables that some records make, in the order of their first record."""
    return unique(group(r.cell) for r in records)


def title_of(key: tuple[Any, ...]) -> str:
    """The heading of one group."""
    dataset, domains, round_, preset, nets, clients, dealt, *observed = key
    name = registry.short(dataset)
    parts = [
        f"{name} ({', '.join(domains)})" if domains else name,
        f"round {round_text(round_)}",
        f"{preset} preset",
    ]
    parts += [nets] if nets else []
    parts += [dealt] if dealt else []
    parts += [f"{clients} clients"] if clients else []
    return ", ".join([*parts, *observed])


def partition_text(cell: CellSpec) -> str:
    """How the images are laid out over clients, in words, where it is not as published for the data set."""
    how = cell.train.partition
    if how == "dirichlet":
        return f"Dirichlet({cell.train.omega:g})"
    usual = partition.DEFAULTS.get(cell.train.dataset, (how,))[0]
    return "" if how == usual else {"iid": "IID", "domain": "by domain", "classes": "by class"}[how]


def conditions_text(cell: CellSpec) -> str:
    """The same with what else a comparison has in common, where it is not FedCG's: protocol, flips, whose accuracy counts."""
    train = cell.train
    protocol = [] if train.protocol == "fedcg" else [f"protocol {train.protocol}"]
    flips = [] if train.flip == PROTOCOLS[train.protocol].flip else ["with flips" if train.flip else "without flips"]
    measured = [] if train.measured == "personal" else [f"{train.measured} model measured"]
    return ", ".join([*([dealt] if (dealt := partition_text(cell)) else []), *protocol, *flips, *measured])


def place(cell: CellSpec) -> tuple[int, str, tuple[float, ...], str]:
    """Columns stand in the published order, weaker noise first."""
    names = list(NAMES)
    method = names.index(cell.train.method) if cell.train.method in names else len(names)
    name = written_defense.joined(cell.train.defense).removeprefix("none")
    values = tuple(written_defense.numbers(cell.train.defense).values())
    start = "" if cell.train.initialisation == "shared" else f" {cell.train.initialisation}"
    return (method, name, values, f"{cell.train.defense} {cell.train.where}{start}")


def cell_place(cell: CellSpec) -> tuple[Any, ...]:
    """Cells of one table: methods as columns stand, of each its attacks in the catalogue's order, users' own last."""
    attack, names = cell.attack or "", list(registry.ATTACKS)
    return (*place(cell), names.index(attack) if attack in names else len(names), attack)


def in_order(records: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Records as tables and grids list them: table by table, each in the order of `cell_place`."""
    tables = groups(records)
    return sorted(records, key=lambda r: (tables.index(group(r.cell)), cell_place(r.cell)))


def label(cell: CellSpec) -> str:
    """A column's heading: the method and its defence."""
    name = variant_name(cell)
    if cell.train.defense == "none":
        return name
    where = " (every step)" if cell.train.where == "step" else ""
    return f"{name} + {_defense_text(cell.train.defense)}{where}"


def variant_name(cell: CellSpec) -> str:
    """The method with its settings, without its defence, e.g. "FedCG (dense GAN)"."""
    method: str = cell.train.method
    return NAMES.get(method, method) + _settings_text(cell)


def defense_name(name: str) -> str:
    """A defence's name as tables write it, of several those of all; a user's own as it is."""
    words = (DEFENSES.get(one, one.capitalize() if one in registry.DEFENSES else one) for one in name.split(JOINED))
    return f" {JOINED} ".join(words)


def family_name(cell: CellSpec) -> str:
    """The method and its defence without their settings, e.g. "FedAvg + Gaussian"."""
    name = NAMES.get(cell.train.method, cell.train.method)
    if cell.train.defense == NONE:
        return name
    return f"{name} + {defense_name(written_defense.joined(cell.train.defense))}"


def _defense_text(text: str) -> str:
    """Defences with their settings, e.g. "Gaussian 0.1", "DP-SGD (epsilon 8)", "Gaussian (variance 0.1, clip 1) + Sign"."""
    return f" {JOINED} ".join(_one_defense_text(*each) for each in written_defense.members(text))


def _one_defense_text(kind: str, items: written_defense.Items) -> str:
    name = defense_name(kind)
    if not any(key for key, _ in items) and kind not in DEFENSES:
        return " ".join([name, *(value for _, value in items)])
    values = ", ".join(f"{key or written_defense.first_field(kind)} {value}" for key, value in items)
    return f"{name} ({values})"


def settings_of(cell: CellSpec) -> dict[str, Any]:
    """The settings that distinguish the variants of a method."""
    return {k: v for k, v in cell.train.method_settings.items() if k not in SEARCHED}


def _settings_text(cell: CellSpec) -> str:
    """The same in words, e.g. " (dense GAN, ave)"."""
    words = {"gan": "{} GAN", "aggregator": "{}", "without": "without {}", "diversity": "diversity {}"}
    words |= {"diversity_scale": "{} norms"}
    texts = []
    for name, value in settings_of(cell).items():
        number = isinstance(value, float) or (name == "diversity" and isinstance(value, int))
        short = f"{value:g}" if number else str(value)
        # What a file calls a setting is no format string.
        texts.append(words[name].format(short) if name in words else f"{name} {short}")
    texts += ["initialisation per client"] if cell.train.initialisation == "per-client" else []
    return f" ({', '.join(texts)})" if texts else ""


def knowledge_text(record: AttackRecord) -> str:
    """What the attacker used, in words; which auxiliary images, where they are not all of the attacked data set's.

    Of known images and earlier rounds, how many.
    """
    tag = record.knowledge.tag
    for part in where_shared(tag):  # a record from before `uses`
        used = f" + {part}" if part in shared_parts(record.cell.train.method) else ""
        tag = tag.replace(f" + {part}{WHERE_SHARED}", used)
    return _with_images(tag, record)


def pooled_text(record: AttackRecord) -> str:
    """How many uploads of a client each image was reconstructed from, in words to follow its knowledge; nothing where only one."""
    count = record.knowledge.pools
    return "" if count is None else f"; pools {count} upload{'s' * (count != 1)} a client"


def inferred_text(record: InferenceRecord) -> str:
    """What an inference used, in words, and of how many clients it stated each answer where that was not of one alone."""
    used, count = record.knowledge.tag, record.knowledge.pools_clients
    if "specification" in record.knowledge.needs and SPECIFICATION not in used:  # a record from before tags said so
        used = f"{used} + {SPECIFICATION}"
    return used if count is None else f"{used}; pools {count} client{'s' * (count != 1)}"


def attacker_text(record: AttackRecord, *, over_rounds: bool = False) -> str:
    """The same whatever the method shares, for comparing methods: e.g. "gradient + auxiliary + generator where shared".

    With `over_rounds` it is the same at every attacked round: it names all rounds that the server was to keep.
    """
    return _with_images(record.knowledge.tag_in_general, record, over_rounds)


def _with_images(tag: str, record: AttackRecord, over_rounds: bool = False) -> str:
    images, known, rounds = record.cell.auxiliary, record.knowledge.known, record.knowledge.rounds
    if known is not None:
        quality = "" if known.quality_db is None else f" at {known.quality_db:g} dB"
        tag = tag.replace("known images", f"{known.images} known image{'s' * (known.images != 1)}{quality}")
    if rounds is not None:
        # "best" and "last" are other rounds from seed to seed, so that of those asked for not all came before in each.
        every = over_rounds or not record.cell.round.isdigit()
        asked = [r for r in record.cell.observed_rounds or () if every or r < rounds.observed[-1]]
        if len(rounds.observed) == 1 and not over_rounds:
            earlier = "no earlier round"
        else:
            of = "among" if every and len(asked) > 1 else "of"
            earlier = f"earlier rounds {of} {', '.join(map(str, asked))}" if asked else "earlier rounds"
        tag = tag.replace("earlier rounds", f"{earlier} ({rounds.uploads} uploads)")
    if "auxiliary" not in record.knowledge.needs or images == "same":
        return tag
    files = record.cell.auxiliary_content
    return f"{tag} ({images}{f', files {files[:DIGITS]}' if files else ''})"


def where_shared(tag: str) -> list[str]:
    """The parts that a tag names with "where shared"."""
    return re.findall(rf"(\w+){WHERE_SHARED}", tag)


def shared_parts(method: str) -> tuple[str, ...]:
    """What a method shares; nothing where it is a user's own that is not at hand."""
    try:
        return tuple(registry.resolve("method", method).shared_parts)
    except UserError:
        return ()


def round_label(record: AttackRecord) -> str:
    """Which round was attacked, in words."""
    name: str = record.cell.round
    return f"{name} ({rounds_text(record)})" if name in ("best", "last") else round_text(name)


def round_place(name: str) -> tuple[bool, int]:
    """Numbered rounds stand in their order, "best" and "last" after them."""
    return (not name.isdigit(), int(name) if name.isdigit() else 0)


def round_text(name: str) -> str:
    """A round as it was asked for."""
    return "0 (untrained)" if name == "0" else name


def rounds_text(record: AttackRecord) -> str:
    """The rounds that were attacked, over seeds."""
    rounds = sorted(set(record.rounds))
    return str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]}-{rounds[-1]}"


def published(cell: CellSpec) -> tuple[Published | None, Published | None]:
    """(accuracy, PSNR) of exactly this cell: a PSNR stands beside the papers' own attack alone."""
    return of(cell, "accuracy", FIRST), of(cell, "psnr_db")


def unique(values: Iterable[T]) -> list[T]:
    """Each value once, in the order of its first coming."""
    return list(dict.fromkeys(values))
