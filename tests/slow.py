"""The tests that `make test` leaves out, as each takes a second or more; `make test-thorough` and `make test-portable` run them.

tests/slow.txt names them, as measured on an AMD EPYC with AVX-512, one thread a process. To measure again, run every test and
read the log:
    make test PYTEST_ARGS='-m "not thorough" --durations=0' > LOG
    .venv/bin/python -m tests.slow LOG
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

LIST = Path(__file__).with_name("slow.txt")
SECONDS = 1.0
# A line of pytest's durations. What a test sets up may be shared with others, and does not count.
LINE = re.compile(r"\s*([\d.]+)s (call|teardown)\s+(tests/\S+\.py::.+)")


def measured(log: str) -> list[str]:
    """The tests that took SECONDS or more by a log of pytest's durations, as node ids from the folder tests/, in order."""
    seconds: dict[str, float] = defaultdict(float)
    for line in log.splitlines():
        if found := LINE.fullmatch(line.rstrip()):
            seconds[found[3].removeprefix("tests/")] += float(found[1])
    return sorted(name for name, took in seconds.items() if took >= SECONDS)


def listed() -> frozenset[str]:
    """The tests of tests/slow.txt, as node ids from the folder tests/."""
    return frozenset(LIST.read_text(encoding="utf-8").splitlines())


def lost(names: Iterable[str], collected: Iterable[str]) -> list[str]:
    """Those of `names` that no longer exist, as far as whole modules were collected: their module is there and they are not."""
    there = set(collected)
    modules = {name.partition("::")[0] for name in there}
    return sorted(name for name in names if name.partition("::")[0] in modules and name not in there)


def main(arguments: Sequence[str]) -> None:
    """Writes tests/slow.txt from the log that is named."""
    (log,) = arguments
    LIST.write_text("".join(f"{name}\n" for name in measured(Path(log).read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
