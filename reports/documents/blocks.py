"""Every generated block by its name; each takes the repository's root and gives Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from privbench import registry
from privbench.records.schema import AttackRecord, InferenceRecord, Record
from reports.documents import (
    benchmarks,
    catalogue,
    claims,
    countermeasures,
    findings,
    model_accuracy,
    needed_knowledge,
    published,
    training_time,
)
from reports.documents.pages import Blocks
from reports.records.labels import label, unique
from reports.records.number_text import NONE
from reports.studies import definition, sweeps
from reports.tables import attack_table, inference_table, ladder_summary, nearest, report_files, sweep, variants
from reports.tables.report import Report
from reports.tables.training import accuracy_table, communication, generator_table, task_table

PHOTOS, CIFAR10, PAPERS_ATTACK, SECURE_GAN, META = (
    "quick-photos",
    "published-cifar10",
    "papers-attack",
    "securegan",
    "meta",
)
DEFENCES, IMPRINT, COUNTERMEASURES = "defences", "imprint-on-the-wire", "countermeasures"
LADDER, DIGITS, CIFAR10_LADDER = "ladder-photos", "ladder-digits", "ladder-cifar10"
KNOWN_IMAGES, EARLIER_ROUNDS = "known-images", "earlier-rounds"
TRAINED, INFERENCE, PROPERTY = "published-ladder", "inference", "property-inference"
OFFICE, OFFICE_TRAINED, OFFICE_FURTHER = (
    "published-office10",
    "published-office10-ladder",
    "published-office10-further",
)
# `chained` on FedSplit, Office-Caltech10, from uploads of round 0 alone; the ladder has it from uploads of many rounds.
FIRST_ROUND = "office10-first-round"
# Two attacks on private extractors under a prior learned from auxiliary images.
LEARNED_PRIOR = "learned-prior"
# The quick preset on CIFAR-10: FedAvg; the ladder has the private extractors.
QUICK = "quick-cifar10"
# The tables of attacks by what they know.
LADDERS = (LADDER, DIGITS, CIFAR10_LADDER, TRAINED, OFFICE_TRAINED)
# Title -> the tables of what a server must know.
TABLES_OF_PRIVATE = {
    "photos": LADDER,
    "digits": DIGITS,
    "CIFAR-10": CIFAR10_LADDER,
    "CIFAR-10, published schedule": TRAINED,
    "Office-Caltech10, published schedule": OFFICE_TRAINED,
}
PRIVATE_ATTACKS = ("surrogate", "joint", "calibrated", "chained", "oracle")
# Columns of the attack table.
FEDAVG, WEAK_NOISE, STRONG_NOISE = "FedAvg", "FedAvg + Gaussian 0.001", "FedAvg + Gaussian 0.1"
PRIVATE = ("FedSplit", "FedCG")
# What people claim -> the columns that answer it.
CLAIMS = {
    "Noise protects": (WEAK_NOISE, STRONG_NOISE, "FedSplit + Gaussian 0.001"),
    "Differential privacy at epsilon 8 protects": (
        "FedAvg + DP-SGD (epsilon 8)",
        "FedAvg + DP-Adam (epsilon 8)",
        "FedAvg + DP-FedAvg (epsilon 8)",
        "FedSplit + DP-SGD (epsilon 8)",
        "FedSplit + DP-FedAvg (epsilon 8)",
    ),
    "Secure aggregation protects": (
        "FedAvg + Secure-aggregation masks",
        "FedAvg + DP-SGD (epsilon 8) + Secure-aggregation masks",
    ),
}
# The printed table that the runs of the published schedule are compared with.
TABLES = ["FedCG 1"]
# Of the settings of the papers' attack that all columns have, the nearest.
MOST_SETTINGS = 12


def _body(report: Report) -> str:
    """A report without its title, which the page has."""
    return report_files.markdown(report).partition("\n")[2]


def _of_attacks(name: str, text: Callable[..., str], *more: object) -> Callable[[Path], str]:
    """A block made of the attack records of one table."""
    return lambda root: text(published.attacked(root, name), *more)


def _of_all(name: str, text: Callable[..., str], *more: object) -> Callable[[Path], str]:
    """A block made of every record of one table."""
    return lambda root: text(published.read(published.path_of(root, name)), *more)


def _text_of(report: Callable[..., Report]) -> Callable[[Sequence[Any]], str]:
    """All tables that a report makes of some records."""
    return lambda records: _body(report(records))


def _ladder(records: Sequence[Record]) -> str:
    """The attacks among some records as a ladder, and beneath it what the inferences among them state."""
    attacks = [r for r in records if isinstance(r, AttackRecord)]
    return _body(inference_table.beneath(ladder_summary.report(attacks), records))


def _on(*questions: str) -> Callable[[Sequence[Record]], str]:
    """The table of the inferences among some records that answer one of these questions."""

    def text(records: Sequence[Record]) -> str:
        asked = [r for r in records if isinstance(r, InferenceRecord) and r.question in questions]
        return _body(inference_table.report(asked))

    return text


def _variants(records: Sequence[AttackRecord]) -> str:
    """Settings in order of their words, those of the best round first."""
    ordered = sorted(records, key=lambda r: (r.cell.round != findings.BEST, variants.setting_words(r.cell)))
    return _body(variants.report(ordered))


def _accuracy_table(records: Sequence[Record]) -> str:
    whole = accuracy_table.report(records, [], ["accuracy"], TABLES)
    # The last table has what the first has, and the published values beside it.
    return _body(whole._replace(tables=whole.tables[-1:]))


def _messages(records: Sequence[Record]) -> str:
    """What SecureGAN sends: its messages under differential privacy are those without, and DP-GAN sends none."""
    sent = [
        r for r in records
        if r.cell.train.method == "secure-gan" and (r.cell.train.defense == "none" or "aggregation" in r.cell.train.defense)
    ]  # fmt: skip
    return _body(communication.report(sent))


def _papers_attack(preset: str) -> Callable[[Path], str]:
    """A block made of the records of the papers' attack in one preset."""

    def text(root: Path) -> str:
        records = [r for r in published.attacked(root, PAPERS_ATTACK) if r.cell.preset == preset]
        return _body(nearest.report(records, MOST_SETTINGS))

    return text


