"""Study files hold the cells of the published tables."""

from functools import cache
from importlib import resources
from itertools import combinations

import pytest

from privbench import presets, registry, spec, written_defense
from privbench.data import partition
from privbench.errors import UserError
from privbench.execution import cell_jobs, preconditions
from privbench.records.store import Store
from privbench.requests.options import TrainingOptions
from privbench.scoring import statistics
from privbench.training import federation
from reports.running import study_plan, study_reports
from reports.studies import definition, study_cells, study_files
from reports.tables.training.accuracy_table import METRICS


@cache
def cells_of(name, preset):
    """The cells of a study, made once for all that is asked of them."""
    return tuple(study_cells.of(definition.read(name), preset))


def paper(name):
    """The cells of a study on the published data sets and settings."""
    return cells_of(name, "paper")


@pytest.fixture(scope="module")
def read_once():
    """Every data set is read once for all studies; the product keeps the last one alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(federation, "read", cache(federation.read.__wrapped__))
        yield


@pytest.mark.parametrize("name", study_files.names())
@pytest.mark.parametrize("preset", presets.PRESETS)
def test_every_study_has_cells_in_every_preset(name, preset):
    study = definition.read(name)
    assert set(study.reports) <= set(study_reports.NAMES)
    assert set(study.metrics) <= set(METRICS)
    cells = cells_of(name, preset)
    assert len(cells) == len({cell.id for cell in cells}) > 1
    assert {cell.preset for cell in cells} == {preset}
    names = {cell.train.dataset for cell in cells}
    assert set(study.embedded) <= names or preset in ("standard", "paper")
    assert {data.name for data in study.data} <= names
    # A sweep has a table and curves of its own.
    if not ({"attack", "inference", "ladder", "nearest", "variants"} & set(study.reports) or study.sweep):
        assert all(cell.attack is None for cell in cells)


@pytest.mark.parametrize("name", study_files.names())
def test_the_standard_preset_has_every_published_cell_with_a_third_of_the_rounds(name):
    for short, whole in zip(cells_of(name, "standard"), paper(name), strict=True):
        full = whole.train.schedule
        rounds = -(-full.rounds // 3)
        assert short.train.schedule == full.model_copy(update={"rounds": rounds, "patience": rounds})
        assert short.train.model_copy(update={"schedule": full}) == whole.train
        kept = whole.observed_rounds
        assert short.observed_rounds == (kept and tuple(r for r in kept if r <= rounds))
        same = {"preset": "paper", "train": whole.train, "observed_rounds": kept}
        assert short.model_copy(update=same) == whole


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("name", study_files.names())
@pytest.mark.parametrize("preset", ["smoke", "quick"])
def test_every_cell_of_a_study_on_embedded_data_is_possible_as_the_study_says(name, preset, tmp_path):
    """Its victims and batches among them. Of a ladder, attacks that do not apply to a column are left out with the reason."""
    study = definition.read(name)
    cells = study_cells.of(study, preset, [(data, None) for data in study.embedded])
    refused = preconditions.impossible(Store(tmp_path), cells, None, workers=1)
    named = {cell.id: str(cell.attack) for cell in cells}
    inapplicable = {one for one, reason in refused.items() if study.is_ladder and reason.startswith(named[one])}
    assert {reason for one, reason in refused.items() if one not in inapplicable} == set()
    assert len(inapplicable) < len(cells)


def test_victims_of_a_column_are_those_where_the_user_names_none():
    study = definition.read("meta")
    summed = [column.defense for column in study.column if column.victims]
    assert len(summed) == 3
    for preset, asked, expected in (("quick", None, 4), ("quick", 3, 3), ("smoke", None, presets.VICTIMS["smoke"])):
        cells = study_cells.of(study, preset, [("glyphs", None)], victims=asked)
        assert {c.victims for c in cells if c.attack and c.train.defense in summed} == {expected}
    plain = study_cells.of(study, "quick", [("glyphs", None)])
    assert {c.victims for c in plain if c.attack and c.train.defense not in summed} == {presets.VICTIMS["quick"]}


def test_the_accuracy_study_trains_every_method_that_classifies_once():
    cells = study_cells.of(definition.read("accuracy"), "quick", [("photos", None)])
    targets = [registry.target("method", cell.train.method) for cell in cells]
    assert len(registry.METHODS) == 14
    searched = [cell.train.method_settings["mu"] for cell in cells if cell.train.method == "fedprox"]
    plugins = {name: registry.resolve("method", name) for name in registry.METHODS}
    classifying = [name for name, plugin in plugins.items() if plugin.trains_on_images and plugin().test_tasks is None]
    once = sorted({registry.METHODS[name] for name in classifying})
    assert sorted(targets) == sorted([*once, *[registry.target("method", "fedprox")] * (len(searched) - 1)])
    assert len(set(searched)) == len(searched)


def test_the_extended_attack_table_attacks_every_method_that_sends_something_but_those_of_tasks():
    cells = study_cells.of(definition.read("attack-all"), "quick", [("photos", None)])
    methods = {t: registry.resolve("method", name) for name, t in registry.METHODS.items()}
    # SecureGAN sends generators of images alone; it has a study of its own.
    sending = {
        t for t, method in methods.items()
        if method.shared_parts and method.trains_on_images and method().test_tasks is None
    }  # fmt: skip
    assert {registry.target("method", cell.train.method) for cell in cells} == sending


def test_the_ladder_study_has_its_members_with_the_seeds_and_victims_of_a_published_row():
    study = definition.read("ladder")
    cells = study_cells.of(study, "quick", [("photos", None)])
    left_out = {*registry.NEVER_BEST, registry.OF_EXTRACTORS}
    members = registry.ATTACKS.keys() - left_out | {"label-distribution"}
    assert {cell.attack for cell in cells} == members | {"generator-labels"}
    # Columns, rounds; without a defence some are left out at each round, and the last two cells are of FedCG alone.
    at_one_round = [*registry.NEVER_BEST_TRAINED, *registry.NEVER_ABOVE_UNTRAINED]
    assert len(cells) == 5 * 2 * len(members) - 3 * len(at_one_round) + 2
    defended = {cell.train.defense for cell in cells if cell.attack == "initial-surrogate" and cell.round == "best"}
    assert defended == {"gaussian:0.001", "gaussian:0.1"}
    whole = study_cells.of(study, "quick", [("photos", None)], attacks=["ladder:all"])
    assert len(whole) == 5 * 2 * len(registry.ATTACKS)
    assert {cell.id for cell in cells if cell.attack not in registry.INFERENCES} < {cell.id for cell in whole}
    (named,) = {cell.attack for cell in study_cells.of(study, "quick", [("photos", None)], attacks=["grnn"])}
    assert named == "grnn"
    with pytest.raises(UserError, match="'accuracy' attacks nothing, so that it takes no --attack"):
        study_cells.of(definition.read("accuracy"), "quick", attacks=["grnn"])
    assert {cell.round for cell in cells} == {"0", "best"}
    assert {(len(cell.seeds), cell.victims) for cell in cells} == {(5, 16)}
    assert statistics.LEAST_VICTIMS <= 5 * 16
    few = study_cells.of(study, "quick", [("photos", None)], seeds=1, victims=2)
    assert {(len(cell.seeds), cell.victims) for cell in few} == {(1, 2)}
    paper = study_cells.of(study, "paper", [("cifar10", None)])
    assert {(len(cell.seeds), cell.victims) for cell in paper} == {(5, 64)}


def test_a_ladder_cell_is_that_of_the_attack_command():
    cell = next(
        c for c in study_cells.of(definition.read("ladder"), "quick", [("photos", None)]) if c.attack == "staged"
    )
    train = presets.train_spec("quick", "photos", "fedavg")
    assert cell.id == presets.cell_spec("quick", train, "staged", round_="0", seeds=5, victims=16).id


def test_smoke_keeps_its_few_victims_and_the_rounds_before_its_last():
    study = definition.read("ladder").model_copy(update={"rounds": ("0", "1", "2", "5", "best")})
    cells = study_cells.of(study, "smoke", [("digits", None)])
    assert {cell.round for cell in cells} == {"0", "1", "best"}
    assert {(len(cell.seeds), cell.victims) for cell in cells} == {(1, 2)}


def test_the_attacked_rounds_can_be_chosen():
    study = definition.read("ladder")
    cells = study_cells.of(study, "smoke", [("digits", None)], rounds=["0", "last"])
    assert {cell.round for cell in cells} == {"0", "last"}
    for wrong in ("3", "soon", "-1"):
        with pytest.raises(UserError, match=f"--round takes 0 to 2 here, 'last' or 'best', but '{wrong}' was given"):
            study_cells.of(study, "smoke", [("digits", None)], rounds=[wrong])
    with pytest.raises(UserError, match="'accuracy' attacks nothing"):
        study_cells.of(definition.read("accuracy"), "smoke", [("digits", None)], rounds=["0"])


def test_the_ablation_leaves_out_one_two_and_three_terms_on_each_side():
    cells = study_cells.of(definition.read("fedmd-cg-table4"), "smoke", [("photos", None)])
    off = [cell.train.method_settings.get("without", "") for cell in cells]
    sides = (("cls_global", "mse_global", "kl_global"), ("mse_local", "cls_local", "div"))
    every = [set(terms) for side in sides for n in (1, 2, 3) for terms in combinations(side, n)]
    assert off[0] == ""
    assert sorted(sorted(terms.split(",")) for terms in off[1:]) == sorted(sorted(terms) for terms in every)
    assert len(every) == 14


def test_the_study_of_the_diversity_losses_has_the_printed_norms_beside_the_means():
    cells = study_cells.of(definition.read("fedmd-cg-table5"), "smoke", [("photos", None)], choices={"omega": 1.0})
    settings = [cell.train.method_settings for cell in cells]
    assert settings == [{"diversity": 0}, {"diversity": 1}, {}, {"diversity_scale": "literal"}, {"without": "div"}]


def test_a_data_set_carries_its_own_omegas():
    for name in ("fedmd-cg-table4", "fedmd-cg-terms", "fedmd-cg-sensitivity"):
        omegas = {(c.train.dataset, c.train.omega) for c in paper(name)}
        assert omegas == {("emnist", 0.1), ("fmnist", 1.0), ("cifar10", 10.0)}, name
        quick = {(c.train.dataset, c.train.omega) for c in study_cells.of(definition.read(name), "quick")}
        assert quick == omegas | {("photos", 1.0)}, name
    with_omega = study_cells.of(definition.read("fedmd-cg-table4"), "smoke", [("fmnist", None)], choices={"omega": 5.0})
    assert {c.train.omega for c in with_omega} == {5.0}
    for name in ("fedmd-cg-table1", "fedmd-cg-table3", "fedmd-cg-table5"):
        omegas = {(c.train.dataset, c.train.omega) for c in paper(name)}
        assert omegas == {(data, omega) for data in ("emnist", "fmnist", "cifar10") for omega in (0.1, 1.0, 10.0)}, name


def test_the_pca_study_trains_one_teacher_alone_before_its_generator():
    for cell in study_cells.of(definition.read("fedmd-cg-fig2"), "paper"):
        train = cell.train
        assert (train.dataset, train.clients, train.per_client, train.schedule.rounds) == ("mnist", 1, 60_000, 1)
        assert train.schedule.client_steps * train.schedule.batch == 20 * train.per_client
        assert {"cls_global", "mse_global", "kl_global"} <= set(train.method_settings["without"].split(","))
    quick = study_cells.of(definition.read("fedmd-cg-fig2"), "quick")
    assert {(c.train.dataset, c.train.clients) for c in quick} == {("digits", 1), ("mnist", 1)}


def test_the_study_of_every_term_switches_off_each_in_turn():
    from privbench.methods.fedmd_cg import STAGES

    cells = study_cells.of(definition.read("fedmd-cg-terms"), "smoke", [("photos", None)])
    off = [cell.train.method_settings.get("without", "") for cell in cells]
    assert off[0] == ""
    assert sorted(off[1:]) == sorted(term for stage in STAGES for term in stage)


def test_the_sensitivity_study_has_each_value_of_each_lambda_and_the_default_once():
    cells = study_cells.of(definition.read("fedmd-cg-sensitivity"), "smoke", [("photos", None)])
    settings = [cell.train.method_settings for cell in cells]
    assert settings[0] == {}
    assert sorted((k, v) for s in settings[1:] for k, v in s.items()) == sorted(
        (f"lambda{i}", v) for i in range(1, 7) for v in (0.25, 0.5, 0.75, 1.25, 1.5)
    )


def test_the_paper_preset_trains_a_comparison_alike():
    for cell in paper("fedmd-cg-table1"):
        schedule = cell.train.schedule
        assert (schedule.client_steps, schedule.server_steps, schedule.batch) == (20, 50, 64)
        assert schedule.rounds == (250 if cell.train.dataset == "cifar10" else 100)


@pytest.mark.parametrize(
    "name", [n for n in study_files.names() if n.startswith(("fedmd-cg", "nfl-cgan")) and n != "fedmd-cg-fig2"]
)
def test_no_early_stop_cuts_the_rounds_of_a_paper_that_names_none(name):
    for cell in paper(name):
        assert cell.train.schedule.patience >= cell.train.schedule.rounds >= 100, cell.train.dataset


def test_the_methods_of_these_papers_train_all_rounds_in_every_study():
    patience = {c.train.method: c.train.schedule.patience for c in paper("accuracy")}
    assert (patience["fedmd-cg"], patience["nfl-cgan"], patience["fedcg"]) == (100, 100, 20)


@pytest.mark.parametrize("name", ["accuracy", "attack-all", "fedcg-table1", "nfl-cgan-lenet5", "nfl-cgan-resnet18"])
def test_mu_is_searched_over_the_values_of_the_paper_in_quick_too(name):
    for preset, wanted in (("paper", [0.001, 0.01, 0.1, 1.0]), ("quick", [0.001, 0.01, 0.1, 1.0]), ("smoke", [0.001])):
        cells = study_cells.of(definition.read(name), preset, methods=["fedprox"])
        assert {c.train.dataset for c in cells} >= {"fmnist", "cifar10"}
        for data in {(c.train.dataset, c.train.clients) for c in cells}:
            mus = [c.train.method_settings["mu"] for c in cells if (c.train.dataset, c.train.clients) == data]
            assert list(dict.fromkeys(mus)) == wanted, (preset, data)


def own_study(**changes):
    column = {"method": "fedavg", "search": {"schedule.task.lr": [0.01, 0.05, 0.08]}} | changes.pop("column", {})
    task = {"kind": "sgd", "lr": 0.05, "weight_decay": 1e-4}
    return definition.Study(
        name="mine", title="", source="", about="", reports=("accuracy",), embedded=("digits",), data=({"name": "fmnist"},),
        schedule={"task": task}, column=(column,), **changes,
    )  # fmt: skip


def test_a_column_searches_fields_of_the_schedule():
    cells = study_cells.of(own_study(), "paper")
    assert [c.train.schedule.task for c in cells] == [
        spec.SGD(kind="sgd", lr=lr, weight_decay=1e-4) for lr in (0.01, 0.05, 0.08)
    ]
    assert all(c.train.method_settings == {} for c in cells)
    # Rates of SGD are none of Adam's, by which the other presets descend.
    for preset in ("quick", "smoke"):
        assert [c.train.schedule.task for c in study_cells.of(own_study(), preset)] == [
            presets.SCHEDULES[preset].task
        ] * 2
    with pytest.raises(UserError, match=r"a schedule has no 'task\.rate'; did you mean 'task\.lr'"):
        study_cells.of(own_study(column={"search": {"schedule.task.rate": [1]}}), "paper")


def test_every_variant_is_searched():
    column = {"method": "fedcg", "each": {"aggregator": ["ave", "kd"]}}
    cells = [c.train for c in study_cells.of(own_study(column=column), "paper")]
    assert [(t.method_settings.get("aggregator", "kd"), t.schedule.task.lr) for t in cells] == [
        (aggregator, lr) for aggregator in ("ave", "kd") for lr in (0.01, 0.05, 0.08)
    ]


def test_every_method_of_fedmd_cg_searches_the_rate_of_sgd():
    names = [n for n in study_files.names() if n.startswith("fedmd-cg") and n != "fedmd-cg-fig2"]
    assert len(names) == 7
    for name in names:
        rates = {}
        for cell in paper(name):
            train = cell.train
            rest = train.model_dump_json(exclude={"schedule": {"task": {"lr"}}}) + str((cell.attack, cell.round))
            rates.setdefault(rest, set()).add(train.schedule.task.lr)
            assert train.protocol == "fedmd-cg"
        assert set(map(frozenset, rates.values())) == {frozenset((0.01, 0.05, 0.08))}, name


def test_the_cnn_of_nfl_cgan_has_dropout_in_every_method_and_resnet18_in_none():
    for name, rate in (
        ("nfl-cgan-lenet5", 0.2),
        ("nfl-cgan-table5", 0.2),
        ("nfl-cgan-resnet18", 0.0),
        ("nfl-cgan-table4", 0.0),
    ):
        for cell in paper(name):
            plugin = registry.create(registry.resolve("method", cell.train.method), cell.train.method_settings)
            assert plugin.networks(cell.train.backbone)["dropout"] == rate, (name, cell.train.method)
            assert cell.train.protocol == "nfl-cgan"


def test_searched_rates_are_jobs_of_different_names():
    groups = [(c.train,) for c in study_cells.of(own_study(), "paper")]
    assert cell_jobs.titles(groups) == [f"fmnist fedavg seed 100 task.lr={lr}" for lr in (0.01, 0.05, 0.08)]
    assert cell_jobs.titles(groups[:1]) == ["fmnist fedavg seed 100"]


def test_a_study_says_whose_protocol_it_follows_and_whether_work_is_equal():
    def cell(method, preset="paper", **changes):
        (only,) = study_cells.of(
            own_study(column={"method": method, "search": {}}, **changes), preset, [("fmnist", None)]
        )
        return only.train

    assert (cell("nfl-cgan").protocol, cell("nfl-cgan").per_client) == ("fedcg", 2000)
    dealt = cell("fedavg", protocol="nfl-cgan")
    assert (dealt.protocol, dealt.per_client, dealt.schedule.local_epochs) == ("nfl-cgan", 15_000, 10)
    assert cell("fedavg", "quick", protocol="nfl-cgan").protocol == "fedcg"
    assert cell("fedmd-cg").schedule.client_steps == 20
    equal = cell("fedmd-cg", equal_work=True).schedule
    assert (equal.client_steps, equal.local_epochs, equal.batch) == (None, 20, 64)


def test_what_a_user_asks_for_goes_before_the_study():
    choices = {"protocol": "nfl-cgan", "flip": True, "measured": "broadcast", "changes": {"task.lr": 0.2, "batch": 4}}
    (cell,) = study_cells.of(own_study(), "smoke", [("digits", None)], seeds=2, first_seed=7, choices=choices)
    assert (cell.train.protocol, cell.train.flip, cell.train.measured) == ("nfl-cgan", True, "broadcast")
    assert (cell.train.schedule.task.lr, cell.train.schedule.batch) == (0.2, 4)
    assert (cell.seeds, cell.train.seed) == ((7, 8), 7)
    cells = study_cells.of(own_study(), "paper", choices=choices)
    assert [c.train.schedule.task for c in cells] == [spec.SGD(kind="sgd", lr=0.2, weight_decay=1e-4)]


def test_every_field_of_the_schedule_can_stand_in_a_study():
    values = {
        "rounds": 3, "local_epochs": 4, "generator_epochs": 5, "client_steps": 6, "server_steps": 7, "batch": 8, "patience": 9,
        "keep_every": 2, "task": {"kind": "sgd", "lr": 0.05}, "generator": {"lr": 0.1}, "server": {"lr": 0.2},
    }  # fmt: skip
    assert set(values) == set(spec.Schedule.model_fields)
    scheduled = own_study(column={"search": {}}).model_copy(update={"schedule": values})
    (cell,) = study_cells.of(scheduled, "paper")
    assert cell.train.schedule == spec.checked(spec.Schedule, values)
    dotted = scheduled.model_copy(update={"schedule": {"task.lr": 0.3}})
    (cell,) = study_cells.of(dotted, "paper")
    assert cell.train.schedule.task == presets.SCHEDULES["paper"].task.model_copy(update={"lr": 0.3})


def test_methods_and_data_sets_can_be_chosen():
    study = definition.read("accuracy")
    chosen = study_cells.of(
        study, "smoke", [("digits", None), ("digit5", ("svhn", "usps"))], methods=["lg-fedavg", "local"]
    )
    assert [(c.train.dataset, c.train.method) for c in chosen] == [
        ("digits", "local"), ("digits", "fedsplit"), ("digit5", "local"), ("digit5", "fedsplit"),
    ]  # fmt: skip
    assert chosen[2].train.domains == ("svhn", "usps")
    with pytest.raises(UserError, match="'nfl-cgan-table5' has no cells of local; it compares fedgen, nfl-cgan"):
        study_cells.of(definition.read("nfl-cgan-table5"), "smoke", methods=["local"])
    with pytest.raises(UserError, match="did you mean 'accuracy'"):
        definition.read("acuracy")


def test_a_misspelt_key_of_a_study_is_refused(tmp_path, monkeypatch):
    (tmp_path / "studies").mkdir()
    text = (resources.files("reports") / "studies" / "accuracy.toml").read_text()
    (tmp_path / "studies" / "mine.toml").write_text(text.replace("embedded =", "embeded ="))
    monkeypatch.setattr(study_files.resources, "files", lambda _: tmp_path)
    with pytest.raises(UserError, match="embed"):
        definition.read("mine")


STUDY = """
title = "mine"
source = "ours"
about = "nothing"
reports = ["accuracy"]
embedded = ["digits"]
column = [{ method = "fedavg" }]
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("seeds = 0", "seeds: .*greater than or equal to 1"),
        ("victims = -1", "victims: .*greater than or equal to 1"),
        ("clients = 0", "clients: .*greater than or equal to 1"),
        ("rounds = []", "rounds: .*at least 1"),
        ("metrics = []", "metrics: .*at least 1"),
        ("variant = []", "variant: .*at least 1"),
        ("variant = [{ batch_size = 0 }]", "batch_size: .*greater than or equal to 1"),
        ('data = [{ name = "cifar10", omega = [] }]', "omega: .*at least 1"),
        ('column = [{ method = "fedprox", search.mu = [] }]', "mu: .*at least 1"),
        ('reports = ["acuracy"]', "the study 'mine' names the report 'acuracy'; did you mean 'accuracy'"),
        ('metrics = ["acc"]', "the study 'mine' names the metric 'acc'; did you mean"),
        ('tables = ["FedGC 1"]', "the table 'FedGC 1', but a table is named as 'FedCG 1' or .*; sources: FedCG, "),
        ('tables = ["FedCG"]', "the table 'FedCG', but a table is named as"),
        ('reports = ["pca"]', "a PCA, which needs a private extractor and a generator, and fedavg has none"),
    ],
)
def test_a_study_that_names_nothing_of_that_kind_is_refused_before_anything_runs(line, said, tmp_path):
    name = line.partition(" ")[0]
    others = [each for each in STUDY.splitlines() if not each.startswith(f"{name} ")]
    (tmp_path / "mine.toml").write_text("\n".join([*others, line]))
    with pytest.raises(UserError, match=said) as refusal:
        study_plan.plan(str(tmp_path / "mine.toml"), TrainingOptions(preset="smoke"), None)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", study_files.names())
