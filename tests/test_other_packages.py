"""Plug-ins of other packages, by entry points; the wheel, outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from privbench import registry, trust
from privbench.errors import UserError
from privbench.execution import ladder

ROOT = Path(__file__).resolve().parents[1]
ATTACK = """from dataclasses import dataclass
from attacks.floors import Grey


@dataclass(frozen=True)
class Cool(Grey):
    '''Every pixel 0.5, by another package.'''
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with two attacks, of which one has the name of a built-in one, and a name that cannot be one."""
    (tmp_path / "cool_attacks.py").write_text(ATTACK)
    facts = tmp_path / "cool_package-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: cool-package\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[privbench.attacks]\ncool = cool_attacks:Cool\ndlg = cool_attacks:Cool\nIll Name = cool_attacks:Cool\n"
        "lost = cool_attacks:Missing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.installed.cache_clear()
    monkeypatch.setattr(trust, "_names", set())
    yield tmp_path
    registry.installed.cache_clear()
    sys.modules.pop("cool_attacks", None)


@pytest.mark.usefixtures("package")
def test_a_name_of_another_package_is_a_plug_in_where_the_user_names_it():
    assert registry.installed("attack") == {"cool": "cool_attacks:Cool", "lost": "cool_attacks:Missing"}
    assert registry.target("attack", "dlg") == "attacks.dlg:DLG"
    with pytest.raises(
        UserError, match="only where you name it, not where a file does; if you know it, add --trust cool"
    ):
        registry.resolve("attack", "cool")
    assert "cool_attacks" not in sys.modules
    assert registry.own_modules() == frozenset()
    assert registry.typed("attack", "cool") == "cool"
    assert registry.own_modules() == {"cool_attacks"}
    plugin = registry.resolve("attack", "cool")
    assert (plugin.__name__, registry.name_of("attack", plugin)) == ("Cool", "cool")
    registry.typed("attack", "lost")
    with pytest.raises(UserError, match="module 'cool_attacks' has no 'Missing'"):
        registry.resolve("attack", "lost")
    with pytest.raises(UserError, match="did you mean 'cool'"):
        registry.target("attack", "coool")
    assert "cool" not in ladder.every(["ladder"])


@pytest.mark.usefixtures("package", "small_shadows")
def test_the_commands_list_it_and_run_it(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    listed = command("list", "attacks")
    assert "Of other packages: cool (cool-package: cool_attacks:Cool), lost" in " ".join(listed.out.split())
    words = ["--method", "fedavg", "--dataset", "digits", "--preset", "smoke", "--seeds", "1", "--clients", "2"]
    ran = command("attack", "--attack", "cool", *words)
    assert ran.status == 0, ran.err
    assert "cool" in next((tmp_path / "runs").glob("attack-*/table.md")).read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built from a copy of what a commit would hold."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file() and not name.startswith(("tests/", "docs/")):
            target = folder / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(folder / "source")], check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.thorough
def test_the_wheel_holds_every_file_of_the_four_packages(wheel):
    kept = {
        path.relative_to(ROOT).as_posix()
        for package in ("privbench", "attacks", "defenses", "reports")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} == kept


@pytest.mark.thorough
def test_the_wheel_runs_outside_the_checkout(wheel, tmp_path):
    place, work = tmp_path / "place", tmp_path / "empty"
    zipfile.ZipFile(wheel).extractall(place)
    work.mkdir()
    environment = dict(os.environ, PYTHONPATH=str(place))
    ask = [
        sys.executable,
        "-c",
        "import privbench, attacks, reports; print(privbench.__path__[0], reports.__path__[0])",
    ]
    said = subprocess.run(ask, cwd=work, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(place / "privbench"), str(place / "reports")]
    table = [sys.executable, "-m", "privbench", "table", "--preset", "smoke", "--datasets", "digits"]
    ran = subprocess.run(table, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert (work / "runs/attack-table-smoke/table.md").is_file()