def _known_images(records: Sequence[AttackRecord]) -> str:
    """PSNR against the number of known images, a column a method and quality, a table a data set.

    The reference knows the extractor, whatever is known of images: it stands beneath each column of its method.
    """
    swept = definition.read(KNOWN_IMAGES).sweep

    def number(r: AttackRecord) -> str:
        return f"`{r.attack}`" if r.cell.known_images is None else sweeps.value_text(r.cell.known_images)

    def qualities(r: AttackRecord) -> list[str]:
        known = swept["known_quality_db"] if r.cell.known_quality_db is None else [r.cell.known_quality_db]
        return [f"{label(r.cell)}, {sweeps.value_text(quality)} dB" for quality in known]

    ordered = _by_data_set(KNOWN_IMAGES, records)
    tables = []
    for name in unique(registry.short(r.cell.train.dataset) for r in ordered):
        of_data_set = [r for r in ordered if registry.short(r.cell.train.dataset) == name]
        whole = needed_knowledge.across(of_data_set, {"known images": number}, qualities)
        tables.append(f"On `{name}`:\n\n{whole}")
    return "\n\n".join(tables)


def _earlier_rounds(records: Sequence[AttackRecord]) -> str:
    """PSNR against the attacked round, a row for the rounds whose uploads were kept."""

    def kept(r: AttackRecord) -> str:
        return NONE if r.cell.observed_rounds is None else sweeps.value_text(r.cell.observed_rounds)

    rows: dict[str, Callable[[AttackRecord], str]] = {
        "data set": lambda r: registry.short(r.cell.train.dataset),
        "method": lambda r: label(r.cell),
        "attack": lambda r: f"`{r.attack}`",
        sweeps.words("observed_rounds"): kept,
    }
    return needed_knowledge.across(_by_data_set(EARLIER_ROUNDS, records), rows, lambda r: [f"round {r.cell.round}"])


def _by_data_set(name: str, records: Sequence[AttackRecord]) -> list[AttackRecord]:
    """Records of a study that sweeps settings, in the order of their values, data sets as the study names them, others last."""
    study = definition.read(name)
    named = [*study.embedded, *(data.name for data in study.data)]
    place = {dataset: i for i, dataset in enumerate(named)}
    ordered = sweep.in_order(study.sweep, records)
    return sorted(ordered, key=lambda r: place.get(r.cell.train.dataset, len(named)))


def _needed(method: str, tables: dict[str, str]) -> Callable[[Path], str]:
    """A block of what a server must know to see the images of one method after training; `tables` are titles and names."""

    def text(root: Path) -> str:
        return needed_knowledge.table(_read(root, tables, method), method, findings.BEST)

    return text


