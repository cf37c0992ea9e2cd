"""Records: summarised rightly, whole on disk, refused when they are not."""

import json

import pytest

from privbench import record as records
from privbench.errors import UserError
from tests.reports.records import record


def test_a_summary_pools_victims_and_pairs_the_gain_with_the_best_floor():
    r = record(psnr=15.0)
    psnrs = [v.psnr_db for v in r.victims]
    assert r.scores.n == 8
    assert r.scores.psnr_db.mean == pytest.approx(sum(psnrs) / 8)
    assert r.floor.name == "class-mean"
    assert r.floor.psnr_db == pytest.approx(14.0)
    assert r.gain_db.mean == pytest.approx(sum(v.psnr_db - v.floors["class-mean"] for v in r.victims) / 8)
    assert r.accuracy.per_seed == [42.0, 42.5]
    assert r.accuracy.std == pytest.approx(0.5 / 2**0.5)
    assert r.cost.gradient_evaluations == 20
    assert r.cost.peak_memory_mib == 6.0


def test_failures_are_counted_and_a_missing_raw_score_leaves_no_flattering_mean():
    r = record(victims=[{"failed": True, "psnr_raw_db": None, "loss": None}])
    assert r.scores.failures == 1
    assert r.scores.n == 8
    assert r.scores.psnr_raw_db is None


def test_one_seed_has_no_spread():
    assert record(seeds=(0,)).accuracy.std is None


def test_what_was_written_is_read(tmp_path):
    records.write(record(), tmp_path / "record.json")
    assert records.read(tmp_path / "record.json") == record()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda t: t[: len(t) // 2], "is damaged"),
        (lambda t: "[1, 2]", "is not a privbench record"),
        (lambda t: t.replace('"schema_version": 1', '"schema_version": 9'), "has record schema 9"),
        (lambda t: json.dumps({k: v for k, v in json.loads(t).items() if k != "floor"}), "is damaged .*floor"),
        (lambda t: t.replace('"n": 8', '"n": "many"'), r"is damaged .*scores\.n"),
    ],
)
def test_a_spoilt_record_is_named(spoil, message, tmp_path):
    path = tmp_path / "record.json"
    records.write(record(), path)
    path.write_text(spoil(path.read_text()))
    with pytest.raises(UserError, match=message) as caught:
        records.read(path)
    assert "record.json" in str(caught.value)
    assert "\n" not in str(caught.value)
