"""Attacks on what a server saw in several ways, e.g. one image and sixteen at once: each has figures and files of its own."""

import pytest

from reports.figures import epsilon_curve, of_attack, psnr_by_round, scatter, sweep_curve
from reports.figures.drawing import style
from reports.folders import pictures
from reports.running import ladder_cells
from tests.builders.records import changed, record
from tests.reports.records.test_guarantees import private

DEFENSES = ("none", "gaussian:0.001", "gaussian:0.1")
EACH = [{"batch_size": 1}, {"batch_size": 16}, {"batch_size": 16, "labels_known": True}, {"wire": "bf16"}]


def seen(observed, psnr=20.0, defenses=DEFENSES, rounds=("0", "best")):
    """Attacks on FedAvg whose server saw its gradients like that."""
    made = [record("fedavg", defense, psnr=psnr, round_=round_) for defense in defenses for round_ in rounds]
    return [changed(r, **observed) for r in made]


@pytest.fixture
def figures(monkeypatch):
    """Those that would be written, by the names of their files."""
    drawn = {}
    monkeypatch.setattr(
        style, "save", lambda figure, stem: drawn.update({stem.name: figure}) or [stem.with_name(stem.name + ".png")]
    )
    return drawn


def title(figure):
    return figure.get_suptitle().replace("\n", " ")


def test_a_page_draws_what_was_seen_in_each_way_by_itself(monkeypatch):
    monkeypatch.setattr(
        style, "save", lambda figure, stem: stem.with_suffix(".png").write_bytes(b"") or [stem.with_suffix(".png")]
    )
    records = [r for i, observed in enumerate(EACH[:2]) for r in seen(observed, 20.0 + 10 * i)]
    titles = [picture.title for picture in pictures.lines(records).pictures]
    for what in ("Accuracy against PSNR of the strongest attack", "PSNR against the attacked round"):
        plain = f"{what}: cifar10, 4 clients, quick preset"
        assert [each for each in titles if each.startswith(what)] == [plain, f"{plain}, 16 images per gradient"]


def test_a_figure_says_what_was_seen_and_has_its_numbers_alone(figures, tmp_path):
    scatter.write(seen(EACH[1], 31.0), tmp_path / "scatter")
    psnr_by_round.write(seen(EACH[1], 31.0), tmp_path / "rounds")
    assert all("16 images per gradient" in title(figure) for figure in figures.values())
    assert len(figures) == 2


def test_no_figure_is_written_over_another(figures, tmp_path):
    records = [r for observed in (*EACH, {"preset": "standard"}) for r in seen(observed)]
    private_ones = [changed(private(epsilon), **observed) for observed in EACH for epsilon in (1.0, 8.0)]
    paths = [
        *sweep_curve.curves(records, tmp_path),
        *ladder_cells.curves(records, tmp_path),
        *epsilon_curve.curves(private_ones, tmp_path),
    ]
    assert len(paths) == len(figures) == 2 * (len(EACH) + 1) + len(EACH) + 1 + len(EACH)
    assert "cifar10-4clients-quick-16-images-per-gradient-labels-known-fedavg-gaussian-0" in figures


def test_a_sweep_has_one_variant_of_a_method_alone(figures, tmp_path):
    plain, dense = (
        [changed(r, method_settings=s) for r in seen({}, psnr)] for s, psnr in (({}, 20.0), ({"gan": "dense"}, 30.0))
    )
    sweep_curve.curves([*dense, *plain], tmp_path)
    assert len(figures) == 4
    drawn = figures["cifar10-fedavg-dense-GAN-gaussian-best"].axes[1].containers[0].lines[0]
    assert min(drawn.get_ydata()) > 25
    assert max(figures["cifar10-fedavg-gaussian-best"].axes[1].containers[0].lines[0].get_ydata()) < 25
    assert title(figures["cifar10-fedavg-dense-GAN-gaussian-best"]).startswith("FedAvg (dense GAN) + Gaussian, cifar10")


def test_an_epsilon_curve_has_one_variant_of_a_method_alone(figures, tmp_path):
    turns = [changed(private(epsilon), method_settings={"turns": True}) for epsilon in (1.0, 8.0)]
    epsilon_curve.curves([*turns, private(4.0)], tmp_path)
    (figure,) = figures.values()
    assert title(figure).startswith("FedAvg (turns True), cifar10")
    assert list(figure.axes[0].containers[0].lines[0].get_xdata()) == [1.0, 8.0]


def test_one_way_needs_no_name_of_its_own():
    assert set(of_attack.observation_stems(seen(EACH[1])).values()) == {"cifar10"}
    several = of_attack.observation_stems([r for observed in EACH for r in seen(observed)])
    assert list(several.values()) == [
        "cifar10",
        "cifar10-16-images-per-gradient",
        "cifar10-16-images-per-gradient-labels-known",
        "cifar10-sent-in-bf16",
    ]