def _private_attacks(root: Path) -> str:
    """A block of the attacks that refine or fit an extractor, with their reference, on all tables of private extractors."""
    tables = {method: _read(root, TABLES_OF_PRIVATE, method) for method in PRIVATE}
    return needed_knowledge.of_attacks(tables, PRIVATE_ATTACKS, findings.BEST)


def _office_by_seed(root: Path) -> str:
    """A block of Office-Caltech10's seeds, those of the tables and those that were made since."""
    records = [r for name in (OFFICE_TRAINED, OFFICE_FURTHER) for r in published.read(published.path_of(root, name))]
    return needed_knowledge.by_seed(records, PRIVATE, PRIVATE_ATTACKS, findings.BEST)


def _first_round(root: Path) -> str:
    """A block of `chained` from uploads of one round alone, beside the same from those of many rounds and the reference."""
    first = published.attacked(root, FIRST_ROUND)
    alike = {(r.cell.train.method, r.cell.round) for r in first}
    beside = [
        r
        for r in published.attacked(root, OFFICE_TRAINED)
        if (r.cell.train.method, r.cell.round) in alike and r.attack in ("chained", "oracle")
    ]
    return _earlier_rounds([*first, *beside])


def _learned_prior(root: Path) -> str:
    """A block of attacks under a prior learned from images, with the reference on the same victims."""
    of_prior = published.attacked(root, LEARNED_PRIOR)
    columns = {r.cell.train.id for r in of_prior}
    reference = [
        r
        for r in published.attacked(root, DIGITS)
        if r.attack == "oracle" and r.cell.round == findings.BEST and r.cell.train.id in columns
    ]
    return needed_knowledge.by_setting([*of_prior, *reference])


def _read(root: Path, tables: dict[str, str], method: str) -> dict[str, Sequence[AttackRecord]]:
    """Title -> records of one method, with their number of seeds in the title where these are few."""
    read: dict[str, Sequence[AttackRecord]] = {}
    for title, name in tables.items():
        records = [r for r in published.attacked(root, name) if label(r.cell) == method]
        read[title + needed_knowledge.few_seeds(records)] = records
    return read


def _accuracies(name: str) -> dict[str, Callable[[Path], str]]:
    """The blocks of the accuracies of one data set trained by the published schedule."""
    return {
        name: _of_all(name, _accuracy_table),
        f"{name}-models": _of_all(name, model_accuracy.table),
        f"{name}-orderings": _of_all(name, model_accuracy.orderings, "FedCG", TABLES),
        f"{name}-nearest": _of_all(name, model_accuracy.nearest, TABLES),
        f"{name}-time": _of_all(name, training_time.table),
        f"{name}-shorter": _of_all(name, model_accuracy.shorter, (5, 10, 15, 20, 25)),
        f"{name}-setting": _of_all(name, model_accuracy.schedule),
    }


