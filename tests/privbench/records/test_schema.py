"""Records: summarised rightly, whole on disk, refused when they are not."""

import errno
import json
import os

import pytest

from privbench.errors import UserError
from privbench.records import means
from privbench.records import schema as records
from privbench.system import files
from tests.builders.records import record


def test_a_summary_pools_victims_and_pairs_the_gain_with_the_best_floor():
    r = record(psnr=15.0)
    psnrs = [v.psnr_db for v in r.victims]
    assert r.scores.n == 8
    assert r.scores.psnr_db == pytest.approx(sum(psnrs) / 8)
    assert r.floor.name == "class-mean"
    assert r.floor.psnr_db == pytest.approx(14.0)
    assert r.gain_db == pytest.approx(sum(v.psnr_db - v.floors["class-mean"] for v in r.victims) / 8)
    assert r.accuracy.per_seed == [42.0, 42.5]
    assert r.accuracy.std == pytest.approx(0.5 / 2**0.5)
    assert r.cost.gradient_evaluations == 20
    assert r.cost.peak_memory_mib == 6.0


@pytest.mark.parametrize(
    ("outcome", "failures", "absent"),
    [("diverged", 1, 0), ("gave up", 1, 0), ("not applicable", 0, 1), ("reconstructed", 0, 0)],
)
def test_failures_are_counted_and_a_missing_raw_score_leaves_no_flattering_mean(outcome, failures, absent):
    r = record(victims=[{"outcome": outcome, "psnr_raw_db": None, "loss": None}])
    assert (r.scores.failures, r.scores.not_applicable, r.scores.n) == (failures, absent, 8)
    assert r.scores.psnr_raw_db is None


def test_the_tail_is_the_most_exposed_twentieth_and_never_empty():
    few = record(victims=[{"psnr_db": 31.0}])
    assert few.scores.worst_db == 31.0
    assert few.scores.exposed == 1 / 8
    many = record(seeds=tuple(range(10)), victims=[{"psnr_db": 31.0}])
    best = sorted((v.psnr_db for v in many.victims), reverse=True)
    assert many.scores.n == 40
    assert many.scores.worst_db == pytest.approx((best[0] + best[1]) / 2)


def test_one_seed_has_no_spread():
    assert record(seeds=(0,)).accuracy.std is None


def test_what_was_written_is_read(tmp_path):
    records.write(record(), tmp_path / "record.json")
    assert records.read(tmp_path / "record.json") == record()