def test_every_report_of_a_study_can_be_written_of_its_cells(name):
    study_reports.check(definition.read(name), cells_of(name, "paper"))


TRAINING_IMAGES = {"fmnist": 60_000, "cifar10": 50_000}
NAMES_PUBLIC_IMAGES = ("digit5", "domainnet")  # of which FedCG holds out a domain


def test_whoever_distils_on_public_images_has_some_in_every_published_cell():
    published_cells = set()
    for name in study_files.names():
        for cell in paper(name):
            train = cell.train
            if train.method != "feddf" or train.dataset in NAMES_PUBLIC_IMAGES:
                continue
            left = TRAINING_IMAGES[train.dataset] - train.clients * train.per_client
            assert left >= partition.PUBLIC, (name, train.dataset)
            published_cells.add((name, train.dataset, left))
    assert {("nfl-cgan-lenet5", "fmnist", 32_000), ("nfl-cgan-resnet18", "cifar10", 32_000)} <= published_cells


def test_the_study_of_defences_audits_what_is_guaranteed_and_nothing_else():
    cells, rows = study_cells.of(definition.read("defences"), "quick"), {}
    for method in ("fedavg", "fedsplit"):
        audited = {cell.train.defense: cell.audit for cell in cells if cell.train.method == method}
        guaranteed = {text for text in audited if text.startswith("dp-") or "clip=" in text}
        assert {text for text, canaries in audited.items() if canaries} == guaranteed
        rows[method] = {part for text in audited for part in written_defense.joined(text).split("+")}
    assert rows["fedavg"] == {*registry.DEFENSES}
    assert rows["fedsplit"] == {"none", "gaussian", "dp-sgd", "dp-fedavg"}
    # A column may name rounds of its own.
    rounds = {
        method: {cell.round for cell in cells if cell.train.method == method} for method in ("fedavg", "fedsplit")
    }
    assert rounds == {"fedavg": {"0", "best"}, "fedsplit": {"best"}}
    assert not any(cell.audit for cell in study_cells.of(definition.read("defences"), "smoke"))
    # A cell without an audit keeps its name.
    plain = next(cell for cell in cells if cell.train.defense == "none")
    assert "audit" not in plain.model_dump()


