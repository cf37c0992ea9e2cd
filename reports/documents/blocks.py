"""Every generated block by its name; each takes the repository's root and gives Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from privbench.execution.ladder import UNTRAINED
from privbench.records.schema import AttackRecord, InferenceRecord, Record
from reports.documents import (
    benchmarks,
    catalogue,
    claims,
    countermeasures,
    findings,
    model_accuracy,
    published,
    published_runs,
    training_time,
)
from reports.documents.needed_knowledge import best_attacks, left_out, private_extractors
from reports.documents.needed_knowledge.knowledge_tables import PLACE, across, psnr_and_gain
from reports.documents.pages import Blocks
from reports.documents.table_names import (
    ACTIVE,
    ALL_SEEDS,
    CIFAR10,
    CIFAR10_LADDER,
    COUNTERMEASURES,
    DEFENCES,
    DIGITS,
    IMPRINT,
    INFERENCE,
    LADDER,
    LADDERS,
    LEFT_OUT,
    META,
    NOISE_LEVELS,
    NOISE_ON_STEPS,
    OFFICE,
    OFFICE_FURTHER,
    OFFICE_TRAINED,
    PAPERS_ATTACK,
    PHOTOS,
    PROPERTY,
    QUICK,
    SECURE_GAN,
    TRAINED,
)
from reports.records.labels import cell_place, round_text, unique
from reports.records.measured import Measured
from reports.tables import (
    attack_table,
    broadcast_table,
    inference_table,
    ladder_summary,
    nearest,
    render,
    report_files,
    variants,
)
from reports.tables.report import Report
from reports.tables.training import accuracy_table, communication, generator_table, task_table

# Columns of the attack table.
FEDAVG, WEAK_NOISE, STRONG_NOISE = "FedAvg", "FedAvg + Gaussian 0.001", "FedAvg + Gaussian 0.1"
PRIVATE = ("FedSplit", "FedCG")
# What people claim -> the columns that answer it.
CLAIMS = {
    "Noise protects": (
        WEAK_NOISE,
        STRONG_NOISE,
        "FedAvg + Gaussian (variance 0.001, clip 1)",
        "FedSplit + Gaussian 0.001",
        "FedSplit + Gaussian (variance 0.001, clip 1)",
        "FedCG + Gaussian 0.001",
    ),
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
# Rounds after which training might have ended; the last is a third of those published.
SHORTER = (5, 10, 15, 20, 25, 34)
# Of the settings of the papers' attack that all columns have, the nearest.
MOST_SETTINGS = 12


def _body(report: Report) -> str:
    """A report without its title, which the page has."""
    return report_files.markdown(report).partition("\n")[2]


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


def _active_servers(records: Sequence[AttackRecord]) -> str:
    """PSNR and how many victims came back, a column a round; rows in the order of data sets, columns of the study and batches."""

    def score(row: Measured) -> str:
        return f"{psnr_and_gain(row)} {render.small(f'{row.reconstructed} of {row.scores.n}')}"

    rows: dict[str, Callable[[AttackRecord], str]] = {
        **PLACE,
        "attack": lambda r: f"`{r.attack}`",
        "images of a client": lambda r: str(r.cell.batch_size),
    }
    in_order = sorted(records, key=lambda r: (cell_place(r.cell), r.cell.batch_size, r.cell.round))
    in_order = published.in_order(ACTIVE, in_order)
    return across(in_order, rows, lambda r: [f"round {round_text(r.cell.round)}"], score)


def _checks_of_clients(records: Sequence[AttackRecord]) -> str:
    """What clients could notice, a table a data set and batch size."""
    in_order = published.in_order(ACTIVE, sorted(records, key=lambda r: r.cell.batch_size))
    return _body(Report(broadcast_table.TITLE, [], broadcast_table.tables(in_order), []))


def _published_runs(root: Path) -> str:
    """How far the runs of the published settings are, from every table that has some."""
    names = (*ALL_SEEDS[CIFAR10], *ALL_SEEDS[OFFICE], NOISE_ON_STEPS)
    return published_runs.table(published.read_all(root, names))


def _seeds(name: str) -> Callable[[Path], str]:
    """A block of the accuracies of one data set trained by the published schedule, over all seeds."""
    return lambda root: model_accuracy.over_seeds(_with_all_seeds(root, name), TABLES)


def _seeds_orderings(name: str) -> Callable[[Path], str]:
    """A block of the orderings of FedCG's and FedSplit's accuracy on one data set, among the methods that have most seeds."""

    def text(root: Path) -> str:
        records = _with_all_seeds(root, name)
        most = max(len(r.seeds) for r in records)
        alike = [r for r in records if len(r.seeds) == most]
        of = [method for method in reversed(PRIVATE) if method in model_accuracy.by_label(alike)]
        return "\n\n".join(model_accuracy.orderings(alike, method, TABLES) for method in of)

    return text


def _with_all_seeds(root: Path, name: str) -> list[Record]:
    """Training on one data set by the published schedule, of the tables' seeds and of those that were made since."""
    return model_accuracy.with_all_seeds(published.read_all(root, ALL_SEEDS[name]))


