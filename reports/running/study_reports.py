"""The reports that a study file may name, each written from the records of the study's cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from privbench import registry, spec
from privbench.errors import UserError
from privbench.records.schema import AttackRecord, InferenceRecord, Record
from privbench.records.store import Store
from privbench.spec import CellSpec
from privbench.system import files
from privbench.system.console import Console
from reports.figures import (
    box_plots,
    client_bars,
    curves,
    derived,
    epsilon_curve,
    of_attack,
    omega_curve,
    roc,
    sweep_curve,
)
from reports.figures.of_networks import feature_pca, samples
from reports.records import generators, grouping, published
from reports.records.labels import Gap
from reports.records.quotable import is_smoke
from reports.running import ladder_cells, status
from reports.running.status import CellStatus
from reports.studies.definition import Study
from reports.tables import (
    attack_table,
    baselines,
    inference_table,
    ladder_summary,
    nearest,
    report_files,
    sweep,
    terminal,
    variants,
)
from reports.tables.report import Page, Report, Table, without_scores
from reports.tables.training import ablation, accuracy_table, communication, generator_table, task_table

GENERATOR, INFERENCE = "generator", "inference"
NAMES = (
    "accuracy", "omega", "pca", "ablation", "attack", "ladder", "baselines", "gain", "rta", "roc", "curves", "consistency",
    "box-plots", "clients", "nearest", "variants", GENERATOR, "stability", "communication", "tasks", INFERENCE,
)  # fmt: skip
OF_ATTACKS = {"baselines": baselines.report, "nearest": nearest.report, "variants": variants.report}
CURVES = {
    "curves": ("loss", "accuracy"),
    "consistency": ("consistency",),
    "stability": ("discriminator", "generator", "accuracy"),
}
CURVE_TITLES = {
    "curves": "Loss and accuracy curves",
    "consistency": "Consistency of generator and classifier",
    "stability": "Stability of the generative networks",
}


def check(study: Study, cells: Sequence[CellSpec]) -> None:
    """UserError for a report, a metric or a published table that is none, and for a PCA of cells that have nothing for one."""
    for what, named, known in (("report", study.reports, NAMES), ("metric", study.metrics, (*accuracy_table.METRICS,))):
        if unknown := [name for name in named if name not in known]:
            raise UserError(
                f"the study '{study.name}' names the {what} '{unknown[0]}'; {spec.nearest(unknown[0], known)}"
            )
    sources = {row.source for row in published.rows()}
    for name in study.tables:
        # Of some figures no number is printed, so that published.csv has no row of them.
        source, _, place = name.rpartition(" ")
        if source not in sources or not re.fullmatch(r"(fig)?[0-9]+", place):
            raise UserError(
                f"the study '{study.name}' names the table '{name}', but a table is named as 'FedCG 1' or 'NFL-CGAN fig7'; "
                f"sources: {', '.join(sorted(sources))}"
            )
    if "pca" not in study.reports:
        return
    for name in dict.fromkeys(cell.train.method for cell in cells):
        method = registry.resolve("method", name)
        if "extractor" in method.shared_parts or not {"extractor", "generator"} <= {*method.parts}:
            raise UserError(
                f"the study '{study.name}' draws a PCA, which needs a private extractor and a generator, and {name} has none; "
                "leave the report or the method out"
            )


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
        elif name == GENERATOR:
            paths += _generators(store, cells, records, folder, data_dir)
        elif name == "omega":
            paths += _against_omega(study, records, folder)
        elif name == "tasks":
            paths += _of_tasks(records, folder)
        elif name == INFERENCE:
            inferred = [r for r in records if isinstance(r, InferenceRecord)]
            paths += report_files.write(inference_table.report(inferred), folder / name) if inferred else []
        else:
            paths += _write_one(name, study, store, cells, records, gaps, folder, references)
    return paths + (_of_sweep(study, records, folder) if study.sweep else [])


def _against_omega(study: Study, records: Sequence[Record], folder: Path) -> list[Path]:
    """The curves of every data set that has several omegas."""
    keys = omega_curve.comparisons(records)
    metrics = [metric for metric in study.metrics if metric in omega_curve.AXES]
    paths = report_files.write(omega_curve.report(records, metrics, study.tables), folder / "omega") if keys else []
    for key in keys:
        paths += omega_curve.write(records, key, metrics, folder, study.tables)
    return paths


def _of_sweep(study: Study, records: Sequence[Record], folder: Path) -> list[Path]:
    """The table and the curves of what a study sweeps."""
    paths = report_files.write(_swept(study, records), folder / "sweep")
    return paths + sweep_curve.of_study(study.sweep, records, folder)


def _swept(study: Study, records: Sequence[Record]) -> Report:
    """Of smoke runs without scores."""
    whole = sweep.report(study.sweep, records)
    return without_scores(whole) if is_smoke(records) else whole


def _of_tasks(records: Sequence[Record], folder: Path) -> list[Path]:
    """The table of meta-learners; of smoke runs without scores."""
    whole = task_table.report(records)
    return report_files.write(without_scores(whole) if is_smoke(records) else whole, folder / "tasks")


def _principal_components(
    store: Store, cells: Sequence[CellSpec], records: Sequence[Record], folder: Path, data_dir: Path | None
) -> list[Path]:
    """The panels of every setting, from networks and images on disk."""
    paths: list[Path] = []
    for key in grouping.settings(records):
        pairs = [(cell, r) for cell, r in zip(cells, records, strict=True) if grouping.setting(r.cell) == key]
        clouds = feature_pca.clouds(store, [cell for cell, _ in pairs], data_dir)
        stem = files.inside(folder, f"pca-{grouping.stem(key)}")
        paths += report_files.write(feature_pca.report(key, clouds, [r for _, r in pairs]), stem)
        paths += feature_pca.write(key, clouds, pairs[0][1].class_names, stem)
    return paths


def _generators(
    store: Store, cells: Sequence[CellSpec], records: Sequence[Record], folder: Path, data_dir: Path | None
) -> list[Path]:
    """The scores of generators of images and what they make, from networks and images on disk."""
    scored = {r.id for r in generators.with_scores(records)}
    if not scored:
        return []
    paths = report_files.write(_of_generators(records), folder / GENERATOR)
    for key in grouping.settings(records):
        chosen = {name: r for name, r in grouping.chosen(records, key).items() if r.id in scored}
        rows = [(name, cell) for name, r in chosen.items() for cell in cells if cell.id == r.id]
        if not rows:
            continue
        stem, title = files.inside(folder, f"samples-{grouping.stem(key)}"), grouping.title(key)
        classes = next(iter(chosen.values())).class_names
        paths += samples.write(samples.compared(store, rows, data_dir), classes, title, stem)
        for name, cell in rows:
            blocks, others = samples.over_rounds(store, cell, data_dir)
            of_row = stem.with_name(f"{stem.name}-{samples.file_name(name)}")
            remark = f"{others} more clients" if others else ""
            paths += samples.write(blocks, classes, f"{name}, {title}", of_row, remark)
    return paths


def _of_generators(records: Sequence[Record]) -> Report:
    """Of smoke runs without scores."""
    report = generator_table.report(records)
    return without_scores(report) if is_smoke(records) else report


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
    best_ids = {r.id for r in grouping.best_searched([r for _, r in pairs_of])}
    pairs_of = [(cell, r) for cell, r in pairs_of if r.id in best_ids]
    attacked = [r for _, r in pairs_of]
    if name == "accuracy":
        whole = accuracy_table.report(records, gaps, study.metrics, study.tables)
        return report_files.write(derived.beside(whole, records, name, study.tables), folder / name)
    if name in ("ablation", "communication"):
        whole = communication.report(records) if name != "ablation" else ablation.report(records, gaps, study.metrics)
        return report_files.write(whole, folder / name)
    if name == "attack":
        lost = [gap for gap in gaps if gap.cell.attack is not None]
        paths = (
            report_files.write(attack_table.report(attacked, lost, references), folder / "table") if attacked else []
        )
        paths += sweep_curve.curves(attacked, folder) + epsilon_curve.curves(attacked, folder)
        return paths + of_attack.attacked(store, [cell for cell, _ in pairs_of], attacked, folder)
    if name == "ladder":
        inferred = [r for r in records if isinstance(r, InferenceRecord)]
        of_images = [cell for cell, _ in pairs_of]
        return ladder_cells.write(store, of_images, attacked, gaps, folder, inferred) if attacked else []
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
        report = derived.beside(curves.report(records, CURVES[name], CURVE_TITLES[name]), records, name, study.tables)
        return _with_figures(
            report, records, folder, name, lambda key, stem: curves.write(records, key, CURVES[name], stem)
        )
    if name == "box-plots":
        return _with_figures(
            box_plots.report(records), records, folder, name, lambda key, stem: box_plots.write(records, key, stem)
        )
    return of_attack.histograms(records, folder)


def _of_attacks(name: str, records: Sequence[AttackRecord]) -> Report:
    """One of OF_ATTACKS; of smoke runs without scores."""
    report = OF_ATTACKS[name](records)
    return without_scores(report) if is_smoke(records) else report


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
    study: Study, cells: Sequence[CellSpec], states: Sequence[CellStatus], paths: Sequence[Path], folder: Path
) -> list[Path]:
    """report.md and report.html: what the study is, how far every cell is, and every table and figure of it."""
    tables = [
        Table(heading, status.COLUMNS, body, words=True, is_part=True)
        for heading, body in status.listing(cells, states)
    ]
    page = Report(
        study.title,
        [f"{study.about} Source: {study.source}.", f"{status.counts(states)}."],
        [Table("Cells", (), (), status.reasons(cells, states)), *tables],
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
    named_report = _first(study, records, gaps, references)
    if named_report is not None:
        name, report = named_report
        terminal.show(report, folder / f"{name}.md", to, first)


def _first(
    study: Study, records: Sequence[Record], gaps: Sequence[Gap], references: Sequence[AttackRecord]
) -> tuple[str, Report] | None:
    """(the name of its file, the report) that a study shows; None where it has no records."""
    attacked = [r for r in records if isinstance(r, AttackRecord)]
    if study.sweep:
        return "sweep", _swept(study, records)
    if "attack" in study.reports:
        best, lost = grouping.best_searched(attacked), [gap for gap in gaps if gap.cell.attack is not None]
        return ("table", attack_table.report(best, lost, references)) if best else None
    if study.reports == (INFERENCE,):
        inferred = [r for r in records if isinstance(r, InferenceRecord)]
        return (INFERENCE, inference_table.report(inferred)) if inferred else None
    if "ladder" in study.reports:
        return "summary", inference_table.beneath(ladder_summary.report(attacked, gaps), records)
    for name in ("nearest", "variants"):
        if name in study.reports:
            return name, _of_attacks(name, attacked)
    if "ablation" in study.reports:
        return "ablation", ablation.report(records, gaps, study.metrics)
    if GENERATOR in study.reports and generators.with_scores(records):
        return GENERATOR, _of_generators(records)
    whole = accuracy_table.report(records, gaps, study.metrics, study.tables)
    return "accuracy", whole._replace(tables=whole.tables[: len(study.metrics)])
