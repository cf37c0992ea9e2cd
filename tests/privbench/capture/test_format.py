"""A capture is read as what was written, and refused in one line where it is anything else."""

import hashlib
import json
import os
import struct
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from privbench import capture
from privbench.capture import limits, reading, truth, writing
from privbench.capture.index import layout_of
from privbench.capture.messages import BroadcastModel, CapturedRound, LocalWork, Message, TruthOfMessage
from privbench.errors import Damaged, Missing, UserError
from privbench.system import index_files
from tests.fuzz_digest import digest

MODEL = {"body.weight": torch.arange(6.0).view(2, 3), "body.bias": torch.tensor([0.5, float("nan")])}
STATE = {"norm.count": torch.tensor(3)}
LAYOUT = layout_of(MODEL, STATE)


def weights(**facts):
    named = {"kind": "weights", "clients": (2**64 - 1,), "parameters": MODEL, "buffers": STATE}
    return Message(**named | facts)


def round_of(number, *messages, broadcasts=None):
    received = (BroadcastModel(MODEL, STATE),) if broadcasts is None else broadcasts
    return CapturedRound(number, received, messages or (weights(),))


EVERYTHING = (
    round_of(
        0,
        Message("gradient", (4,), examples=2, training=True, parameters=MODEL, labels=torch.tensor([1, 0])),
        Message("update", (1, 7), of=3, broadcast=None, parameters={"body.bias": torch.ones(2, dtype=torch.bfloat16)}),
    ),
    round_of(
        5,
        weights(
            examples=10**6,
            local=LocalWork(
                12, 8, "AdamW", {"lr": 0.1, "betas": (0.9, 0.999), "foreach": None, "fused": False, "by": "x"}
            ),
            metrics={"loss": float("nan"), "counts": (1, 2.5, float("-inf"))},
        ),
        weights(broadcast=1, clients=(3,)),
        broadcasts=(BroadcastModel(MODEL, STATE), BroadcastModel({"a/b": torch.zeros(0, 3)}, {}, (3, 9))),
    ),
)


def write(folder, *rounds):
    writer = writing.CaptureWriter(folder, LAYOUT)
    for each in rounds or EVERYTHING:
        writer.add(each)
    writer.close()
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "run")


def edit(folder, change):
    """The index with a change and a checksum that fits."""
    path = folder / "index.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    changed = change(content) or content
    text = json.dumps(changed, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps(changed | {"sha256": hashlib.sha256(text.encode()).hexdigest()}))


def refusal(folder, number=None):
    """The one line with which a capture is refused: its index, or one of its rounds."""
    with pytest.raises(UserError) as error:
        reading.read(folder) if number is None else reading.read(folder).round(number)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_was_written_is_read(folder):
    captured = reading.read(folder)
    assert captured.model == LAYOUT
    assert [digest(each) for each in captured] == [digest(each) for each in EVERYTHING]
    assert digest(captured.round(5)) == digest(EVERYTHING[1])
    assert [[m.facts.aggregate for m in each.messages] for each in captured.rounds] == [[False, True], [False, False]]
    assert digest(EVERYTHING[0]) != digest(EVERYTHING[1])


def test_a_round_needs_safetensors_and_json_alone_to_be_read(folder):
    """By the names that docs/capture.md says."""
    index = json.loads((folder / "index.json").read_text())
    entry = index["rounds"][1]
    path = folder / entry["file"]
    assert (entry["bytes"], entry["sha256"]) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    tensors = load_file(path)
    assert torch.equal(tensors["message-1/parameters/body.weight"], MODEL["body.weight"])
    assert index["layouts"][0]["buffers"] == {"norm.count": {"dtype": "int64", "shape": []}}
    assert {entry["file"] for entry in index["rounds"]} | {"index.json", ".lock"} == {
        path.name for path in folder.iterdir()
    }


