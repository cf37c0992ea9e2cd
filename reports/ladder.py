"""The attack ladder: how much a server reconstructs, by what it knows; Markdown, CSV, LaTeX and terminal.

A pure function of records. One block per data set, round, method and defence: the strongest attack of every knowledge tag in the
order of the rungs, beneath it every attack that was run, the paired tests against the floor, and the doubts that the numbers
raise (reports/remarks.py). docs/ladder.md says how to read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console
from rich.text import Text

from privbench import flags, plugins, storage
from privbench.record import AttackRecord
from reports import comparison, layout
from reports import doubts as doubts_of
from reports.comparison import Comparison
from reports.published_form import (
    NONE,
    ORACLE,
    Gap,
    group,
    knowledge_text,
    label,
    place,
    pooled_text,
    range_text,
    strongest,
    title_of,
    unique,
)
from reports.remarks import CAVEAT, gap_lines, header, remarks

OWN = "own"  # the rung of a user's attack that declares none
COLUMNS = (
    "rung", "knowledge", "strongest attack", "PSNR dB", "gain over the floor dB", "SSIM", "feature error", "identified",
    "labels right", "n / failures", "seconds", "gradient evaluations", "doubts",
)  # fmt: skip
LATEX_COLUMNS = (
    "rung", "knowledge", "strongest attack", "PSNR dB", "gain over the floor dB", "n / failures", "seconds", "doubts",
)  # fmt: skip


class Block(NamedTuple):
    """The ladder of one method at one round."""

    title: str
    floor: str  # in words
    best: list[AttackRecord]  # the best floor, then each knowledge tag's strongest attack, in the order of the rungs
    every: list[AttackRecord]
    tests: list[Comparison]  # of those attacks against the floor


def blocks(records: Sequence[AttackRecord]) -> list[Block]:
    """One block per table, method and defence, in the published order."""
    found = []
    for key in unique(group(r.spec) for r in records):
        own = sorted((r for r in records if group(r.spec) == key), key=lambda r: place(r.spec))
        for name in unique(label(r.spec) for r in own):
            every = sorted((r for r in own if label(r.spec) == name), key=order)
            attacks = [r for r in every if r.spec["attack"] not in plugins.FLOORS]
            best = [
                strongest([r for r in attacks if knowledge_text(r) == each])
                for each in unique(map(knowledge_text, attacks))
            ]
            floor = every[0].floor
            tests = comparison.against_floor(best, [f"{knowledge_text(r)} ({r.spec['attack']})" for r in best])
            best = [r for r in every if r.spec["attack"] == floor.name] + best
            title = f"{name}: {title_of(key)}"
            found.append(Block(title, f"floor {floor.psnr_db:.2f} dB ({floor.name})", best, every, tests))
    return found


def rung(record: AttackRecord) -> str:
    """L0 to L8, or OWN."""
    return record.knowledge.get("rung") or OWN


def rungs(records: Sequence[AttackRecord]) -> str:
    """The rungs of some attacks, e.g. "L1-L2"."""
    found = sorted({rung(r) for r in records})
    return found[0] if len(found) == 1 else f"{found[0]}-{found[-1]}"


def order(record: AttackRecord) -> tuple[str, str, float]:
    """Rungs from below, and the stronger of two attacks of one tag first."""
    return (rung(record), knowledge_text(record), -record.scores.psnr_db.mean)


def row(r: AttackRecord, doubts: Sequence[flags.Flag], among: Sequence[AttackRecord] = ()) -> dict[str, str]:
    """One attack's cells under COLUMNS; `among` are all attacks of its tag, whose rungs and costs the row sums up."""
    s = r.scores
    return {
        "rung": rungs(among or [r]),
        "knowledge": f"{knowledge_text(r)}{pooled_text(r)}",
        "strongest attack": r.spec["attack"],
        "PSNR dB": range_text(s.psnr_db),
        "gain over the floor dB": range_text(r.gain_db, sign=True),
        "SSIM": f"{s.ssim.mean:.3f}",
        "feature error": NONE if s.feature_error is None else f"{s.feature_error.mean:.3f}",
        "identified": f"{100 * s.identification:.0f}% (chance {100 * s.identification_chance:.3g}%)",
        "labels right": f"{100 * s.label_accuracy:.0f}%",
        "n / failures": f"{s.n} / {s.failures}",
        "seconds": f"{r.cost.attack_seconds:.1f}",
        "gradient evaluations": f"{r.cost.gradient_evaluations:,}",
        "doubts": flags.names(doubts),
    }


def best_rows(block: Block, doubts: dict[str, list[flags.Flag]]) -> list[dict[str, str]]:
    """One row per knowledge tag."""
    return [
        row(r, doubts[r.id], [x for x in block.every if knowledge_text(x) == knowledge_text(r)]) for r in block.best
    ]


def strongest_line(block: Block) -> str:
    """The block's answer in one sentence."""
    attacks = [r for r in block.every if r.spec["attack"] not in plugins.FLOORS]
    if not attacks:
        return f"{block.floor}; no attack was run."
    r = strongest(attacks)
    verdict = (
        ""
        if r.gain_db.low > 0
        else " No attack surely beats the floor, which bounds these attacks and is no proof of privacy."
    )
    bound = [x for x in attacks if rung(x) == ORACLE]
    oracle = (
        f" Upper bound, with the victim's own networks: {range_text(strongest(bound).scores.psnr_db)} dB."
        if bound
        else ""
    )
    return (
        f"{block.floor[0].upper()}{block.floor[1:]}; strongest attack: {r.spec['attack']} ({knowledge_text(r)}), "
        f"{range_text(r.scores.psnr_db)} dB, {range_text(r.gain_db, sign=True)} dB over the floor, n = {r.scores.n}, "
        f"{r.scores.failures} failed.{verdict}{oracle} The defence gives {r.guarantee}."
    )


