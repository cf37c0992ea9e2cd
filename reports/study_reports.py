"""The reports that a study file may name, each written from the records of the study's cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from privbench import storage
from privbench.record import AttackRecord, Record
from privbench.spec import CellSpec
from privbench.store import Store
from reports import (
    ablation,
    accuracy_table,
    attack_table,
    boxes,
    climb,
    curves,
    derived,
    drawings,
    feature_pca,
    ladder_summary,
    layout,
    nearest,
    omega_curve,
    pairs,
    roc,
    rows,
    states,
    strips,
    tables,
    variants,
)
from reports.published_form import Gap
from reports.states import State
from reports.study import Study

NAMES = (
    "accuracy", "omega", "pca", "ablation", "attack", "ladder", "pairs", "gain", "rta", "roc", "curves", "consistency", "boxes",
    "clients", "nearest", "variants",
)  # fmt: skip
OF_ATTACKS = {"pairs": pairs.report, "nearest": nearest.report, "variants": variants.report}
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
) -> list[Path]:
    """Every report of the study; `records` are those of `cells`, in the same order. The PCA reads images from `data_dir`."""
    paths = []
    for name in study.reports:
        if name == "pca":
            paths += _principal_components(store, cells, records, folder, data_dir)
        elif name == "omega":
            paths += _against_omega(study, records, folder)
        else:
            paths += _write_one(name, study, store, cells, records, gaps, folder)
    return paths


def _against_omega(study: Study, records: Sequence[Record], folder: Path) -> list[Path]:
    """The curves of every data set that has several omegas."""
    keys = omega_curve.comparisons(records)
    metrics = [metric for metric in study.metrics if metric in omega_curve.ACCURACIES]
    paths = tables.write(omega_curve.report(records, metrics, study.tables), folder / "omega") if keys else []
    for key in keys:
        paths += omega_curve.write(records, key, metrics, folder, study.tables)
    return paths


def _principal_components(
    store: Store, cells: Sequence[CellSpec], records: Sequence[Record], folder: Path, data_dir: Path | None
) -> list[Path]:
    """The panels of every setting, from networks and images on disk."""
    paths: list[Path] = []
    for key in rows.settings(records):
        own = [(cell, r) for cell, r in zip(cells, records, strict=True) if rows.setting(r.cell) == key]
        found = feature_pca.clouds(store, [cell for cell, _ in own], data_dir)
        stem = storage.inside(folder, f"pca-{rows.stem(key)}")
        paths += tables.write(feature_pca.report(key, found, [r for _, r in own]), stem)
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
) -> list[Path]:
    pairs_of = [(cell, r) for cell, r in zip(cells, records, strict=True) if isinstance(r, AttackRecord)]
    kept = {r.id for r in rows.best_searched([r for _, r in pairs_of])}
    pairs_of = [(cell, r) for cell, r in pairs_of if r.id in kept]
    attacked = [r for _, r in pairs_of]
    if name == "accuracy":
        whole = accuracy_table.report(records, gaps, study.metrics, study.tables)
        return tables.write(derived.beside(whole, records, name, study.tables), folder / name)
    if name == "ablation":
        return tables.write(ablation.report(records, gaps, study.metrics), folder / name)
    if name == "attack":
        lost = [gap for gap in gaps if gap.cell.attack is not None]
        paths = attack_table.write_tables(attacked, folder, lost) if attacked else []
        return paths + drawings.attacked(store, [cell for cell, _ in pairs_of], attacked, folder)
    if name == "ladder":
        return climb.write(store, [cell for cell, _ in pairs_of], attacked, gaps, folder) if attacked else []
    if name in OF_ATTACKS:
        return tables.write(OF_ATTACKS[name](attacked), folder / name) if attacked else []
    if name in strips.KINDS:
        return _with_figures(
            derived.beside(strips.report(records, name), records, name, study.tables),
            records,
            folder,
            name,
            lambda key, stem: strips.write(records, key, name, stem),
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
    if name == "boxes":
        return _with_figures(
            boxes.report(records), records, folder, name, lambda key, stem: boxes.write(records, key, stem)
        )
    return drawings.histograms(records, folder)


def _with_figures(
    report: tables.Report,
    records: Sequence[Record],
    folder: Path,
    name: str,
    draw: Callable[[rows.Setting, Path], list[Path]],
) -> list[Path]:
    """The tables, and a figure per setting; nothing where no record says anything."""
    if not report.forms:
        return []
    figures = [
        path for key in rows.settings(records) for path in draw(key, storage.inside(folder, f"{name}-{rows.stem(key)}"))
    ]
    return tables.write(report, folder / name) + figures


def write_page(
    study: Study, cells: Sequence[CellSpec], found: Sequence[State], paths: Sequence[Path], folder: Path
) -> Path:
    """report.md: what the study is, how far every cell is, and every table and figure of it."""
    parts = [f"# {study.title}", f"{study.about} Source: {study.source}.", f"{states.counts(found)}."]
    open_ = states.reasons(cells, found)
    if open_:
        parts.append("\n".join(f"- {line}" for line in open_))
    texts = [path for path in paths if path.suffix == ".md"]
    images = [path for path in paths if path.suffix == ".png"]
    parts.append("## Tables\n\n" + "\n".join(f"- [{path.stem}]({path.name}) (also .csv, .tex)" for path in texts))
    parts.append("## Figures\n\n" + "\n\n".join(f"![{path.stem}]({path.name})" for path in images))
    parts.append("## Cells")
    parts += [
        f"### {heading}\n\n{layout.markdown(states.COLUMNS, body, words=True)}"
        for heading, body in states.listing(cells, found)
    ]
    target = folder / "report.md"
    storage.write_bytes(target, ("\n\n".join(parts) + "\n").encode())
    return target


def show(study: Study, records: Sequence[Record], gaps: Sequence[Gap], console: Console) -> None:
    """The study's first table on the terminal."""
    if "attack" in study.reports:
        attacked = rows.best_searched([r for r in records if isinstance(r, AttackRecord)])
        if attacked:
            attack_table.print_tables(attacked, console, [gap for gap in gaps if gap.cell.attack is not None])
        return
    report: tables.Report
    if "ladder" in study.reports:
        report = ladder_summary.report([r for r in records if isinstance(r, AttackRecord)], gaps)
        forms = report.forms
    elif "nearest" in study.reports:
        report = nearest.report([r for r in records if isinstance(r, AttackRecord)])
        forms = report.forms
    elif "variants" in study.reports:
        report = variants.report([r for r in records if isinstance(r, AttackRecord)])
        forms = report.forms
    elif "ablation" in study.reports:
        report = ablation.report(records, gaps, study.metrics)
        forms = report.forms
    else:
        report = accuracy_table.report(records, gaps, study.metrics, study.tables)
        forms = report.forms[: len(study.metrics)]
    for form in forms:
        layout.show(form.title, form.columns, form.rows, console, words=form.words)
        for note in form.notes:
            console.print(Text(f"- {note}"))
    for note in report.notes:
        console.print(Text(f"- {note}"))
