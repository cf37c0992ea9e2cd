"""The search for the setting that a paper does not print."""

from privbench import presets
from reports.studies import definition, study_cells
from reports.tables import nearest
from tests.builders.records import record, with_victims


def attacked(method, psnr, raw=None, defense="none", round_="0", seeds=(0,), **changes):
    attack = "feature-statistics" if method == "fedcg" else "dlg"
    settings = presets.settings_of_attack("quick", attack) | changes.pop("settings", {})
    made = record(
        method, defense, attack, psnr=psnr, round_=round_, seeds=seeds, spec={"attack_settings": settings} | changes
    )
    scored = {"psnr_db": psnr, "psnr_raw_db": raw}
    return with_victims(made, [victim.model_copy(update=scored) for victim in made.victims])


def test_the_nearest_setting_of_a_column_is_given_for_clipped_and_raw_images_apart():
    records = [
        attacked("fedsplit", 8.0, 6.3),
        attacked("fedsplit", 6.4, -8.0, settings={"start": "normal"}),
        attacked("fedsplit", 3.0, 6.2, settings={"start": "normal"}, batch_size=16, labels_known=True),
    ]
    (line,) = nearest.report(records).tables[0].rows
    assert line == [
        "FedSplit", "6.23", "round 0 (untrained), start normal", "6.40 [6.40, 6.40]*", "0.17",
        "round 0 (untrained), start normal, labels known, 16 images per gradient", "6.20", "0.03",
    ]  # fmt: skip


def test_one_setting_for_all_columns_is_made_on_all_of_them_and_takes_the_nearest_alpha():
    normal = {"start": "normal"}
    records = [
        attacked("fedavg", 20.0, 18.0),
        attacked("fedavg", 24.0, settings=normal),
        attacked("fedcg", 12.0, 11.0),
        attacked("fedcg", 6.0, settings=normal),
        attacked("fedcg", 9.0, settings=normal | {"alpha": 100.0}),
        attacked("fedavg", 24.14, 24.14, round_="best"),  # the nearest, but of one column alone
    ]
    head, *lines = nearest.report(records).tables[1].rows
    assert head == ["printed", "", "24.14", "8.99", "-"]
    assert nearest.report(records, most=1).tables[1].rows == [head, lines[0]]
    assert lines == [
        ["round 0 (untrained), start normal", "clipped", "24.00", "9.00", "0.08"],
        ["round 0 (untrained), as set by default", "clipped", "20.00", "12.00", "3.58"],
        ["round 0 (untrained), as set by default", "raw", "18.00", "11.00", "4.08"],
    ]


def test_the_printed_noise_is_read_as_a_variance_and_as_a_standard_deviation():
    records = [
        attacked("fedavg", 24.0),
        attacked("fedavg", 5.0, defense="gaussian:0.001"),
        attacked("fedavg", 20.0, defense="gaussian:0.000001"),
    ]
    alone, together = nearest.report(records).tables
    (_, noisy) = alone.rows
    setting = "round 0 (untrained), as set by default"
    assert noisy[:5] == [
        "FedAvg + Gaussian 0.001",
        "20.30",
        f"{setting}, {nearest.DEVIATION}",
        "20.00 [20.00, 20.00]*",
        "0.30",
    ]
    assert [line[0] for line in together.rows[1:]] == [f"{setting}, {nearest.DEVIATION}", setting]
    assert [line[3] for line in together.rows[1:]] == ["20.00", "5.00"]


def test_data_that_the_paper_does_not_print_keep_their_numbers_without_a_distance():
    report = nearest.report([attacked("fedavg", 20.0, 19.0, dataset="photos")])
    assert report.tables[0].rows == [["FedAvg", *"-------"]]
    assert [line[2] for line in report.tables[1].rows] == ["-", "20.00", "19.00"]


def test_the_study_varies_everything_that_the_paper_leaves_open_in_all_five_columns():
    cells = study_cells.of(definition.read("papers-attack"), "paper")
    columns = {(c.train.method, c.train.defense): [] for c in cells}
    for c in cells:
        columns[c.train.method, c.train.defense].append(c)
    assert list(columns) == [
        ("fedavg", "none"), ("fedavg", "gaussian:0.001"), ("fedavg", "gaussian:0.1"),
        ("fedavg", "gaussian:0.000001"), ("fedavg", "gaussian:0.01"), ("fedsplit", "none"), ("fedcg", "none"),
    ]  # fmt: skip
    for (method, _), column in columns.items():
        varied = {name for c in column for name in c.attack_settings}
        assert varied >= {"start", "optimiser", "lr", "restarts", "steps", "alpha" if method == "fedcg" else "labels"}
        assert {c.round for c in column} == {"0", "1", "best"}
        assert {c.batch_size for c in column} == {1, 4, 16}
        assert {c.labels_known for c in column} == {False, True}
        assert {c.attack_settings.get("start", "noise") for c in column} == {"noise", "normal", "grey"}


def test_a_setting_of_before_a_preset_had_one_is_named():
    before = attacked("fedavg", 13.0)
    cell = before.cell.model_copy(update={"preset": "paper", "attack_settings": {}})
    assert nearest.of_record(before.model_copy(update={"cell": cell})).setting == (
        "round 0 (untrained), start noise, steps 300"
    )
    now = cell.model_copy(update={"attack_settings": {"start": "grey", "steps": 1000}})
    assert (
        nearest.of_record(before.model_copy(update={"cell": now})).setting == "round 0 (untrained), as set by default"
    )
