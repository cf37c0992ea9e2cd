"""The cells of records on other seeds: which they are, and that old and new seeds make one table."""

import pytest

from privbench.cli import folder_reports, reproduction
from privbench.errors import UserError
from privbench.records import record_lines
from privbench.requests.options import PlaceOptions, TrainingOptions
from reports.running import repetition, study_plan, study_run
from reports.running.repetition import ALL, Only
from tests.builders.records import record


def named(*args, **kwargs):
    made = record(*args, **kwargs)
    cell = made.cell.with_seeds(made.cell.seeds)
    return made.model_copy(update={"cell": cell, "id": cell.id})


def test_a_table_is_continued_behind_the_last_seed_of_each_cell_with_as_many_seeds():
    one, two = named(seeds=(100,)), named("fedsplit", seeds=(100, 101))
    made = repetition.cells([one, two], None, None)
    assert [cell.seeds for cell in made] == [(101,), (102, 103)]
    assert [cell.train.seed for cell in made] == [101, 102]
    assert [cell.with_seeds(r.cell.seeds) for cell, r in zip(made, [one, two], strict=True)] == [one.cell, two.cell]


def test_seeds_and_methods_may_be_named():
    records = [named(seeds=(100,)), named("fedsplit", seeds=(100,)), named("fedsplit", attack=None, seeds=(100,))]
    made = repetition.cells(records, 200, 3, Only(methods=["fedsplit"]))
    assert [(cell.train.method, cell.attack, cell.seeds) for cell in made] == [
        ("fedsplit", "dlg", (200, 201, 202)), ("fedsplit", None, (200, 201, 202)),
    ]  # fmt: skip


def test_data_sets_and_defences_may_be_named_too():
    records = [
        named(dataset=dataset, defense=defense, seeds=(100,))
        for dataset in ("digits", "photos")
        for defense in ("none", "gaussian:0.1")
    ]
    assert repetition.cells(records, None, None, Only(datasets=["photos"], defenses=["none"])) == [
        records[2].cell.with_seeds((101,))
    ]
    with pytest.raises(UserError, match="no record of nothing; there are records of digits, photos"):
        repetition.cells(records, None, None, Only(datasets=["nothing"]))
    with pytest.raises(UserError, match=r"no record of clip:1; there are records of none, gaussian:0\.1"):
        repetition.cells(records, None, None, Only(defenses=["clip:1"]))
    with pytest.raises(UserError, match="no record of all that was named together"):
        repetition.cells(records[:3], None, None, Only(datasets=["photos"], defenses=["gaussian:0.1"]))
    assert repetition.cells([], None, None) == []


def test_attacks_and_rounds_may_be_named_which_leaves_out_training_alone():
    records = [
        *(named(attack=attack, round_=round_, seeds=(100,)) for attack in ("dlg", "idlg") for round_ in ("0", "best")),
        named(attack=None, seeds=(100,)),
    ]
    both = repetition.cells(records, None, None, Only(attacks=["idlg"], rounds=["best"]))
    assert both == [records[3].cell.with_seeds((101,))]
    of_round = repetition.cells(records, None, None, Only(rounds=["0"]))
    assert [cell.attack for cell in of_round] == ["dlg", "idlg"]
    with pytest.raises(UserError, match="no record of grnn; there are records of dlg, idlg"):
        repetition.cells(records, None, None, Only(attacks=["grnn"]))
    with pytest.raises(UserError, match="no record of 5; there are records of 0, best"):
        repetition.cells(records, None, None, Only(rounds=["5"]))


def test_records_of_one_cell_with_other_seeds_are_one_cell():
    made = repetition.cells([named(seeds=(100,)), named(seeds=(101,))], 110, 2)
    assert [cell.seeds for cell in made] == [(110, 111)]


def test_the_seeds_of_several_records_of_one_cell_are_all_there():
    made = repetition.cells([named(seeds=(102,)), named(seeds=(100, 101))], None, 1)
    assert [cell.seeds for cell in made] == [(103,)]


