"""What a listing says of every built-in plug-in: read from the classes, which takes torch, and kept in privbench/cli/plugins.json.

`python -m privbench.cli.plugin_facts` writes that file; a test holds it equal to the classes.
"""

from __future__ import annotations

import json

from privbench import registry
from privbench.cli import catalogue
from privbench.system import files
from reports.documents import catalogue as classes


def every() -> catalogue.Facts:
    """Kind -> name -> facts, of all that is built in."""
    return {kind: classes.every(kind) for kind in registry.KINDS}


def main() -> None:
    """Writes privbench/cli/plugins.json."""
    files.write_bytes(catalogue.FILE, (json.dumps(every(), indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
