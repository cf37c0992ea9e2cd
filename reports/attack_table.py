"""The attack table: accuracy against what a curious server reconstructs. A pure function of records.

Two views: the published form (one column per method, the paper's attack and the strongest one side by side) and the long
form (one row per record, with floor, interval, gain, knowledge, n, failures and seeds).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from privbench import storage
from privbench.record import Record
from reports.published import Published, lookup

NAMES = {"local": "Local", "fedavg": "FedAvg", "fedsplit": "FedSplit", "fedcg": "FedCG"}
PLAIN_ATTACKS = ("dlg", "feature-statistics")  # the papers' own, Eq. 7 and Eq. 8
GAP = "-"
LARGE_GAP_DB = 3.0  # a difference from the published value that deserves a sentence
CAVEAT = "A failed inversion is no proof of privacy: it bounds this attacker, not the next one."


def method_label(method: str, defense: str) -> str:
    """A column's heading."""
    name = NAMES.get(method, method)
    if defense == "none":
        return name
    kind, _, value = defense.partition(":")
    return f"{name} + {kind.capitalize()} {value}"


def label(record: Record) -> str:
    """A record's method and defence."""
    return method_label(record.spec["method"], record.spec["defense"])


def round_label(record: Record) -> str:
    """Which round was attacked, in words."""
    asked = record.spec["round"]
    if asked == "0":
        return "0 (untrained)"
    rounds = sorted(set(record.rounds))
    numbers = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]}-{rounds[-1]}"
    return f"{asked} ({numbers})" if asked in ("best", "last") else asked


def header(records: Sequence[Record]) -> list[str]:
    """What a reader must know before the first number."""
    presets = _unique(r.spec["preset"] for r in records)
    environment = records[0].environment
    seeds = max(len(r.spec["seeds"]) for r in records)
    lines = [
        f"Preset {', '.join(presets)}; {seeds} seed(s), {max(r.scores.n for r in records)} victims per cell at most; "
        f"{environment['device']}: {environment['machine']}, {environment['cores']} core(s); torch {environment['torch']}; "
        f"{environment['date']}."
    ]
    if presets != ["paper"]:
        lines.append(
            "This is NOT the published schedule: fewer rounds, images and seeds at a higher learning rate. Published values "
            "stand beside it for orientation; `--preset paper` runs the published settings."
        )
    lines.append(
        "PSNR in dB of images clipped to [0, 1], peak 1; [95% bootstrap interval over victims]; 'floor' is the best score "
        "anybody reaches without attacking (grey, data-set mean, class mean); 'gain' is the paired gain over it; accuracy is in "
        "percent, mean over clients of the personal model at its best validation round, +- over seeds."
    )
    lines.append(CAVEAT)
    return lines


def long_rows(records: Sequence[Record]) -> list[dict[str, str]]:
    """One row per record, in the order given."""
    return [_long_row(record) for record in records]


def _long_row(r: Record) -> dict[str, str]:
    accuracy, psnr = _published(r)
    return {
        "data set": r.spec["dataset"],
        "round": round_label(r),
        "method": label(r),
        "attack": r.spec["attack"],
        "knowledge": f"{r.knowledge['tag']}; labels {r.knowledge['labels']}",
        "accuracy": _spread(r.accuracy.mean, r.accuracy.std),
        "accuracy of the attacked networks": f"{r.accuracy.at_round_mean:.1f}",
        "PSNR dB": _range(r.scores.psnr_db),
        "raw PSNR dB": GAP if r.scores.psnr_raw_db is None else f"{r.scores.psnr_raw_db.mean:.2f}",
        "floor dB": f"{r.floor.psnr_db:.2f} ({r.floor.name})",
        "gain dB": _range(r.gain_db, sign=True),
        "SSIM": f"{r.scores.ssim.mean:.3f}",
        "labels right": f"{100 * r.scores.label_accuracy:.0f}%",
        "n": str(r.scores.n),
        "failures": str(r.scores.failures),
        "seeds": str(len(r.spec["seeds"])),
        "published accuracy": GAP if accuracy is None else _spread(accuracy.value, accuracy.std),
        "published PSNR dB": GAP if psnr is None else _spread(psnr.value, psnr.std),
        "PSNR - published": GAP if psnr is None else f"{r.scores.psnr_db.mean - psnr.value:+.2f}",
        "seconds": f"{r.cost.attack_seconds:.0f}",
    }


