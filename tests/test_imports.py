"""The layers of imports and the rules of the house that can be read off the source; each rule is shown to be able to fail."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grimp
import pytest

from privbench import registry

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("privbench", "attacks", "defenses", "reports")

MOST_FILES = 15
MOST_LINES_OF_AN_ATTACK = 60  # of code
# Where batching lives: over clients and seeds, over victims; and over images, for defences that act on each of them.
VMAP_HOMES = (
    "privbench/training/engine/stacked.py",
    "attacks/common/batched.py",
    "privbench/training/per_example.py",
)
# Modules that import by a name: plug-ins, backbones, data sets.
IMPORTERS = (
    "privbench/registry.py",
    "privbench/networks/model.py",
    "privbench/data/__init__.py",
    "privbench/data/readers/download.py",
)
# The catalogue itself, and what stands on top of everything.
ABOVE_THE_CATALOGUE = ("privbench/registry.py", "privbench/cli/", "privbench/api.py")
# "none" is also the absence of anything, "oracle" also a field of Knowledge; the others say what any defence may do to a gradient.
WORDS_TOO = {"none", "oracle", "clip", "prune", "quantize", "sign"}
TRUTH_READERS = ("privbench", "reports")  # attacks and defences may not even name it
PICKLERS = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
PICKLING_CALLS = {"read_pickle", "to_pickle", "save"}
MACHINE_PATH = re.compile(r"(?<![\w.:/~-])/(?:home|work|root|Users|opt|scratch|srv)/\w|\b[A-Z]:\\\\?Users\b")
PACKAGE_INDEX = re.compile(r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|--(?:extra-)?index-url|--find[-]links")
TEXT = {".py", ".md", ".toml", ".txt", ".cff", ".csv", ".yaml", ".yml", ".cfg", ".json", ""}


def lines_of_code(text: str) -> int:
    """Lines that are no blank, comment, docstring or import."""
    nodes = list(ast.walk(ast.parse(text)))
    skipped: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ):
            skipped |= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and n not in skipped for n, line in lines)


def sources(package: str) -> Iterator[tuple[str, str]]:
    """(path from the root, text) of every Python file of a package."""
    for path in sorted((ROOT / package).rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def texts() -> Iterator[tuple[str, str]]:
    """(path from the root, text) of every text file that belongs to the repository."""
    loose = [path for path in ROOT.iterdir() if path.is_file()]
    folders = (*PACKAGES, "tests", "benchmarks", "docs", ".ci")
    nested = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    for path in sorted(loose + nested):
        if path.suffix in TEXT and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def imported(node: ast.AST) -> list[str]:
    """The modules a node imports by an absolute name."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module]
    return []


