"""`privbench attack --attack ladder` and `privbench reproduce` as a user meets them, end to end in this process."""

import json

import pytest

from privbench.system.files import DIGEST, content_digest
from reports.records import quotable

pytestmark = pytest.mark.usefixtures("small_shadows")

SMALL = ["--dataset", "digits", "--preset", "smoke", "--seeds", "1", "--clients", "2"]
WHITE_ATTACK = """from dataclasses import dataclass
from typing import ClassVar
import torch
from attacks.floors import Grey


@dataclass(frozen=True)
class White(Grey):
    '''All pixels one.'''
    knowledge: ClassVar[str] = "nothing but hope"
    rung: ClassVar[None] = None

    def reconstruct(self, artifact, knowledge, seed, report=None):
        found = super().reconstruct(artifact, knowledge, seed)
        return found._replace(images=torch.ones_like(found.images))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run_command(command, runs, monkeypatch):
    """Runs the command in the folder of runs: (status, what it printed)."""
    monkeypatch.chdir(runs)

    def call(*words):
        ran = command(*words)
        return ran.status, ran.out + ran.err

    return call


def test_the_ladder_runs_every_rung_that_can_be_and_a_users_attack_joins(runs, run_command, monkeypatch):
    (runs / "mine_white.py").write_text(WHITE_ATTACK)
    monkeypatch.syspath_prepend(str(runs))
    words = ["--attack", "ladder", "--also", "mine_white:White", "--method", "fedsplit", "--round", "0,1"]
    status, text = run_command("attack", *words, "--victims", "1", *SMALL)
    assert status == 0, text
    (folder,) = (runs / "runs").glob("ladder-*")
    assert {path.name for path in folder.iterdir()} == {
        "ladder.md", "ladder.csv", "ladder.tex", "ladder.html", "digits-grid-0.png",
        "digits-grid-0.pdf", "digits-grid-1.png", "digits-grid-1.pdf",
    }  # fmt: skip
    table = (folder / "ladder.md").read_text()
    assert "feature-statistics" in table.split("## Not run")[1].split("##")[0]
    assert "needs the upload:generator, which fedsplit does not send" in table
    assert "| own | nothing but hope | mine_white:White |" in table
    assert "strongest attack" in text
    records = [json.loads(path.read_text()) for path in (runs / "runs/cells").glob("*/record.json")]
    attacks = {r["cell"]["attack"] for r in records}
    assert {"grey", "dataset-mean", "class-mean", "dlg", "staged", "mine_white:White"} <= attacks
    assert {r["cell"]["round"] for r in records} == {"0", "1"}
    victims = [v for r in records for seed in r["seeds"] for v in seed["victims"]]
    assert all(0 <= v["identification"] <= 1 and v["feature_error"] >= 0 for v in victims)
    assert "few" in table


def test_named_attacks_at_several_rounds_draw_a_curve_and_floors_alone_do_not(runs, run_command, monkeypatch):
    # As no score of a smoke run is drawn.
    monkeypatch.setattr(quotable, "SMOKE", "another preset")
    words = ["--method", "fedsplit", "--round", "0,1", *SMALL]
    for attacks, drawn in ((("grey", "dlg"), True), (("grey", "dataset-mean"), False)):
        status, text = run_command("attack", *(word for name in attacks for word in ("--attack", name)), *words)
        assert status == 0, text
        assert ("digits-rounds.png" in text) == drawn


def test_a_result_is_reproduced_from_its_record_and_a_changed_one_is_not(runs, run_command):
    run_command("attack", "--attack", "dlg", "--method", "fedsplit", *SMALL)
    paths = [path for path in (runs / "runs/cells").glob("*/record.json") if '"round": "best"' in path.read_text()]
    (path,) = paths
    status, text = run_command("reproduce", path.parent.name[:8])
    assert status == 0, text
    assert "reproduced bit for bit: every number of the record, and every reconstruction: " in text
    for tensors in path.parent.glob("*.safetensors"):
        tensors.unlink()
    status, text = run_command("reproduce", path.parent.name, "--attack-only")
    assert status == 0, text
    assert "bit for bit" not in text
    assert "the old reconstructions of seed(s) 100 are gone, so their bits were not compared" in text
    value = json.loads(path.read_text())
    value["seeds"][0]["victims"][1]["psnr_db"] += 0.5
    path.write_text(json.dumps(value))
    status, text = run_command("reproduce", path.parent.name, "--attack-only")
    assert status == 2
    assert "record.json was altered or damaged after it was written" in text
    path.write_text(json.dumps(value | {DIGEST: content_digest(value)}))
    status, text = run_command("reproduce", path.parent.name, "--attack-only", "--into", runs / "again")
    assert status == 1
    assert "NOT reproduced" in text
    assert "seeds[0].victims[1].psnr_db" in text
    assert (runs / "again/cells" / path.parent.name / "record.json").is_file()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attack", "--also", "dlg"], "--also goes with --attack ladder"),
        (["attack", "--attack", "ladder", "--also", "stagd"], "unknown attack 'stagd'; did you mean 'staged'?"),
        (
            ["attack", "--attack", "ladder", "--attack-set", "stps=3", *SMALL],
            "none of these attacks has a setting 'stps'",
        ),
        (["attack", "--attack", "ladder", "--method", "local", *SMALL], "nothing to attack"),
        (["attack", "--attack", "ladder", "--round", "0,soon", *SMALL], "--round takes 0, a number"),
        (["reproduce", "zzz"], "'zzz' is no cell under runs"),
    ],
)
def test_bad_input_gets_one_clear_line_and_status_2(words, message, run_command):
    status, text = run_command(*words)
    assert status == 2
    assert message in text
    assert text.count("privbench: ") == 1
    assert "Traceback" not in text