def compact(records: Sequence[Record]) -> list[tuple[str, list[str], list[list[str]]]]:
    """The published form: (title, columns, rows) for every data set and round."""
    tables = []
    for dataset in _unique(r.spec["dataset"] for r in records):
        for asked in _unique(r.spec["round"] for r in records if r.spec["dataset"] == dataset):
            some = [r for r in records if r.spec["dataset"] == dataset and r.spec["round"] == asked]
            columns = _unique(label(r) for r in some)
            by_column = {c: [r for r in some if label(r) == c] for c in columns}
            rows = [
                _row(
                    "accuracy of the trained method, %",
                    by_column,
                    lambda own: _spread(own[0].accuracy.mean, own[0].accuracy.std),
                ),
                _row("  published", by_column, lambda own: _published_text(own[0], 0)),
                _row("PSNR, the paper's attack, dB", by_column, lambda own: _attack_text(_plain(own))),
                _row("  published", by_column, lambda own: _published_text(own[0], 1)),
                _row("PSNR, strongest attack here, dB", by_column, lambda own: _attack_text(_strongest(own))),
                _row("  which", by_column, lambda own: _strongest(own).spec["attack"]),
                _row("  gain over the floor, dB", by_column, lambda own: _range(_strongest(own).gain_db, sign=True)),
                _row("floor, dB", by_column, lambda own: f"{own[0].floor.psnr_db:.2f} ({own[0].floor.name})"),
                _row(
                    "n / failures", by_column, lambda own: f"{own[0].scores.n} / {max(r.scores.failures for r in own)}"
                ),
            ]
            ceiling = [r for r in some if r.spec["method"] == "fedavg" and r.spec["defense"] == "none"]
            top = f"; undefended ceiling {_strongest(ceiling).scores.psnr_db.mean:.2f} dB" if ceiling else ""
            tables.append((f"{dataset}, round {round_label(some[0])}{top}", ["", *columns], rows))
    return tables


def remarks(records: Sequence[Record]) -> list[str]:
    """One sentence per disagreement or doubt that the numbers themselves show."""
    told: list[str] = []
    for r in records:
        where = f"{r.spec['dataset']}, {label(r)}, {r.spec['attack']}, round {round_label(r)}"
        _, psnr = _published(r)
        mean = r.scores.psnr_db.mean
        if psnr is not None and r.spec["attack"] in PLAIN_ATTACKS and psnr.value < r.floor.psnr_db:
            told.append(
                f"{where}: the published {psnr.value:.2f} dB lie below the {r.floor.psnr_db:.2f} dB that the {r.floor.name} image "
                "scores on these victims: they report an attack that failed, not protection."
            )
        if psnr is not None and abs(mean - psnr.value) > LARGE_GAP_DB:
            told.append(f"{where}: measured {mean:.2f} dB, published {psnr.value:.2f} dB ({mean - psnr.value:+.1f}).")
        if r.scores.failures:
            told.append(
                f"{where}: {r.scores.failures} of {r.scores.n} victims failed (no finite image) and count as grey."
            )
    below = _unique(f"{r.spec['dataset']} {label(r)} {r.spec['attack']}" for r in records if r.gain_db.high < 0)
    if below:
        told.append(f"Below the floor, so these attacks say nothing about privacy: {'; '.join(below)}.")
    chance = _unique(f"{r.spec['dataset']} {label(r)} ({r.accuracy.mean:.1f}%)" for r in records if _near_chance(r))
    if chance:
        told.append(f"Accuracy near chance, so these methods did not train: {'; '.join(chance)}.")
    return _unique([*told, *(f"note: {note}." for r in records for note in r.notes)])


def _near_chance(record: Record) -> bool:
    return record.accuracy.mean < 1.5 * 100 / record.spec["classes"]


def markdown(records: Sequence[Record]) -> str:
    """The whole report as Markdown."""
    parts = ["# Attack table", *header(records)]
    for title, columns, rows in compact(records):
        parts.append(f"## {title}\n\n" + _markdown_table(columns, rows))
    rows_ = long_rows(records)
    parts.append("## Every record\n\n" + _markdown_table(list(rows_[0]), [list(row.values()) for row in rows_]))
    told = remarks(records)
    if told:
        parts.append("## Remarks\n\n" + "\n".join(f"- {line}" for line in told))
    return "\n\n".join(parts) + "\n"


def latex(records: Sequence[Record]) -> str:
    """The published form as LaTeX tables (booktabs), one per data set and round."""
    tables = []
    for title, columns, rows in compact(records):
        body = "\n".join(" & ".join(_tex(cell) for cell in row) + r" \\" for row in rows)
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(title)}.}}",
            rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            " & ".join(_tex(column) for column in columns) + r" \\",
            r"\midrule",
            body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        tables.append("\n".join(lines))
    notes = "\n".join(f"% {line}" for line in header(records))
    return f"{notes}\n% needs \\usepackage{{booktabs}}\n" + "\n\n".join(tables) + "\n"


