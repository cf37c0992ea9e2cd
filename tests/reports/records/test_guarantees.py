"""Epsilon in every table and in the figure, where some row has a guarantee, and nowhere else."""

import io
from dataclasses import replace

import pandas as pd
import pytest

from privbench.execution.privacy import in_words
from privbench.records.entries import Audit
from privbench.scoring import epsilon_bounds
from reports.figures import epsilon_curve, sweep_curve
from reports.records import guarantees, measured, table_checks
from reports.records.labels import label
from reports.tables import attack_table, ladder, ladder_summary, report_files
from reports.tables.training import accuracy_table
from tests.builders.records import cell_of, record


def privacy(epsilon):
    return {
        "epsilon": epsilon, "delta": 1e-5, "unit": "example", "noise": 1.0, "covers": ["classifier"],
        "leaves_out": ["label counts", "batch-norm statistics"], "accountant": "PLD",
    }  # fmt: skip


def audit(claimed=8.0, right=110, p_value=0.4):
    return {
        "unit": "example", "claimed": claimed, "delta": 1e-5, "canaries": 1000, "guesses": 124, "right": right,
        "lower_bound": epsilon_bounds.lower_bound(1000, 124, right, 1e-5), "provable": 3.68, "single_releases": 4000,
        "single_right": 2900, "single_allowed": 0.72, "single_p_value": p_value,
    }  # fmt: skip


def private(
    epsilon=8.0, method="fedavg", attack="dlg", psnr=14.0, audited=None, defense=None, unit="example", **changes
):
    """A record under DP-SGD, the second client of which is guaranteed less than the first."""
    each = [privacy(epsilon / 2) | {"unit": unit}, privacy(epsilon) | {"unit": unit}]
    per_seed = {"privacy": each, "audit": audited, "guarantee": in_words(each)}
    return record(method, defense or f"dp-sgd:epsilon={epsilon:g}", attack, psnr=psnr, per_seed=per_seed, **changes)


REPORTS = {
    "attack": attack_table.report,
    "accuracy": lambda records: accuracy_table.report(records, [], ("accuracy",)),
    "accuracy, several metrics": lambda records: accuracy_table.report(records, [], ("accuracy", "f1")),
    "ladder": ladder.report,
    "summary": ladder_summary.report,
}


@pytest.mark.parametrize("name", REPORTS)
def test_epsilon_and_its_audit_stand_in_every_form_of_every_table(name):
    report = REPORTS[name]([record(), private(audited=audit())])
    for form in (report_files.markdown, report_files.html):
        text = form(report)
        assert "8" in text
        assert "1e-05" in text
        assert "per image" in text
        # Of both seeds together.
        assert "2,000 canaries" in text
        assert "label counts, batch-norm statistics" in text
    latex = report_files.latex(report)
    assert "epsilon" in latex
    rows = pd.read_csv(io.StringIO(report_files.csv(report)))
    of_private = rows[rows["epsilon"].notna()]
    assert 0 < len(of_private) < len(rows)
    assert set(of_private["epsilon"]) == {8.0}
    assert set(of_private["audit_canaries"]) == {2000}
    assert set(of_private["privacy_covers"]) == {"classifier"}
    assert set(of_private["privacy_leaves_out"]) == {"label counts; batch-norm statistics"}


@pytest.mark.parametrize("name", REPORTS)
def test_tables_without_any_guarantee_say_nothing_of_epsilon(name):
    report = REPORTS[name]([record(), record(defense="gaussian:0.1")])
    text = report_files.markdown(report) + report_files.csv(report) + report_files.latex(report)
    text = text.replace("no (epsilon, delta) guarantee", "")
    assert "epsilon" not in text
    assert "audit" not in text


