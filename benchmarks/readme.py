"""The numbers of README.md from committed records: `python -m benchmarks.readme` writes its marked blocks again.

A block stands between two equal comments, `<!-- table -->` and `<!-- noise -->`. A test holds both equal to what is made here.
"""

from __future__ import annotations

import json
import lzma
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

from scipy.stats import t

from privbench.records import schema
from privbench.records.schema import AttackRecord
from privbench.scoring.statistics import CONFIDENCE
from privbench.system import files
from reports.records.labels import compact
from reports.tables import render

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "README.md"
RECORDS = ROOT / "docs" / "results" / "records" / "quick-photos.jsonl.xz"
WIDTH = 150  # characters of a line of prose
WEAK, STRONG = "gaussian:0.001", "gaussian:0.1"


def records(path: Path = RECORDS) -> list[AttackRecord]:
    """The records of attacks in a committed file, each checked as one of a folder of results is."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        found = [schema.parsed(json.loads(line), path) for line in file]
    return [r for r in found if isinstance(r, AttackRecord)]


def table(every: Sequence[AttackRecord]) -> str:
    """The published form of the best round, with where it was measured."""
    own = [r for r in every if r.cell.round == "best"]
    first, (form,) = own[0], compact(own)
    seeds, where = first.cell.seeds, first.environment
    about = (
        f"Best round, {first.cell.preset} preset, seeds {seeds[0]} to {seeds[-1]}, {first.scores.n} victims, [95% interval over "
        f"seeds, clients and victims], {where['cores']} CPU cores ({where['machine']}), {where['date']}"
    )
    return f"{about}\n([whole table](docs/results/quick-photos.md)):\n\n{render.markdown(form.columns, form.rows)}"


def noise(every: Sequence[AttackRecord]) -> str:
    """What noise does to accuracy, seed by seed against plain FedAvg."""
    own = {
        r.cell.train.defense: r
        for r in every
        if (r.cell.train.method, r.cell.round, r.attack) == ("fedavg", "best", "dlg")
    }
    weak, strong = (difference_text(own[each], own["none"]) for each in (WEAK, STRONG))
    sent = [f"{fmean(broadcast(own[each])):.1f}%" for each in ("none", WEAK, STRONG)]
    return textwrap.fill(
        "- **Noise does not raise accuracy.** The intervals overlap. Against plain FedAvg, seed by seed, noise of 0.001 gives "
        f"{weak} and noise of 0.1 gives {strong} points ({100 * CONFIDENCE:.0f}%, Student's t over {len(own['none'].cell.seeds)} "
        "seeds). The row is of a client's personal model before its own noise enters. The network that the server broadcasts falls "
        f"from {sent[0]} to {sent[1]} and {sent[2]} ([whose model is measured](docs/metrics.md)).",
        WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def difference_text(one: AttackRecord, other: AttackRecord) -> str:
    """Mean difference of accuracy in percentage points over seeds, with its interval."""
    each = [a - b for a, b in zip(one.accuracy.per_seed, other.accuracy.per_seed, strict=True)]
    half = t.ppf((1 + CONFIDENCE) / 2, len(each) - 1) * stdev(each) / math.sqrt(len(each))
    mean = fmean(each)
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def broadcast(r: AttackRecord) -> list[float]:
    """Test accuracy of what the server broadcasts after its own best validation round, percent, mean over clients, of each seed."""
    found = []
    for training in r.training:
        rounds = [each.models["broadcast"] for each in training.rounds]
        found.append(fmean(max(rounds, key=lambda each: fmean(each.validation)).test))
    return found


def written(page: str, blocks: dict[str, str]) -> str:
    """The page with what stands between the two comments of each block; ValueError where there are not two."""
    for name, text in blocks.items():
        mark = f"<!-- {name} -->"
        before, _, after = page.split(mark)
        page = f"{before}{mark}\n{text}\n{mark}{after}"
    return page


def current() -> str:
    """README.md as it should be."""
    every = records()
    return written(PAGE.read_text(encoding="utf-8"), {"table": table(every), "noise": noise(every)})


if __name__ == "__main__":
    files.write_bytes(PAGE, current().encode())
