"""Specifications: validated, hashed, and faithful to the published settings."""

import math
import re
from functools import partial
from pathlib import Path

import pytest

from attacks.dlg import DLG
from attacks.imprint import Imprint
from privbench import presets, registry, spec, written_defense
from privbench.cli import listing
from privbench.errors import UserError
from privbench.execution import cell_jobs
from privbench.records.store import Store
from privbench.system import files


def test_the_paper_preset_is_the_published_schedule():
    schedule = presets.train_spec("paper", "cifar10", "fedcg").schedule
    assert (schedule.rounds, schedule.local_epochs, schedule.batch, schedule.server_steps) == (100, 20, 16, 2000)
    assert (schedule.task.lr, schedule.task.weight_decay) == (3e-4, 1e-4)
    assert (schedule.generator.lr, schedule.generator.beta1, schedule.generator.weight_decay) == (3e-4, 0.5, 0)
    assert schedule.patience == 20


def test_the_paper_preset_has_the_papers_clients():
    cifar = presets.train_spec("paper", "cifar10", "fedavg")
    assert (cifar.partition, cifar.clients, cifar.per_client) == ("iid", 4, 2000)
    assert presets.train_spec("paper", "office10", "fedavg").partition == "domain"
    assert presets.train_spec("paper", "cifar10", "fedcg").method_settings == {}
    assert presets.SEEDS["paper"] == (100, 101, 102, 103, 104)


def test_the_published_presets_have_the_settings_of_reptile_s_authors():
    for preset, settings in (("paper", {"train_shots": 10, "tuning_steps": 50}), ("quick", {})):
        assert presets.train_spec(preset, "omniglot", "reptile").method_settings == settings
    chosen = presets.train_spec("standard", "omniglot", "reptile", method_settings={"train_shots": 15})
    assert chosen.method_settings == {"train_shots": 15, "tuning_steps": 50}


def test_the_paper_preset_knows_the_methods_that_have_a_schedule_of_their_own():
    cgan, cg = (presets.train_spec("paper", "cifar10", name).schedule for name in ("nfl-cgan", "fedmd-cg"))
    assert (cgan.rounds, cgan.local_epochs, cgan.batch, cgan.task.lr) == (100, 10, 8, 3e-4)
    assert (cg.client_steps, cg.server_steps, cg.batch, cg.task) == (
        20,
        50,
        64,
        spec.SGD(kind="sgd", lr=0.05, weight_decay=1e-4),
    )
    changed = presets.train_spec("paper", "cifar10", "fedmd-cg", changes={"rounds": 250, "batch": 32}).schedule
    assert (changed.rounds, changed.batch, changed.client_steps) == (250, 32, 20)


