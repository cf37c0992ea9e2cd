"""What changed between two folders: differences are paired and equal a plain loop, and what is the same is said to be so."""

import csv
import io
import shutil
from statistics import fmean

import pandas as pd
import pytest

import privbench
from privbench.errors import UserError
from privbench.records import record_lines
from privbench.records.store import Store
from privbench.scoring import statistics
from reports.folders import comparing, contents, pairing
from reports.folders.contents import Contents
from reports.records.number_text import range_text
from tests.builders.records import changed, record, training, with_psnr, with_training, with_victims

FIVE = range(5)


def named(r):
    return r.model_copy(update={"id": r.cell.id})


def of(*records, name="runs"):
    return Contents(name, list(records), [], [], None)


def one(attack="dlg", **changes):
    return named(record(attack=attack, seeds=FIVE, **changes))


def table(report, title):
    (match,) = (t for t in report.tables if t.title == title)
    return [dict(zip(match.columns, row, strict=True)) for row in match.rows]


def titles(report):
    return [t.title for t in report.tables]


def test_a_difference_is_that_of_the_same_victims_with_the_interval_of_all_tables():
    before = one()
    # The first half of the victims gains 2 dB, the order of seeds and victims is turned round.
    after = with_psnr(before, lambda v: v.psnr_db + (2.0 if v.client < 2 else 0.5))
    after = with_victims(after, after.victims[::-1])
    report = comparing.report(of(before), of(after))
    (row,) = table(report, "Attacks")
    old = {(v.seed, *v.images): v.psnr_db for v in before.victims}
    gaps = [v.psnr_db - old[v.seed, *v.images] for v in after.victims]
    assert fmean(gaps) == pytest.approx(1.25)
    assert row["B - A, dB"] == range_text(statistics.interval(gaps, after.victims), sign=True)
    assert row["verdict"] == "differ"
    assert row["n"] == "20"
    (numbers,) = [each for each in report.numbers if each["what"] == "attack"]
    assert numbers["difference_db"] == pytest.approx(fmean(gaps))
    assert not numbers["identical"]
    assert report.notes[0] == "A: runs. B: runs. Cells in both: 1, of them identical: 0, only in A: 0, only in B: 0."


def test_a_difference_is_tested_over_seeds_and_adjusted_for_the_cells_of_the_table():
    before = one()
    # Seeds gain 0.4 to 5.6 dB: standard error 0.92 dB, p = 0.03, which Holm doubles for the two cells of the table.
    gained = with_psnr(before, lambda v: v.psnr_db + 3 + 1.3 * (v.seed - 2))
    other = one("staged")
    same_mean = with_psnr(other, lambda v: v.psnr_db + (1.0 if v.client < 2 else -1.0))
    verdicts = []
    for after in (
        [gained],
        [gained, same_mean],
        [with_psnr(before, lambda v: v.psnr_db + 3 + 0.1 * v.seed), same_mean],
    ):
        report = comparing.report(of(before, other), of(*after))
        row = table(report, "Attacks")[0]
        numbers = report.numbers[0]
        holds_zero = numbers["difference_db_low"] <= 0 <= numbers["difference_db_high"]
        verdicts.append((numbers["p_holm"] < 0.05, holds_zero, row["verdict"]))
    assert verdicts == [
        (True, False, "differ"),
        (False, False, "no difference shown"),
        (True, False, "differ"),
    ]


def test_equal_records_are_identical_and_one_changed_number_is_named():
    before = one()
    elsewhere = before.model_copy(update={"environment": {**before.environment, "machine": "other"}, "notes": []})
    report = comparing.report(of(before), of(elsewhere))
    assert titles(report) == ["Attacks, identical", "Accuracy"]
    assert "Cells in both: 1, of them identical: 1" in report.notes[0]
    assert report.numbers[0]["identical"]
    changed_loss = with_victims(before, [before.victims[0].model_copy(update={"loss": 0.25}), *before.victims[1:]])
    report = comparing.report(of(before), of(changed_loss))
    assert table(report, "Attacks")[0]["verdict"] == "no difference shown"
    (line,) = table(report, "All numbers")
    assert line["numbers that differ"] == "1"
    assert line["the first"].startswith("seeds[0].victims[0].loss: 0.1 then, 0.25 now")


