"""What every test may rely on: one thread, no display, no network, no data folder of the user's, fixed examples."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported; worker processes inherit it
os.environ["MPLBACKEND"] = "Agg"
os.environ.pop("PRIVBENCH_DATA", None)  # a test must not depend on, nor write into, the data of the one who runs it

# The same examples in every run, so that a failure is the change's doing; and no time limit, so that a busy machine
# fails nothing.
hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("tests")


def _refuse(*_: object, **__: object) -> None:
    raise OSError("the tests have no network")


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test resolves a host name: a download fails at once, as it does on a machine without a network."""
    monkeypatch.setattr(socket, "getaddrinfo", _refuse)


class Ran(NamedTuple):
    """How a command ended."""

    status: int
    out: str  # what it printed
    err: str  # what it printed as an error


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs `privbench` with some words, in this process, where torch is imported already."""
    from privbench.cli import main

    def call(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["privbench", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return Ran(int(stop.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def narrow_resnet() -> Iterator[None]:
    """ResNet-18 with a sixteenth of its channels: the same layers, quick enough to be trained and attacked in a test."""
    from privbench.nets import resnet18

    with pytest.MonkeyPatch.context() as patch:
        for name in ("EXTRACTOR_LAYERS", "CLASSIFIER_LAYERS"):
            layers = getattr(resnet18, name).items()
            patch.setattr(resnet18, name, {layer: (before // 16, width // 16) for layer, (before, width) in layers})
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root folder of the checkout."""
    return Path(__file__).resolve().parent.parent
