"""The site of the documents: every page in its place, no link that leads nowhere, nothing asked of another server."""

import re
import subprocess
import sys

import pytest

from reports.documents import site_hooks


@pytest.fixture(scope="module")
def site(repository, tmp_path_factory):
    """The site, built strictly: a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_every_document_is_a_page_and_readme_is_the_first(site, repository):
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    documents = (path.relative_to(repository / "docs") for path in (repository / "docs").rglob("*.md"))
    assert {path.with_suffix(".html").as_posix() for path in documents} < pages
    first = (site / "index.html").read_text()
    assert "make attack-table" in first
    (picture,) = re.findall(r'<img [^>]*src="([^"]+)"', first)
    assert (site / picture).is_file()


def test_the_reference_has_the_public_calls_with_their_arguments(site):
    page = (site / "reference/python.html").read_text()
    for call in ("attack", "table", "study", "train"):
        assert f'id="privbench.api.{call}"' in page
    assert "The command's options" in page
    for path in site_hooks.REFERENCE:
        assert (site / path).with_suffix(".html").is_file()


def test_no_page_asks_anything_of_another_server(site):
    loaded = re.compile(
        r"""(?:<(?:script|img|iframe)[^>]*src|<link[^>]*(?:stylesheet|preconnect)[^>]*href)=["']?(https?:)?//"""
    )
    assert [path.name for path in site.rglob("*.html") if loaded.search(path.read_text())] == []


@pytest.mark.parametrize(
    ("folder", "target", "leads"),
    [
        (".", "results.md", True),
        ("results", "../results.md", True),
        (".", "../README.md", False),
        (".", "results", False),
    ],
)
def test_a_link_to_what_is_no_page_is_its_text(folder, target, leads):
    class Page:
        class file:
            src_uri = f"{folder}/page.md"

    class Files:
        def get_file_from_path(self, path):
            return path if path == "results.md" else None

    text = f"See [this]({target}#part) and ![picture](x.png) and [that](https://example.org)."
    made = site_hooks.on_page_markdown(text, Page(), None, Files())
    assert made == (text if leads else text.replace(f"[this]({target}#part)", "this"))