def test_a_cell_of_another_revision_is_the_same_cell():
    before = one().model_copy(update={"id": "0123456789ab"})
    after = one()
    newer = after.model_copy(update={"cell": after.cell.model_copy(update={"attack_revision": 3})})
    newer = named(newer)
    assert newer.id != after.id
    for other in (after, newer):
        report = comparing.report(of(before), of(other))
        assert titles(report) == ["Attacks, identical", "Accuracy"]
        assert "1 of them come from code of different revisions." in report.notes
    # Of both revisions in one folder, today's counts.
    better = with_psnr(after, lambda v: v.psnr_db + 1)
    report = comparing.report(of(before, better), of(after))
    assert table(report, "Attacks")[0]["B - A, dB"].startswith("-1.00")


def test_of_two_revisions_of_one_attack_the_later_counts_whatever_their_names():
    first = one()
    second = first.model_copy(update={"cell": first.cell.model_copy(update={"attack_revision": 1})})
    second = with_psnr(named(second), lambda v: v.psnr_db + 1)
    for both in ([first, second], [second, first]):
        report = comparing.report(of(first), of(*both))
        assert table(report, "Attacks")[0]["B - A, dB"].startswith("+1.00")
        assert "1 of them come from code of different revisions." in report.notes


def test_cells_are_paired_whatever_a_chosen_field_is():
    bare, noisy = one(), one(defense="gaussian:0.1", psnr=10.0)
    report = comparing.report(of(bare), of(noisy))
    assert titles(report) == ["Only in A", "Only in B"]
    assert "only in A: 1, only in B: 1" in report.notes[0]
    report = comparing.report(of(bare), of(noisy), ["defense"])
    (row,) = table(report, "Attacks")
    assert row["cell"].startswith("cifar10, FedAvg, dlg")
    assert "FedAvg + Gaussian 0.1" in row["cell"]
    assert row["B - A, dB"].startswith("-5.00")
    assert "Cells are compared whatever their defense." in report.notes
    # Two of B would do.
    third = one(defense="gaussian:0.2")
    report = comparing.report(of(bare), of(noisy, third), ["defense"])
    unclear = "Not compared: cells of {} that several of the other folder fit, or that share one"
    assert titles(report) == [unclear.format("A"), unclear.format("B")]
    assert report.notes[0].endswith("only in A: 0, only in B: 0, not compared: 1 of A, 2 of B.")
    with pytest.raises(UserError, match="no cell has a field 'defence'; did you mean 'defense'"):
        comparing.report(of(bare), of(noisy), ["defence"])


def test_what_could_not_be_read_is_counted_where_cells_are():
    damaged = of(one())._replace(left_out=["record.json: damaged"])
    report = comparing.report(of(one()), damaged)
    assert report.notes[0].endswith("could not be read: 1 of B.")
    assert titles(report)[-1] == "Could not be read"


def test_other_seeds_are_compared_over_those_that_both_have():
    three, five = named(record(seeds=range(3))), one()
    assert pairing.paired([three], [five]).pairs == []
    report = comparing.report(of(three), of(five), ["seeds"])
    (row,) = table(report, "Attacks")
    assert row["n"] == "12"
    assert row["verdict"] == "too few seeds"
    assert table(report, "Accuracy")[0]["seeds"] == "3"