def test_what_epsilon_covers_is_said_once_where_all_rows_are_alike_and_by_row_else():
    one, other = private(), private(method="fedsplit")
    alike = "Epsilon covers the training of: classifier. Not covered: label counts, batch-norm statistics."
    assert guarantees.coverage([record(), one, other]) == [alike]
    each = [privacy(8.0) | {"covers": ["classifier", "extractor"], "leaves_out": []}]
    unlike = record("fedsplit", "dp-sgd:epsilon=8", "dlg", per_seed={"privacy": each, "guarantee": in_words(each)})
    assert guarantees.coverage([one, unlike]) == [
        "Epsilon of FedAvg + DP-SGD (epsilon 8) covers the training of: classifier. "
        "Not covered: label counts, batch-norm statistics.",
        "Epsilon of FedSplit + DP-SGD (epsilon 8) covers the training of: classifier, extractor. Not covered: nothing.",
    ]
    # Without a finite epsilon nothing is covered.
    endless = record(per_seed={"privacy": [privacy(None)], "guarantee": "none"})
    assert (guarantees.covered_text(endless), guarantees.left_out_text(endless)) == ("-", "-")
    assert guarantees.coverage([record(), endless]) == []


def test_epsilon_is_that_of_the_worst_client_and_none_where_one_has_no_finite_one():
    assert guarantees.text(private()) == "8 (delta 1e-05, per image)"
    larger = record(
        defense="dp-sgd:noise=1", per_seed={"privacy": [privacy(12.341)], "guarantee": in_words([privacy(12.341)])}
    )
    assert guarantees.text(larger) == "12.4 (delta 1e-05, per image)"
    assert in_words([privacy(12.341)]) == "(12.4, 1e-05)-differential privacy per image"
    unbounded = record(defense="dp-sgd:noise=0", per_seed={"privacy": [privacy(3.0), privacy(None)]})
    assert guarantees.text(unbounded) == "none"
    assert guarantees.text(record()) == "none"
    assert guarantees.audited_text(private()) == "-"


def test_seeds_are_one_audit_of_all_their_canaries():
    proved = guarantees.proved(private(audited=audit(right=110)))
    assert proved.canaries == 2000
    assert proved.lower_bound == epsilon_bounds.lower_bound(2000, 248, 220, 1e-5)
    assert proved.lower_bound > epsilon_bounds.lower_bound(1000, 124, 110, 1e-5)


@pytest.mark.parametrize(
    ("audited", "refuted"),
    [(audit(), False), (audit(claimed=1.0, right=120), True), (audit(p_value=1e-4), True)],
)
def test_an_audit_that_contradicts_the_claim_is_a_failed_check(audited, refuted):
    r = private(audited=audited)
    names = [message.name for message in table_checks.by_record([r])[r.id]]
    assert ("audit-refutes" in names) == refuted


@pytest.mark.parametrize(
    "changed",
    [
        {"right": 10**12},
        {"guesses": 1001},
        {"canaries": 10**12, "guesses": 10**12, "right": 10**12},
        {"delta": 1.00001},
    ],
)
def test_a_record_holds_no_audit_that_cannot_have_been(changed):
    """The bound of so many guesses would take that much memory."""
    with pytest.raises(ValueError, match=r"Audit"):
        Audit.model_validate(audit() | changed)


BETWEEN = sum(epsilon_bounds.lower_bound(1000, 124, 110, 1e-5, confidence) for confidence in (0.95, 0.975)) / 2


@pytest.mark.parametrize("audited", [audit(p_value=7e-4), audit(claimed=BETWEEN)], ids=["single releases", "one run"])
def test_the_audits_of_two_seeds_have_the_false_alarms_of_one(audited):
    """What contradicts a claim that was audited once is too little where it is the worse of two."""
    assert Audit.model_validate(audited).contradicted()
    assert not guarantees.refuted(private(audited=audited))


@pytest.mark.parametrize(
    ("defense", "text"),
    [
        ("dp-sgd:epsilon=8", "FedAvg + DP-SGD (epsilon 8)"),
        ("dp-sgd:8", "FedAvg + DP-SGD (epsilon 8)"),
        ("dp-adam:noise=1.1,clip=0.5", "FedAvg + DP-Adam (noise 1.1, clip 0.5)"),
        ("dp-fedavg:epsilon=50", "FedAvg + DP-FedAvg (epsilon 50)"),
        ("gaussian:0.001", "FedAvg + Gaussian 0.001"),
        ("gaussian:variance=0.001,clip=1", "FedAvg + Gaussian (variance 0.001, clip 1)"),
        ("prune:0.1", "FedAvg + Prune 0.1"),
        ("sign", "FedAvg + Sign"),
    ],
)
def test_columns_of_defended_methods_have_readable_names(defense, text):
    assert label(cell_of("fedavg", defense, "dlg", "cifar10", "best", (0,), {})) == text


