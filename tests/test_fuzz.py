"""A seeded campaign of mutations over every kind of file: each is refused in one line, or read as what it was (tests/fuzz.py)."""

import gc
import random
import shutil

import hypothesis
import pytest
from hypothesis import strategies as st

from privbench.errors import UserError
from privbench.observation import artifact_files
from privbench.system import files
from tests import fuzz, fuzz_mutations
from tests.fuzz_digest import digest
from tests.fuzz_samples import METHODS, samples

# One method of each kind of observation; the others' artifacts hold the same tensors, and `make fuzz` has them all.
KINDS_OF_METHOD = ("fedavg", "fedper", "fedcg", "fedgen", "fedmd-cg", "secure-gan")
# By kind of file; a mutation takes 5 to 100 ms.
EXAMPLES = {
    "artifact": 25, "record": 60, "history": 40, "predictions": 30, "specification": 60, "result": 30, "snapshot": 60,
    "checkpoint": 40, "study": 60, "capture": 100,
}  # fmt: skip
NAMES = [
    *(f"artifact of fedavg, {kind}" for kind in ("gradient", "update", "labels", "noise")),
    *(f"artifact of {method}, gradient" for method in KINDS_OF_METHOD[1:]),
    "artifact of an isolated client",
    *("record", "history", "predictions", "specification of a run", "specification of a cell", "result", "snapshot"),
    *("checkpoint", "study accuracy", "study fedcg-table1", "study imprint-on-the-wire", "capture"),
]  # fmt: skip


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    """Each sample by name, with the digest of its content."""
    made = samples(tmp_path_factory.mktemp("samples"), KINDS_OF_METHOD)
    return {sample.name: (sample, digest(sample.read(sample.folder))) for sample in made}


def test_every_method_that_is_attacked_and_every_kind_of_file_is_mutated(every):
    assert [*every] == NAMES
    assert {fuzz.kind_of(sample) for sample, _ in every.values()} == set(EXAMPLES)
    assert set(KINDS_OF_METHOD) < set(METHODS)


# In a small form by a third of the mutations of every kind of file.
@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.thorough)], ids=["some", "all"])
@pytest.mark.parametrize("name", NAMES)
def test_mutated_files_are_refused_in_one_line_or_read_as_what_they_were(name, share, every, tmp_path):
    sample, before = every[name]
    others = [each for each, _ in every.values()]

    @hypothesis.settings(
        max_examples=EXAMPLES[fuzz.kind_of(sample)] // share, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(st.integers(0, 2**32))
    def campaign(seed):
        kind, verdict = fuzz.once(sample, others, before, random.Random(seed), tmp_path)
        assert verdict.word != fuzz.FAILED, f"{kind}: {verdict.detail}"

    campaign()


def test_a_checksum_that_is_not_checked_fails_the_campaign(every, tmp_path, monkeypatch):
    sample, before = every["snapshot"]
    monkeypatch.setattr(files, "_digest", lambda *_: "0" * 64)
    shutil.copytree(sample.folder, tmp_path / "copy")
    path = tmp_path / "copy" / sample.files[0]
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(bytes(raw).replace(stored(bytes(raw)), b"0" * 64))
    verdict = fuzz.judged(sample, tmp_path / "copy", before, resealed=False)
    assert verdict == (fuzz.FAILED, "other content, and no checksum told it")


def stored(raw):
    """The checksum in a tensor file."""
    return raw.partition(b'"sha256":"')[2][:64]


def test_memory_that_earlier_reads_left_in_a_cycle_hides_nothing(every, monkeypatch):
    sample, before = every["record"]
    monkeypatch.setattr(fuzz, "LIMIT_BYTES", 2**26)
    gc.collect()  # so that none is due before `hungry`
    cycle = [bytearray(b"x" * 2**28)]
    cycle.append(cycle)
    del cycle
    thresholds = gc.get_threshold()

    def hungry(_):
        gc.set_threshold(1, 1, 1)
        return len([[] for _ in range(9)]) + len(bytearray(b"x" * 2**27))

    try:
        verdict = fuzz.judged(sample._replace(read=hungry, use=lambda _: None), sample.folder, before, resealed=True)
    finally:
        gc.set_threshold(*thresholds)
    assert verdict == (fuzz.FAILED, f"use: more than {2**26} bytes")
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("fault", "detail"),
    [
        (lambda *_: 1 // 0, "ZeroDivisionError"),
        (lambda *_: bytearray(b"x" * 2**27) and None, f"more than {2**26} bytes"),
        (lambda *_: [None for _ in iter(int, 1)], "more than 0.2 s"),
    ],
)
def test_a_traceback_too_much_memory_and_a_hang_fail_the_campaign(fault, detail, every, monkeypatch):
    sample, before = every["record"]
    monkeypatch.setattr(fuzz, "LIMIT_BYTES", 2**26)
    monkeypatch.setattr(fuzz, "LIMIT_SECONDS", 0.2 if "0.2" in detail else 20)
    verdict = fuzz.judged(sample._replace(read=fault, use=lambda _: None), sample.folder, before, resealed=True)
    assert verdict.word == fuzz.FAILED
    assert detail in verdict.detail


def test_the_program_counts_every_verdict_and_ends_with_status_1_where_one_failed(every, tmp_path, monkeypatch, capsys):
    sample, _ = every["record"]
    failures = tmp_path / "new" / "failures.txt"
    words = ["--time", "0.5", "--seed", "3", "--failures", str(failures)]
    monkeypatch.setattr(fuzz, "samples", lambda _: [sample])
    assert fuzz.main(words) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.split()[0] == "all"
    assert sum(map(int, last.split()[1:])) > 5
    assert not failures.exists()
    reads = iter([sample.read(sample.folder)])
    broken = sample._replace(read=lambda _: next(reads, None) or 1 // 0)
    monkeypatch.setattr(fuzz, "samples", lambda _: [broken])
    assert fuzz.main(words) == 1
    assert "seed 3 turn 0: record: " in failures.read_text()
    assert "ZeroDivisionError" in failures.read_text()


def test_a_refusal_of_two_lines_fails_the_campaign(every):
    sample, before = every["record"]

    def refuse(_):
        raise UserError("a\nb")

    assert fuzz.judged(sample._replace(read=refuse), sample.folder, before, resealed=True).word == fuzz.FAILED


def test_mutations_with_a_checksum_that_fits_reach_what_lies_behind_it(every, tmp_path):
    """Few are refused for their checksum, namely where the mutation removed that, and the same seed gives the same mutation."""
    sample, before = every["artifact of fedavg, gradient"]
    lines = []
    for seed in range(60):
        folder = tmp_path / f"{seed}" / sample.folder.name
        shutil.copytree(sample.folder, folder)
        rng = random.Random(seed)
        paths = [folder / artifact_files.OBSERVATION / "index.json"]
        if fuzz_mutations._json(rng, paths[0], []):
            lines.append(fuzz.judged(sample, folder, before, resealed=True).detail)
    assert len(lines) > 30
    assert sum("match its checksum" in line for line in lines) < len(lines) / 10
    twice = [fuzz_mutations.mutated(random.Random(5), {"a": [1, {"b": 2}]}) for _ in range(2)]
    assert repr(twice[0]) == repr(twice[1])
