"""Generated blocks equal a fresh render, and every published table has its records or says that it has none."""

import json
import lzma
import re
import shutil

import pytest

from privbench import registry
from privbench.errors import UserError
from reports.documents import __main__ as command
from reports.documents import catalogue, findings, images, pages, published
from reports.documents.blocks import BLOCKS, COLUMNS, PHOTOS
from reports.studies import definition
from tests.reports.records import record, with_psnr

ONE = {"one": lambda root: f"from {root.name}\n\n- a\n"}


def render(text, root, blocks=ONE):
    return pages.rendered(text, root / "page.md", root, blocks)


def test_every_block_of_every_page_equals_a_fresh_render(repository):
    used = []
    for page in pages.pages(repository):
        text = page.read_text(encoding="utf-8")
        assert pages.rendered(text, page, repository, BLOCKS) == text, f"{page}: `make docs` writes it anew"
        used += pages.names(text, page)
    assert set(used) >= {"attacks", "methods", "defenses", "datasets", "studies", "make-targets", "published-cifar10"}
    assert set(used) >= {PHOTOS, f"{PHOTOS}-columns", *(f"{PHOTOS}-gain-{name}" for name in COLUMNS)}


def test_every_published_table_has_its_records_or_says_that_it_has_none(repository, tmp_path):
    assert published.without_records(repository) == []
    folder = tmp_path / published.FOLDER
    folder.mkdir(parents=True)
    (folder / "silent.md").write_text("# A table\n")
    (folder / "open.md").write_text(f"# A table\n\n> {published.NO_RECORDS}: lost.\n")
    assert published.without_records(tmp_path) == ["silent.md"]


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


def test_images_are_drawn_from_committed_records_and_shown_somewhere(repository, tmp_path):
    paths = images.write(repository, tmp_path)
    shown = "".join(page.read_text(encoding="utf-8") for page in pages.pages(repository))
    assert [path.stem for path in paths] == list(images.IMAGES)
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"images/{path.name}" in shown
        assert (repository / images.FOLDER / path.name).exists()


def test_committed_records_are_read_as_they_were_written_and_an_altered_one_is_refused(tmp_path):
    path = tmp_path / "x.jsonl.xz"
    records = [record("fedsplit", round_="0"), record("fedavg", round_="best")]
    records = [r.model_copy(update={"id": r.cell.id}) for r in records]
    published.write(records, path)
    assert list(published.read(path)) == records[::-1]
    again = tmp_path / "y.jsonl.xz"
    published.write(records, again)
    assert again.read_bytes() == path.read_bytes()
    lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    lines[0]["seeds"][0]["victims"][0]["psnr_db"] += 1
    again.write_bytes(lzma.compress("\n".join(map(json.dumps, lines)).encode()))
    with pytest.raises(UserError, match="altered or damaged"):
        published.read(again)
    with pytest.raises(UserError, match="no records at"):
        published.read(tmp_path / "z.jsonl.xz")


def test_the_short_table_has_five_columns_and_fits_a_screen(repository):
    table = findings.five_columns(published.attacked(repository, PHOTOS)).splitlines()
    assert len(table) == 2 + len(COLUMNS)
    assert {line.count("|") for line in table} == {6}
    assert max(map(len, table)) <= 100
    assert [line.split("|")[1].strip() for line in table[2:]] == list(COLUMNS.values())


def five(psnr):
    floors = [with_psnr(record(attack="class-mean", seeds=range(5)), lambda v: v.floors["class-mean"])]
    return [*floors, with_psnr(record(attack="dlg", seeds=range(5)), lambda v: psnr + 0.1 * v.seed + 0.01 * v.client)]


@pytest.mark.parametrize(("psnr", "verdict"), [(30.0, "a sure gain"), (14.0, "no sure gain"), (5.0, "below the floor")])
def test_the_words_of_a_finding_follow_from_its_numbers(psnr, verdict):
    told = findings.gain(five(psnr), "FedAvg")
    assert f": {verdict}. 20 victims, 5 seeds, 0 failures." in told
    assert f"FedAvg: `dlg` reaches {psnr + 0.215:.1f} [" in told
    assert "against the best floor (class-mean)" in told


def test_a_difference_in_accuracy_is_paired_by_seed():
    one, other = record(seeds=(0, 1, 2)), record(seeds=(0, 1, 2))
    seeds = [s.model_copy(update={"accuracy": [a + 1 + s.seed for a in s.accuracy]}) for s in one.seeds]
    mean, low, high = findings.seed_difference(one.model_copy(update={"seeds": seeds}), other)
    assert mean == pytest.approx(2)
    # Student's t of 2 degrees of freedom has its 97.5% quantile at 4.303; the differences are 1, 2 and 3.
    assert high - mean == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    assert mean - low == pytest.approx(high - mean)
    with pytest.raises(ValueError, match="the same ones"):
        findings.seed_difference(one, record(seeds=(0, 1)))


def test_the_catalogues_name_everything_that_is_there(repository):
    for kind, block in (("attack", "attacks"), ("method", "methods"), ("defense", "defenses"), ("dataset", "datasets")):
        named = re.findall(r"^\| `([^`]+)`", BLOCKS[block](repository), re.MULTILINE)
        assert sorted(named) == sorted(registry.KINDS[kind])
    assert re.findall(r"^\| `([^`]+)`", BLOCKS["studies"](repository), re.MULTILINE) == definition.names()
    assert catalogue.facts("method", "fedmd-cg")["shares"] == "classifier, generator, label counts"
    assert all(registry.resolve("method", name).paper for name in registry.METHODS if name != "local")
