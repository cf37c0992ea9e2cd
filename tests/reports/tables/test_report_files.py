"""One report as Markdown, CSV, LaTeX, HTML and terminal text: every form says the same, and obeys nothing that it is given."""

import csv
import hashlib
import io
import re
from base64 import b64decode, b64encode
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from privbench.system import printable
from privbench.system.console import Console
from reports.tables import render, report_files, terminal
from reports.tables.report import Entry, OnPage, Page, Picture, Report, Table

HOSTILE = [
    "<script>alert(1)</script>",
    "a|b",
    "_all_ __init__ snake_case",
    "50% & $x^2$ #1 {y} ~z",
    "*stars* **bold** ~~gone~~",
    "[click](http://x)",
    "![seen](http://x)",
    "\\input{secrets}",
    "&lt;b&gt;",
    '" onload="x',
    "two\nlines",
    "<!-- comment",
]
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def of_name(name):
    """A report that says one name everywhere it can."""
    table = Table(
        name, ["", name], [[name, name], [f"  {name}", f"{render.bold('1.0 [0.5, 2.0]')} {render.small('dlg')}"]],
        notes=[name], text=[name],
    )  # fmt: skip
    part = Table(name, ["", "x"], [[name, "-"]], is_part=True, words=True)
    return Report(name, [name], [table, part], [{"name": name, "psnr_db": 1 / 3}], pages=[Page(name, "other")])


def on_page(name):
    """The same report with everything that an HTML page alone has."""
    report = of_name(name)
    first, part = report.tables
    entry = Entry("cell-1", name, [(name, name)], [name], name)
    more = OnPage([""], ["cell-1", "cell-1"], [Picture(name, name, b"png")], [entry])
    return report._replace(tables=[first._replace(on_page=more), part])