@pytest.mark.parametrize("dataset", ["cifar10", "fmnist", "office10", "emnist"])
@pytest.mark.parametrize("method", sorted(registry.METHODS))
def test_the_standard_preset_is_the_published_one_with_a_third_of_the_rounds(method, dataset):
    standard, paper = (presets.train_spec(preset, dataset, method) for preset in ("standard", "paper"))
    rounds = -(-paper.schedule.rounds // 3)
    assert standard.schedule == paper.schedule.model_copy(update={"rounds": rounds, "patience": rounds})
    assert standard.model_copy(update={"schedule": paper.schedule}) == paper
    assert standard.id != paper.id
    for attack in ("dlg", "surrogate"):
        assert presets.settings_of_attack("standard", attack) == presets.settings_of_attack("paper", attack)
    assert presets.cell_spec("standard", standard, None).seeds == (100, 101, 102, 103, 104)
    assert presets.VICTIMS["standard"] == 64
    asked = presets.train_spec("standard", dataset, method, changes={"rounds": 7}).schedule
    assert asked.rounds == 7


def test_one_setting_of_an_optimiser_is_changed_alone_and_a_whole_one_replaces_it():
    base = presets.SCHEDULES["paper"].model_dump()
    task = presets.changed(base, {"task.lr": 0.01})["task"]
    assert task == base["task"] | {"lr": 0.01}
    assert presets.changed(base, {"task": {"lr": 0.01}})["task"] == spec.Adam(lr=0.01).model_dump()
    sgd = presets.changed(base, {"task.kind": "sgd", "task.lr": 0.05})["task"]
    assert sgd == {"kind": "sgd", "lr": 0.05, "weight_decay": 1e-4}
    assert (
        presets.changed({**base, "task": sgd}, {"task.beta1": 0.5, "task.kind": "adam"})["task"]
        == spec.Adam(lr=0.05, beta1=0.5, weight_decay=1e-4).model_dump()
    )
    # A whole optimiser comes first, whatever the order: a searched rate varies it.
    whole = {"task.lr": 0.08, "task": {"kind": "sgd", "lr": 0.05}}
    assert presets.changed(base, whole)["task"] == spec.SGD(kind="sgd", lr=0.08).model_dump()
    assert base == presets.SCHEDULES["paper"].model_dump()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task.rate": 1}, "a schedule has no 'task.rate'; did you mean 'task.lr'"),
        ({"tsk.lr": 1}, "a schedule has no 'tsk.lr'; did you mean 'task.lr'"),
        ({"rounds.lr": 1}, "a schedule has no 'rounds.lr'"),
        ({"task.kind": "rmsprop"}, "schedule.task.kind should be 'sgd' or 'adam', but 'rmsprop' was given"),
        ({"task.kind": "sgd", "task.beta2": 0.9}, "schedule.task.beta2 is Adam's, but schedule.task is SGD"),
        ({"task.lr": -1}, "schedule.task.lr: Input should be greater than 0, but -1 was given"),
        ({"server.beta1": 1}, "schedule.server.beta1: Input should be less than 1, but 1 was given"),
        ({"patience": 0}, "schedule.patience: Input should be greater than or equal to 1, but 0 was given"),
        ({"batch": "many"}, "schedule.batch: Input should be a valid integer"),
    ],
)
def test_a_wrong_change_of_the_schedule_gets_one_line(changes, message):
    with pytest.raises(UserError) as caught:
        presets.train_spec("quick", "digits", "fedavg", changes=changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def images_a_round(schedule, per_client):
    """What one client and the server go through in a round."""
    steps = schedule.client_steps or schedule.local_epochs * math.ceil(per_client / schedule.batch)
    return steps * schedule.batch, schedule.server_steps * schedule.batch


def test_with_equal_work_every_method_goes_through_as_many_images_a_round():
    def images_of(method, **options):
        train_spec = presets.train_spec("paper", "cifar10", method, protocol="fedcg", **options)
        return images_a_round(train_spec.schedule, train_spec.per_client)

    assert images_of("fedavg") == images_of("fedcg") == (40_000, 32_000)
    assert images_of("fedmd-cg") == (1280, 3200)
    assert images_of("nfl-cgan") == (20_000, 16_000)
    for method in ("fedmd-cg", "nfl-cgan"):
        clients, server = images_of(method, equal_work=True)
        # A last batch is filled up: less than one batch an epoch more.
        assert 40_000 <= clients < 40_000 + 20 * 64
        assert server == 32_000
    schedule = presets.train_spec("paper", "cifar10", "fedmd-cg", protocol="fedcg", equal_work=True).schedule
    assert (schedule.batch, schedule.task, schedule.patience) == (
        64,
        spec.SGD(kind="sgd", lr=0.05, weight_decay=1e-4),
        100,
    )
    dealt = [
        presets.train_spec("paper", "fmnist", m, protocol="fedmd-cg", equal_work=True).schedule
        for m in ("fedavg", "nfl-cgan")
    ]
    assert [s.client_steps * s.batch for s in dealt] == [1280, 1280]


def test_a_protocol_is_the_schedule_of_every_method_in_its_comparison():
    each = {
        m: presets.train_spec("paper", "fmnist", m, protocol="fedmd-cg").schedule
        for m in ("fedavg", "fedcg", "fedmd-cg")
    }
    assert len({s.model_dump_json() for s in each.values()}) == 1
    assert (each["fedavg"].client_steps, each["fedavg"].batch) == (20, 64)


@pytest.mark.parametrize("dataset", ["cifar10", "fmnist"])
@pytest.mark.parametrize(
    ("method", "other"), [("nfl-cgan", "fedmd-cg"), ("fedmd-cg", "nfl-cgan"), ("nfl-cgan", "fedcg")]
)
def test_a_method_with_a_schedule_of_its_own_has_all_of_it_under_another_protocol(dataset, method, other):
    own = presets.train_spec("paper", dataset, method).schedule
    under = presets.train_spec("paper", dataset, method, protocol=other).schedule
    rounds = presets.train_spec("paper", dataset, "fedavg", protocol=other).schedule.rounds
    assert under == own.model_copy(update={"rounds": rounds, "patience": rounds})


def test_settings_at_their_usual_values_are_not_written():
    plain = presets.train_spec("quick", "digits", "fedavg")
    assert not {"protocol", "flip", "measured"} & set(plain.model_dump())
    others = [{"protocol": "fedmd-cg"}, {"flip": False}, {"measured": "uploaded"}]
    each = [presets.train_spec("quick", "digits", "fedavg", **options) for options in others]
    assert len({plain.id, *(one.id for one in each)}) == 4
    for one in each:
        assert spec.checked(spec.TrainSpec, one.model_dump(mode="json")) == one


def test_in_the_paper_preset_the_papers_attack_has_the_setting_that_came_nearest_to_its_printed_values():
    for attack in ("dlg", "feature-statistics"):
        assert presets.settings_of_attack("paper", attack) == {"start": "grey", "steps": 1000}
        assert "start" not in presets.settings_of_attack("quick", attack)


def test_published_seeds_begin_at_100():
    assert (presets.SEEDS["smoke"], presets.SEEDS["quick"]) == ((100,), (100, 101))
    assert presets.seeds_of("paper") == (100, 101, 102, 103, 104)
    assert presets.seeds_of("quick", 3) == (100, 101, 102)
    assert presets.seeds_of("quick", 2, 7) == (7, 8)
    train = presets.train_spec("smoke", "digits", "fedavg")
    cell = presets.cell_spec("smoke", train, "dlg", seeds=2, first_seed=5)
    assert (cell.seeds, cell.train.seed) == ((5, 6), 5)
    assert presets.cell_spec("smoke", train, "dlg").seeds == (100,)
    with pytest.raises(UserError, match="unknown preset 'fast'"):
        presets.seeds_of("fast")
    assert len(presets.seeds_of("quick", presets.MOST_SEEDS)) == presets.MOST_SEEDS
    with pytest.raises(UserError, match="--seeds takes at most 10000, but 1000000000 was given"):
        presets.seeds_of("quick", 1_000_000_000)


def test_every_field_takes_part_in_the_name():
    base = presets.train_spec("quick", "digits", "fedavg")
    others = [
        presets.train_spec("quick", "digits", "fedsplit"),
        presets.train_spec("quick", "photos", "fedavg"),
        presets.train_spec("quick", "digits", "fedavg", seed=1),
        presets.train_spec("quick", "digits", "fedavg", defense="gaussian:0.1"),
        presets.train_spec("quick", "digits", "fedavg", changes={"rounds": 3}),
    ]
    names = {each.id for each in (base, *others)}
    assert len(names) == 6
    assert base.id == presets.train_spec("quick", "digits", "fedavg").id


def test_settings_of_dirichlet_are_named_by_the_runs_they_concern_alone():
    iid = presets.train_spec("quick", "digits", "fedavg")
    assert not {"omega", "min_per_client", "content"} & set(iid.model_dump())
    dealt = presets.train_spec("quick", "digits", "fedavg", omega=0.1)
    assert (dealt.partition, dealt.omega, dealt.min_per_client, dealt.clients) == ("dirichlet", 0.1, 16, 4)
    assert presets.train_spec("quick", "digits", "fedavg", partition="dirichlet").omega == 1
    assert presets.train_spec("smoke", "digits", "fedavg", min_per_client=3).min_per_client == 3
    others = [{"omega": 1.0}, {"omega": 0.1, "min_per_client": 9}, {}]
    assert len({dealt.id, *(presets.train_spec("quick", "digits", "fedavg", **each).id for each in others)}) == 4
    assert spec.checked(spec.TrainSpec, dealt.model_dump(mode="json")) == dealt
    cell = presets.cell_spec("quick", dealt, "dlg")
    assert cell.train == dealt.model_copy(update={"seed": 100})
    assert spec.checked(spec.CellSpec, cell.model_dump(mode="json")) == cell


def test_emnist_is_dealt_out_as_fedmd_cg_deals_it_out():
    emnist = presets.train_spec("paper", "emnist", "fedavg")
    assert (emnist.partition, emnist.clients, emnist.per_client, emnist.omega) == ("dirichlet", 20, 12_000, 1)
    pooled = presets.train_spec("paper", "office10", "fedavg", omega=1)
    assert (pooled.clients, pooled.per_client) == (4, 300)


def attacked(**how):
    return presets.cell_spec("quick", presets.train_spec("quick", "digits", "fedavg"), "dlg", **how)


def test_a_round_is_written_in_one_way():
    assert attacked(round_="007") == attacked(round_="7")
    assert attacked(round_="10").round == "10"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: presets.train_spec("fast", "digits", "fedavg"),
            "unknown preset 'fast'; known: smoke, quick, standard, paper",
        ),
        (
            lambda: presets.train_spec("quick", "digits", "fedavg", changes={"round": 3}),
            "a schedule has no 'round'; did you mean 'rounds'",
        ),
        (
            lambda: presets.train_spec("quick", "digits", "fedavg", changes={"rounds": -1}),
            "schedule.rounds: .* -1 was given",
        ),
        (lambda: presets.train_spec("quick", "digits", "fedavg", where="nowhere"), "where: .*'nowhere' was given"),
        (
            lambda: presets.train_spec("quick", "digits", "fedavg", changes={"task.lr": math.inf}),
            "schedule.task.lr: Input should be a finite number, but inf was given",
        ),
        (lambda: attacked(local_lr=math.inf, observe="update"), "local_lr: Input should be a finite number"),
        (lambda: attacked(round_="soon"), "--round takes 0, a number, 'last' or 'best', but 'soon' was given"),
        (lambda: attacked(round_=""), "--round takes 0, a number, 'last' or 'best', but '' was given"),
        (lambda: attacked(round_="\u00b2"), "--round takes 0, a number"),
        (lambda: attacked(round_="11"), "--round 11 was asked for, but training ends after 10 rounds at the latest"),
    ],
)
def test_a_wrong_value_gets_one_line(call, message):
    with pytest.raises(UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_an_accuracy_cell_has_no_settings_of_an_attack():
    train = presets.train_spec("smoke", "digits", "local")
    cell = presets.cell_spec("smoke", train, None)
    assert (cell.attack, cell.victims) == (None, 0)
    assert spec.checked(spec.CellSpec, cell.model_dump(mode="json")) == cell
    assert cell.id != presets.cell_spec("smoke", train, "dlg").id
    for given in (
        {"victims": 3},
        {"round_": "0"},
        {"batch_size": 2},
        {"labels_known": True},
        {"attack_settings": {"steps": 1}},
    ):
        with pytest.raises(UserError, match="a cell without an attack has no settings of one"):
            presets.cell_spec("smoke", train, None, **given)
    with pytest.raises(UserError, match="an attack needs at least one victim"):
        spec.checked(spec.CellSpec, cell.model_dump() | {"attack": "dlg"})


@pytest.mark.parametrize(("name", "attack"), [("dlg", DLG), ("imprint", Imprint)])
def test_an_attack_that_was_changed_gives_its_own_cells_new_names_and_no_others(name, attack, monkeypatch):
    train = presets.train_spec("smoke", "digits", "fedavg")

    def made():
        return [presets.cell_spec("smoke", train, one) for one in (name, "staged", None)]

    old = made()
    before, artifact = [cell.id for cell in old], Store(Path("runs")).artifact(old[0], train, 2)
    monkeypatch.setattr(attack, "revision", 7, raising=False)
    assert [cell.id for cell in old] == before  # a cell keeps the revision that it was specified at
    cells = made()
    assert cells[0].id != before[0]
    assert [cell.id for cell in cells[1:]] == before[1:]
    # What an active server crafts is its attack's work too; other artifacts are what honest clients sent.
    assert (Store(Path("runs")).artifact(cells[0], train, 2) == artifact) == (name == "dlg")


@pytest.mark.parametrize(
    ("method", "backbone", "changed"),
    [("fedprox", "lenet5", presets.PROXIMAL_REVISION), ("fedavg", "resnet18", presets.UPDATES_REVISION)],
)
def test_an_observation_that_was_changed_is_made_again_and_no_older_one_is_read(method, backbone, changed):
    """Kept ones would be attacked under names of today."""
    train = presets.train_spec("smoke", "digits", method, backbone=backbone)
    for observed, revision in (("gradient", 0), ("update", changed)):
        cell = presets.cell_spec("smoke", train, "dlg", observe=observed)
        assert presets.observed_revision(cell) == revision
        assert Store(Path("runs")).artifact(cell, train, 2).name.endswith(f"-o{changed}") == bool(revision)
    usual = presets.cell_spec("smoke", presets.train_spec("smoke", "digits", "fedavg"), "dlg", observe="update")
    assert presets.observed_revision(usual) == 0


@pytest.mark.parametrize(
    ("name", "method", "defense", "frozen"),
    [
        ("posterior", "fedavg", "gaussian:0.1", "d22d861ec19a"),
        ("posterior", "feddf", "gaussian:0.1", "98e6a075b7f5"),
        ("surrogate", "fedsplit", "none", "93922a4343d4"),
        ("aligned-surrogate", "fedsplit", "none", "e78ea8e8fbe2"),
        ("initial-surrogate", "fedsplit", "none", "9ce6e594185e"),
        ("decoder", "fedsplit", "none", "495cddd88b21"),
        ("collusion", "fedsplit", "none", "181e4273e504"),
        ("oracle", "fedsplit", "none", "d9d3d2181333"),
        ("oracle-decoder", "fedsplit", "none", "633d369875b8"),
        ("analytic-features", "fedsplit", "none", "50ad2005f2bf"),
    ],
)
def test_a_cell_keeps_the_name_that_it_had_when_some_attacks_answered_for_others(name, method, defense, frozen):
    """Then a cell's name counted the revisions of the attacks that answered where the extractor was broadcast, too."""
    train = presets.train_spec("smoke", "digits", method, defense=defense)
    assert presets.cell_spec("smoke", train, name).id == frozen


def test_cells_and_runs_of_earlier_revisions_are_not_mistaken_for_todays(tmp_path, monkeypatch, capsys):
    train = presets.train_spec("smoke", "digits", "fedavg")
    store, cell = Store(tmp_path), presets.cell_spec("smoke", train, "dlg")
    for folder, specification in ((store.cell(cell), cell), (store.train(train), train)):
        files.write_json(folder / "spec.json", specification.model_dump(mode="json"))
    assert ([c.id for c in store.cells()], [s.id for _, s in store.trained()]) == ([cell.id], [train.id])
    assert store.earlier() == []
    old = [store.train(train), store.cell(cell)]
    monkeypatch.setattr(spec, "ATTACK_REVISION", 99)
    assert ([c.id for c in store.cells()], [s.id for _, s in store.trained()]) == ([], [train.id])
    assert store.earlier() == old[1:]
    monkeypatch.setattr(spec, "REVISION", 99)
    assert (store.cells(), store.trained(), store.earlier()) == ([], [], old)
    listing.list_runs(tmp_path)
    assert "not listed: 2 folder(s) of earlier revisions" in capsys.readouterr().out


def test_a_specification_that_cannot_be_read_costs_its_folder_alone_and_is_named(tmp_path, caplog, capsys):
    train = presets.train_spec("smoke", "digits", "fedavg")
    schedule = train.model_dump(mode="json")["schedule"]
    store, cell = Store(tmp_path), presets.cell_spec("smoke", train, "dlg")
    files.write_json(store.train(train) / "spec.json", train.model_dump(mode="json"))
    store.begin(cell)
    # A learning rate of infinity, as JSON has none; and a file that a full disk left empty.
    broken = schedule | {"task": schedule["task"] | {"lr": None}}
    infinite, empty = tmp_path / "train" / "a" / "spec.json", tmp_path / "cells" / "b" / "spec.json"
    files.write_json(infinite, train.model_dump(mode="json") | {"schedule": broken})
    files.write_bytes(empty, b"")
    listing.list_runs(tmp_path)
    printed = capsys.readouterr().out
    assert train.id in printed
    assert cell.id in printed
    assert len(caplog.messages) == 2
    assert re.search(
        f"left out: {re.escape(str(infinite))} is no specification .*lr: Input should be", caplog.messages[0]
    )
    assert f"left out: {empty} is damaged; the command that began this cell writes it again" in caplog.messages[1]


GONE = "attack_without_its_package:Attack"


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (None, "there is no module 'attack_without_its_package' on the Python path"),
        (
            "import no_such_package",
            "'attack_without_its_package' cannot be imported: .*, line 1: ModuleNotFoundError: No module named 'no_such_package'",
        ),
        (
            "from math import no_such_name",
            "'attack_without_its_package' cannot be imported: .*, line 1: ImportError: cannot import name",
        ),
    ],
)
def test_an_attack_that_cannot_be_imported_is_refused_and_a_cell_of_it_on_disk_keeps_its_name(
    module, message, tmp_path, monkeypatch
):
    """Its module may be gone, or what that imports; a name is computed without importing anything."""
    if module:
        (tmp_path / "attack_without_its_package.py").write_text(module)
        monkeypatch.syspath_prepend(tmp_path)
    train = presets.train_spec("smoke", "digits", "fedavg")
    with pytest.raises(UserError, match=message) as caught:
        presets.cell_spec("smoke", train, registry.typed("attack", GONE))
    assert "\n" not in str(caught.value)
    value = presets.cell_spec("smoke", train, "dlg").model_dump() | {
        "attack": GONE,
        "attack_revision": 2,
        "active": True,
    }
    monkeypatch.setattr("privbench.registry.resolve", lambda *_: pytest.fail("imported a class"))
    cell = spec.checked(spec.CellSpec, value)
    other = spec.checked(spec.CellSpec, value | {"attack_revision": 3})
    assert len(cell.id) == 12
    assert cell.id != other.id
    assert "-by-attack_without" in Store(tmp_path).artifact(cell, train, 2).name
    files.write_json(Store(tmp_path).cell_spec(cell), cell.model_dump(mode="json"))
    assert Store(tmp_path).cells() == [cell]
    unnamed = spec.checked(spec.CellSpec, value | {"active": False})
    assert unnamed.id == cell.id  # follows from the attack, and is no part of the name