def write_tables(records: Sequence[AttackRecord], stem: Path, gaps: Sequence[Gap] = ()) -> list[Path]:
    """`stem`.md, `stem`.csv and `stem`.tex."""
    texts = {".md": markdown(records, gaps), ".csv": csv(records), ".tex": latex(records, gaps)}
    for ending, text in texts.items():
        storage.write_bytes(stem.with_name(stem.name + ending), text.encode())
    return [stem.with_name(stem.name + ending) for ending in texts]


def markdown(records: Sequence[AttackRecord], gaps: Sequence[Gap] = ()) -> str:
    """The whole ladder as Markdown."""
    doubts = doubts_of.by_record(records)
    parts = ["# Attack ladder", *header(records)]
    for block in blocks(records):
        best = best_rows(block, doubts)
        every = [row(r, doubts[r.id]) for r in block.every]
        parts += [f"## {block.title}", strongest_line(block), _markdown(best)]
        parts += ["Every attack:", _markdown(every).replace("strongest attack", "attack", 1)]
        if block.tests:
            parts += ["Against the floor, paired:", layout.markdown(comparison.COLUMNS, comparison.rows(block.tests))]
    tests = comparison.between_methods_of_each(records)
    if tests:
        parts += ["## Between methods", comparison.HOW, layout.markdown(comparison.COLUMNS, comparison.rows(tests))]
    for heading, lines in (("Not run", gap_lines(gaps)), ("Doubts and remarks", remarks(records))):
        if lines:
            parts.append(f"## {heading}\n\n" + "\n".join(f"- {line}" for line in lines))
    return "\n\n".join(parts) + "\n"


def _markdown(rows: Sequence[dict[str, str]]) -> str:
    return layout.markdown(COLUMNS, [[each[name] for name in COLUMNS] for each in rows])


def latex(records: Sequence[AttackRecord], gaps: Sequence[Gap] = ()) -> str:
    """The strongest attack per knowledge tag as LaTeX tables (booktabs), one per method and round."""
    doubts = doubts_of.by_record(records)
    tables = []
    for block in blocks(records):
        rows = [[each[name] for name in LATEX_COLUMNS] for each in best_rows(block, doubts)]
        caption = f"{block.title}; {block.floor}. [95% bootstrap interval over victims]. {CAVEAT}"
        tables.append(layout.latex(LATEX_COLUMNS, rows, caption))
    notes = [*header(records), *gap_lines(gaps), *remarks(records), "needs \\usepackage{booktabs}"]
    return "\n".join(f"% {line}" for line in notes) + "\n" + "\n\n".join(tables) + "\n"


def csv(records: Sequence[AttackRecord]) -> str:
    """Numbers at full precision, one row per attack."""
    doubts = doubts_of.by_record(records)
    return pd.DataFrame([_csv_row(r, doubts[r.id]) for b in blocks(records) for r in b.every]).to_csv(index=False)


def _csv_row(r: AttackRecord, doubts: Sequence[flags.Flag]) -> dict[str, Any]:
    s = r.scores
    kept = ("preset", "dataset", "method", "defense", "where", "attack", "round", "victims", "batch_size")
    return {
        "id": r.id,
        **{name: r.spec[name] for name in kept},
        "observe": r.spec.get("observe", "gradient"),
        "attacked_rounds": " ".join(map(str, r.rounds)),
        "rung": rung(r),
        "knowledge": knowledge_text(r),
        "uploads_pooled": r.knowledge.get("pools"),
        "psnr_db": s.psnr_db.mean,
        "psnr_low": s.psnr_db.low,
        "psnr_high": s.psnr_db.high,
        "psnr_raw_db": None if s.psnr_raw_db is None else s.psnr_raw_db.mean,
        "floor": r.floor.name,
        "floor_db": r.floor.psnr_db,
        "gain_db": r.gain_db.mean,
        "gain_low": r.gain_db.low,
        "gain_high": r.gain_db.high,
        "ssim": s.ssim.mean,
        "lpips": None if s.lpips is None else s.lpips.mean,
        "feature_error": None if s.feature_error is None else s.feature_error.mean,
        "identification": s.identification,
        "identification_chance": s.identification_chance,
        "label_accuracy": s.label_accuracy,
        "n": s.n,
        "failures": s.failures,
        "seeds": " ".join(map(str, r.spec["seeds"])),
        "attack_seconds": r.cost.attack_seconds,
        "gradient_evaluations": r.cost.gradient_evaluations,
        "guarantee": r.guarantee,
        "doubts": " ".join(flags.each_name(doubts)),
    }


TERMINAL = (
    "rung",
    "knowledge",
    "strongest attack",
    "PSNR dB",
    "gain over the floor dB",
    "identified",
    "n / failures",
    "seconds",
    "doubts",
)


def print_tables(records: Sequence[AttackRecord], console: Console, gaps: Sequence[Gap] = ()) -> None:
    """The strongest attack per knowledge tag on the terminal, the paired tests, what was not run, and the doubts."""
    doubts = doubts_of.by_record(records)
    for block in blocks(records):
        rows = [[each[name] for name in TERMINAL] for each in best_rows(block, doubts)]
        layout.show(block.title, TERMINAL, rows, console)
        console.print(Text(strongest_line(block)))
    tests = comparison.between_methods_of_each(records)
    if tests:
        layout.show("Between methods, paired", comparison.COLUMNS, comparison.rows(tests), console)
    missing = [f"not run: {line}" for line in gap_lines(gaps)]
    for line in [*header(records), *missing, *remarks(records)]:
        console.print(Text(f"- {line}"))