def test_a_full_disk_leaves_the_old_record_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    records.write(record(psnr=15.0), path)
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full") as caught:
        records.write(record(psnr=20.0), path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_an_unwritable_folder_is_named(tmp_path):
    (tmp_path / "runs").write_text("a file, not a folder")
    with pytest.raises(UserError, match=r"cannot write .*runs"):
        records.write(record(), tmp_path / "runs" / "record.json")


@pytest.mark.parametrize("name", ["ssim", "loss", "psnr_raw_db"])
def test_a_number_that_is_not_finite_never_enters_a_record(name):
    with pytest.raises(ValueError, match="finite"):
        record(victims=[{name: float("nan")}])


@pytest.mark.parametrize("name", ["gradient_norm", "feature_error", "psnr_raw_db"])
@pytest.mark.parametrize("number", [1e308, -1e308])
def test_a_number_whose_sums_are_none_never_enters_a_record(name, number):
    with pytest.raises(ValueError, match=r"should be (greater|less) than or equal to"):
        record(victims=[{name: number}])


def test_a_loss_of_training_lies_within_what_can_be_added_up():
    """Of one that was not finite a record has None; a run's own file has what it was."""
    (training, *_) = record(attack=None).training
    first = training.rounds[0]
    with pytest.raises(ValueError, match="a number should lie within 1e\\+60"):
        type(first).model_validate(first.model_dump() | {"loss": {"task": [1e308]}})
    with pytest.raises(ValueError, match="finite"):
        type(first).model_validate(first.model_dump() | {"loss": {"task": [float("nan")]}})


def test_an_accuracy_cell_has_a_record_without_an_attack(tmp_path):
    accuracy_record = record(attack=None)
    assert type(accuracy_record) is records.Record
    records.write(accuracy_record, tmp_path / "record.json")
    assert records.read(tmp_path / "record.json") == accuracy_record
    value = json.loads((tmp_path / "record.json").read_text())
    assert "knowledge" not in value
    assert not any("victims" in seed for seed in value["seeds"])
    assert isinstance(record(), records.AttackRecord)


def test_metrics_are_averaged_over_clients_and_then_over_seeds():
    fedcg = record("fedcg")
    assert fedcg.averages.precision.per_seed == [41.0, 41.5]
    assert fedcg.averages.precision.mean == pytest.approx(41.25)
    assert fedcg.averages.precision.std == pytest.approx(0.5 / 2**0.5)
    assert fedcg.averages.consistency.per_seed == [1.0, 1.0]
    assert fedcg.averages.global_accuracy.per_seed == [31.0, 32.0]
    assert record("fedavg").averages.consistency == means.Spread(per_seed=[None, None], mean=None, std=None)
    assert record(seeds=(0,)).averages.auc.std is None


def test_a_mean_with_a_part_missing_is_missing():
    assert means.mean([1.0, None]) is None
    assert means.spread([1.0, None]) == means.Spread(per_seed=[1.0, None], mean=None, std=None)


def test_seeds_that_were_computed_on_different_machines_say_so():
    assert not any("differ" in note for note in record().notes)
    mixed = record(environments=[{"device": "cpu"}, {"device": "cuda"}])
    assert "the seeds differ in device: cpu | cuda" in mixed.notes


def with_right_digest(text):
    """An edited record whose digest fits again."""
    value = json.loads(text)
    return json.dumps(value | {files.DIGEST: files.content_digest(value)})


MACHINE = {"device": "cpu", "machine": "test", "cores": 2, "torch": "2", "date": "2026-01-01"}


def changed(name, value):
    return lambda text: json.dumps(json.loads(text) | {name: value})


def changed_at(*path):
    """The record with its last argument in the place that the others name, in the first seed."""
    *names, last, new = path

    def change(text):
        value = json.loads(text)
        place = value["seeds"][0]
        for name in names:
            place = place[name]
        place[last] = new
        return json.dumps(value)

    return change


def changed_seeds(**changes):
    def change(text):
        value = json.loads(text)
        return json.dumps(value | {"seeds": [seed | changes for seed in value["seeds"]]})

    return change


def test_the_round_of_a_record_is_the_one_that_its_cell_names(tmp_path):
    records.write(record(round_="5"), tmp_path / "record.json")
    assert records.read(tmp_path / "record.json").rounds == [5, 5]
    path = tmp_path / "record.json"
    path.write_text(with_right_digest(changed_at("round", 6)(path.read_text())))
    with pytest.raises(UserError, match="round 6 was attacked, not 5"):
        records.read(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t[: len(t) // 2], "is damaged"),
        (lambda t: "[1, 2]", "is not a privbench record"),
        (lambda t: t.replace('"schema_version": 3', '"schema_version": 9'), "has record schema 9"),
        (lambda t: json.dumps({k: v for k, v in json.loads(t).items() if k != "guarantee"}), "is damaged .*guarantee"),
        (lambda t: t.replace('"attack": "dlg"', '"attack": null'), r"is damaged .*cell"),
        (lambda t: t.replace('"auc": 0.9,', '"auc": "0.9",'), r"is damaged .*seeds\.0\.training\.clients\.0\.auc"),
        (lambda t: t.replace('"seed": 0', '"seed": "0"'), r"is damaged .*seeds\.0\.seed"),
        (lambda t: t.replace('"outcome": "reconstructed"', '"outcome": "lost"', 1), r"is damaged .*outcome"),
        (lambda t: t.replace('"ssim": 0.5', '"ssim": 0.5, "mean": 1', 1), r"is damaged .*victims\.0\.mean"),
        (lambda t: t.replace('"ssim": 0.5', '"ssim": NaN', 1), r"is damaged .*ssim"),
        (changed_at("victims", 0, "psnr_db", 100.1), r"is damaged .*psnr_db.*100"),
        (changed_at("victims", 0, "psnr_db", -0.1), r"is damaged .*psnr_db.*0"),
        (changed_at("victims", 0, "psnr_raw_db", 1e6), r"is damaged .*psnr_raw_db.*100"),
        *(
            (changed("environment", {"threads": n}), "threads should be from 1")
            for n in (0, -1, 10**9, True, 1.5, "2", None)
        ),
        *((changed("environment", {"cores": n}), "cores should be from 1") for n in (0, -5, 10**400, "2")),
        *((changed("environment", MACHINE | {"date": d}), "isoformat|month must be") for d in ("9999-99-99", "today")),
        (changed("environment", MACHINE | {"machine": "m" * 301}), r"environment\.machine has more than 300 letters"),
        (changed("notes", ["n" * 10_001]), r"notes\.0: .*at most 10000 char"),
        (changed("notes", [""] * 10_001), "notes: .*at most 10000 items"),
        (changed("class_names", ["c" * 301] * 10), r"class_names\.0: .*at most 300 char"),
        (changed("seeds", []), "damaged .*no seeds"),
        (changed_seeds(victims=[]), "damaged .*no victims"),
        (changed_seeds(accuracy_at_round=[]), "damaged .*no victims"),
        (changed_seeds(accuracy=[]), "damaged .*no clients"),
        (changed_at("accuracy", 0, 500.0), r"seeds\.0\.accuracy\.0: .*less than or equal to 100"),
        (changed_at("accuracy", 0, -3.0), "greater than or equal to 0"),
        (changed_seeds(accuracy=[40.0]), "not as many accuracies as clients"),
        (changed_seeds(accuracy_at_round=[1.0] * 3), "not as many accuracies of the attacked round as clients"),
        (changed_at("victims", 0, "ssim", 9.0), "ssim: .*less than or equal to 1"),
        (changed_at("victims", 0, "identification", -7.0), "identification: .*greater than or equal to 0"),
        (changed_at("victims", 0, "label_accuracy", 5.0), "label_accuracy: .*less than or equal to 1"),
        (changed_at("victims", 0, "gradient_norm", -5.0), "gradient_norm: .*greater than or equal to 0"),
        (changed_at("victims", 0, "images", []), "images: .*at least 1"),
        (changed_at("victims", 0, "client", 99), "a victim or statement of a client beyond the 4"),
        (changed_at("victims", 0, "client", -1), "client: .*greater than or equal to 0"),
        (lambda t: changed_at("victims", json.loads(t)["seeds"][0]["victims"][:2])(t), "2 victims of a seed, .*has 4"),
        (changed_at("label_counts", 0, 0, -5), r"label_counts\.0\.0: .*greater than or equal to 0"),
        (changed_at("label_counts", 0, [1]), "label counts of other classes at one client than at another"),
        (changed_at("training", "clients", 0, "auc", 7.0), "auc: .*less than or equal to 1"),
        (changed_at("training", "clients", 0, "confusion", 0, 0, -1), "confusion.*greater than or equal to 0"),
        (changed_at("training", "rounds", 0, "bytes_up", [-5, 1]), r"bytes_up\.0: .*greater than or equal to 0"),
        (changed_at("training", "rounds", 0, "round", 3), "its rounds should ascend"),
        (changed_at("training", "best_round", 999), "its best one be one of them"),
        (changed("classes", 3), "10 names of 3 classes"),
        (changed("client_domains", ["x"]), "1 domains of 4 clients"),
        (changed("id", "../x"), "id should be twelve hexadecimal digits"),
        (
            lambda t: t.replace('"train_seconds": 2.0', '"train_seconds": -2.0'),
            "train_seconds: .*greater than or equal to 0",
        ),
        (lambda t: "[" * 200_000 + "]" * 200_000, "nests deeper"),
    ],
)
def test_a_spoilt_record_is_named(spoil, message, tmp_path):
    path = tmp_path / "record.json"
    records.write(record(), path)
    spoilt = spoil(path.read_text())
    path.write_text(with_right_digest(spoilt) if spoilt.startswith("{") and spoilt.rstrip().endswith("}") else spoilt)
    with pytest.raises(UserError, match=message) as caught:
        records.read(path)
    assert "record.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: t.replace('"ssim": 0.5', '"ssim": 0.6', 1),
        lambda t: t.replace('"tag": "gradient"', '"tag": "nothing"'),
        lambda t: t.replace('"digest": "', '"digest": "0'),
        lambda t: json.dumps({k: v for k, v in json.loads(t).items() if k != "digest"}),
    ],
)
def test_an_edited_number_word_or_digest_is_refused_in_one_line(edit, tmp_path):
    path = tmp_path / "record.json"
    records.write(record(), path)
    before = path.read_text()
    path.write_text(edit(before))
    assert path.read_text() != before
    with pytest.raises(UserError, match=r"record\.json was altered or damaged after it was written") as caught:
        records.read(path)
    assert "\n" not in str(caught.value)


def test_the_digest_is_of_the_content_and_of_no_layout(tmp_path):
    path = tmp_path / "record.json"
    records.write(record(), path)
    value = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(value.items())), indent=2))
    assert records.read(path) == record()


def test_what_is_computed_of_a_record_follows_a_changed_copy_and_is_not_written(tmp_path):
    first = record()
    before = (first.scores.n, first.accuracy.mean, len(first.victims))
    fewer = first.model_copy(update={"seeds": first.seeds[:1]})
    assert (fewer.scores.n, fewer.accuracy.mean, len(fewer.victims)) == (4, 42.0, 4)
    assert (first.scores.n, first.accuracy.mean, len(first.victims)) == before
    records.write(first, tmp_path / "record.json")
    assert not {"scores", "accuracy", "victims", "names", "flags"} & set(
        json.loads((tmp_path / "record.json").read_text())
    )
    assert records.read(tmp_path / "record.json") == first == record()
