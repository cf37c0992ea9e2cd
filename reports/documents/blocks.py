"""Every generated block by its name; each takes the repository's root and gives Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from privbench.records.schema import AttackRecord, Record
from reports.documents import benchmarks, catalogue, claims, findings, model_accuracy, published
from reports.documents.pages import Blocks
from reports.tables import attack_table, ladder_summary, nearest, report_files, variants
from reports.tables.report import Report
from reports.tables.training import accuracy_table, communication

PHOTOS, CIFAR10, PAPERS_ATTACK, SECURE_GAN = "quick-photos", "published-cifar10", "papers-attack", "securegan-cost"
DEFENCES, IMPRINT, LADDER = "defences", "imprint-on-the-wire", "ladder-photos"
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
# The printed table that CIFAR-10 is compared with.
TABLES = ["FedCG 1"]
# Of the settings of the papers' attack that all columns have, the nearest.
MOST_SETTINGS = 12


def _body(report: Report) -> str:
    """A report without its title, which the page has."""
    return report_files.markdown(report).partition("\n")[2]


def _photos(text: Callable[..., str], *more: object) -> Callable[[Path], str]:
    """A block made of the records of the attack table."""
    return lambda root: text(published.attacked(root, PHOTOS), *more)


def _cifar10(text: Callable[..., str], *more: object) -> Callable[[Path], str]:
    """A block made of the records of CIFAR-10."""
    return lambda root: text(published.read(published.path_of(root, CIFAR10)), *more)


def _defences(text: Callable[..., str], *more: object) -> Callable[[Path], str]:
    """A block made of the records of the study of defences."""
    return lambda root: text(published.attacked(root, DEFENCES), *more)


def _imprint(text: Callable[..., str], *more: object) -> Callable[[Path], str]:
    """A block made of the records of the crafted classifier in other formats."""
    return lambda root: text(published.attacked(root, IMPRINT), *more)


def _ladder(text: Callable[..., str], *more: object) -> Callable[[Path], str]:
    """A block made of the records of the ladder of methods with private extractors."""
    return lambda root: text(published.attacked(root, LADDER), *more)


def _ladder_summary(records: Sequence[AttackRecord]) -> str:
    return _body(ladder_summary.report(records))


def _variants(records: Sequence[AttackRecord]) -> str:
    """Settings in order of their words, those of the best round first."""
    ordered = sorted(records, key=lambda r: (r.cell.round != findings.BEST, variants.setting_words(r.cell)))
    return _body(variants.report(ordered))


def _attack_table(records: Sequence[AttackRecord]) -> str:
    return _body(attack_table.report(records))


def _accuracy_table(records: Sequence[Record]) -> str:
    whole = accuracy_table.report(records, [], ["accuracy"], TABLES)
    # The last table has what the first has, and the published values beside it.
    return _body(whole._replace(tables=whole.tables[-1:]))


def _papers_attack(preset: str) -> Callable[[Path], str]:
    """A block made of the records of the papers' attack in one preset."""

    def text(root: Path) -> str:
        records = [r for r in published.attacked(root, PAPERS_ATTACK) if r.cell.preset == preset]
        return _body(nearest.report(records, MOST_SETTINGS))

    return text


BLOCKS: Blocks = {
    "attacks": catalogue.attacks,
    "backbones": catalogue.backbones,
    "benchmarks": benchmarks.section,
    "datasets": catalogue.datasets,
    DEFENCES: _defences(claims.every_defence),
    f"{DEFENCES}-attacks": _defences(claims.every_attack),
    f"{DEFENCES}-setting": _defences(findings.setting),
    f"{DEFENCES}-claims": _defences(claims.verdicts, CLAIMS),
    **{
        f"claim-{number}": _defences(claims.of_claim, columns)
        for number, columns in enumerate(CLAIMS.values(), start=1)
    },
    "defenses": catalogue.defenses,
    IMPRINT: _imprint(_variants),
    f"{IMPRINT}-setting": _imprint(findings.setting),
    LADDER: _ladder(_ladder_summary),
    f"{LADDER}-setting": _ladder(findings.setting),
    "make-targets": catalogue.make_targets,
    "methods": catalogue.methods,
    "rungs": catalogue.rungs,
    SECURE_GAN: lambda root: _body(communication.report(published.read(published.path_of(root, SECURE_GAN)))),
    "studies": catalogue.studies,
    "what-each-method-shares": catalogue.what_is_sent,
    PHOTOS: _photos(_attack_table),
    f"{PHOTOS}-columns": _photos(findings.five_columns),
    f"{PHOTOS}-models": _photos(model_accuracy.table),
    f"{PHOTOS}-setting": _photos(findings.setting),
    "finding-fedavg": _photos(findings.of_strongest, FEDAVG),
    "finding-papers-attack": _photos(findings.of_papers_attack, FEDAVG),
    "finding-noise": _photos(findings.of_noise, [WEAK_NOISE, STRONG_NOISE]),
    "finding-private-extractor": _photos(findings.of_private, PRIVATE),
    "finding-knowledge": _ladder(findings.of_knowledge),
    "finding-accuracy": _photos(model_accuracy.cost, STRONG_NOISE, FEDAVG),
    CIFAR10: _cifar10(_accuracy_table),
    f"{CIFAR10}-models": _cifar10(model_accuracy.table),
    f"{CIFAR10}-nearest": _cifar10(model_accuracy.nearest, TABLES),
    f"{CIFAR10}-setting": _cifar10(model_accuracy.schedule),
    PAPERS_ATTACK: _papers_attack("quick"),
    f"{PAPERS_ATTACK}-published-schedule": _papers_attack("paper"),
}