def test_a_capture_is_not_overwritten_but_continued_where_that_is_asked_for(folder):
    with pytest.raises(UserError, match="holds a capture already"):
        writing.CaptureWriter(folder, LAYOUT)
    with pytest.raises(UserError, match="another model"):
        writing.CaptureWriter(folder, layout_of(MODEL, {}), append=True)
    writer = writing.CaptureWriter(folder, LAYOUT, append=True)
    with pytest.raises(UserError, match="round 5 does not come after it"):
        writer.add(round_of(5))
    writer.add(round_of(6))
    writer.close()
    assert [digest(each) for each in reading.read(folder)] == [digest(e) for e in (*EVERYTHING, round_of(6))]


def test_a_process_that_is_killed_leaves_the_rounds_that_it_wrote(tmp_path, monkeypatch):
    """Every one of few; of many, all but one in 64. Nothing half-written is ever there."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    writer = writing.CaptureWriter(tmp_path, LAYOUT)
    for number in range(130):
        writer.add(round_of(number))
        there = len(reading.read(tmp_path).rounds)
        assert number + 1 - there <= (number + 1) // 64
    writer.close()
    assert len(reading.read(tmp_path).rounds) == 130


def test_a_round_that_cannot_be_written_leaves_the_capture_as_it_was(folder, monkeypatch):
    before = digest([*reading.read(folder)])
    writer = writing.CaptureWriter(folder, LAYOUT, append=True)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="the disk is full"):
        writer.add(round_of(6))
    assert digest([*reading.read(folder)]) == before
    writer.close()
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [".lock"]


@pytest.mark.parametrize(
    ("round_", "rule"),
    [
        (round_of(10**9 + 1), "whole number from 0"),
        (round_of(7, weights(of=0)), "whole number from 1"),
        (round_of(7, weights(clients=(2, 1), of=2)), "should ascend"),
        (round_of(7, weights(clients=(1, 2))), "more than the 1 whose data"),
        (round_of(7, weights(clients=(2**64,))), "whole number from 0"),
        (round_of(7, weights(kind="weight")), "known: gradient, update, weights"),
        (round_of(7, weights(parameters={})), "holds no parameters"),
        (round_of(7, weights(parameters={"a\nb": torch.ones(1)})), "printable letters"),
        (round_of(7, weights(parameters={"a" * 301: torch.ones(1)})), "printable letters"),
        (round_of(7, weights(parameters={"a": torch.ones(1, dtype=torch.complex64)})), "complex64"),
        (round_of(7, weights(parameters={"a": torch.ones([1] * 9)})), "list of 0 to 8"),
        (round_of(7, weights(broadcast=1)), "whole number from 0 to 0"),
        (round_of(7, weights(kind="gradient", local=LocalWork())), "belong to updates"),
        (round_of(7, weights(local=LocalWork(settings={"lr": float("inf")}))), "not JSON compliant"),
        (round_of(7, weights(examples=3, labels=torch.ones(2))), "one for each of its 3 examples"),
        (round_of(7, broadcasts=()), "list of 1 to"),
        (round_of(7, broadcasts=(BroadcastModel(MODEL, {}, (1, 2)), BroadcastModel(MODEL, {}, (2,)))), "receives one"),
        (round_of(7, weights(metrics={str(n): 0.0 for n in range(257)})), "at most 256"),
    ],
)
def test_what_would_be_refused_is_not_written(round_, rule, folder):
    before = sorted(folder.iterdir())
    writer = writing.CaptureWriter(folder, LAYOUT, append=True)
    with pytest.raises(UserError, match=rule) as error:
        writer.add(round_)
    writer.close()
    assert "\n" not in str(error.value)
    assert sorted(folder.iterdir()) == before


def test_no_capture_is_missing(tmp_path):
    with pytest.raises(Missing, match=r"no index\.json"):
        reading.read(tmp_path)
    assert "no round 3, but rounds 0 to 5" in refusal(write(tmp_path / "run"), 3)


CHANGES = {
    "not the index of a privbench capture": lambda c: c | {"privbench": "observation"},
    "format version 2": lambda c: c | {"version": 2},
    "format version True": lambda c: c | {"version": True},
    "should have the fields": lambda c: c | {"module": "os:system"},
    "rounds should ascend": lambda c: c["rounds"].reverse(),
    "the file of round 0 is round-000000.safetensors": lambda c: c["rounds"][0].update(file="../x.safetensors"),
    "bytes in place of": lambda c: c["rounds"][0].update(bytes=c["rounds"][0]["bytes"] + 8),
    "which do not fit a file of": lambda c: c["layouts"][0]["parameters"]["body.bias"].update(shape=[2**40, 2**40]),
    "list of 0 to 8 entries": lambda c: c["layouts"][0]["parameters"]["body.bias"].update(shape=[1] * 9),
    "whole number from 0 to 1099511627776": lambda c: c["layouts"][0]["parameters"]["body.bias"].update(shape=[-1]),
    "dtype is object": lambda c: c["layouts"][0]["parameters"]["body.bias"].update(dtype="object"),
    "whole number from 0 to 3": lambda c: c["rounds"][0]["messages"][0].update(layout=4),
    "whole number from 1 to 100000": lambda c: c["rounds"][0]["messages"][0].update(of=10**30),
    "examples should be a whole number": lambda c: c["rounds"][0]["messages"][0].update(examples=2.0),
    "is no SHA-256": lambda c: c["rounds"][0].update(sha256="../" * 16 + "x" * 16),
    "should be true or false": lambda c: c["rounds"][0]["messages"][0].update(training=1),
    "printable letters": lambda c: c["rounds"][1]["messages"][0]["local"].update(optimizer="a\u202eb\n"),
    "no finite number": lambda c: c["rounds"][1]["messages"][0]["local"]["settings"].update(lr=float("inf")),
    "nests deeper than": lambda c: c["rounds"][1]["messages"][0]["local"]["settings"].update(lr=[[[[[[1]]]]]]),
}


@pytest.mark.parametrize("rule", CHANGES)
def test_a_changed_index_with_a_checksum_that_fits_is_refused(rule, folder):
    edit(folder, CHANGES[rule])
    assert rule in refusal(folder)


def test_few_bytes_that_announce_many_tensors_are_refused_before_a_table_of_them_is_made(folder, monkeypatch):
    """4,096 messages that share one layout."""
    monkeypatch.setattr(limits, "TENSORS", 4_000)
    edit(folder, lambda c: c["rounds"][0].update(messages=c["rounds"][0]["messages"][:1] * 4_096))
    assert "tensors, more than 4000" in refusal(folder)


def test_an_index_of_too_many_bytes_is_not_read(folder, monkeypatch):
    monkeypatch.setattr(limits, "INDEX_BYTES", 100)
    monkeypatch.setattr(index_files, "strict_json", lambda *_, **__: pytest.fail("it was read"))
    assert "more than 100 bytes" in refusal(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"privbench": "capture"', "[" * 10**6, '{"a": 1, "a": 2}', "\ud800"]
)
def test_what_is_no_index_is_refused(text, folder):
    (folder / "index.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    refusal(folder)


def test_a_byte_that_changed_is_noticed_in_the_index_and_in_a_round(folder):
    for name, number in (("index.json", None), ("round-000000.safetensors", 0)):
        path = folder / name
        data = path.read_bytes()
        path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
        refusal(folder, number)
        path.write_bytes(data)
    assert len(reading.read(folder).rounds) == 2


def header(path, change):
    """A tensor file with another header, and its bytes."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    value = json.loads(raw[8 : 8 + length])
    change(value)
    text = json.dumps(value).encode().ljust(length)
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["message-0/parameters/body.bias"].update(dtype="I32"),
        lambda h: h["message-0/parameters/body.bias"].update(shape=[1, 2]),
        lambda h: h.update(x=h.pop("message-0/labels")),
        lambda h: h["message-0/parameters/body.weight"].update(data_offsets=[0, 2**40]),
    ],
)
def test_a_file_whose_tensors_are_not_those_of_the_index_is_refused_before_they_are_read(change, folder, monkeypatch):
    path = folder / "round-000000.safetensors"
    header(path, change)
    data = path.read_bytes()
    digested = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit(folder, lambda c: c["rounds"][0].update(digested))
    monkeypatch.setattr(reading.files, "read_tensors", lambda _: pytest.fail("tensors were allocated"))
    assert "round-000000.safetensors is damaged" in refusal(folder, 0)


