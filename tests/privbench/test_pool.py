"""The worker pool: results are written by the jobs, failures are told, the rest goes on."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from privbench.errors import Interrupted, UserError
from privbench.pool import run_jobs


@dataclass(frozen=True)
class Write:
    title: str
    folder: Path
    fault: str = ""

    def run(self, report):
        report(1, 2, "half")
        if self.fault == "user":
            raise UserError(f"{self.title} was asked the impossible")
        if self.fault == "interrupt":
            raise KeyboardInterrupt
        if self.fault == "bug":
            raise ZeroDivisionError
        import torch

        (self.folder / self.title).write_text(str(torch.get_num_threads()))


def watch():
    seen, ended = [], {}
    return seen, ended, lambda *message: seen.append(message), lambda title, reason: ended.update({title: reason})


@pytest.mark.parametrize("workers", [1, 2])
def test_one_job_that_fails_does_not_stop_the_others(workers, tmp_path):
    jobs = [Write("a", tmp_path), Write("b", tmp_path, "user"), Write("c", tmp_path)]
    seen, ended, progress, outcome = watch()
    assert run_jobs(jobs, workers, progress, outcome) == ["b was asked the impossible"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "c"]
    assert ended == {"a": None, "b": "b was asked the impossible", "c": None}
    assert ("a", 1, 2, "half") in seen
    if workers == 2:
        assert (tmp_path / "a").read_text() == "1"  # one thread per process


def test_a_bug_in_a_job_is_not_hidden(tmp_path):
    _, _, progress, outcome = watch()
    with pytest.raises(ZeroDivisionError):
        run_jobs([Write("a", tmp_path, "bug"), Write("b", tmp_path)], 2, progress, outcome)


def test_an_interruption_is_told_apart_from_a_failure(tmp_path):
    _, _, progress, outcome = watch()
    with pytest.raises(Interrupted):
        run_jobs([Write("a", tmp_path), Write("b", tmp_path, "interrupt")], 1, progress, outcome)
    assert (tmp_path / "a").exists()
