"""The truth of a capture, for scoring alone: files beside the rounds that the capture's index and its reader never name.

`truth/round-000003.safetensors` holds `message-0/inputs` and `message-0/targets` of the messages of round 3 whose truth was kept.
Its header says that it is truth, and to which round's file it belongs. Remove the folder before you give a capture away.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from privbench.capture import limits
from privbench.capture.index import declared, file_name
from privbench.capture.messages import TruthOfMessage
from privbench.capture.reading import Captured
from privbench.errors import Damaged, UserError
from privbench.system import files

FOLDER = "truth"
KIND = "truth of a capture"


def write_truth(folder: Path, number: int, sha256: str, truth: Mapping[int, TruthOfMessage]) -> None:
    """Writes the truth of some messages of a round, by their number; `sha256` is that of the round's file."""
    tensors = {}
    for message, each in truth.items():
        tensors[f"message-{message}/inputs"] = each.inputs
        tensors[f"message-{message}/targets"] = each.targets
    for name, t in tensors.items():
        try:
            declared(name, t)
        except ValueError as error:
            raise UserError(f"the truth of round {number} cannot be written: {error}") from error
    info = {"round": number, "of": sha256}
    files.save_tensors(_path(folder, number), KIND, tensors, info)


def read_truth(captured: Captured, number: int) -> dict[int, TruthOfMessage]:
    """The truth of a round's messages by their number; empty where none was kept.

    UserError of one line where its file is damaged, is that of another capture, or does not fit the round's messages. All sizes are
    checked before a tensor is allocated.
    """
    round_ = captured.indexed(number)
    if not (captured.folder / FOLDER).exists():
        return {}
    path = _path(captured.folder, number)
    if not path.exists():
        return {}
    size = path.stat().st_size
    if size > limits.ROUND_BYTES:
        raise Damaged(f"{path} has {size} bytes, more than {limits.ROUND_BYTES}")
    tensors, info = files.load_header(path, KIND)
    files.check_identity(path, info, round=number)
    if info != {"round": number, "of": round_.sha256}:
        raise UserError(f"{path} is the truth of another capture")
    messages = {number for number in range(len(round_.messages)) if f"message-{number}/inputs" in tensors}
    if tensors.keys() != {f"message-{number}/{name}" for number in messages for name in ("inputs", "targets")}:
        raise Damaged(f"{path} does not hold inputs and targets of messages of its round")
    for message in messages:
        shapes = [tensors[f"message-{message}/{name}"].shape for name in ("inputs", "targets")]
        examples = round_.messages[message].facts.examples
        if any(not shape or shape[0] != (examples or shapes[0][0]) for shape in shapes):
            raise Damaged(f"{path}: message {message} should have an input and a target for each example")
    loaded, _ = files.load_tensors(path, KIND)
    return {
        number: TruthOfMessage(loaded[f"message-{number}/inputs"], loaded[f"message-{number}/targets"])
        for number in sorted(messages)
    }


def _path(folder: Path, number: int) -> Path:
    return files.inside(files.inside(folder, FOLDER), file_name(number))