def test_no_link_leads_out_of_the_folder(folder, tmp_path):
    for name in ("round-000000.safetensors", "index.json"):
        outside = tmp_path / name
        (folder / name).rename(outside)
        (folder / name).symlink_to(outside)
        assert "leads out of its folder" in refusal(folder)
        (folder / name).unlink()
        outside.rename(folder / name)
    (folder / "round-000009.safetensors").symlink_to(tmp_path / "target")
    with pytest.raises(UserError, match="leads out of its folder"):
        writing.CaptureWriter(folder, LAYOUT, append=True).add(round_of(9))
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("name", ["index.json", "round-000000.safetensors"])
def test_a_pipe_and_a_folder_are_no_files(name, folder):
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refusal(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    refusal(folder)


IMAGES, LABELS = torch.rand(2, 1, 4, 4), torch.tensor([0, 1])


@pytest.fixture
def with_truth(tmp_path):
    folder = tmp_path / "run"
    writer = writing.CaptureWriter(folder, LAYOUT)
    writer.add(EVERYTHING[0], {0: TruthOfMessage(IMAGES, LABELS)})
    writer.add(EVERYTHING[1])
    writer.close()
    return folder


def test_truth_lies_apart_and_the_reader_of_a_capture_does_not_need_it(with_truth, tmp_path, monkeypatch):
    captured = reading.read(with_truth)
    assert digest(truth.read_truth(captured, 0)) == digest({0: TruthOfMessage(IMAGES, LABELS)})
    assert truth.read_truth(captured, 5) == {}
    without = write(tmp_path / "without")
    names = {path.name for path in without.iterdir()}
    assert {path.name for path in with_truth.iterdir()} == names | {"truth"}
    assert all((with_truth / name).read_bytes() == (without / name).read_bytes() for name in names)
    assert truth.read_truth(reading.read(without), 0) == {}


def test_the_truth_of_another_capture_or_of_other_messages_is_refused(with_truth, tmp_path):
    other = write(tmp_path / "other", replace(EVERYTHING[0], messages=(weights(),)))
    (with_truth / "truth").rename(other / "truth")
    with pytest.raises(UserError, match="is the truth of another capture"):
        truth.read_truth(reading.read(other), 0)
    wrong = writing.CaptureWriter(tmp_path / "wrong", LAYOUT)
    wrong.add(EVERYTHING[0], {0: TruthOfMessage(IMAGES[:1], LABELS)})
    with pytest.raises(Damaged, match="an input and a target for each example"):
        truth.read_truth(reading.read(tmp_path / "wrong"), 0)
    more = writing.CaptureWriter(tmp_path / "more", LAYOUT)
    more.add(EVERYTHING[0], {4: TruthOfMessage(IMAGES, LABELS)})
    with pytest.raises(Damaged, match="does not hold inputs and targets of messages of its round"):
        truth.read_truth(reading.read(tmp_path / "more"), 0)


def test_the_public_names_are_those_of_the_page():
    assert {*capture.__all__} == {
        "BroadcastModel", "Capture", "Captured", "CapturedRound", "LocalWork", "Message", "TruthOfMessage", "read", "read_truth",
    }  # fmt: skip
