"""What every test may rely on: one thread, no display, no network, no data folder of the user's, fixed examples."""

import atexit
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest

from tests import slow

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch is first imported; worker processes inherit it
THREADS = int(os.environ["OMP_NUM_THREADS"])
os.environ["MPLBACKEND"] = "Agg"
os.environ["PRIVBENCH_CACHE"] = tempfile.mkdtemp(prefix="privbench-tests-")  # the user's own stays as it is
atexit.register(shutil.rmtree, os.environ["PRIVBENCH_CACHE"], ignore_errors=True)
os.environ.pop("PRIVBENCH_DATA", None)  # a test must not depend on, nor write into, the data of the one who runs it

# The same examples in every run, so that a failure is the change's doing; and no time limit, so that a busy machine
# fails nothing.
hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("tests")


collect_ignore = ["flower"]  # in an environment of their own: `make test-flower`

# Test modules whose outcome no order of summation in torch changes: the command line, files and their formats, documents and
# tables, what numpy or SciPy alone compute. All others are numerical, but for the tests of ANY_ARITHMETIC, and
# `make test-portable PART=numerical` runs those alone.
NOT_NUMERICAL = (
    "test_command_line.py",
    "test_first_users.py",
    "test_fuzz.py",
    "test_imports.py",
    "test_ladder_command.py",
    "test_makefile.py",
    "test_pages.py",
    "test_site.py",
    "benchmarks/test_chaos.py",
    "defenses/test_accounting.py",
    "privbench/capture/test_format.py",
    "privbench/capture/test_light.py",
    "privbench/capture/test_page.py",
    "privbench/cli/test_commands.py",
    "privbench/data/readers/test_decoded.py",
    "privbench/data/readers/test_download.py",
    "privbench/data/test_damaged_files.py",
    "privbench/data/test_dataset.py",
    "privbench/data/test_domainnet.py",
    "privbench/data/test_embedded.py",
    "privbench/data/test_from_files.py",
    "privbench/data/test_image_folder.py",
    "privbench/data/test_mnist_and_emnist.py",
    "privbench/data/test_partition.py",
    "privbench/execution/test_damaged_files.py",
    "privbench/execution/test_worker_pool.py",
    "privbench/observation/test_format.py",
    "privbench/records/test_checks.py",
    "privbench/records/test_record_lines.py",
    "privbench/records/test_schema.py",
    "privbench/system/test_files.py",
    "privbench/system/test_interrupts.py",
    "privbench/system/test_locks.py",
    "privbench/system/test_side_by_side.py",
    "privbench/test_hyperparameters.py",
    "privbench/test_spec.py",
    "reports/documents/test_documents.py",
    "reports/figures/test_hard_names_and_numbers.py",
    "reports/figures/test_label_histogram.py",
    "reports/folders/test_comparing.py",
    "reports/folders/test_one_page.py",
    "reports/records/test_published.py",
    "reports/records/test_table_checks.py",
    "reports/running/test_ladder_study.py",
    "reports/running/test_ray_engine.py",
    "reports/running/test_shards.py",
    "reports/running/test_status.py",
    "reports/studies/test_study_files.py",
    "reports/tables/test_ladder.py",
    "reports/tables/test_ladder_summary.py",
    "reports/tables/test_page_in_browser.py",
    "reports/tables/test_report_files.py",
    "reports/test_attack_reports.py",
    "reports/test_training_reports.py",
    "untrusted_files/test_code.py",
    "untrusted_files/test_misplaced.py",
    "untrusted_files/test_paths.py",
)
# Tests of numerical modules that ask whether something runs at all, or for shapes. They take minutes, and say under another
# arithmetic what they said under the first.
ANY_ARITHMETIC = (
    "benchmarks/test_benchmarks.py::test_every_row_runs_in_a_short_form",
    "test_contracts.py::test_a_reconstruction_has_the_shape_of_the_victims",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Marks the numerical tests and the slow ones; an error where tests/slow.txt names a test that is no longer there."""
    here = Path(__file__).parent
    slow_tests, collected = slow.listed(), set()
    for item in items:
        if not item.path.is_relative_to(here):
            continue
        module = item.path.relative_to(here).as_posix()
        name = f"{module}::{item.nodeid.partition('::')[2]}"
        collected.add(name)
        if name in slow_tests:
            item.add_marker(pytest.mark.slow)
        if not {module, f"{module}::{item.originalname}"} & {*NOT_NUMERICAL, *ANY_ARITHMETIC}:
            item.add_marker(pytest.mark.numerical)
    # Single tests, and those that failed last, are no whole modules.
    in_part = any("::" in argument for argument in config.args) or config.getoption("lf", False)
    if not in_part and (lost := slow.lost(slow_tests, collected)):
        raise pytest.UsageError(f"tests/slow.txt names tests that are not there; correct or remove: {', '.join(lost)}")


@pytest.fixture(autouse=True)
def modules_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test imports from a file that it wrote is forgotten after it: another test's file may have the same name."""
    before, written = set(sys.modules), tmp_path_factory.getbasetemp()
    yield
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(written):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def same_threads() -> None:
    """Every test begins with as many threads as the run was given, whatever the one before it left."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(THREADS)


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Adam turns the rounding error of a near-zero gradient into a full step; in double precision equal means equal."""
    import torch

    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def same_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test names may be used in that test alone."""
    from privbench import trust

    monkeypatch.setattr(trust, "_names", {*trust.added()})


@pytest.fixture(scope="session", autouse=True)
def one_core() -> Iterator[None]:
    """Jobs run one after another in the test's own process; one of their own would take seconds to import torch.

    What is there for several cores is tested by the processes that privbench/execution/test_worker_pool.py and
    test_command_line.py begin.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("privbench.system.cpu.cores", lambda: 1)
        yield


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
    from privbench.cli.main import main

    def call(*words: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["privbench", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        return Ran(int(stop.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def quick_accounts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Guarantees by a few Renyi divergences: they hold, in a hundredth of the time, for a larger epsilon than the tight bound's.

    For tests that do not ask how tight it is (defenses/test_accounting.py).
    """
    from dp_accounting.rdp import RdpAccountant

    from defenses.common import accounting

    def forget() -> None:
        accounting.spent.cache_clear()
        accounting.noise_multiplier.cache_clear()

    forget()
    monkeypatch.setattr(accounting, "TIGHT_UP_TO", 0.0)
    monkeypatch.setattr(accounting, "_rdp", lambda: RdpAccountant((1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)))
    yield
    forget()


@pytest.fixture(scope="module")
def narrow_resnet() -> Iterator[None]:
    """ResNet-18 with an eighth of its channels: the same layers, quick enough to be trained and attacked in a test."""
    with pytest.MonkeyPatch.context() as patch:
        narrow_layers(patch)
        yield


def narrow_layers(patch: pytest.MonkeyPatch) -> None:
    """Makes ResNet-18 narrow; the shapes that snapshots and observations are compared with are not remembered meanwhile.

    No layer gets fewer than 8 channels. With fewer, on processors with AVX2 and no AVX-512, oneDNN's gradient of a 1x1 convolution
    of stride 2 (`jit_avx2_1x1_convolution_bwd_weights_t`) writes past its buffer where tensors are channels-last, as those of
    grey images are.
    """
    from privbench.networks.backbones import resnet18
    from privbench.observation.format import networks
    from privbench.training import harness

    patch.setattr(harness, "_outline", harness._outline.__wrapped__)
    patch.setattr(networks, "shapes", networks.shapes.__wrapped__)

    for name in ("EXTRACTOR_LAYERS", "CLASSIFIER_LAYERS"):
        layers = getattr(resnet18, name).items()
        patch.setattr(resnet18, name, {layer: (before // 8, width // 8) for layer, (before, width) in layers})


@pytest.fixture
def narrow_backbones(monkeypatch: pytest.MonkeyPatch) -> None:
    """`narrow` for one test."""
    narrow(monkeypatch)


def narrow(patch: pytest.MonkeyPatch) -> None:
    """Every large backbone with a few channels and all its layers, quick enough to be trained and attacked in a test."""
    from privbench.networks.backbones import convnet, vit

    narrow_layers(patch)
    patch.setattr(convnet, "WIDTH", 4)
    patch.setattr(convnet.Classifier, "shape", convnet.feature_shape(32))
    for name, size in (("WIDTH", 8), ("HIDDEN", 8), ("DEPTH", 1), ("PATCH", 16)):
        patch.setattr(vit, name, size)
    patch.setattr(vit.Classifier, "shape", vit.feature_shape(32))


@pytest.fixture
def small_shadows(monkeypatch: pytest.MonkeyPatch) -> None:
    """`shrink_shadows` for one test."""
    shrink_shadows(monkeypatch)


def shrink_shadows(patch: pytest.MonkeyPatch) -> None:
    """Shadows of two clients with three victims each, screening by eight images: a third of the work.

    For tests that do not ask how well it chooses. Three, because a victim's surrogate is aligned to two others at least.
    """
    from attacks.shadow import known_extractor, shadow_federation

    patch.setattr(shadow_federation, "CLIENTS", 2)
    patch.setattr(shadow_federation, "VICTIMS", 3)
    patch.setattr(known_extractor, "IMAGES", 8)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root folder of the checkout."""
    return Path(__file__).resolve().parent.parent
