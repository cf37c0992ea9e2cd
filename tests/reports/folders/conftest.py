"""A folder of results that several modules read; none of them changes it."""

from pathlib import Path

import pytest

import privbench


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished smoke run of two attacks."""
    out = tmp_path_factory.mktemp("results") / "runs"
    privbench.attack(
        method="fedavg", dataset="digits", preset="smoke", attack=["grey", "dlg"], out=out, victims=2, device="cpu"
    )
    return out
