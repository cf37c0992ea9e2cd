"""Generated blocks equal a fresh render, and every published table has its records or says that it has none."""

import json
import lzma
import math
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image

from privbench import presets, registry
from privbench.errors import UserError
from privbench.observation import knowledge
from privbench.records import record_lines
from reports.documents import __main__ as command
from reports.documents import benchmarks, catalogue, images, pages, published
from reports.documents.blocks import BLOCKS, LADDER, PHOTOS
from reports.records import benchmark_rows
from reports.records.benchmark_rows import BenchmarkRow
from reports.records.labels import label
from reports.records.rungs import RUNGS
from reports.studies import study_files
from tests.builders.records import record

ONE = {"one": lambda root: f"from {root.name}\n\n- a\n"}


def render(text, root, blocks=ONE):
    return pages.rendered(text, root / "page.md", root, blocks)


# Pages whose blocks read the largest files of records, or draw bootstrap samples by the hundred: `make test-thorough` has them.
# In a small form: every other page, one ladder and one table of inferences among them, and a page added later.
AT_LENGTH = {
    "appendix/attacks", "appendix/countermeasures", "appendix/ladder_members", "appendix/metrics", "needed_knowledge",
    "papers_claims", "results", "results/defences", "results/ladder-cifar10", "results/ladder-digits", "results/learned-prior",
    "results/papers-attack", "results/published-cifar10", "results/published-ladder", "results/published-office10",
    "results/securegan",
}  # fmt: skip
ROOT = Path(__file__).resolve().parents[3]
PAGES = {path.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/"): path for path in pages.pages(ROOT)}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough if name in AT_LENGTH else ()) for name in PAGES]
)
def test_every_block_of_a_page_equals_a_fresh_render(name, repository):
    page = PAGES[name]
    text = page.read_text(encoding="utf-8")
    assert pages.rendered(text, page, repository, BLOCKS) == text, f"{page}: `make docs` writes it anew"


def test_every_block_stands_on_a_page(repository):
    used = [name for page in pages.pages(repository) for name in pages.names(page.read_text(encoding="utf-8"), page)]
    assert set(used) == set(BLOCKS)


def test_a_page_that_is_rendered_at_length_is_there():
    """No page is left out under a name that it had once."""
    assert PAGES.keys() > AT_LENGTH


def test_every_published_table_has_its_records_or_says_that_it_has_none(repository, tmp_path):
    assert published.without_records(repository) == []
    folder = tmp_path / published.FOLDER
    folder.mkdir(parents=True)
    (folder / "silent.md").write_text("# A table\n")
    (folder / "open.md").write_text(f"# A table\n\n> {published.NO_RECORDS}: lost.\n")
    assert published.without_records(tmp_path) == ["silent.md"]


def tables(root):
    """The committed files of records by the tables' names."""
    paths = sorted((root / published.FOLDER / "records").glob(f"*{record_lines.ENDING}"))
    return {path.name.removesuffix(record_lines.ENDING): path for path in paths}


def cells_of(path):
    """The cells of a file's records as they are written, which stand before all that was measured; no more is read."""
    for line in lzma.decompress(path.read_bytes()).decode().splitlines():
        begins = re.search(r'"cell": ?', line[:200])
        yield json.JSONDecoder().raw_decode(line, begins.end())[0]


def test_published_tables_are_of_seeds_on_which_nothing_was_tuned(repository):
    """But the search for the setting that the papers do not print, which is tuning and says so."""
    paths = tables(repository)
    seeds = {name: {seed for cell in cells_of(path) for seed in cell["seeds"]} for name, path in paths.items()}
    assert len(seeds) >= 5
    tuning = {name for name, used in seeds.items() if min(used) < presets.FIRST_SEED}
    assert tuning == {"papers-attack"}
    page = (repository / published.FOLDER / "papers-attack.md").read_text(encoding="utf-8")
    assert "Seed 10, which is for tuning and no published seed." in page


# Of all tables: the small form is of those whose records are few.
@pytest.mark.parametrize("most_bytes", [80_000, pytest.param(math.inf, marks=pytest.mark.thorough)], ids=["few", "all"])
def test_the_cells_that_stand_first_are_those_of_the_records(most_bytes, repository):
    paths = [path for path in tables(repository).values() if path.stat().st_size <= most_bytes]
    assert len(paths) >= 5
    for path in paths:
        assert sorted(tuple(cell["seeds"]) for cell in cells_of(path)) == sorted(
            r.cell.seeds for r in published.read(path)
        )


def test_a_block_is_replaced_and_nothing_else(tmp_path):
    before = "a\n<!-- generated: one -->\nold\n<!-- end -->\nb\n- c\n  <!-- generated: one -->\n  <!-- end -->\n"
    new = f"from {tmp_path.name}\n\n- a\n"
    once = render(before, tmp_path)
    assert once == (
        f"a\n<!-- generated: one -->\n{new}<!-- end -->\nb\n- c\n"
        f"  <!-- generated: one -->\n  from {tmp_path.name}\n\n  - a\n  <!-- end -->\n"
    )
    assert render(once, tmp_path) == once
    assert pages.names(once, tmp_path) == ["one", "one"]
    assert render("no block", tmp_path) == "no block"