def test_a_cell_of_an_earlier_revision_of_its_own_attack_is_no_cell_of_today(tmp_path, capsys):
    """Wherever cells are looked for: lists, figures, reports, ceilings and Python read what `cells` names."""
    store, train = Store(tmp_path), presets.train_spec("smoke", "digits", "fedavg", clients=2)
    accuracy, dlg, of_user = (
        presets.cell_spec("smoke", train, None),
        presets.cell_spec("smoke", train, "dlg"),
        presets.cell_spec("smoke", train, "dlg").model_copy(update={"attack": "mine:Attack", "attack_revision": 4}),
    )
    old = dlg.model_copy(update={"attack_revision": dlg.attack_revision + 1})
    for cell in (accuracy, dlg, of_user, old):
        files.write_json(store.cell_spec(cell), cell.model_dump(mode="json"))
    assert {cell.id for cell in store.cells()} == {accuracy.id, dlg.id, of_user.id}
    assert store.earlier() == [store.cell(old)]
    listing.list_runs(tmp_path)
    shown = capsys.readouterr().out
    assert dlg.id in shown
    assert "not listed: 1 folder(s) of earlier revisions" in shown


def test_a_cell_specified_at_another_revision_of_its_attack_is_not_attacked(tmp_path):
    train = presets.train_spec("smoke", "digits", "fedavg", clients=2, changes={"rounds": 0})
    cell = presets.cell_spec("smoke", train, "grey", seeds=1, victims=1, round_="0")
    old = cell.model_copy(update={"attack_revision": 5})
    (failure,) = cell_jobs.run_cells([old], tmp_path, None, "cpu", lambda *_: None, lambda *_: None)
    assert failure == "grey was specified at revision 5 and is at revision 0 here; specify the cell anew"


