"""The machine that a number was measured on."""

from __future__ import annotations

import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from privbench.errors import UserError
from privbench.system import cpu
from privbench.version import __version__


def device(name: str) -> torch.device:
    """The place to compute: "auto" is the GPU when there is one; one that is not there raises UserError."""
    if name not in ("auto", "cpu", "cuda"):
        raise UserError(f"unknown device '{name}'; known: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda was asked for, but torch sees no GPU here; use --device cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def peak_memory_mib(place: torch.device) -> float:
    """The most memory this process (or its GPU allocations) ever held."""
    if place.type == "cuda":
        return torch.cuda.max_memory_allocated(place) / 2**20
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def environment(place: torch.device) -> dict[str, Any]:
    """What a reader needs to judge or repeat a number, as far as machine and libraries report it."""
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else processor()
    return {
        "privbench": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": place.type,
        "threads": torch.get_num_threads(),
        "cores": cpu.cores(),
        "machine": name,
        "date": datetime.now(UTC).date().isoformat(),
    }


def trained_on(place: torch.device) -> dict[str, Any]:
    """The kind of machine that a round is trained on, as far as its last bits can depend on it; it names no host."""
    return {
        "processor": torch.cuda.get_device_name(place) if place.type == "cuda" else processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "device": place.type,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def kinds(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The kinds of machine that a run's rounds were trained on, in the order in which it met them: one unless it was moved."""
    each_kind: list[dict[str, Any]] = []
    for entry in history:
        kind = entry.get("machine")
        if kind is not None and kind not in each_kind:
            each_kind.append(kind)
    return each_kind


@cache
def processor() -> str:
    """The processor's name, as the machine gives it: "AMD EPYC 9B14", "Intel(R) Xeon(R) Processor"."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
