"""The label histogram draws the counts it is given, and draws them from what is on disk."""

import matplotlib.figure
import pytest

from privbench import data, presets
from privbench.cli import drawing
from privbench.data import partition
from privbench.errors import UserError
from privbench.execution import cell_jobs
from privbench.records.store import Store
from privbench.training import checkpoint, federation, harness
from reports.figures import label_histogram, of_attack
from reports.figures.label_histogram import Panel
from tests.builders.paper_cells import in_paper
from tests.builders.records import changed_cell, record

COUNTS = [[0, 30, 120], [400, 0, 1]]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved, instead of files."""
    figures: list[matplotlib.figure.Figure] = []

    def save(figure, stem):
        figures.append(figure)
        return [stem]

    monkeypatch.setattr(label_histogram.style, "save", save)
    return figures


def dots(axes):
    """(client, class) -> area in square points."""
    (points,) = axes.collections
    places = points.get_offsets().tolist()
    return {(int(k), int(y)): size for (k, y), size in zip(places, points.get_sizes().tolist(), strict=True)}


def test_a_dot_lies_at_its_client_and_class_and_its_area_is_the_count(tmp_path, drawn):
    label_histogram.write([Panel("two clients", ["1", "2"], COUNTS)], ("a", "b", "c"), tmp_path / "x")
    (axes,) = drawn[0].axes
    sizes = dots(axes)
    assert set(sizes) == {(0, 1), (0, 2), (1, 0), (1, 2)}
    assert sizes[0, 2] / sizes[1, 0] == pytest.approx(120 / 400)
    assert sizes[0, 1] / sizes[1, 0] == pytest.approx(30 / 400)
    assert sizes[1, 2] == pytest.approx(label_histogram.LEAST_POINTS**2)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1\n150", "2\n401"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["20", "100", "200"]


def test_panels_share_one_scale(tmp_path, drawn):
    panels = [Panel("few", ["1"], [[10, 0]]), Panel("many", ["1"], [[0, 1000]])]
    label_histogram.write(panels, ("a", "b"), tmp_path / "x")
    few, many = (dots(axes) for axes in drawn[0].axes)
    assert few[0, 0] / many[0, 1] == pytest.approx(10 / 1000)


@pytest.mark.parametrize(("clients", "classes"), [(1, 2), (4, 10), (20, 47), (40, 100)])
def test_no_dot_covers_another_and_the_figure_is_a_column_or_for_many_clients_a_page_wide(
    tmp_path, drawn, clients, classes
):
    counts = [[7] * classes] * clients
    label_histogram.write([Panel("full", list(map(str, range(clients))), counts)], ["class"] * classes, tmp_path / "x")
    (figure,) = drawn
    figure.draw_without_rendering()
    (axes,) = figure.axes
    column, row = axes.transData.transform([1, 1]) - axes.transData.transform([0, 0])
    diameter = max(dots(axes).values()) ** 0.5 * figure.dpi / 72
    assert diameter <= 1.1 * min(abs(column), abs(row))
    assert figure.get_figwidth() == pytest.approx(3.25 if clients <= label_histogram.MOST_IN_COLUMN else 6.75)


def test_both_formats_are_written(tmp_path):
    paths = label_histogram.write([Panel("two clients", ["1", "2"], COUNTS)], ("a", "b", "c"), tmp_path / "x")
    assert [path.suffix for path in paths] == [".png", ".pdf"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert paths[1].read_bytes().startswith(b"%PDF")


def test_the_clients_of_a_trained_run_are_drawn_from_disk_alone(tmp_path, drawn, monkeypatch, capsys):
    each = presets.train_spec("smoke", "digits", "fedavg", omega=0.1, changes={"rounds": 0})
    store = Store(tmp_path)
    cell_jobs.train(store, [each], None, "cpu")
    assert checkpoint.history(store.train(each), each.id) == []

    def forbidden(*_, **__):
        raise AssertionError("data was read or a round was trained")

    monkeypatch.setattr(federation, "laid_out", forbidden)
    monkeypatch.setattr(harness, "train_round", forbidden)
    drawing.draw_clients_of_run(each.id[:6], tmp_path)
    fed = partition.census(_laid_out(each))
    (axes,) = drawn[0].axes
    assert set(dots(axes)) == {
        (k, y) for k, splits in enumerate(fed) for y, count in enumerate(splits["train"]) if count
    }
    text = capsys.readouterr().out
    assert "digits, Dirichlet(0.1), 4 clients, seed 0" in text
    assert all(f"{sum(splits['train'])}" in text for splits in fed)
    store.clients(each).unlink()
    with pytest.raises(UserError, match="an earlier version trained it"):
        drawing.draw_clients_of_run(each.id, tmp_path)


def _laid_out(each):
    return partition.federate(
        data.load("digits", None),
        clients=4,
        per_client=32,
        how="dirichlet",
        seed=0,
        omega=0.1,
        minimum=each.min_per_client,
    )


def test_a_table_of_dirichlet_cells_has_its_histogram_from_the_records(tmp_path, drawn):
    dealt = {"partition": "dirichlet", "omega": 0.1}
    records = []
    for method in ("fedavg", "fedcg"):
        unlabelled = record(method, spec=dealt)
        seeds = [s.model_copy(update={"label_counts": COUNTS}) for s in unlabelled.seeds]
        records.append(unlabelled.model_copy(update={"class_names": ["a", "b", "c"], "seeds": seeds}))
    of_attack.histograms([*records, record(spec={"partition": "iid"})], tmp_path)
    (axes,) = drawn[0].axes  # one layout, one panel
    assert len(dots(axes)) == 4
    assert of_attack.histograms([record()], tmp_path) == []


def test_published_values_stand_beside_the_usual_layout_alone():
    from reports.records.labels import group, published, title_of

    usual, dealt = record(spec={"partition": "iid"}), record(spec={"partition": "dirichlet", "omega": 0.1})
    assert published(in_paper(usual).cell)[0] is not None
    for r, change in (
        (usual, {"partition": "dirichlet", "omega": 0.1}),
        (record(dataset="digit5"), {"partition": "iid"}),
    ):
        assert published(changed_cell(in_paper(r).cell, **change)) == (None, None)
    assert group(usual.cell) != group(dealt.cell)
    assert "Dirichlet(0.1)" in title_of(group(dealt.cell))
