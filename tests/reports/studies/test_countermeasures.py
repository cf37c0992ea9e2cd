"""The study of countermeasures: which cells it has, and that it runs."""

from privbench.records import schema
from privbench.requests.options import PlaceOptions, TrainingOptions
from reports.running import study_plan, study_run, study_view
from reports.studies import definition, study_cells
from tests.conftest import shrink_shadows


def defence(cell):
    train = cell.train
    return (train.defense, train.method_settings.get("dropout", 0.0), train.initialisation, cell.uploads_per_round)


def test_every_attack_stands_without_a_defence_and_with_each_that_applies():
    cells = study_cells.of(definition.read("countermeasures"), "quick", [("digits", None)])
    rows = {}
    for cell in cells:
        rows.setdefault((cell.train.method, cell.attack), set()).add(defence(cell))
    private = {("none", 0.0, "shared", None), ("none", 0.5, "shared", None), ("none", 0.0, "per-client", None)}
    # It has no start where each client draws its own.
    kept = {(*row[:3], uploads) for row in private if row[2] == "shared" for uploads in (12, 3)}
    clipped = ("clip:1", 0.0, "shared")
    for method in ("fedsplit", "fedcg"):
        assert rows[method, "calibrated"] == private | {(*clipped, None)}
        assert rows[method, "chained"] == kept | {(*clipped, 12), (*clipped, 3)}
    assert rows["fedsplit", "joint"] == rows["fedsplit", "calibrated"]
    assert {row[:2] for row in rows["fedavg", "imprint"]} == {("none", 0.0), ("none", 0.5), ("clip:1", 0.0)}
    assert {row[:2] for row in rows["fedavg", "model-inconsistency"]} == {
        ("secure-aggregation:masks", 0.0),
        ("secure-aggregation:masks", 0.5),
        ("clip:1+secure-aggregation:masks", 0.0),
    }


def test_a_start_of_a_columns_own_counts_more_than_what_is_asked_for():
    study = definition.read("countermeasures")
    asked = study_cells.of(study, "quick", methods=["fedsplit"], choices={"initialisation": "shared"})
    assert {cell.id for cell in asked} == {cell.id for cell in study_cells.of(study, "quick", methods=["fedsplit"])}
    assert {cell.train.initialisation for cell in asked} == {"shared", "per-client"}


def test_it_runs(tmp_path, monkeypatch):
    shrink_shadows(monkeypatch)
    study, cells = study_plan.plan(
        "countermeasures", TrainingOptions(preset="smoke"), [("digits", None)], methods=["fedsplit"], victims=4
    )
    # Of one training run, and without the attack that trains surrogates, which takes the longest.
    own = [cell for cell in cells if cell.train.initialisation == "per-client" and cell.attack != "joint"]
    study_view.show_study(study_run.run_study(study, own, PlaceOptions("cpu", None, tmp_path)))
    done = [schema.read(path) for path in tmp_path.glob("cells/*/record.json")]
    assert {r.attack for r in done} == {"calibrated", "oracle"}
    text = "".join(path.read_text() for path in tmp_path.glob("countermeasures-smoke/*.md"))
    assert "FedSplit (initialisation per client)" in text
    assert "2 of 2 cells done" in text