def _of_quick(root: Path) -> list[Record]:
    """Training on CIFAR-10 in the quick preset, one record a method."""
    return model_accuracy.with_all_seeds(published.read_all(root, (QUICK, CIFAR10_LADDER)))


def _quick_orderings(root: Path) -> str:
    """The orderings of FedCG's accuracy in the quick preset beside those that are printed for the published schedule."""
    at_printed = published.read_all(root, (CIFAR10,))
    return model_accuracy.orderings(_of_quick(root), "FedCG", TABLES, at_printed)


def _places_of_noise(root: Path) -> str:
    """Accuracy of FedAvg at the published schedule without noise, with noise on updates and on every step.

    A table for each data set on which noise on every step was run.
    """
    names = (NOISE_ON_STEPS, *ALL_SEEDS[OFFICE], *ALL_SEEDS[CIFAR10])
    records = [r for r in published.read_all(root, names) if r.cell.train.method == "fedavg"]
    on_steps = [r for r in records if r.cell.train.where == "step"]
    tables = []
    for dataset in unique(r.cell.train.dataset for r in on_steps):
        of_data_set = model_accuracy.with_all_seeds([r for r in records if r.cell.train.dataset == dataset])
        tables.append(f"On `{dataset}`:\n\n{model_accuracy.over_seeds(of_data_set, TABLES)}")
    return "\n\n".join(tables)


def _accuracies(name: str) -> dict[str, Callable[[Path], str]]:
    """The blocks of the accuracies of one data set trained by the published schedule."""
    return {
        name: published.of_all(name, _accuracy_table),
        f"{name}-models": published.of_all(name, model_accuracy.table),
        f"{name}-orderings": published.of_all(name, model_accuracy.orderings, "FedCG", TABLES),
        f"{name}-nearest": published.of_all(name, model_accuracy.nearest, TABLES),
        f"{name}-time": lambda root: training_time.table(_with_all_seeds(root, name)),
        f"{name}-shorter": lambda root: model_accuracy.shorter(_with_all_seeds(root, name), SHORTER),
        f"{name}-shorter-leads": lambda root: model_accuracy.shorter_leads(
            _with_all_seeds(root, name), "FedCG", SHORTER[-1]
        ),
        f"{name}-setting": published.of_all(name, model_accuracy.schedule),
    }


def _office_ladder() -> dict[str, Callable[[Path], str]]:
    """The blocks of the ladder of Office-Caltech10: most seeds of FedCG are among the records of those that were run since."""
    names = (OFFICE_TRAINED, OFFICE_FURTHER)
    return {
        OFFICE_TRAINED: published.of_seeds(names, _ladder),
        f"{OFFICE_TRAINED}-setting": published.of_seeds(names, findings.setting),
        f"{OFFICE_TRAINED}-claims": published.of_seeds(names, findings.beside_printed),
        f"{OFFICE_TRAINED}-claims-untrained": published.of_seeds(names, findings.beside_printed, UNTRAINED),
    }


def _earlier_revisions(root: Path) -> str:
    return published_runs.earlier_revisions({name: published.read_all(root, [name]) for name in published.names(root)})