@pytest.mark.parametrize(
    ("dataset", "method", "name"),
    [
        ("fmnist", "nfl-cgan", "4691c06646a3"),
        ("fmnist", "fedmd-cg", "89b7b2e2eaa7"),
    ],
)
def test_runs_of_other_protocols_keep_their_names(dataset, method, name):
    """As those of tests/benchmarks/test_published.py, which change with REVISION alone."""
    assert spec.REVISION == 4
    assert presets.train_spec("paper", dataset, method, seed=presets.FIRST_SEED).id == name


def revision(attack, method, defense="none", **seen):
    """The revision of a cell of that attack; the method and the defence may be names of nothing."""
    train = presets.train_spec("smoke", "digits", "fedsplit")
    cell = presets.cell_spec("smoke", train, attack, **seen)
    return presets.revision_of(
        cell.model_copy(update={"train": train.model_copy(update={"method": method, "defense": defense})})
    )


def is_named_by(cell, wanted, other):
    """Whether a cell is of today at the revision `wanted`, and would not be at `other`."""
    assert cell.attack_revision == wanted
    assert not presets.is_of_today(cell.model_copy(update={"attack_revision": other}))
    return presets.is_of_today(cell)


@pytest.mark.parametrize("attack", ["imprint", "client-rows", "fishing", "seer"])
def test_what_a_dry_run_says_of_dropped_features_has_a_revision_of_its_own(attack):
    """Said by a setting, or by a method of its own accord on a backbone; a user's method is not imported to ask it."""

    def of(method, backbone="lenet5", defense="none", **settings):
        train = presets.train_spec("smoke", "digits", "fedsplit")
        cell = presets.cell_spec("smoke", train, attack)
        changed = {"method": method, "backbone": backbone, "defense": defense, "method_settings": settings}
        return presets.revision_of(cell.model_copy(update={"train": train.model_copy(update=changed)}))

    plain, dropped, private = of("fedavg"), of("fedavg", dropout=0.5), of("fedsplit", dropout=0.5)
    assert dropped > plain
    assert of("fedavg", dropout=0.0) == of("nfl-cgan", "resnet18") == of("mine:Method") == plain
    assert of("fedavg", defense="gaussian:0.1", dropout=0.5) == dropped
    assert of("nfl-cgan") == of("mine:Method", dropout=0.2) == private
    # Where extractors are private `imprint` answers by surrogates, whose shadow clients drop features.
    assert (private > dropped) == (attack == "imprint")