BLOCKS: Blocks = {
    "attacks": catalogue.attacks,
    "backbones": catalogue.backbones,
    "benchmarks": benchmarks.section,
    COUNTERMEASURES: _of_attacks(COUNTERMEASURES, countermeasures.table),
    f"{COUNTERMEASURES}-setting": _of_attacks(COUNTERMEASURES, findings.setting),
    "datasets": catalogue.datasets,
    DEFENCES: _of_attacks(DEFENCES, claims.every_defence),
    f"{DEFENCES}-attacks": _of_attacks(DEFENCES, claims.every_attack),
    f"{DEFENCES}-setting": _of_attacks(DEFENCES, findings.setting),
    f"{DEFENCES}-claims": _of_attacks(DEFENCES, claims.verdicts, CLAIMS),
    **{
        f"claim-{number}": _of_attacks(DEFENCES, claims.of_claim, columns)
        for number, columns in enumerate(CLAIMS.values(), start=1)
    },
    "defenses": catalogue.defenses,
    IMPRINT: _of_attacks(IMPRINT, _variants),
    f"{IMPRINT}-setting": _of_attacks(IMPRINT, findings.setting),
    **{name: _of_all(name, _ladder) for name in LADDERS},
    **{f"{name}-setting": _of_attacks(name, findings.setting) for name in LADDERS},
    LEARNED_PRIOR: _learned_prior,
    f"{LEARNED_PRIOR}-steps": _of_attacks(LEARNED_PRIOR, needed_knowledge.by_setting, "steps 400"),
    f"{LEARNED_PRIOR}-setting": _of_attacks(LEARNED_PRIOR, findings.setting),
    "make-targets": catalogue.make_targets,
    INFERENCE: _of_all(INFERENCE, _on("label distribution")),
    f"{INFERENCE}-membership": _of_all(INFERENCE, _on("membership")),
    PROPERTY: _of_all(PROPERTY, _text_of(inference_table.report)),
    f"{TRAINED}-shorter": _of_attacks(TRAINED, findings.between_rounds, 20, 25),
    "published-claims": _of_attacks(TRAINED, findings.beside_printed),
    "published-claims-untrained": _of_attacks(TRAINED, findings.beside_printed, findings.UNTRAINED),
    QUICK: lambda root: findings.beside_printed(
        [r for name in (QUICK, CIFAR10_LADDER) for r in published.attacked(root, name)]
    ),
    **{
        f"needed-{method.lower()}": _needed(
            method,
            TABLES_OF_PRIVATE,
        )
        for method in PRIVATE
    },
    "private-attacks": _private_attacks,
    OFFICE_FURTHER: _office_by_seed,
    KNOWN_IMAGES: _of_attacks(KNOWN_IMAGES, _known_images),
    f"{KNOWN_IMAGES}-setting": _of_attacks(KNOWN_IMAGES, findings.setting),
    EARLIER_ROUNDS: _of_attacks(EARLIER_ROUNDS, _earlier_rounds),
    f"{EARLIER_ROUNDS}-setting": _of_attacks(EARLIER_ROUNDS, findings.setting),
    f"{FIRST_ROUND}-setting": _of_attacks(FIRST_ROUND, findings.setting),
    FIRST_ROUND: _first_round,
    **{
        f"quick-beside-published-{method.lower()}": _needed(method, {"quick": quick, "published": TRAINED})
        for method, quick in {FEDAVG: QUICK, **dict.fromkeys(PRIVATE, CIFAR10_LADDER)}.items()
    },
    f"{QUICK}-setting": _of_attacks(QUICK, findings.setting),
    META: _of_all(META, _text_of(task_table.report)),
    f"{META}-attacks": _of_attacks(META, claims.every_attack),
    f"{META}-setting": _of_attacks(META, findings.setting),
    "methods": catalogue.methods,
    "rungs": catalogue.rungs,
    SECURE_GAN: _of_all(SECURE_GAN, _text_of(generator_table.report)),
    f"{SECURE_GAN}-attacks": _of_attacks(SECURE_GAN, claims.every_attack),
    f"{SECURE_GAN}-cost": _of_all(SECURE_GAN, _messages),
    f"{SECURE_GAN}-setting": _of_attacks(SECURE_GAN, findings.setting),
    "studies": catalogue.studies,
    "what-each-method-shares": catalogue.what_is_sent,
    PHOTOS: _of_attacks(PHOTOS, _text_of(attack_table.report)),
    f"{PHOTOS}-columns": _of_attacks(PHOTOS, findings.five_columns),
    f"{PHOTOS}-models": _of_attacks(PHOTOS, model_accuracy.table),
    f"{PHOTOS}-setting": _of_attacks(PHOTOS, findings.setting),
    "finding-fedavg": _of_attacks(PHOTOS, findings.of_strongest, FEDAVG),
    "finding-papers-attack": _of_attacks(PHOTOS, findings.of_papers_attack, FEDAVG),
    "finding-noise": _of_attacks(PHOTOS, findings.of_noise, [WEAK_NOISE, STRONG_NOISE]),
    "finding-private-extractor": _of_attacks(PHOTOS, findings.of_private, PRIVATE),
    "finding-knowledge": _of_attacks(LADDER, findings.of_knowledge),
    "finding-accuracy": _of_attacks(PHOTOS, model_accuracy.cost, STRONG_NOISE, FEDAVG),
    **_accuracies(CIFAR10),
    **_accuracies(OFFICE),
    f"{OFFICE_TRAINED}-claims": _of_attacks(OFFICE_TRAINED, findings.beside_printed),
    f"{OFFICE_TRAINED}-claims-untrained": _of_attacks(OFFICE_TRAINED, findings.beside_printed, findings.UNTRAINED),
    PAPERS_ATTACK: _papers_attack("quick"),
    f"{PAPERS_ATTACK}-published-schedule": _papers_attack("paper"),
}