def test_seeds_that_are_recorded_already_are_not_made_again():
    table, more = [named(seeds=(100,))], named(seeds=(101,)).cell
    assert [cell.seeds for cell in repetition.cells(table, None, 3, recorded=[more])] == [(101,), (102, 103)]
    assert repetition.cells(table, None, 1, recorded=[more]) == [more]
    # One that holds other seeds as well stands for its own.
    wider = named(seeds=(101, 104)).cell
    assert [cell.seeds for cell in repetition.cells(table, None, 2, recorded=[wider])] == [(101, 104), (102,)]


def test_what_cannot_be_continued_is_refused_in_a_line():
    one = named(seeds=(100, 101))
    with pytest.raises(UserError, match="has seed 101 already; name another --first-seed"):
        repetition.cells([one], 101, 2)
    with pytest.raises(UserError, match="no record of fedcg; there are records of fedavg"):
        repetition.cells([one], None, None, Only(["fedcg", "fedavg"]))
    newer = one.cell.model_copy(update={"attack_revision": one.cell.attack_revision + 1})
    for old in (
        one.model_copy(update={"id": "0" * 12}),
        one.model_copy(update={"cell": newer, "id": newer.id}),
    ):
        with pytest.raises(UserError, match="of another revision of privbench"):
            repetition.cells([old], None, None)


def test_records_of_another_revision_are_left_out_with_a_line(caplog):
    one = named(seeds=(100, 101))
    newer = one.cell.model_copy(update={"attack_revision": one.cell.attack_revision + 1})
    old = one.model_copy(update={"cell": newer, "id": newer.id})
    assert [cell.seeds for cell in repetition.cells([one, old], None, 1)] == [(102,)]
    (said,) = caplog.messages
    assert said.startswith("left out: 1 of 2 cells are of another revision of privbench")
    assert said.endswith(f": {one.cell.attack}")


def test_old_and_new_seeds_are_one_table(tmp_path, capsys):
    training = TrainingOptions(preset="smoke", seeds=1)
    _, cells = study_plan.plan(
        "attack-table", training, [("digits", None)], methods=["fedavg"], attacks=["dlg"], rounds=["best"],
        defenses=["none"],
    )  # fmt: skip
    study_run.execute(cells, tmp_path / "first", None, "cpu")
    place = PlaceOptions("cpu", None, tmp_path / "more")
    reproduction.repeat(tmp_path / "first", None, 2, ALL, place)
    assert "1 of 1 cells done" in capsys.readouterr().out
    folder_reports.merge(tmp_path / "all.jsonl.xz", [tmp_path / "first", tmp_path / "more"])
    (together,) = record_lines.read(tmp_path / "all.jsonl.xz")
    first = cells[0].seeds[0]
    assert [s.seed for s in together.seeds] == [first, first + 1, first + 2]
    # One seed more in the same folder: what is there is not made again, and the whole is one table.
    capsys.readouterr()
    reproduction.repeat(tmp_path / "first", None, 3, ALL, place)
    assert "2 of 2 cells done" in capsys.readouterr().out
    folder_reports.merge(tmp_path / "four.jsonl.xz", [tmp_path / "first", tmp_path / "more"])
    (four,) = record_lines.read(tmp_path / "four.jsonl.xz")
    assert [s.seed for s in four.seeds] == [first, first + 1, first + 2, first + 3]
    assert four.seeds[:3] == together.seeds
    with pytest.raises(UserError, match="there is no "):
        reproduction.repeat(tmp_path / "nothing", None, None, ALL, place)


def test_where_every_cell_is_refused_nothing_is_advised(tmp_path, capsys):
    made = named(attack=None, seeds=(100,))
    cell = made.cell.model_copy(
        update={"train": made.cell.train.model_copy(update={"method": "nobody:Knows", "dataset": "digits"})}
    )
    record_lines.write([made.model_copy(update={"cell": cell, "id": cell.id})], tmp_path / "table.jsonl.xz")
    with pytest.raises(UserError, match="every cell is refused: "):
        reproduction.repeat(tmp_path / "table.jsonl.xz", None, 1, ALL, PlaceOptions("cpu", None, tmp_path / "out"))
    assert "privbench merge" not in capsys.readouterr().out