def test_accuracy_and_psnr_are_drawn_against_epsilon(tmp_path, monkeypatch):
    records = [record(psnr=25.0), *(private(epsilon, psnr=12 + epsilon / 10) for epsilon in (1.0, 8.0, 50.0))]
    records.append(private(8.0, defense="dp-fedavg:epsilon=8", psnr=16.0))
    drawn = {}
    save = epsilon_curve.style.save
    monkeypatch.setattr(
        epsilon_curve.style, "save", lambda figure, stem: drawn.update({stem.name: figure}) or save(figure, stem)
    )
    paths = epsilon_curve.curves(records, tmp_path)
    assert [path.name for path in paths] == ["cifar10-fedavg-epsilon-best.png", "cifar10-fedavg-epsilon-best.pdf"]
    left, right = next(iter(drawn.values())).axes
    # Of the networks that were attacked: a guarantee per client does not cover the personal model.
    assert records[1].accuracy.mean == 42.25
    for axes, values in ((left, [40.0, 40.0, 40.0]), (right, None)):
        assert axes.get_xscale() == "log"
        sweep = next(line for line in axes.lines if list(line.get_xdata()) == [1.0, 8.0, 50.0])
        assert values is None or list(sweep.get_ydata()) == values
        assert any(line.get_linestyle() == "--" for line in axes.lines)
    assert not sweep_curve.curves(records, tmp_path)


def test_epsilons_of_images_and_of_clients_are_named_apart(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(epsilon_curve.style, "save", lambda figure, stem: figures.append(figure) or [])
    of_images = [private(epsilon) for epsilon in (1.0, 8.0)]
    of_clients = private(8.0, defense="dp-fedavg:epsilon=8", unit="client")
    for records in ([*of_images, of_clients], of_images):
        epsilon_curve.curves(records, tmp_path)
    mixed, alike = (_words(figure) for figure in figures)
    assert {"DP-SGD, per image", "DP-FedAvg, per client"} <= mixed
    assert "DP-SGD" in alike


def test_the_floor_of_defences_with_one_epsilon_is_the_highest(tmp_path, monkeypatch):
    """The line of floors as it is drawn, whichever of the defences comes last."""
    of_defence = {"dp-sgd": 14.0, "dp-fedavg": 11.0}

    def strongest(attacks):
        best = measured.strongest(attacks)
        floor = next(level for name, level in of_defence.items() if attacks[0].cell.train.defense.startswith(name))
        return replace(best, victims=tuple(v.model_copy(update={"floors": {"grey": floor}}) for v in best.victims))

    figures = []
    monkeypatch.setattr(epsilon_curve, "strongest", strongest)
    monkeypatch.setattr(epsilon_curve.style, "save", lambda figure, stem: figures.append(figure) or [])
    records = [private(1.0), private(8.0), private(8.0, defense="dp-fedavg:epsilon=8")]
    for each in (records, records[::-1]):
        epsilon_curve.curves(each, tmp_path)
        floors = [line for line in figures[-1].axes[1].lines if list(line.get_xdata()) == [1.0, 8.0]]
        assert [14.0, 14.0] in [list(line.get_ydata()) for line in floors]


def _words(figure):
    """The names of lines, beside them or in a legend."""
    texts = [
        *(text for axes in figure.axes for text in axes.texts),
        *(t for each in figure.legends for t in each.get_texts()),
    ]
    return {" ".join(text.get_text().split()) for text in texts}


def test_one_epsilon_draws_no_figure(tmp_path):
    assert not epsilon_curve.curves([record(), private(8.0)], tmp_path)
