"""What a kill campaign did, as a page: counts by kind, hardware, date and commit."""

from __future__ import annotations

import subprocess
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch

from privbench.system import cpu, machine

SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
ROWS = {"event": "signal at an event point", "moment": "signal at a random moment"}
OTHERS = {
    "disk": "disk full",
    "read-only": "disk read-only",
    "deleted": "folder deleted",
    "two": "two processes at once, both to the end",
    "two SIGKILL": "two processes at once, one killed",
}
MOUNTED = ("disk", "read-only")
LEFT_OUT = "left out: no tmpfs may be mounted here"


class Campaign(NamedTuple):
    """What was done, and what came of it."""

    lives: list[dict[str, Any]]  # benchmarks.chaos.Life
    events: dict[int, int]  # cores -> event points of the undisturbed run
    seed: int
    seconds: float
    disk: bool  # whether full disks could be had

    @property
    def faults(self) -> list[dict[str, Any]]:
        """The lives that did not end as they should."""
        return [life for life in self.lives if life["fault"]]

    @property
    def kills(self) -> Counter[str]:
        """How often each kind of disturbance was made."""
        counts: Counter[str] = Counter()
        for life in self.lives:
            counts.update(life["kills"])
        return counts


def text(done: Campaign) -> str:
    """The page, in Markdown."""
    kills, lives = done.kills, len(done.lives)
    lines = [
        "# Reliability: killed, and compared with an undisturbed run",
        "<!-- Written by `make chaos` (benchmarks/chaos/); do not edit by hand. -->",
        f"`privbench` was disturbed {sum(kills.values()):,} times in {lives:,} output folders. After the last disturbance the same "
        "command was given once more. Then every file in the folder was compared, byte by byte, with that of an undisturbed run: "
        "records, snapshots, reconstructions and tables. Figures are written, but not drawn.",
        f"**{lives - len(done.faults):,} of {lives:,} folders ended the same, with the status and the line that are promised; "
        f"{len(done.faults)} did not.**",
        "| disturbance | SIGKILL | SIGTERM | SIGINT |\n|---|---:|---:|---:|\n"
        + "\n".join(
            f"| {words} | " + " | ".join(f"{kills[f'{kind} {name}']:,}" for name in SIGNALS) + " |"
            for kind, words in ROWS.items()
        ),
        "| other disturbance | times |\n|---|---:|\n"
        + "\n".join(
            f"| {words} | {f'{kills[kind]:,}' if done.disk or kind not in MOUNTED else LEFT_OUT} |"
            for kind, words in OTHERS.items()
        ),
        "An event point is the moment before or after the program opens, flushes, renames, links, removes or locks a file. The "
        "undisturbed run has "
        + " and ".join(f"{count} of them on {cores} core{'s' * (cores > 1)}" for cores, count in done.events.items())
        + f"; {len({life['event'] for life in done.lives if life['event']})} of them were met. A signal "
        "goes to the parent, to a worker or to all processes; a file that is being written by a process that dies at once is "
        "cut short half of the time. A folder may be disturbed several times.",
    ]
    if done.faults:
        lines.append("\n".join(f"- life {one['number']} ({one['what']}): {one['fault']}" for one in done.faults))
    lines.append(
        f"{machine.environment(torch.device('cpu'))['machine']}, {cpu.cores()} cores, torch {torch.__version__}; "
        f"{datetime.now(UTC).date()}, commit {commit()}, seed {done.seed}, {done.seconds / 60:.0f} minutes."
    )
    return "\n\n".join(lines) + "\n"


def commit() -> str:
    """The commit of the checkout, with a plus where files were changed; "unknown" outside one."""
    try:
        outputs = [
            subprocess.run(
                ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
            ).stdout.strip()
            for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        ]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return outputs[0] + ("+" if outputs[1] else "")