def test_accuracy_is_compared_seed_by_seed_and_once_for_all_attacks_on_a_training():
    before = [one("dlg"), one("staged")]
    accuracies = [[s.accuracy[0] + 1 + s.seed, s.accuracy[1]] for s in before[0].seeds]
    trainings = [training(s.seed, a) for s, a in zip(before[0].seeds, accuracies, strict=True)]
    after = [with_training(r, trainings, accuracies) for r in before]
    report = comparing.report(of(*before), of(*after))
    (row,) = table(report, "Accuracy")
    assert row["seed by seed, points"] == "0: +0.50, 1: +1.00, 2: +1.50, 3: +2.00, 4: +2.50"
    # Student's t: 1.5 +- 2.776 * 0.7906 / sqrt(5).
    assert row["B - A, points"] == "+1.50 [+0.52, +2.48]"
    assert row["verdict"] == "higher"


def test_cells_without_an_attack_are_compared_by_accuracy_alone():
    before = named(record(attack=None, seeds=FIVE))
    report = comparing.report(of(before), of(before))
    assert titles(report) == ["Accuracy"]
    assert table(report, "Accuracy")[0]["verdict"] == "identical"


def test_no_score_of_a_smoke_run_is_shown():
    before = one(spec={"preset": "smoke"})
    after = with_psnr(before, lambda v: v.psnr_db + 1)
    report = comparing.report(of(before), of(after))
    (row,) = table(report, "Attacks")
    assert [row[name] for name in ("A, PSNR dB", "B, PSNR dB", "verdict")] == ["(smoke)", "(smoke)", "-"]
    assert table(report, "All numbers")[0]["the first"] == "seeds[0].victims[0].psnr_db"
    assert pd.isna(report.numbers[0]["a_psnr_db"])
    assert any("learned nothing" in note for note in report.notes)


def test_a_setting_that_distinguishes_cells_stands_in_their_names():
    pairs = [one(), one(spec={"batch_size": 4})]
    rows = table(comparing.report(of(*pairs), of(*[with_psnr(r, lambda v: v.psnr_db + 1) for r in pairs])), "Attacks")
    assert ["4 images per gradient" in row["cell"] for row in rows].count(True) == 1
    assert rows[0]["cell"] != rows[1]["cell"]


def test_fields_that_a_file_leaves_out_are_compared_too():
    usual, other = one().cell, changed(one(), wire="bf16").cell
    assert pairing.key_of(usual, ()) != pairing.key_of(other, ())
    assert pairing.key_of(usual, ["wire"]) == pairing.key_of(other, ["wire"])


def test_the_command_writes_every_form_and_reads_cells_of_earlier_revisions(folder, command, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(folder, old)
    first, second = Store(old).cells()
    # A folder whose name is not that of its specification is of an earlier revision.
    (old / "cells" / first.id).rename(old / "cells" / "0123456789ab")
    ran = command("compare", old, folder, "--out", new)
    assert ran.status == 0, ran.err
    assert "Cells in both: 2, of them identical: 2" in " ".join(ran.out.split())
    assert {path.name for path in new.iterdir()} == {f"comparison.{form}" for form in ("md", "csv", "tex", "html")}
    shutil.rmtree(old / "cells" / second.id)
    frame = privbench.compare(old, folder, out=new)
    assert frame["b"].tolist() == [first.id] * 2
    assert frame["identical"].all()
    written = list(csv.DictReader(io.StringIO((new / "comparison.csv").read_text())))
    assert [row["what"] for row in written] == ["attack", "accuracy"]
    assert f"- {second.id}: digits, FedAvg" in (new / "comparison.md").read_text()
    assert command("compare", old, tmp_path / "nothing", "--out", new).status == 2
    assert command("compare", old, folder, "--but-for", "sedes", "--out", new).status == 2


def test_a_file_of_records_is_compared_with_a_folder(folder, tmp_path):
    read = contents.read(folder)
    path = tmp_path / "a.jsonl.xz"
    record_lines.write(read.records, path)
    report = comparing.report(contents.read(path), read)
    assert report.notes[0].startswith("A: a.jsonl.xz. B: runs. Cells in both: 2, of them identical: 2")
