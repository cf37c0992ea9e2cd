"""Files of records: what was written is read, and what is damaged, altered or far too large is refused in one line."""

import json
import lzma

import pytest

from privbench.errors import Damaged, UserError
from privbench.records import record_lines
from tests.builders.records import record

RECORDS = [r.model_copy(update={"id": r.cell.id}) for r in (record("fedsplit", round_="0"), record("fedavg"))]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "some.jsonl.xz"
    record_lines.write(RECORDS, path)
    return path


def test_records_are_read_as_they_were_written_and_in_their_order(path):
    assert record_lines.read(path) == RECORDS
    before = path.read_bytes()
    record_lines.write(RECORDS, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("size", [1, 7, 2**20])
def test_the_size_of_pieces_changes_nothing(size, path, monkeypatch):
    monkeypatch.setattr(record_lines, "PIECE_BYTES", size)
    assert record_lines.read(path) == RECORDS


def test_a_file_that_is_cut_off_or_of_another_kind_is_refused(path, tmp_path):
    whole = path.read_bytes()
    for content in (whole[:-20], whole[: len(whole) // 2], b"", b"{}", lzma.compress(b"{]"), lzma.compress(b"[]")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"some\.jsonl\.xz"):
            record_lines.read(path)
    with pytest.raises(UserError, match="no records at"):
        record_lines.read(tmp_path / "gone.jsonl.xz")


def test_files_that_are_joined_end_to_end_are_read_to_their_end(path):
    one = path.read_bytes()
    for joined in (one + one, one + b"\0" * 8 + one, one + one + b"\0" * 4):
        path.write_bytes(joined)
        assert record_lines.read(path) == RECORDS * 2
    path.write_bytes(one + b"garbage")
    with pytest.raises(Damaged, match=r"some\.jsonl\.xz is damaged"):
        record_lines.read(path)


def test_a_fault_is_said_with_its_line_and_without_telling_to_remove_a_file_of_others(path):
    lines = lzma.decompress(path.read_bytes()).splitlines()
    for bad in (b"{", lines[1].replace(b'"best_round":', b'"worst_round":'), b"{}"):
        path.write_bytes(lzma.compress(lines[0] + b"\n" + bad))
        with pytest.raises(UserError, match=r"line 2 of .*some\.jsonl\.xz") as caught:
            record_lines.read(path)
        assert "remove it" not in str(caught.value)


def test_seeds_that_are_not_the_cells_or_there_twice_are_refused(path):
    made = RECORDS[0]
    first, *others = made.seeds
    twice = made.cell.model_copy(update={"seeds": (first.seed,) * 2})
    below = made.cell.model_copy(update={"seeds": (-1, *made.cell.seeds[1:])})
    negative = first.model_copy(update={"seed": -1})
    victim = first.victims[0].model_copy(update={"seed": 999})
    of_victim = first.model_copy(update={"victims": [victim, *first.victims[1:]]})
    of_training = first.model_copy(update={"training": first.training.model_copy(update={"seed": 999})})
    for changes, why in (
        ({"seeds": made.seeds[::-1]}, "its seeds are not the cell's"),
        ({"cell": twice, "seeds": [first] * 2}, "negative or there twice"),
        ({"cell": below, "seeds": [negative, *others]}, "negative or there twice"),
        ({"seeds": [of_victim, *others]}, "of another seed than"),
        ({"seeds": [of_training, *others]}, "of another seed than"),
    ):
        record_lines.write([made.model_copy(update=changes)], path)
        with pytest.raises(UserError, match=why):
            record_lines.read(path)


def test_more_than_is_read_is_not_written(path, monkeypatch):
    before = path.read_bytes()
    for limit in ("MOST_BYTES", "MOST_LINE_BYTES"):
        with monkeypatch.context() as changed:
            changed.setattr(record_lines, limit, 2**10)
            with pytest.raises(UserError, match="too large for one file"):
                record_lines.write(RECORDS, path)
    assert path.read_bytes() == before


def test_an_altered_number_is_refused(path):
    lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    lines[0]["seeds"][0]["victims"][0]["psnr_db"] += 1
    path.write_bytes(lzma.compress("\n".join(map(json.dumps, lines)).encode()))
    with pytest.raises(UserError, match="altered or damaged"):
        record_lines.read(path)


def test_a_line_of_more_values_than_memory_should_hold_is_refused(path, monkeypatch):
    """Of two characters each, as many as a line has room for."""
    path.write_bytes(lzma.compress(b'{"cell": [' + b"{}," * 2**23 + b"{}]}\n"))
    with pytest.raises(Damaged, match=r"it has more than \d+ values"):
        record_lines.read(path)
    record_lines.write(RECORDS, path)
    record_lines.read(path)
    monkeypatch.setattr("privbench.system.file_headers.JSON_VALUES", 20)
    with pytest.raises(Damaged, match="it has more than 20 values"):
        record_lines.read(path)


def test_a_number_of_thousands_of_digits_is_said_to_be_one(path):
    path.write_bytes(lzma.compress(b'{"schema_version": ' + b"9" * 10_000 + b"}\n"))
    with pytest.raises(Damaged, match="a whole number in it has thousands of digits"):
        record_lines.read(path)


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(path, monkeypatch):
    path.write_bytes(lzma.compress(b" " * 2**22))
    monkeypatch.setattr(record_lines, "MOST_LINE_BYTES", 2**21)
    with pytest.raises(Damaged, match="unpacks to more"):
        record_lines.read(path)
    record_lines.write(RECORDS, path)
    monkeypatch.setattr(record_lines, "MOST_BYTES", 2**10)
    with pytest.raises(Damaged, match="unpacks to more"):
        record_lines.read(path)
    # A dictionary that takes more memory than there may be.
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**29}]
    path.write_bytes(lzma.compress(b"x", filters=filters))
    with pytest.raises(Damaged, match="damaged"):
        record_lines.read(path)
