"""What a listing says of every built-in plug-in: read from the classes, which takes torch, and kept in privbench/cli/plugins.json.

`python -m privbench.cli.plugin_facts` writes that file; a test holds it equal to the classes.
"""

from __future__ import annotations

import dataclasses
import json

from privbench import registry
from privbench.cli import catalogue
from privbench.data import partition
from privbench.observation import knowledge
from privbench.system import files


def of(kind: str, name: str) -> dict[str, str]:
    """What a listing can say of one plug-in, by the heading it stands under."""
    plugin = registry.resolve(kind, name)
    modules = [path.partition(":")[0] for path in set(registry.KINDS[kind].values())]
    module = __import__(plugin.__module__, fromlist=["_"])
    # Else the module's first line says nothing of the single one.
    alone = modules.count(plugin.__module__) == 1
    facts = {"what": ((module if alone else plugin).__doc__ or "").strip().splitlines()[0]}
    if kind == "method":
        facts["shares"] = ", ".join(plugin.shared_parts) or "nothing"
    if kind == "attack":
        facts |= {
            "rung": plugin.rung,
            "must know": knowledge.tag(plugin),
            "needs": ", ".join(sorted(plugin.needs)) or "nothing",
            "uses where sent": ", ".join(sorted(knowledge.uses(plugin))) or "nothing",
        }
    if kind == "defense":
        settings = [f"{each.name}: {getattr(each.type, '__name__', each.type)}" for each in dataclasses.fields(plugin)]
        facts["settings"] = ", ".join(settings) or "none"
    if kind == "dataset":
        how, clients, per_client = partition.defaults(name)
        each = {"iid": "iid, up to", "domain": "one domain each, up to", "dirichlet": "Dirichlet(1), on average"}[how]
        facts["default layout"] = f"{clients} clients, {each} {per_client:,} images"
    return facts


def every() -> catalogue.Facts:
    """Kind -> name -> facts, of all that is built in."""
    return {kind: {name: of(kind, name) for name in names} for kind, names in registry.KINDS.items()}


def main() -> None:
    """Writes privbench/cli/plugins.json."""
    files.write_bytes(catalogue.FILE, (json.dumps(every(), indent=1, ensure_ascii=False) + "\n").encode())


if __name__ == "__main__":
    main()
