"""The study of the ladder from the first training to the last figure, with a handful of its attacks."""

import pytest
from PIL import Image

from privbench import presets, registry
from privbench.execution import attack_cell, cell_jobs
from privbench.records import schema
from privbench.records.store import Store
from privbench.requests.options import PlaceOptions, TrainingOptions
from reports.running import ladder_cells, study_plan, study_run, study_view
from reports.studies import definition, study_files
from tests.conftest import shrink_shadows

FEW = ("class-mean", "feature-statistics", "analytic-features", "learned-inverse", "oracle")


@pytest.fixture(scope="module")
def few():
    """A ladder of few attacks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "ATTACKS", {name: registry.ATTACKS[name] for name in (*registry.FLOORS, *FEW)})
        study, cells = study_plan.plan(
            "ladder",
            TrainingOptions(preset="smoke"),
            [("digits", None)],
            methods=["fedsplit", "fedcg"],
            rounds=["0", "best"],
            attacks=["ladder:all"],
        )
        yield study, cells


@pytest.fixture(scope="module")
def out(few, tmp_path_factory):
    """The folder of the finished study."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        shrink_shadows(patch)
        study_view.show_study(study_run.run_study(*few, PlaceOptions("cpu", None, folder)))
    return folder


def test_attacks_that_cannot_be_made_are_left_out_with_the_reason(few, out):
    _, cells = few
    able, gaps = ladder_cells.applicable(cells)
    lost = {(gap.cell.train.method, gap.cell.attack, gap.reason) for gap in gaps}
    assert lost == {
        ("fedsplit", "feature-statistics", "needs the upload:generator, which fedsplit does not send"),
        *(
            (m, "learned-inverse", f"needs the gradient:extractor, which {m} does not send")
            for m in ("fedsplit", "fedcg")
        ),
    }
    assert len(able) + len(gaps) == len(cells) == 2 * 2 * len(set(FEW) | set(registry.FLOORS))
    assert {cell.id for cell in able} == {path.parent.name for path in out.glob("cells/*/record.json")}
    text = (out / "ladder-smoke/summary.md").read_text()
    assert "| learned-inverse | FedSplit | digits | 0 (untrained), best | needs the gradient:extractor" in text


def test_what_settings_make_of_an_attacks_needs_counts():
    train = presets.train_spec("smoke", "digits", "fedsplit")
    whole, single = (
        presets.cell_spec(
            "smoke", train, "joint", round_="best", observe="update", attack_settings={"uploads": uploads}
        )
        for uploads in ("whole", "victims")
    )
    able, gaps = ladder_cells.applicable([whole, single])
    assert able == [whole]
    assert [gap.reason for gap in gaps] == ["needs the gradient:classifier, which fedsplit does not send"]


def test_the_folder_holds_summary_long_tables_curve_and_grids(out):
    folder = out / "ladder-smoke"
    grids = [f"digits-{method}-grid-{when}" for method in ("fedsplit", "fedcg") for when in ("0", "best")]
    assert {path.name for path in folder.iterdir()} == {
        "report.md",
        "report.html",
        *(f"{stem}.{ending}" for stem in ("summary", "ladder-digits") for ending in ("md", "csv", "tex", "html")),
        *(f"{stem}.{ending}" for stem in grids for ending in ("png", "pdf")),
    }
    page = (folder / "report.md").read_text()
    assert "[summary (also .csv, .tex)](summary.md)" in page
    assert "26 of 26 cells done" in page
    assert "| FedCG | 7 attacks | best | done |" in page
    for path in folder.glob("*.png"):
        with Image.open(path) as picture:
            picture.verify()


@pytest.fixture
def undrawn(monkeypatch):
    """Tables without figures, which take the most time."""
    monkeypatch.setattr(ladder_cells, "grids", lambda *_, **__: [])
    monkeypatch.setattr(ladder_cells, "curves", lambda *_: [])


@pytest.mark.usefixtures("undrawn")
def test_the_same_command_again_computes_nothing_and_writes_the_same_page(few, out, monkeypatch):
    before = (out / "ladder-smoke/summary.md").read_text()
    monkeypatch.setattr(cell_jobs.Trial, "run", lambda *_: pytest.fail("computed again"))
    study_view.show_study(study_run.run_study(*few, PlaceOptions("cpu", None, out)))
    assert (out / "ladder-smoke/summary.md").read_text() == before


@pytest.mark.usefixtures("undrawn")
def test_an_interrupted_study_continues_with_what_is_missing(few, out, monkeypatch, capsys):
    study, cells = few
    able, _ = ladder_cells.applicable(cells)
    lost = next(cell for cell in able if cell.attack == "oracle" and cell.round == "0")
    before = schema.read(Store(out).record(lost))
    Store(out).record(lost).unlink()
    Store(out).result(lost, lost.seeds[0]).unlink()
    study_view.show_status(study, cells, out, None)
    printed = capsys.readouterr().out
    assert f"{len(able) - 1} of {len(able)} cells done, 1 interrupted" in printed
    assert "Left out" in printed
    attacked = []
    real = attack_cell.attack_seed
    monkeypatch.setattr(
        attack_cell, "attack_seed", lambda store, cell, *rest: attacked.append(cell.id) or real(store, cell, *rest)
    )
    study_view.show_study(study_run.run_study(study, cells, PlaceOptions("cpu", None, out)))
    assert attacked == [lost.id]
    assert schema.read(Store(out).record(lost)).victims == before.victims


@pytest.mark.usefixtures("undrawn")
def test_a_refused_attack_leaves_the_study_finished_and_is_reported(few, out, monkeypatch):
    study, cells = few
    able, _ = ladder_cells.applicable(cells)
    lost = next(cell for cell in able if cell.attack == "oracle" and cell.round == "0")
    refused = study_run.status.CellStatus(study_run.REFUSED, "one image per gradient only")
    real = study_run.status.of
    monkeypatch.setattr(study_run, "execute", lambda cells, root, *_, **__: [
        refused if cell.id == lost.id else real(Store(root), cell, {}) for cell in cells
    ])  # fmt: skip
    study_view.show_study(study_run.run_study(study, cells, PlaceOptions("cpu", None, out)))
    assert "one image per gradient only" in (out / "ladder-smoke/summary.md").read_text()


def test_one_study_is_the_ladder():
    assert [name for name in study_files.names() if definition.read(name).is_ladder] == ["ladder"]
