"""The reports that a study file may name, each written from the records of the study's cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from privbench.records.schema import AttackRecord, Record
from privbench.records.store import Store
from privbench.spec import CellSpec
from privbench.system import files
from privbench.system.console import Console
from reports.figures import (
    box_plots,
    client_bars,
    curves,
    defense_curve,
    derived,
    feature_pca,
    of_attack,
    omega_curve,
    roc,
)
from reports.records import grouping
from reports.records.labels import Gap
from reports.records.quotable import is_plumbing
from reports.running import ladder_cells, status
from reports.running.status import CellStatus
from reports.studies.definition import Study
from reports.tables import (
    ablation,
    accuracy_table,
    attack_table,
    baselines,
    ladder_summary,
    nearest,
    report_files,
    terminal,
    variants,
)
from reports.tables.report import Page, Report, Table, without_scores

NAMES = (
    "accuracy", "omega", "pca", "ablation", "attack", "ladder", "baselines", "gain", "rta", "roc", "curves", "consistency",
    "box-plots", "clients", "nearest", "variants",
)  # fmt: skip
OF_ATTACKS = {"baselines": baselines.report, "nearest": nearest.report, "variants": variants.report}
CURVES = {"curves": ("loss", "accuracy"), "consistency": ("consistency",)}
CURVE_TITLES = {"curves": "Loss and accuracy curves", "consistency": "Consistency of generator and classifier"}


def write(
    study: Study,
    store: Store,
    cells: Sequence[CellSpec],
    records: Sequence[Record],
    gaps: Sequence[Gap],
    folder: Path,
    data_dir: Path | None = None,
    references: Sequence[AttackRecord] = (),
) -> list[Path]:
    """Every report of the study; `records` are those of `cells`, in the same order. The PCA reads images from `data_dir`.

    `references` as `labels.compact` takes them.
    """
    paths = []
    for name in study.reports:
        if name == "pca":
            paths += _principal_components(store, cells, records, folder, data_dir)
        elif name == "omega":
            paths += _against_omega(study, records, folder)
        else:
            paths += _write_one(name, study, store, cells, records, gaps, folder, references)
    return paths


def _against_omega(study: Study, records: Sequence[Record], folder: Path) -> list[Path]:
    """The curves of every data set that has several omegas."""
    keys = omega_curve.comparisons(records)
    metrics = [metric for metric in study.metrics if metric in omega_curve.ACCURACIES]
    paths = report_files.write(omega_curve.report(records, metrics, study.tables), folder / "omega") if keys else []
    for key in keys:
        paths += omega_curve.write(records, key, metrics, folder, study.tables)
    return paths


def _principal_components(
    store: Store, cells: Sequence[CellSpec], records: Sequence[Record], folder: Path, data_dir: Path | None
) -> list[Path]:
    """The panels of every setting, from networks and images on disk."""
    paths: list[Path] = []
    for key in grouping.settings(records):
        own = [(cell, r) for cell, r in zip(cells, records, strict=True) if grouping.setting(r.cell) == key]
        found = feature_pca.clouds(store, [cell for cell, _ in own], data_dir)
        stem = files.inside(folder, f"pca-{grouping.stem(key)}")
        paths += report_files.write(feature_pca.report(key, found, [r for _, r in own]), stem)
        paths += feature_pca.write(key, found, own[0][1].class_names, stem)
    return paths


def _write_one(
    name: str,
    study: Study,
    store: Store,
    cells: Sequence[CellSpec],
    records: Sequence[Record],
    gaps: Sequence[Gap],
    folder: Path,
    references: Sequence[AttackRecord],
) -> list[Path]:
    pairs_of = [(cell, r) for cell, r in zip(cells, records, strict=True) if isinstance(r, AttackRecord)]
    kept = {r.id for r in grouping.best_searched([r for _, r in pairs_of])}
    pairs_of = [(cell, r) for cell, r in pairs_of if r.id in kept]
    attacked = [r for _, r in pairs_of]
    if name == "accuracy":
        whole = accuracy_table.report(records, gaps, study.metrics, study.tables)
        return report_files.write(derived.beside(whole, records, name, study.tables), folder / name)
    if name == "ablation":
        return report_files.write(ablation.report(records, gaps, study.metrics), folder / name)
    if name == "attack":
        lost = [gap for gap in gaps if gap.cell.attack is not None]
        paths = (
            report_files.write(attack_table.report(attacked, lost, references), folder / "table") if attacked else []
        )
        paths += defense_curve.curves(attacked, folder)
        return paths + of_attack.attacked(store, [cell for cell, _ in pairs_of], attacked, folder)
    if name == "ladder":
        return ladder_cells.write(store, [cell for cell, _ in pairs_of], attacked, gaps, folder) if attacked else []
    if name in OF_ATTACKS:
        return report_files.write(_of_attacks(name, attacked), folder / name) if attacked else []
    if name in client_bars.KINDS:
        return _with_figures(
            derived.beside(client_bars.report(records, name), records, name, study.tables),
            records,
            folder,
            name,
            lambda key, stem: client_bars.write(records, key, name, stem),
        )
    if name == "roc":
        return _with_figures(
            roc.report(records), records, folder, name, lambda key, stem: roc.write(records, key, stem)
        )
    if name in CURVES:
        own = derived.beside(curves.report(records, CURVES[name], CURVE_TITLES[name]), records, name, study.tables)
        return _with_figures(
            own, records, folder, name, lambda key, stem: curves.write(records, key, CURVES[name], stem)
        )
    if name == "box-plots":
        return _with_figures(
            box_plots.report(records), records, folder, name, lambda key, stem: box_plots.write(records, key, stem)
        )
    return of_attack.histograms(records, folder)


def _of_attacks(name: str, records: Sequence[AttackRecord]) -> Report:
    """One of OF_ATTACKS; of smoke runs without scores."""
    report = OF_ATTACKS[name](records)
    return without_scores(report) if is_plumbing(records) else report


def _with_figures(
    report: Report,
    records: Sequence[Record],
    folder: Path,
    name: str,
    draw: Callable[[grouping.Setting, Path], list[Path]],
) -> list[Path]:
    """The tables, and a figure per setting; nothing where no record says anything."""
    if not report.tables:
        return []
    figures = [
        path
        for key in grouping.settings(records)
        for path in draw(key, files.inside(folder, f"{name}-{grouping.stem(key)}"))
    ]
    return report_files.write(report, folder / name) + figures


def write_page(
    study: Study, cells: Sequence[CellSpec], found: Sequence[CellStatus], paths: Sequence[Path], folder: Path
) -> list[Path]:
    """report.md and report.html: what the study is, how far every cell is, and every table and figure of it."""
    tables = [
        Table(heading, status.COLUMNS, body, words=True, is_part=True) for heading, body in status.listing(cells, found)
    ]
    page = Report(
        study.title,
        [f"{study.about} Source: {study.source}.", f"{status.counts(found)}."],
        [Table("Cells", (), (), status.reasons(cells, found)), *tables],
        [],
        pages=[Page(f"{path.stem} (also .csv, .tex)", path.stem) for path in paths if path.suffix == ".md"],
        images=[path.name for path in paths if path.suffix == ".png"],
    )
    return report_files.write_pages(page, folder / "report")


def show(
    study: Study,
    records: Sequence[Record],
    gaps: Sequence[Gap],
    to: Console,
    folder: Path,
    references: Sequence[AttackRecord] = (),
    first: Sequence[str] = (),
) -> None:
    """The study's first report on the terminal; `first` are notes that go before all others."""
    found = _first(study, records, gaps, references)
    if found is not None:
        name, report = found
        terminal.show(report, folder / f"{name}.md", to, first)


def _first(
    study: Study, records: Sequence[Record], gaps: Sequence[Gap], references: Sequence[AttackRecord]
) -> tuple[str, Report] | None:
    """(the name of its file, the report) that a study shows; None where it has no records."""
    attacked = [r for r in records if isinstance(r, AttackRecord)]
    if "attack" in study.reports:
        best, lost = grouping.best_searched(attacked), [gap for gap in gaps if gap.cell.attack is not None]
        return ("table", attack_table.report(best, lost, references)) if best else None
    if "ladder" in study.reports:
        return "summary", ladder_summary.report(attacked, gaps)
    for name in ("nearest", "variants"):
        if name in study.reports:
            return name, _of_attacks(name, attacked)
    if "ablation" in study.reports:
        return "ablation", ablation.report(records, gaps, study.metrics)
    whole = accuracy_table.report(records, gaps, study.metrics, study.tables)
    return "accuracy", whole._replace(tables=whole.tables[: len(study.metrics)])
