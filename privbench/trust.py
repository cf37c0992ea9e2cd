"""Which names beyond the built-in ones this process may use: those that its user named, never those that a file names.

Artifacts, records and specifications say by name which data set, method, defence and attack they are of. A name such as
`module:Class` is code, and `folder:PATH` is a folder of this machine. The author of the file chose it, so no file alone makes
anything be imported or read: `check` refuses. The command line adds what is typed (--dataset, --method, --attack, --trust, ...),
Python code calls `add`, and worker processes and tasks of a cluster get the names of the process that
sends them work (privbench/execution/worker_pool.py, sweep/ray_task.py).
"""

from __future__ import annotations

import shlex

from privbench.errors import UserError

FOLDER = "folder:"  # "folder:PATH", a folder of images of a user's own (privbench/data/image_folder.py)

_names: set[str] = set()  # of this process; names of code and of folders, as specifications write them


def add(*names: str) -> None:
    """Allows some names, `module:object` or `folder:PATH` with an absolute path, to be used from now on in this process."""
    _names.update(names)


def added() -> tuple[str, ...]:
    """Every name that was added, in alphabetical order."""
    return tuple(sorted(_names))


def check(kind: str, name: str) -> None:
    """UserError where a name that is not built in was not added; `kind` says what it is the name of."""
    if name in _names:
        return
    what = "a folder of this machine, which is read" if name.startswith(FOLDER) else "code of its own, which runs"
    raise UserError(
        f"{kind} '{name}' is {what} only where you name it, not where a file does; if you know it, add {option(name)} "
        f"(in Python: privbench.trust.add)"
    )


def option(*names: str) -> str:
    """The words of the command line that add some names."""
    return " ".join(f"--trust {shlex.quote(name)}" for name in names)
