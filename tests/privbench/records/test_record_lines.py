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


def test_an_altered_number_is_refused(path):
    lines = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    lines[0]["seeds"][0]["victims"][0]["psnr_db"] += 1
    path.write_bytes(lzma.compress("\n".join(map(json.dumps, lines)).encode()))
    with pytest.raises(UserError, match="altered or damaged"):
        record_lines.read(path)


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(path, monkeypatch):
    path.write_bytes(lzma.compress(b" " * 2**22))
    monkeypatch.setattr(record_lines, "JSON_BYTES", 2**21)
    with pytest.raises(Damaged, match="unpacks to more"):
        record_lines.read(path)
    monkeypatch.setattr(record_lines, "MOST_BYTES", 2**10)
    record_lines.write(RECORDS, path)
    with pytest.raises(Damaged, match="unpacks to more"):
        record_lines.read(path)
    # A dictionary that takes more memory than there may be.
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 2**29}]
    path.write_bytes(lzma.compress(b"x", filters=filters))
    with pytest.raises(Damaged, match="damaged"):
        record_lines.read(path)