class Reader(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.texts, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def read(page):
    reader = Reader()
    reader.feed(page)
    return reader


def plain(name):
    return name.replace("\n", "␊")


@pytest.mark.parametrize("form", [of_name, on_page])
@pytest.mark.parametrize("name", HOSTILE)
def test_html_shows_a_name_as_it_is(name, form):
    parsed, usual = read(report_files.html(form(name))), read(report_files.html(form("usual")))
    # A name of two lines is broken, and its second line is of another class.
    breaks = ("br", "span")
    assert [tag for tag in parsed.tags if tag not in breaks] == [tag for tag in usual.tags if tag not in breaks]
    names, usual_names = ([name for name, _ in each.attributes if name != "class"] for each in (parsed, usual))
    assert names == usual_names
    shown = [" ".join(text.split()) for text in parsed.texts]
    assert shown.count(" ".join(plain(name).split())) >= (6 if form is of_name else 11)


@pytest.mark.parametrize("name", HOSTILE)
def test_markdown_shows_a_name_as_it_is(name):
    page = MARKDOWN.render(report_files.markdown(of_name(name)))
    parsed, usual = read(page), read(MARKDOWN.render(report_files.markdown(of_name("usual"))))
    assert parsed.tags == usual.tags
    shown = [text.strip() for text in parsed.texts]
    assert shown.count(name.replace("\n", " ")) == usual.texts.count("usual") == 12


@pytest.mark.parametrize("name", [name for name in HOSTILE if "\n" not in name])
def test_latex_escapes_a_name_and_leaves_no_comment_open(name):
    text, escaped = report_files.latex(of_name(name)), render.tex(name)
    assert escaped not in HOSTILE
    usual = report_files.latex(of_name("usual"))
    assert text.replace(escaped, "usual").replace(plain(name), "usual") == usual
    assert usual.count("\n% usual") + usual.startswith("% usual") == 5


def test_a_line_break_ends_no_latex_comment():
    text = report_files.latex(of_name("two\n\\input{lines}"))
    assert "% two␊\\input{lines}" in text
    assert text.count("\\input{lines}") == text.count("␊\\input{lines}") == 6


def test_csv_keeps_every_digit(tmp_path):
    paths = report_files.write(of_name("a|b"), tmp_path / "x")
    assert [path.name for path in paths] == ["x.md", "x.csv", "x.tex", "x.html"]
    (row,) = csv.DictReader(io.StringIO(paths[1].read_text()))
    assert row["name"] == "a|b"
    assert float(row["psnr_db"]) == 1 / 3


@pytest.mark.parametrize("text", ['=HYPERLINK("http://x")', "@SUM(1)", "+1+cmd|' /C calc'!A0", "-2+3", "\t=1"])
def test_a_csv_holds_no_formula_and_leaves_numbers_and_dashes(text):
    report = of_name("usual")._replace(numbers=[{text: text, "name": "-", "gain_db": -1.5, "other": f"a {text}"}])
    (row,) = csv.DictReader(io.StringIO(report_files.csv(report)))
    assert row == {f"'{text}": f"'{text}", "name": "-", "gain_db": "-1.5", "other": f"a {text}"}


def test_the_page_has_no_script_and_needs_no_other_file():
    page = report_files.html(of_name("usual")._replace(images=["a b.png"]))
    parsed = read(page)
    assert "script" not in parsed.tags
    assert "link" not in parsed.tags
    assert [value for name, value in parsed.attributes if name == "src"] == ["a%20b.png"]
    assert [value for name, value in parsed.attributes if name == "href"] == ["other.html"]
    assert "width=device-width" in page
    assert "@media print" in page
    assert "<b>1.0</b>" in page
    assert "<small>dlg</small>" in page


def test_what_a_page_alone_has_stands_in_it_and_no_other_form_changes():
    page, parsed = report_files.html(on_page("usual")), read(report_files.html(on_page("usual")))
    attributes = parsed.attributes
    assert [b64decode(v.partition("base64,")[2]) for name, v in attributes if name == "src"] == [b"png"]
    assert ("alt", "usual") in attributes
    # Two rows lead to one entry, which is folded up.
    assert attributes.count(("href", "#cell-1")) == 2
    assert attributes.count(("id", "cell-1")) == parsed.tags.count("details") == 1
    assert sum(name == "data-filter" for name, _ in attributes) == 1
    assert attributes.count(("scope", "row")) == 3
    assert "<code>usual</code>" in page
    for form in (report_files.markdown, report_files.latex, report_files.csv):
        assert form(on_page("usual")) == form(of_name("usual"))


@pytest.mark.parametrize("form", [of_name, on_page])
def test_the_policy_allows_this_style_and_this_script_alone(form):
    page = report_files.html(form("usual"))
    (policy,) = (value for name, value in read(page).attributes if name == "content" and "default-src" in value)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data:"
    for tag in ("style", "script"):
        texts = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
        assert len(texts) == (tag == "style" or form is on_page)
        assert all(rules[f"{tag}-src"] == f"'sha256-{digest}'" for digest in digests)
    assert ("script-src" in rules) == (form is on_page) == ("<script>" in page)
    assert " style=" not in page
    # What `printable.encoded` would change as it is written, the digest would not fit any more.
    assert printable.lines(page) == page


def test_latex_has_the_columns_for_which_a_page_has_room():
    table = Table("t", ["", "a", "b", "c"], [["x", "1", "2", "3"]], is_detail=True, on_paper=("", "c"))
    text = report_files.latex(Report("r", [], [table, table._replace(on_paper=())], [], caption="Read this."))
    assert r"x & 3 \\" in text
    assert r"\caption{r: t. Read this.}" in text
    assert text.count(r"\begin{tabular}") == 1
    assert "% t: in the other forms of this report" in text


def test_the_terminal_leaves_out_details_and_says_what_matters_most():
    console = Console(width=80, record=True, file=io.StringIO())
    report = of_name("usual")
    detail = Table("long", ["", "x"], [["hidden", "1"]], notes=["hidden"], is_detail=True)
    terminal.show(report._replace(tables=[*report.tables, detail]), Path("x.md"), console, first=["first of all"])
    text = console.export_text()
    assert "hidden" not in text
    assert text.index("first of all") < text.index("- usual")
    assert text.rstrip().endswith("how to read this: x.md")
    terminal.show(report._replace(messages=["only this"]), Path("x.md"), console)
    assert "- only this\n- how to read this: x.md" in console.export_text()