def test_the_study_of_securegan_has_every_printed_noise_and_dp_sgd_of_single_clients_and_scores_every_generator_once():
    study = definition.read("securegan")
    cells = study_cells.of(study, "quick", [("digits", None)])
    for method, optimisers in {"secure-gan": {"dp-adam"}, "dp-gan": {"dp-adam", "dp-sgd"}}.items():
        each = [written_defense.create(c.train.defense, "update") for c in cells if c.train.method == method]
        assert {(d.name, d.noise) for d in each if d.is_private} == {
            (name, noise) for name in optimisers for noise in (0.005, 0.5, 5.0, 8.0)
        }
    # Sums are those of the same networks, so that their generators need no scores of their own.
    unscored = {cell.train.defense for cell in cells if not cell.generated}
    assert unscored == {"secure-aggregation:masks", "secure-aggregation:ckks"}
    assert {"stability", "generator", "communication"} <= set(study.reports)
    # What the server sees of either phase is attacked.
    assert {cell.round for cell in cells if cell.attack == "generated-images"} == {"1", "last"}


def test_the_study_of_single_gans_takes_its_cells_from_that_of_securegan():
    digits = [("digits", None)]
    few, many = (study_cells.of(definition.read(name), "quick", digits) for name in ("dp-gan", "securegan"))
    assert len(few) == 2
    assert {cell.id for cell in few} <= {cell.id for cell in many}


def test_the_study_of_meta_learning_attacks_networks_that_train_alike_once():
    cells = study_cells.of(definition.read("meta"), "quick", [("glyphs", None)])
    assert {cell.train.method_settings["train_shots"] for cell in cells} == {10}
    one, five = (
        registry.create(registry.resolve("method", "reptile"), {"shots": n, "train_shots": 10}) for n in (1, 5)
    )
    assert one.client_tasks == five.client_tasks
    # Shots are those of test tasks alone, so that five of them stand beside one without an attack.
    by_shots = {shots: [c for c in cells if c.train.method_settings.get("shots", 1) == shots] for shots in (1, 5)}
    assert {cell.attack for cell in by_shots[5]} == {None}
    assert {cell.train.defense for cell in by_shots[5]} == {"none", "dp-sgd:epsilon=8"}
    attacked = {(c.attack, c.round, c.train.defense, "turns" in c.train.method_settings) for c in by_shots[1]}
    assert len(attacked) == len(by_shots[1]) == 9
    # Both phases: the sum of all clients, and one client by itself.
    assert {round_ for _, round_, _, turns in attacked if turns} == {"0", "best"}