def csv(records: Sequence[Record]) -> str:
    """Numbers at full precision, one row per record."""
    rows: list[dict[str, Any]] = []
    for r in records:
        accuracy, psnr = _published(r)
        rows.append(
            {
                "id": r.id,
                **{
                    k: r.spec[k]
                    for k in ("preset", "dataset", "method", "defense", "where", "attack", "round", "batch_size")
                },
                "attacked_rounds": " ".join(map(str, r.rounds)),
                "knowledge": r.knowledge["tag"],
                "labels": r.knowledge["labels"],
                "accuracy_percent": r.accuracy.mean,
                "accuracy_std": r.accuracy.std,
                "accuracy_at_round_percent": r.accuracy.at_round_mean,
                "psnr_db": r.scores.psnr_db.mean,
                "psnr_low": r.scores.psnr_db.low,
                "psnr_high": r.scores.psnr_db.high,
                "psnr_raw_db": None if r.scores.psnr_raw_db is None else r.scores.psnr_raw_db.mean,
                "floor": r.floor.name,
                "floor_db": r.floor.psnr_db,
                "gain_db": r.gain_db.mean,
                "gain_low": r.gain_db.low,
                "gain_high": r.gain_db.high,
                "ssim": r.scores.ssim.mean,
                "label_accuracy": r.scores.label_accuracy,
                "n": r.scores.n,
                "failures": r.scores.failures,
                "seeds": " ".join(map(str, r.spec["seeds"])),
                "published_accuracy_percent": None if accuracy is None else accuracy.value,
                "published_psnr_db": None if psnr is None else psnr.value,
                "train_seconds": r.cost.train_seconds,
                "attack_seconds": r.cost.attack_seconds,
                "gradient_evaluations": r.cost.gradient_evaluations,
            }
        )
    return pd.DataFrame(rows).to_csv(index=False)


def write_tables(records: Sequence[Record], folder: Path) -> list[Path]:
    """table.md, table.csv and table.tex."""
    texts = {"table.md": markdown(records), "table.csv": csv(records), "table.tex": latex(records)}
    for name, text in texts.items():
        storage.write_bytes(folder / name, text.encode())
    return [folder / name for name in texts]


def print_tables(records: Sequence[Record], console: Console) -> None:
    """The published form on the terminal, with the remarks."""
    for title, columns, rows in compact(records):
        table = Table(title=title, title_justify="left", title_style="bold")
        for i, column in enumerate(columns):
            table.add_column(column, justify="left" if i == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in [*header(records), *remarks(records)]:
        console.print(f"- {line}", markup=False, highlight=False)


def _row(name: str, by_column: dict[str, list[Record]], text: Callable[[list[Record]], str]) -> list[str]:
    return [name, *(text(own) if own else GAP for own in by_column.values())]


def _plain(own: Sequence[Record]) -> Record | None:
    return next((r for r in own if r.spec["attack"] in PLAIN_ATTACKS), None)


def _strongest(own: Sequence[Record]) -> Record:
    return max(own, key=lambda r: r.scores.psnr_db.mean)


def _attack_text(record: Record | None) -> str:
    return GAP if record is None else _range(record.scores.psnr_db)


def _published(record: Record) -> tuple[Published | None, Published | None]:
    """(accuracy, PSNR); the PSNR is of the papers' own attack and stands beside every attack."""
    key = (record.spec["dataset"], record.spec["method"], record.spec["defense"])
    return lookup(*key, "accuracy_percent"), lookup(*key, "psnr_db")


def _published_text(record: Record, which: int) -> str:
    found = _published(record)[which]
    return GAP if found is None else _spread(found.value, found.std)


def _spread(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" if std is None or math.isnan(std) else f"{mean:.2f} +- {std:.2f}"


def _range(range_: Any, *, sign: bool = False) -> str:
    plus = "+" if sign else ""
    return f"{range_.mean:{plus}.2f} [{range_.low:{plus}.2f}, {range_.high:{plus}.2f}]"


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows])


_TEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}  # fmt: skip


def _tex(text: str) -> str:
    escaped = "".join(_TEX.get(character, character) for character in text)
    return escaped.replace("+-", r"$\pm$").replace("  ", r"\quad ")


def _unique(values: Any) -> list[Any]:
    return list(dict.fromkeys(values))