def test_marks_in_code_are_text(tmp_path):
    text = "```\n<!-- generated: any -->\n```\n"
    assert render(text, tmp_path) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- generated: two -->\n<!-- end -->\n", "no block 'two'; known: one"),
        ("<!-- generated: one -->\n", "block 'one' does not end"),
        ("<!-- end -->\n", "a block ends that did not begin"),
        ("<!-- generated: one -->\n<!-- generated: one -->\n<!-- end -->\n", "begins inside of block 'one'"),
    ],
)
def test_marks_that_do_not_pair_up_are_refused(text, message, tmp_path):
    with pytest.raises(UserError, match=message):
        render(text, tmp_path)


def test_the_command_writes_what_changed_and_says_so(repository, tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    shutil.copy(repository / "Makefile", tmp_path)
    (tmp_path / "README.md").write_text("<!-- generated: make-targets -->\n<!-- end -->\n")
    assert command.main(["--root", str(tmp_path)]) == 0
    assert "| `make docs` |" in (tmp_path / "README.md").read_text()
    assert command.main(["--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "changed: README.md\nchanged: nothing\n"
    (tmp_path / "docs" / "x.md").write_text("<!-- generated: nothing-such -->\n<!-- end -->\n")
    assert command.main(["--root", str(tmp_path)]) == 2
    assert "no block 'nothing-such'" in capsys.readouterr().err


# A scatter of attacks, curves of training and one over rounds, whose records are few.
QUICKLY_DRAWN = ("photos-scatter", "published-cifar10-curves", "earlier-rounds-photos")


@pytest.mark.parametrize(
    "names", [QUICKLY_DRAWN, pytest.param(tuple(images.IMAGES), marks=pytest.mark.thorough)], ids=["few", "all"]
)
def test_images_are_drawn_from_committed_records(names, repository, tmp_path, monkeypatch):
    monkeypatch.setattr(images, "IMAGES", {name: images.IMAGES[name] for name in names})
    paths = images.write(repository, tmp_path)
    assert [path.stem for path in paths] == [*names, *benchmarks.FIGURES]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_every_image_is_committed_and_shown_somewhere(repository):
    shown = "".join(page.read_text(encoding="utf-8") for page in pages.pages(repository))
    for name in (*images.IMAGES, *benchmarks.FIGURES):
        assert f"images/{name}.png" in shown
        assert (repository / images.FOLDER / f"{name}.png").exists()


def test_committed_records_are_read_as_they_were_written_and_an_altered_one_is_refused(tmp_path):
    path = tmp_path / "x.jsonl.xz"
    records = [record("fedsplit", round_="0"), record("fedavg", round_="best")]
    records = [r.model_copy(update={"id": r.cell.id}) for r in records]
    record_lines.write(records, path)
    assert list(published.read(path)) == records[::-1]
    again = tmp_path / "y.jsonl.xz"
    record_lines.write(records, again)
    assert again.read_bytes() == path.read_bytes()
    lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    lines[0]["seeds"][0]["victims"][0]["psnr_db"] += 1
    again.write_bytes(lzma.compress("\n".join(map(json.dumps, lines)).encode()))
    with pytest.raises(UserError, match="altered or damaged"):
        published.read(again)
    with pytest.raises(UserError, match="no records at"):
        published.read(tmp_path / "z.jsonl.xz")


def test_the_catalogues_name_everything_that_is_there(repository):
    for kind, block in (("attack", "attacks"), ("method", "methods"), ("defense", "defenses"), ("dataset", "datasets")):
        named = re.findall(r"^\| `([^`]+)`", BLOCKS[block](repository), re.MULTILINE)
        assert sorted(named) == sorted(registry.KINDS[kind])
    assert re.findall(r"^\| `([^`]+)`", BLOCKS["studies"](repository), re.MULTILINE) == study_files.names()
    assert catalogue.facts("method", "fedmd-cg")["shares"] == "classifier, generator, label counts"
    assert all(registry.resolve("method", name).paper for name in registry.METHODS if name != "local")


# What an attack on a rung needs besides what the method sends, as `needs` name it; and what some attacks on it have besides.
OF_RUNG = {
    "L1": (set(), set()),
    "L2": (set(), set()),
    "L3": ({"initial"}, set()),
    "L4": ({"auxiliary"}, set()),
    "L5": ({"auxiliary"}, {"initial", "upload:generator"}),
    "L6": ({"auxiliary"}, {"colluder", "known", "rounds", "initial", "upload:generator"}),
    "L8": ({"auxiliary", "oracle"}, set()),
}


def test_every_attack_knows_what_its_rung_says():
    assert list(RUNGS) == [f"L{number}" for number in range(9)]
    attacks = {name: registry.resolve("attack", name) for name in registry.ATTACKS}
    assert {attack.rung for attack in attacks.values()} == set(RUNGS)
    for name, attack in attacks.items():
        assert (attack.rung == "L0") == (name in registry.FLOORS), name
        assert (attack.rung == "L7") == registry.is_active(name), name
        needs, more = OF_RUNG.get(attack.rung, (None, None))
        if needs is not None:
            assert set(attack.needs) & set(knowledge.FIELDS) - more == needs, name
        if attack.rung == "L6":
            assert len(set(attack.needs) & {"colluder", "known", "rounds"}) == 1, name
        if attack.rung == "L5":
            assert (set(attack.needs) | knowledge.uses(attack)) & more, name


def test_what_each_method_shares_is_what_its_artifacts_offer(repository):
    rows = [line.split(" | ") for line in BLOCKS["what-each-method-shares"](repository).splitlines()[2:]]
    assert sorted(name for row in rows for name in re.findall("`([^`]+)`", row[0])) == sorted(registry.METHODS)
    seen = {name: [cell.strip(" |") for cell in row[1:]] for row in rows for name in re.findall("`([^`]+)`", row[0])}
    assert seen["local"] == ["-", "-", "-"]
    assert seen["fedgen"] == ["classifier", "classifier, generator", "-"]
    assert seen["fedmd-cg"] == ["classifier", "classifier, generator", "generator, label counts"]


def test_what_a_plug_in_is_takes_one_short_line():
    for kind in registry.KINDS:
        for name, entry in catalogue.every(kind).items():
            assert entry["what"].endswith("."), name
            assert len(entry["what"]) <= 130, name


def measured(root, load=0.1):
    """A committed run of `make bench` under `root`: one ratio, two points of growth, one row that was not measured."""
    rows = [
        BenchmarkRow("way", "a round", "plain loop", [4.0, 3.0, 5.0]),
        BenchmarkRow("way", "a round", "privbench", [2.0, 1.0, 1.5], times=4.0 / 1.5),
        *(BenchmarkRow("scaling", "a round by clients", f"{x}", [0.5 * x], "ms", x=x) for x in (1, 2)),
        BenchmarkRow("way", "a round", "GPU", note="no GPU at hand"),
    ]
    on = {
        "machine": "a processor", "cores": 2, "device": "cpu", "python": "3.11.7", "torch": "2.13.0", "date": "2026-11-22",
        "repeats": 3, "load": [load, 1.9],
    }  # fmt: skip
    benchmark_rows.save(rows, on, root / "measured.json")
    return root / "measured.json"


def test_the_table_of_benchmarks_is_that_of_the_committed_file(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("")
    page = tmp_path / "docs" / "benchmarks.md"
    page.write_text("<!-- generated: benchmarks -->\n<!-- end -->\n")
    assert command.main(["--root", str(tmp_path)]) == 0
    assert benchmarks.NONE in page.read_text()
    assert command.main(["--root", str(tmp_path), "--benchmarks", str(measured(tmp_path))]) == 0
    text = page.read_text()
    assert benchmarks.NONE not in text
    assert "| a round | privbench | 1.5 s | 1-2 | 2.7x |  |" in text
    assert "| a round | GPU | not measured |  |  | no GPU at hand |" in text
    assert "a processor, 2 cores, device cpu, Python 3.11.7, torch 2.13.0, 2026-11-22; 3 repetitions" in text
    assert "0.1 before the first row, 1.9 after the last" in text
    assert "shared" not in text
    assert (tmp_path / "docs" / re.search(r"\((results/records/\S+)\)", text)[1]).exists()
    assert command.main(["--root", str(tmp_path), "--benchmarks", str(tmp_path / "nothing.json")]) == 2
    assert "no benchmarks at" in capsys.readouterr().err


def test_times_of_a_busy_machine_are_called_too_long(tmp_path):
    benchmarks.commit(measured(tmp_path, load=7.25), tmp_path)
    text = benchmarks.section(tmp_path)
    assert "7.2 before the first row" in text
    assert "**The machine was shared,** so all times are too long." in text


def test_figures_of_benchmarks_are_drawn_where_a_run_is_committed(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "IMAGES", {})
    assert images.write(tmp_path, tmp_path) == []
    benchmarks.commit(measured(tmp_path), tmp_path)
    drawn = images.write(tmp_path, tmp_path / "drawn")
    assert [path.name for path in drawn] == ["speedup.png", "scaling.png"]
    assert all(f"images/{path.name}" in benchmarks.section(tmp_path) for path in drawn)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


@pytest.mark.parametrize(("picture", "table"), [("photos-grid", PHOTOS), ("photos-fedcg-ladder", LADDER)])
def test_a_picture_of_reconstructions_is_of_the_attacks_whose_records_are_published(picture, table, repository):
    """Up to half a decibel, which another processor may make of the last digits of a descent."""
    measured = {
        f"{label(r.cell)}, {r.attack}": [v.psnr_db for v in next(s for s in r.seeds if s.seed == 100).victims]
        for r in published.attacked(repository, table)
        if r.cell.round == "best"
    }
    with Image.open(repository / images.FOLDER / f"{picture}.png") as image:
        lines = image.info["Description"].splitlines()
    assert len(lines) >= 5
    for line in lines:
        name, _, numbers = line.removesuffix(" dB").rpartition(": ")
        shown = [float(number) for number in numbers.split(", ")]
        assert shown == pytest.approx(measured[name][: len(shown)], abs=0.5), line