def names(node: ast.AST) -> list[str]:
    """The identifiers a node writes down."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.arg | ast.keyword):
        return [node.arg or ""]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [name for alias in node.names for name in (alias.name.rpartition(".")[2], alias.asname or "")]
    return []


def docstrings(tree: ast.AST) -> set[int]:
    """The ids of the nodes that hold a docstring, or any other string that stands alone."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def outside_functions(tree: ast.AST) -> Iterator[ast.stmt]:
    """The statements that run when the module is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from outside_functions(node)


def truth_named(path: str, text: str) -> list[str]:
    if path.split("/")[0] in TRUTH_READERS:
        return []
    tree = ast.parse(text)
    prose = docstrings(tree)
    violations = []
    for node in ast.walk(tree):
        quoted = isinstance(node, ast.Constant) and id(node) not in prose and isinstance(node.value, str)
        text_of_constant = node.value if isinstance(node, ast.Constant) and quoted else ""
        star = isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
        if star or "Truth" in names(node) or re.search(r"\bTruth\b", str(text_of_constant)):
            violations.append(f"{path}:{getattr(node, 'lineno', 0)} reaches for Truth")
    return violations


def hidden_imports(path: str, text: str) -> list[str]:
    if path in IMPORTERS:
        return []
    return [
        f"{path}:{getattr(node, 'lineno', 0)} names import_module or __import__"
        for node in ast.walk(ast.parse(text))
        if {"import_module", "__import__"} & set(names(node))
    ]


def stray_vmap(path: str, text: str) -> list[str]:
    if path in VMAP_HOMES:
        return []
    return [
        f"{path}:{getattr(node, 'lineno', 0)} names vmap" for node in ast.walk(ast.parse(text)) if "vmap" in names(node)
    ]


def plugins_named(path: str, text: str) -> list[str]:
    """Attacks and defences that a file below the command line names: only the catalogue does."""
    if not path.startswith("privbench/") or path.startswith(ABOVE_THE_CATALOGUE):
        return []
    plugins = ({*registry.KINDS["attack"]} | {*registry.DEFENSES}) - WORDS_TOO
    suggested = re.compile(rf"--attack (?:{'|'.join(map(re.escape, sorted(plugins)))})\b")
    tree = ast.parse(text)
    prose = docstrings(tree)
    return [
        f"{path}:{node.lineno} names {node.value!r}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        if node.value in plugins or suggested.search(node.value)
    ]


def pickles(path: str, text: str) -> list[str]:
    violations = []
    for node in ast.walk(ast.parse(text)):
        if any(module.split(".")[0] in PICKLERS for module in imported(node)):
            violations.append(f"{path}:{getattr(node, 'lineno', 0)} imports a pickler")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            called = node.func.attr
            unsafe_load = owner == "torch" and called == "load" and keywords.get("weights_only") != "True"
            unsafe_save = called in PICKLING_CALLS and (called != "save" or owner == "torch")
            if unsafe_load or unsafe_save or keywords.get("allow_pickle") == "True":
                violations.append(f"{path}:{node.lineno} {owner}.{called} reads or writes pickle")
    return violations


def early_torchvision(path: str, text: str) -> list[str]:
    # Only downloading needs torchvision, and importing a build that does not match torch's raises, so that everything
    # else must work without it.
    return [
        f"{path}:{node.lineno} imports {module} on import"
        for node in outside_functions(ast.parse(text))
        for module in imported(node)
        if module.split(".")[0] == "torchvision"
    ]


def foreign_addresses(path: str, text: str) -> list[str]:
    return [
        f"{path}:{number} {match.group()}"
        for number, line in enumerate(text.splitlines(), start=1)
        for match in [MACHINE_PATH.search(line) or PACKAGE_INDEX.search(line)]
        if match
    ]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """Every import of the sources, those inside functions and for type checking included."""
    return grimp.build_graph(*PACKAGES, "benchmarks")


def test_the_contracts_of_pyproject_hold() -> None:
    """Layers, no circle; in a process of its own, since the linter sets up logging for all."""
    words = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports as run; raise SystemExit(run(no_cache=True))",
    ]
    ended = subprocess.run(words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout


def test_no_helper_imports_an_attack(graph: grimp.ImportGraph) -> None:
    """What lies in a folder of attacks/ never imports a file beside that folder."""
    attacks = {name for name in graph.find_children("attacks") if not graph.find_children(name)}
    helpers = {name for name in graph.modules if name.count(".") > 1 and name.startswith("attacks.")}
    assert len(helpers) > len(attacks) > len(set(registry.ATTACKS.values())) / 2
    assert {(name, target) for name in helpers for target in graph.find_modules_directly_imported_by(name)} & {
        (name, attack) for name in helpers for attack in attacks
    } == set()


def test_every_file_beside_the_folders_of_attacks_is_in_the_catalogue(graph: grimp.ImportGraph) -> None:
    """A stranger who opens attacks/ sees attacks."""
    for package, catalogue in (("attacks", registry.KINDS["attack"]), ("defenses", registry.DEFENSES)):
        files = {name for name in graph.find_children(package) if not graph.find_children(name)}
        assert files == {target.partition(":")[0] for target in catalogue.values()}


def test_an_attack_is_short() -> None:
    """What several attacks need lies in the folders beside them."""
    files = {path: lines_of_code(text) for path, text in sources("attacks") if path.count("/") == 1}
    assert len(files) > len(registry.KINDS["attack"]) / 2
    assert {path: count for path, count in files.items() if count > MOST_LINES_OF_AN_ATTACK} == {}


def test_docstrings_imports_and_comments_are_no_code() -> None:
    assert lines_of_code('"""Two\nlines."""\n\nimport os\n\n# A reason.\nx = 1\ny = (\n    2\n)\n') == 4


def test_a_public_class_has_a_name_of_its_own() -> None:
    """Backbones and kinds of GAN apart, which stand in for each other."""
    homes: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path, text in sources(package):
            if not path.startswith("privbench/networks/"):
                for node in ast.parse(text).body:
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                        homes.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_no_folder_has_more_than_fifteen_files() -> None:
    """Folders of plug-ins, which are catalogues, apart."""
    crowded = {
        folder.relative_to(ROOT).as_posix(): len(files)
        for package in PACKAGES
        for folder in [ROOT / package, *(ROOT / package).rglob("*/")]
        if len(files := [path for path in folder.glob("*.py") if path.name != "__init__.py"]) > MOST_FILES
    }
    assert set(crowded) <= {"attacks", "defenses", "privbench/methods", "privbench/data"}


@pytest.mark.parametrize("check", [truth_named, hidden_imports, stray_vmap, plugins_named, pickles, early_torchvision])
@pytest.mark.parametrize("package", PACKAGES)
def test_every_source_file_keeps_the_rule(check: Callable[[str, str], list[str]], package: str) -> None:
    files = list(sources(package))
    assert files
    assert [finding for path, text in files for finding in check(path, text)] == []


def test_no_file_holds_a_machine_path_or_the_address_of_a_package_index() -> None:
    files = list(texts())
    assert {"Makefile", "constraints.txt", ".ci/run"} <= {path for path, _ in files}
    assert [finding for path, text in files for finding in foreign_addresses(path, text)] == []


@pytest.mark.parametrize(
    ("check", "path", "text"),
    [
        (truth_named, "attacks/dlg.py", "from privbench.types import Artifact, Truth"),
        (truth_named, "attacks/dlg.py", "from privbench.types import Truth as Hint"),
        (truth_named, "attacks/dlg.py", "from privbench.types import *"),
        (truth_named, "attacks/dlg.py", "def f(hint: 'Truth | None'): ..."),
        (truth_named, "defenses/none.py", "import privbench.types\nx = privbench.types.Truth"),
        (truth_named, "defenses/none.py", "x = getattr(types, 'Truth')"),
        (hidden_imports, "privbench/spec.py", "import importlib\nimportlib.import_module('attacks.dlg')"),
        (hidden_imports, "reports/tables/render.py", "__import__('attacks')"),
        (stray_vmap, "attacks/dlg.py", "from torch.func import vmap"),
        (stray_vmap, "privbench/methods/fedcg.py", "import torch\ny = torch.func.vmap(f)(x)"),
        (plugins_named, "privbench/requests/specifications.py", "usual = ['dlg', name]"),
        (plugins_named, "privbench/execution/applicability.py", "fault = f'{name} needs noise; try --attack staged'"),
        (pickles, "privbench/observation/artifact_files.py", "import pickle"),
        (pickles, "privbench/observation/artifact_files.py", "from joblib import dump"),
        (pickles, "privbench/observation/artifact_files.py", "torch.load(path)"),
        (pickles, "privbench/observation/artifact_files.py", "torch.load(path, weights_only=False)"),
        (pickles, "privbench/observation/artifact_files.py", "torch.save(state, path)"),
        (pickles, "privbench/data/cifar10.py", "numpy.load(path, allow_pickle=True)"),
        (pickles, "reports/figures/curves.py", "pandas.read_pickle(path)"),
        (early_torchvision, "privbench/data/cifar10.py", "from torchvision.datasets import CIFAR10"),
        (early_torchvision, "privbench/data/cifar10.py", "try:\n    import torchvision\nexcept ImportError:\n    pass"),
        (foreign_addresses, "docs/design.md", "results lie in " + "/home" + "/someone/runs"),
        (foreign_addresses, "privbench/data/cifar10.py", "ROOT = '" + "/work" + "/data'"),
        (foreign_addresses, "Makefile", "pip install --extra" + "-index-url x"),
        (foreign_addresses, "README.md", "see https://pypi" + ".org/simple"),
    ],
)
def test_a_breach_is_found(check: Callable[[str, str], list[str]], path: str, text: str) -> None:
    assert len(check(path, text)) >= 1


@pytest.mark.parametrize(
    ("check", "path", "text"),
    [
        (truth_named, "attacks/dlg.py", '"""Truth stays with the scorer."""'),
        (truth_named, "privbench/scoring/image_scores.py", "from privbench.types import Truth"),
        (stray_vmap, "attacks/common/batched.py", "from torch.func import vmap"),
        (plugins_named, "privbench/registry.py", "STRONG = 'staged'"),
        (
            plugins_named,
            "privbench/execution/applicability.py",
            'def f():\n    """dlg"""\n    return \'staged training\'',
        ),
        (pickles, "privbench/data/digit5.py", "torch.load(path, weights_only=True)"),
        (pickles, "reports/figures/grid.py", "image.save(path)"),
        (early_torchvision, "privbench/data/readers/download.py", "def fetch():\n    from torchvision import datasets"),
        (foreign_addresses, "README.md", "see docs/home/index.md and https://example.com/work/a"),
    ],
)
def test_what_is_allowed_passes(check: Callable[[str, str], list[str]], path: str, text: str) -> None:
    assert check(path, text) == []
