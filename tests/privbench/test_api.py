"""The commands as Python functions: the same cells, records and files as the command line, and tables in pandas."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO

import pandas as pd
import pytest

import privbench
from privbench import trust
from privbench.errors import UserError


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return privbench.attack(
        method="fedavg", dataset="digits", preset="smoke", attack=["grey", "dlg"], out=out, victims=2, device="cpu"
    )


def test_a_call_gives_the_records_of_its_cells_with_their_tables_on_disk(results):
    assert [r.attack for r in results] == ["grey", "dlg"]
    assert len(results) == 2
    assert results[0].attack == "grey"
    assert not results.missing
    written = pd.read_csv(results.folder / "table.csv")
    pd.testing.assert_frame_equal(pd.read_csv(StringIO(results.frame().to_csv(index=False))), written)


def test_victims_and_rounds_are_tables_whose_means_are_the_records(results):
    victims, rounds = results.victims(), results.rounds()
    assert len(victims) == 2 * 2
    means = victims.groupby("attack")["psnr_db"].mean()
    assert means["dlg"] == pytest.approx(results[1].scores.psnr_db)
    assert {"client", "seed", "outcome", "floor_grey_db"} <= set(victims.columns)
    assert victims["client"].tolist() == [v.client + 1 for r in results for v in r.victims]
    assert set(victims["client"]) <= set(rounds["client"])
    assert set(rounds["round"]) == set(range(1, len(results[0].training[0].rounds) + 1))
    assert rounds[rounds["round"] == 1]["test_accuracy"].tolist() == results[0].training[0].rounds[0].test_accuracy


def test_inferences_have_no_row_in_frames_and_a_table_in_a_notebook(results, tmp_path):
    inferred = privbench.attack(
        method="fedavg",
        dataset="digits",
        preset="smoke",
        attack="loss-threshold",
        out=tmp_path,
        victims=2,
        device="cpu",
    )
    assert [r.question for r in inferred.inferred] == ["membership"]
    assert inferred.frame().empty
    both = replace(results, records=(*results.records, *inferred.records))
    assert "loss-threshold" in inferred._repr_markdown_()
    assert "dlg" not in inferred._repr_markdown_()
    assert both._repr_markdown_().startswith(results._repr_markdown_().splitlines()[0])
    assert {"dlg", "loss-threshold"} <= set(re.findall(r"[\w-]+", both._repr_markdown_()))


def test_load_reads_what_a_call_left_and_the_same_call_computes_nothing_again(results):
    out = results.folder.parent
    again = privbench.load(out)
    assert {r.id for r in again} == {r.id for r in results}
    before = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/record.json")}
    same = privbench.attack(
        method="fedavg", dataset="digits", preset="smoke", attack=["grey", "dlg"], out=out, victims=2, device="cpu"
    )
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [r.id for r in same] == [r.id for r in results]


def test_load_reads_a_file_of_records_too(results, command, tmp_path):
    out = results.folder.parent
    assert command("merge", tmp_path / "all.jsonl.xz", out).status == 0
    loaded = privbench.load(tmp_path / "all.jsonl.xz")
    assert list(loaded) == list(privbench.load(out))
    pd.testing.assert_frame_equal(loaded.frame(), privbench.load(out).frame())
    (tmp_path / "all.csv").write_text("a")
    with pytest.raises(UserError, match="neither a folder of results nor a file of records"):
        privbench.load(tmp_path / "all.csv")
    with pytest.raises(UserError, match=r"there is no .*gone\.jsonl\.xz"):
        privbench.load(tmp_path / "gone.jsonl.xz")


def test_merging_refuses_names_that_are_no_file_of_records_and_leaves_nothing(results, command, tmp_path):
    out = results.folder.parent
    assert command("merge", tmp_path / "all.jsonl.xz", out).status == 0
    for into in (tmp_path / "all.jsonl", tmp_path / "some.XZ", "-"):
        ran = command("merge", into, out)
        assert (ran.status, "whose name ends in .jsonl.xz" in ran.err) == (2, True)
    ran = command("merge", tmp_path / "into", tmp_path / "all.jsonl.xz")
    assert ran.status == 2
    assert "is a file; name a new *.jsonl.xz" in " ".join(ran.err.split())
    (tmp_path / "link.jsonl.xz").symlink_to(tmp_path / "nowhere")
    assert command("merge", tmp_path / "link.jsonl.xz", out).status == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.jsonl.xz", "link.jsonl.xz"]


def test_a_call_and_a_command_ask_for_the_same_cells(results, command):
    ran = command(
        "attack", "--method", "fedavg", "--dataset", "digits", "--preset", "smoke", "--attack", "grey", "--attack", "dlg",
        "--victims", 2, "--device", "cpu", "--out", results.folder.parent,
    )  # fmt: skip
    assert ran.status == 0
    assert len(privbench.load(results.folder.parent)) == 2


def test_a_study_takes_other_attacks_as_its_command_does(results):
    out = results.folder.parent
    studied = privbench.study(
        "attack-table", "digits", methods="fedavg", attack="grey", preset="smoke", victims=2, out=out, device="cpu"
    )
    assert {(r.cell.train.method, r.attack) for r in studied.attacked} == {("fedavg", "grey")}
    assert not studied.missing


def test_training_gives_a_row_per_seed_and_client(results):
    trained = privbench.train(
        method="fedavg", dataset="digits", preset="smoke", out=results.folder.parent, device="cpu"
    )
    assert list(trained.columns) == ["defense", "seed", "run", "rounds", "client", "test_accuracy"]
    run = results[0].training[0]
    assert trained["client"].tolist() == list(range(1, len(run.rounds[0].test_accuracy) + 1))
    assert trained["test_accuracy"].mean() == pytest.approx(results[0].accuracy.mean)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: privbench.attack(metod="fedavg"), "there is no option 'metod'; did you mean 'method'"),
        (lambda: privbench.attack(method="fedaveg"), "unknown method 'fedaveg'; did you mean 'fedavg'"),
        (lambda: privbench.attack(method="local"), "local sends nothing"),
        (lambda: privbench.attack(attack=[]), "no attack was named; leave out `attack` for the default ones"),
        (lambda: privbench.attack(attack="grey", attack_set={"steps": 3}), "has no setting 'steps'"),
        (lambda: privbench.table(victim=3), "there is no option 'victim'"),
        (lambda: privbench.study("attak-table"), "attack-table"),
        (lambda: privbench.train(attack="dlg"), "there is no option 'attack'"),
        (lambda: privbench.attack(victims=0), "victims: Input should be greater than or equal to 1, but 0 was given"),
        (lambda: privbench.table(victims=0), "victims: Input should be greater"),
        (lambda: privbench.study("attack-table", victims=0), "victims: Input should be greater"),
        (lambda: privbench.study("attack-table", attack="dgl"), "unknown attack 'dgl'; did you mean 'dlg'"),
        (lambda: privbench.attack(batch_size=0), "batch_size: Input should be greater"),
        (lambda: privbench.attack(seeds="two"), "seeds: Input should be a valid integer"),
        (lambda: privbench.attack(seeds=0), "seeds: Input should be greater"),
        (lambda: privbench.attack(auxiliary=0.5), "auxiliary: Input should be a valid string, but 0.5 was given"),
        (lambda: privbench.attack(attack="calibrated", known_images=True), "known_images: Input should be an integer"),
        (lambda: privbench.attack(attack="chained", observed_rounds=[]), "--observed-rounds takes rounds with commas"),
        (lambda: privbench.attack(attack=privbench.attack), "unknown attack"),
        (lambda: privbench.attack(dataset="digits4", domains=["plain"]), "domains: Input should be a valid string"),
        (lambda: privbench.attack(labels_known="maybe"), "labels_known: Input should be a valid boolean"),
    ],
)
def test_a_wrong_word_is_refused_before_anything_is_computed(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        call()
    assert not list(tmp_path.iterdir())


def test_the_notebook_of_the_documentation_runs_and_holds_outputs(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((repository / "docs" / "notebooks" / "first_look.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in code[1:])
    names = {}
    for cell in code:
        exec("".join(cell["source"]).replace('PRESET = "quick"', 'PRESET = "smoke"'), names)  # noqa: S102 (a document of ours)
    assert [r.attack for r in names["private"]] == ["dlg", "analytic-features"]


def test_trust_is_given_by_name_as_on_the_command_line(tmp_path):
    # Other tests of this process may have added theirs for a whole module.
    before = {*trust.added()}
    with pytest.raises(UserError, match="--trust takes package"):
        privbench.train(trust="no name", out=tmp_path)
    assert {*trust.added()} == before
    with pytest.raises(UserError, match="unknown method"):
        privbench.train(method="none", trust="somebody.elses:Method", out=tmp_path)
    assert {*trust.added()} == before | {"somebody.elses:Method"}


def test_importing_the_package_imports_no_torch():
    code = "import sys, privbench; assert 'attack' in privbench.__all__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert callable(privbench.attack)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        privbench.nothing