BLOCKS: Blocks = {
    ACTIVE: published.of_attacks(ACTIVE, _active_servers),
    f"{ACTIVE}-checks": published.of_attacks(ACTIVE, _checks_of_clients),
    f"{ACTIVE}-setting": published.of_attacks(ACTIVE, findings.setting),
    "attacks": catalogue.attacks,
    "backbones": catalogue.backbones,
    "benchmarks": benchmarks.section,
    COUNTERMEASURES: published.of_attacks(COUNTERMEASURES, countermeasures.table),
    f"{COUNTERMEASURES}-setting": published.of_attacks(COUNTERMEASURES, findings.setting),
    "datasets": catalogue.datasets,
    DEFENCES: published.of_attacks(DEFENCES, claims.every_defence),
    f"{DEFENCES}-attacks": published.of_attacks(DEFENCES, claims.every_attack),
    f"{DEFENCES}-setting": published.of_attacks(DEFENCES, findings.setting),
    f"{DEFENCES}-claims": published.of_attacks(DEFENCES, claims.verdicts, CLAIMS),
    **{
        f"claim-{number}": published.of_attacks(DEFENCES, claims.of_claim, columns)
        for number, columns in enumerate(CLAIMS.values(), start=1)
    },
    "defenses": catalogue.defenses,
    IMPRINT: published.of_attacks(IMPRINT, _variants),
    f"{IMPRINT}-setting": published.of_attacks(IMPRINT, findings.setting),
    **{name: published.of_all(name, _ladder) for name in LADDERS if name != OFFICE_TRAINED},
    **{f"{name}-setting": published.of_attacks(name, findings.setting) for name in LADDERS if name != OFFICE_TRAINED},
    **_office_ladder(),
    "best-attacks": lambda root: best_attacks.table(published.attacked(root, name) for name in LADDERS),
    LEFT_OUT: lambda root: left_out.table(published.attacked(root, LEFT_OUT), published.attacked(root, DIGITS)),
    f"{LEFT_OUT}-setting": published.of_attacks(LEFT_OUT, findings.setting),
    **private_extractors.BLOCKS,
    "make-targets": catalogue.make_targets,
    INFERENCE: published.of_all(INFERENCE, _on("label distribution")),
    f"{INFERENCE}-membership": published.of_all(INFERENCE, _on("membership")),
    PROPERTY: published.of_all(PROPERTY, _text_of(inference_table.report)),
    f"{TRAINED}-shorter": published.of_attacks(TRAINED, findings.between_rounds, 20, SHORTER[-1]),
    "published-runs": _published_runs,
    "earlier-revisions": _earlier_revisions,
    "published-claims": published.of_attacks(TRAINED, findings.beside_printed),
    "published-claims-untrained": published.of_attacks(TRAINED, findings.beside_printed, UNTRAINED),
    QUICK: lambda root: findings.beside_printed(
        [r for name in (QUICK, CIFAR10_LADDER) for r in published.attacked(root, name)]
    ),
    f"{QUICK}-models": lambda root: model_accuracy.table(_of_quick(root)),
    f"{QUICK}-orderings": _quick_orderings,
    f"{QUICK}-setting": published.of_attacks(QUICK, findings.setting),
    META: published.of_all(META, _text_of(task_table.report)),
    NOISE_LEVELS: published.of_attacks(NOISE_LEVELS, claims.every_attack),
    f"{NOISE_LEVELS}-setting": published.of_attacks(NOISE_LEVELS, findings.setting),
    f"{META}-attacks": published.of_attacks(META, claims.every_attack),
    f"{META}-setting": published.of_attacks(META, findings.setting),
    "methods": catalogue.methods,
    "rungs": catalogue.rungs,
    SECURE_GAN: published.of_all(SECURE_GAN, _text_of(generator_table.report)),
    f"{SECURE_GAN}-attacks": published.of_attacks(SECURE_GAN, claims.every_attack),
    f"{SECURE_GAN}-cost": published.of_all(SECURE_GAN, _messages),
    f"{SECURE_GAN}-setting": published.of_attacks(SECURE_GAN, findings.setting),
    "studies": catalogue.studies,
    "what-each-method-shares": catalogue.what_is_sent,
    PHOTOS: published.of_attacks(PHOTOS, _text_of(attack_table.report)),
    f"{PHOTOS}-columns": published.of_attacks(PHOTOS, findings.five_columns),
    f"{PHOTOS}-models": published.of_attacks(PHOTOS, model_accuracy.table),
    f"{PHOTOS}-setting": published.of_attacks(PHOTOS, findings.setting),
    "finding-fedavg": published.of_attacks(PHOTOS, findings.of_strongest, FEDAVG),
    "finding-papers-attack": published.of_attacks(PHOTOS, findings.of_papers_attack, FEDAVG),
    "finding-noise": published.of_attacks(PHOTOS, findings.of_noise, [WEAK_NOISE, STRONG_NOISE]),
    "finding-private-extractor": published.of_attacks(PHOTOS, findings.of_private, PRIVATE),
    "finding-knowledge": published.of_attacks(LADDER, findings.of_knowledge),
    "finding-accuracy": published.of_attacks(PHOTOS, model_accuracy.cost, STRONG_NOISE, FEDAVG),
    **_accuracies(CIFAR10),
    **_accuracies(OFFICE),
    **{f"{name}-seeds": _seeds(name) for name in ALL_SEEDS},
    **{f"{name}-seeds-orderings": _seeds_orderings(name) for name in ALL_SEEDS},
    NOISE_ON_STEPS: _places_of_noise,
    PAPERS_ATTACK: _papers_attack("quick"),
    f"{PAPERS_ATTACK}-published-schedule": _papers_attack("paper"),
}
