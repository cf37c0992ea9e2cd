"""The whole ladder on a small fixed case, from training to records: monotone."""

import pytest

from privbench import presets, registry
from privbench.execution import cell_jobs
from privbench.records import schema
from privbench.records.store import Store
from reports.records import knowledge_sets, table_checks
from tests.builders.records import with_victims
from tests.conftest import shrink_shadows

SETTINGS = {
    "dlg": {"steps": 20}, "idlg": {"steps": 20}, "inverting-gradients": {"steps": 20, "restarts": 1}, "matching": {"steps": 20},
    "grnn": {"steps": 10}, "unsplit": {"turns": 2, "steps": 10}, "staged": {"steps": 20, "feature_steps": 20},
    "analytic-features": {"steps": 40}, "oracle": {"steps": 40},
}  # fmt: skip
SURROGATES = {"steps": 10, "exact_steps": 40, "members": 1, "train_steps": 10, "shadow_steps": 2}
SETTINGS |= {
    "surrogate": SURROGATES, "aligned-surrogate": SURROGATES | {"align_steps": 4}, "collusion": SURROGATES | {"align_steps": 4},
    "initial-surrogate": SURROGATES | {"align_steps": 4}, "decoder": SURROGATES | {"decoder_steps": 4},
    "imprint": SURROGATES | {"align_steps": 4}, "joint": SURROGATES | {"align_steps": 4, "joint_steps": 4},
}  # fmt: skip


def cells():
    """Every attack that FedSplit's gradients allow, in round 0."""
    train = presets.train_spec("smoke", "digits", "fedsplit", clients=2, changes={"rounds": 0})
    names = [name for name in registry.ATTACKS if name in SETTINGS or name in registry.FLOORS]
    return [
        presets.cell_spec("smoke", train, name, seeds=1, victims=4, round_="0", attack_settings=SETTINGS.get(name))
        for name in names
    ]


def attacked(root):
    """The records of all cells under a folder."""
    assert cell_jobs.run_cells(cells(), root, None, "cpu", lambda *_: None, lambda *_: None) == []
    return [schema.read(Store(root).record(cell)) for cell in cells()]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """(folder, records)."""
    root = tmp_path_factory.mktemp("ladder")
    with pytest.MonkeyPatch.context() as patch:
        shrink_shadows(patch)
        return root, attacked(root)


def of(records, name):
    (record,) = [r for r in records if r.cell.attack == name]
    return record


def test_every_rung_has_records(measured):
    _, records = measured
    assert {r.knowledge.rung for r in records} == {f"L{n}" for n in range(9)}


def test_more_knowledge_never_scores_lower(measured):
    _, records = measured
    assert table_checks.not_monotone(records) == []
    assert table_checks.oracle_fails(records) == []
    pairs = [(a, b) for a in records for b in records if knowledge_sets.knows_more(a, b)]
    assert len(pairs) > 50


def test_in_round_0_whoever_holds_the_common_extractor_beats_the_floor(measured):
    _, records = measured
    mean = {r.cell.attack: r.scores.psnr_db for r in records}
    floor = of(records, "oracle").floor.psnr_db
    assert mean["oracle"] > floor + 10
    assert mean["analytic-features"] > floor + 10
    assert mean["collusion"] > floor
    assert mean["initial-surrogate"] > mean["aligned-surrogate"] + 10


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["brief", "whole"])
def test_after_training_the_initial_networks_make_surrogates_no_worse(whole, tmp_path, monkeypatch):
    if not whole:
        shrink_shadows(monkeypatch)
    train = presets.train_spec("smoke", "digits", "fedsplit", clients=2, changes={"rounds": 1})
    steps = 60 if whole else 40
    brief = SURROGATES | {"steps": 15, "train_steps": steps, "align_steps": steps, "shadow_steps": 40}
    made = [
        presets.cell_spec("smoke", train, name, seeds=1, victims=8, round_="1", attack_settings=brief)
        for name in ("aligned-surrogate", "initial-surrogate")
    ]
    assert cell_jobs.run_cells(made, tmp_path, None, "cpu", lambda *_: None, lambda *_: None) == []
    below, initial = (schema.read(Store(tmp_path).record(cell)) for cell in made)
    assert initial.scores.psnr_db >= below.scores.psnr_db
    assert initial.scores.psnr_db > initial.floor.psnr_db


@pytest.mark.parametrize(("fallen", "name"), [("oracle", "not-monotone"), ("analytic-features", "not-monotone")])
def test_a_rung_that_falls_raises_its_message(fallen, name, measured):
    _, records = measured
    low = of(records, fallen)
    victims = [v.model_copy(update={"psnr_db": 3.0 + 0.1 * i}) for i, v in enumerate(low.victims)]
    broken = [r if r is not low else with_victims(low, victims) for r in records]
    assert [(r.cell.attack, f.name) for r, f in table_checks.not_monotone(broken)] == [(fallen, name)]
