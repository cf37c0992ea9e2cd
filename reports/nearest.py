"""Which setting of the papers' own attack comes nearest to the PSNR that they print, column by column and for all columns at once.

A pure function of records. A setting is all that a source leaves open: the attacked round, the attack's own settings, images per
gradient, labels known. PSNR stands clipped to [0, 1], as the suite has it, and raw: FedCG does not say which it printed, and
6.23 dB is below what a grey image scores. Nearness to a printed value says that a setting could be the one used, not that it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from privbench.record import AttackRecord
from reports import published, remarks, rows, variants
from reports.published_form import NONE, label, unique
from reports.tables import Form, Report

ALPHA = "alpha"  # of Eq. 8 alone, so that it tells no setting of all columns from another


class Measured(NamedTuple):
    """One record, as this report sees it."""

    column: str
    setting: str
    common: str  # the setting without what one attack alone has
    printed: float | None  # dB
    clipped: float  # mean over victims, dB
    raw: float | None


def report(records: Sequence[AttackRecord]) -> Report:
    """Two tables per data set: the nearest setting of each column, and every setting that all columns have."""
    forms: list[Form] = []
    for key in rows.settings(records):
        own = [measured(r) for r in records if rows.setting(r.cell) == key]
        title = rows.title(key)
        forms.append(Form(f"{title}: each column by itself", COLUMNS, [_nearest(own, c) for c in _columns(own)]))
        forms.append(_together(own, title))
    numbers = [
        {
            "id": r.id, "setting": rows.title(rows.setting(r.cell)), **measured(r)._asdict(),
            "n": r.scores.n, "failures": r.scores.failures, "seeds": " ".join(map(str, r.cell.seeds)),
        }
        for r in records
    ]  # fmt: skip
    notes = [
        *remarks.training_header(records),
        "PSNR in dB, mean over victims: of images clipped to [0, 1], and raw, as the optimiser left them. The distance is from the "
        "printed value, which is a mean over seeds; the nearest of many settings is near by chance, too.",
    ]
    return Report("The papers' attack, nearest settings", notes, forms, numbers)


COLUMNS = ("", "printed", "nearest, clipped", "dB", "distance", "nearest, raw", "dB", "distance")


def measured(r: AttackRecord) -> Measured:
    """A record in this report's words."""
    cell, train, settings = r.cell, r.cell.train, variants.unusual_settings(r.cell)
    return Measured(
        label(cell),
        variants.words(cell, settings),
        variants.words(cell, {name: value for name, value in settings.items() if name != ALPHA}),
        published.printed("FedCG", "2", train.dataset, train.method, train.defense, published.PSNR),
        r.scores.psnr_db,
        r.scores.psnr_raw_db,
    )


def _columns(own: Sequence[Measured]) -> list[str]:
    return unique(m.column for m in own)


def _nearest(own: Sequence[Measured], column: str) -> list[str]:
    some = [m for m in own if m.column == column]
    printed = some[0].printed
    if printed is None:
        return [column, *(NONE for _ in COLUMNS[1:])]
    cells = [column, f"{printed:.2f}"]
    for how in ("clipped", "raw"):
        rivals = [(abs(value - printed), m.setting, value) for m in some if (value := getattr(m, how)) is not None]
        if not rivals:
            cells += [NONE, NONE, NONE]
            continue
        distance, setting, value = min(rivals)
        cells += [setting, f"{value:.2f}", f"{distance:.2f}"]
    return cells


def _together(own: Sequence[Measured], title: str) -> Form:
    """One setting for all columns, the nearest first; of several values of alpha each setting has its nearest."""
    columns = _columns(own)
    body: list[tuple[float, list[str]]] = []
    for setting in unique(m.common for m in own):
        for how in ("clipped", "raw"):
            cells, gaps = [], []
            for column in columns:
                some = [m for m in own if (m.common, m.column) == (setting, column) and getattr(m, how) is not None]
                if not some:
                    break
                aim = some[0].printed
                value = min((getattr(m, how) for m in some), key=lambda v: 0.0 if aim is None else abs(v - aim))
                cells.append(f"{value:.2f}")
                gaps += [] if aim is None else [abs(value - aim)]
            else:
                mean = fmean(gaps) if gaps else float("inf")
                body.append((mean, [setting, how, *cells, f"{mean:.2f}" if gaps else NONE]))
    printed = {m.column: m.printed for m in own}
    head = ["printed", "", *(NONE if value is None else f"{value:.2f}" for value in printed.values()), NONE]
    lines = [line for _, line in sorted(body, key=lambda each: each[0])]
    return Form(
        f"{title}: one setting for all columns",
        ["", "PSNR", *columns, "mean distance"],
        [head, *lines],
    )
