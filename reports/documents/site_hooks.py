"""What mkdocs does to the documents before it makes the site: README is its first page, and the reference comes from docstrings.

mkdocs calls the functions of this file by their names (mkdocs.yml). The site has no page for code, so that links to it become text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
# Page -> its title, and the modules whose docstrings are on it.
REFERENCE = {
    "reference/python.md": ("Calls from Python", ("privbench.api",)),
    "reference/values.md": ("Values and protocols", ("privbench.types",)),
    "reference/defenses.md": ("Defences", ("privbench.defense",)),
    "reference/methods.md": ("Methods", ("privbench.methods.base",)),
    "reference/records.md": ("Records", ("privbench.records.schema", "privbench.records.entries")),
}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the first page and the reference."""
    files.append(
        File.generated(config, "index.md", content=first_page((ROOT / "README.md").read_text(encoding="utf-8")))
    )
    for path, (title, modules) in REFERENCE.items():
        directives = "\n".join(f"::: {module}\n" for module in modules)
        files.append(File.generated(config, path, content=f"# {title}\n\n{directives}"))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that lead to no page or picture become their text."""
    folder = Path(page.file.src_uri).parent
    return LINK.sub(lambda link: link[0] if _leads(folder, link[2], files) else link[1], markdown)


def first_page(readme: str) -> str:
    """README with its links as seen from docs/."""
    return readme.replace("](docs/", "](").replace('src="docs/', 'src="')


def _leads(folder: Path, target: str, files: Files) -> bool:
    parts: list[str] = []
    for part in (*folder.parts, *target.split("/")):
        if part == "..":
            if not parts:
                return False
            parts.pop()
        elif part != ".":
            parts.append(part)
    return files.get_file_from_path("/".join(parts)) is not None