@pytest.mark.parametrize(
    "attack",
    ["surrogate", "aligned-surrogate", "initial-surrogate", "decoder", "joint", "collusion", "feature-hijacking"],
)
def test_what_a_shadow_that_drops_features_says_has_a_revision_of_its_own(attack):
    def of(method, defense="none", **settings):
        train = presets.train_spec("smoke", "digits", "fedsplit")
        cell = presets.cell_spec("smoke", train, attack)
        changed = {"method": method, "defense": defense, "method_settings": settings}
        return presets.revision_of(cell.model_copy(update={"train": train.model_copy(update=changed)}))

    dropped = of("fedsplit", dropout=0.5)
    assert dropped > max(of("fedsplit"), of("fedsplit", "gaussian:0.1"))
    assert of("fedsplit", "gaussian:0.1", dropout=0.5) == dropped


def test_updates_of_networks_with_batch_norm_have_a_revision_of_their_own():
    def of(backbone, observe):
        train = presets.train_spec("smoke", "digits", "fedavg", backbone=backbone)
        return presets.cell_spec(
            "smoke", train, "update-matching" if observe == "update" else "dlg", observe=observe
        ).attack_revision

    assert of("convnet", "update") == of("resnet18", "update") == of("lenet5", "update") + presets.UPDATES_REVISION
    assert of("convnet", "gradient") == of("lenet5", "gradient")


