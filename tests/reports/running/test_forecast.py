"""The expected time: from costs and what is left to do, or none at all."""

import pytest

from privbench import presets
from privbench.execution import cell_jobs
from privbench.records.store import Store
from privbench.system import cpu
from reports.running import forecast, study_plan
from reports.studies import definition, study_cells


def cells(datasets=("photos",), **changes):
    return study_cells.of(definition.read("attack-table"), "quick", [(name, None) for name in datasets], **changes)


def trials(tmp_path, **changes):
    return cell_jobs.trials_of(cells(seeds=1, victims=8, **changes), tmp_path, None, "cpu")


def test_every_job_of_the_attack_table_has_a_cost_by_hand(tmp_path):
    costs = {trial.title: forecast.cost(trial) for trial in trials(tmp_path)}
    steps = 10 * 5 * 4 * 19
    plain = 8 * (2 * 150 * forecast.ATTACK_STEP["dlg"] + sum(forecast.STAGED["plain"]))
    assert costs["photos fedavg seed 100"] == pytest.approx(steps * forecast.STEP + plain)
    generators = 10 * 4 * 19 * forecast.GENERATOR_STEP
    private = 8 * (2 * 150 * forecast.ATTACK_STEP["feature-statistics"] + sum(forecast.STAGED["private"]))
    assert costs["photos fedcg seed 100"] == pytest.approx(steps * forecast.STEP + generators + private)
    assert len(costs) == 5
    assert all(costs.values())


def test_a_gan_of_images_costs_what_its_clients_turns_do(tmp_path):
    study = definition.read("securegan")
    every = study_cells.of(study, "quick", [("digits", None)], seeds=1)
    costs = {trial.title: forecast.cost(trial) for trial in cell_jobs.trials_of(every, tmp_path, None, "cpu")}
    # 8 rounds of 4 epochs of 19 mini-batches: two clients in the first and one in each later round; both in all.
    measuring = 8 * 2 * 5 * 19 * forecast.MEASURING_STEP
    assert costs["digits 2 clients secure-gan seed 100"] == pytest.approx(
        9 * 4 * 19 * forecast.IMAGE_GAN_STEP + measuring
    )
    private = costs["digits 2 clients dp-gan+dp-adam:noise=5,lr=0.003 seed 100"]
    assert private == pytest.approx(16 * 4 * 19 * forecast.CLIPPED_GAN_STEP + measuring)
    assert len(costs) == 16


def test_what_is_done_costs_nothing(tmp_path):
    first, *_ = trials(tmp_path)
    whole = forecast.cost(first)
    result_file = Store(tmp_path).result(first.cells[0], presets.FIRST_SEED)
    result_file.parent.mkdir(parents=True)
    result_file.write_text("{}")
    assert forecast.cost(first) == pytest.approx(whole - forecast.attacking(first.cells[0]))


@pytest.mark.parametrize(("costs", "workers", "ends"), [([5, 3, 3, 1], 2, 6), ([5, 3], 1, 8), ([4], 3, 4), ([], 2, 0)])
def test_the_last_worker_decides(costs, workers, ends):
    assert forecast.makespan(costs, workers) == ends


def test_a_machine_half_as_fast_takes_twice_as_long(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu, "cores", lambda: 2)
    expected = []
    for factor in (1, 2):
        monkeypatch.setattr(forecast, "calibration", lambda factor=factor: factor * forecast.CALIBRATION)
        expected.append(forecast.seconds(trials(tmp_path), "cpu"))
    assert expected[1] == pytest.approx(2 * expected[0])
    assert max(forecast.cost(trial) for trial in trials(tmp_path)) < expected[0] < 200


def test_calibration_takes_time_and_leaves_the_threads_alone():
    import torch

    before = torch.get_num_threads()
    assert 0 < forecast.calibration() < 60
    assert torch.get_num_threads() == before


def test_where_a_cost_was_not_measured_nothing_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(forecast, "calibration", lambda: pytest.fail("nothing to calibrate for"))
    train = presets.train_spec("quick", "photos", "fedmd-cg")
    unknown = cell_jobs.trials_of([presets.cell_spec("quick", train, "staged")], tmp_path, None, "cpu")
    assert forecast.lines([*trials(tmp_path), *unknown], "cpu") == []
    assert forecast.lines([], "cpu") == []


@pytest.mark.parametrize(
    ("seconds", "words"), [(3, "about 10 s"), (44, "about 40 s"), (130, "about 2 min"), (9000, "about 2.5 h")]
)
def test_an_expectation_is_printed_without_digits_that_it_does_not_have(seconds, words):
    assert forecast.in_words(seconds) == words


def test_a_table_of_few_victims_says_what_gives_the_one_to_publish():
    line = study_plan.first_look(cells(seeds=1, victims=8))
    assert line.startswith("A first look: 8 victims a seed, 1 seed. ")
    assert "make attack-table FULL=1" in line
    assert study_plan.first_look(cells(seeds=5, victims=8)).startswith("A first look: 8 victims a seed, 5 seeds. ")
    assert study_plan.first_look(cells(seeds=4, victims=64)).startswith("A first look: 64 victims a seed, 4 seeds. ")
    assert "5 seeds and 64 victims in all" in line
    assert study_plan.first_look(cells(seeds=5, victims=13)) == ""
    assert study_plan.first_look(cells(seeds=5, victims=64)) == ""