def test_features_behind_a_number_format_have_a_revision_of_their_own():
    def of(method, form):
        train = presets.train_spec("smoke", "digits", method)
        return presets.cell_spec("smoke", train, "staged", wire=form).attack_revision

    assert of("fedsplit", "bf16") == of("fedavg", "bf16") + presets.WIRE_REVISION
    assert of("fedsplit", "float32") == of("fedavg", "float32")


def test_updates_with_noise_among_several_defences_have_a_revision_of_their_own():
    of = partial(revision, "update-matching", "fedavg")
    plain, several = of("gaussian:0.001", observe="update"), of("gaussian:0.001+prune:0.5", observe="update")
    assert several == plain + presets.STEPS_REVISION
    assert of("clip:1+prune:0.5", observe="update") == of("clip:1", observe="update")
    assert revision("dlg", "fedavg", "gaussian:0.001+prune:0.5") == revision("dlg", "fedavg", "gaussian:0.001")


def test_what_features_show_under_noise_has_a_revision_of_its_own():
    of = partial(revision, "calibrated")
    plain, noised = of("fedsplit"), of("fedsplit", "gaussian:0.001")
    assert noised > plain
    assert of("fedsplit", "clip:1+gaussian:0.001") == of("fedcg", "dp-sgd:epsilon=8") == noised
    assert of("fedsplit", "clip:1") == of("fedavg", "gaussian:0.001") == of("fedsplit", "gaussian:0") == plain
    assert of("fedsplit", "gaussian:variance=0.0,clip=1") == of("fedsplit", "gaussian:0e0,clip=1+sign") == plain
    assert of("fedsplit", "gaussian:variance=1e-9,clip=1") == of("fedsplit", "gaussian:much") == noised
    # Of a user's own code nothing is imported.
    assert of("fedsplit", "nowhere:Defense") == of("nowhere:Method", "gaussian:0.001") == noised
    train = presets.train_spec("smoke", "digits", "fedsplit", defense="gaussian:0.001")
    assert is_named_by(presets.cell_spec("smoke", train, "calibrated"), noised, plain)


def test_what_is_returned_of_batches_has_a_revision_of_its_own():
    of = partial(revision, "calibrated", "fedsplit")
    assert of(batch_size=8) == of(batch_size=2) == of("gaussian:0.001", batch_size=2) > of()
    train = presets.train_spec("smoke", "digits", "fedsplit")
    assert is_named_by(presets.cell_spec("smoke", train, "calibrated", batch_size=2), of(batch_size=2), of())


def test_what_is_returned_of_other_number_formats_has_a_revision_of_its_own():
    of = partial(revision, "staged", "fedavg")
    assert of(wire="fp16") == of(wire="bf16") > of() == of(wire="float32") == of(observe="update")
    train = presets.train_spec("smoke", "digits", "fedavg")
    assert is_named_by(presets.cell_spec("smoke", train, "staged", wire="fp16"), of(wire="fp16"), of())


def test_what_is_returned_of_whole_updates_has_a_revision_of_its_own():
    of = partial(revision, "joint", "fedsplit")
    assert of(observe="update", batch_size=2) > of(observe="update") == of(batch_size=2) == of()
    train = presets.train_spec("smoke", "digits", "fedsplit")
    cell = presets.cell_spec("smoke", train, "joint", observe="update", batch_size=2)
    assert is_named_by(cell, of(observe="update", batch_size=2), of())


def test_what_is_returned_of_batches_behind_imitated_features_has_a_revision_of_its_own():
    def cell(loss, batch_size):
        train = presets.train_spec("smoke", "digits", "fedgen", method_settings={"observe_loss": loss})
        return presets.cell_spec("smoke", train, "dlg", batch_size=batch_size)

    plain, mixed = cell("classification", 2), cell("task", 2)
    assert mixed.attack_revision == plain.attack_revision + presets.LABELS_REVISION
    assert cell("task", 1).attack_revision == cell("classification", 1).attack_revision == plain.attack_revision
    assert presets.is_of_today(mixed)


def test_defences_without_noise_are_those_that_say_so():
    settings = dict.fromkeys(("dp-sgd", "dp-adam", "dp-fedavg"), "noise=1")
    settings |= {"gaussian": "0.001", "clip": "1", "prune": "0.5", "quantize": "4", "soteria": "0.4", "precode": "256"}
    for name in registry.DEFENSES:
        defense = written_defense.create(f"{name}:{settings[name]}" if name in settings else name, "update")
        assert (not defense.noise_variance(1)) == (name in registry.WITHOUT_NOISE), name
