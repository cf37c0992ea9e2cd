"""The pages of the documentation: every link leads somewhere, blocks that a command writes are closed, pages stay short."""

import json
import lzma
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import pytest
from scipy.stats import t as student

# Page -> words at most, as a reader counts them: no code, no addresses, nothing between the marks of a generated block.
MOST_WORDS = {
    "README.md": 700,
    "docs/attacks.md": 710,
    "docs/audit.md": 650,
    "docs/benchmarks.md": 600,
    "docs/capture.md": 600,
    "docs/defenses.md": 600,
    "docs/design.md": 900,
    "docs/extending.md": 1500,
    "docs/methods.md": 700,
    "docs/python.md": 300,
    "docs/reading_results.md": 1320,
    "docs/results.md": 1000,
    "docs/sending_results.md": 300,
    "docs/studies.md": 700,
    "docs/threat_model.md": 780,
    "docs/tutorial_defense.md": 300,
    "docs/tutorial_first_table.md": 350,
    "docs/tutorial_ladder.md": 450,
}
BLOCK = re.compile(r"^<!-- generated: ([a-z0-9-]+) -->\n.*?\n<!-- end -->$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"```.*?```", re.DOTALL)
ADDRESS = re.compile(r"\]\(([^)\s]+)\)")
WORD = re.compile(r"[^\W_][\w'.-]*")
# In a generated block; elsewhere it can only grow old.
MEASURED = re.compile(r"\d\.\d+ dB|\d +\[[-+]?\d|\+- \d|± ?\d|\d\.\d+ ?%|\d\.\d+ m?s\b|\d\.\d+ h\b")
# Page -> headings whose tables were measured before `make bench` kept its records.
BY_HAND = {
    "docs/appendix/performance_log.md": ("The benchmarks of 21 November 2026", "Single steps of 22 November 2026"),
}
# The pages of which all numbers come from committed records.
FROM_RECORDS = [
    "docs/results/active-servers.md",
    "docs/results/joint-variants.md",
    "docs/appendix/countermeasures.md",
    "docs/results/imprint-on-the-wire.md",
    "docs/results/inference.md",
    "docs/needed_knowledge.md",
    "docs/results/ladder-cifar10.md",
    "docs/results/ladder-digits.md",
    "docs/results/ladder-photos.md",
    "docs/results/learned-prior.md",
    "docs/results/published-cifar10.md",
    "docs/results/published-office10.md",
    "docs/papers_claims.md",
    "docs/results/published-ladder.md",
    "docs/results/quick-photos.md",
]


def pages(repository: Path) -> list[Path]:
    return [repository / "README.md", repository / "CHANGELOG.md", *sorted((repository / "docs").rglob("*.md"))]


def by_hand(text: str, measured_under: Sequence[str] = ()) -> str:
    """A page without its generated blocks and code, and without the tables under some headings."""
    sections = re.split(r"^(?=## )", CODE.sub("", BLOCK.sub("", text)), flags=re.MULTILINE)
    return "".join(
        re.sub(r"^\|.*\n", "", section, flags=re.MULTILINE) if heading(section) in measured_under else section
        for section in sections
    )


def heading(section: str) -> str:
    return section.partition("\n")[0].removeprefix("## ")


def words(text: str, measured_under: Sequence[str] = ()) -> int:
    return len(WORD.findall(ADDRESS.sub("]", by_hand(text, measured_under))))


def anchors(text: str) -> set[str]:
    """The names by which a page's headings are linked to."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> list[str]:
    """The links of a page to files or headings that are not there; addresses on the web are not opened."""
    dead = []
    for address in ADDRESS.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in address:
            continue
        name, _, heading = address.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (heading and heading not in anchors(target.read_text(encoding="utf-8"))):
            dead.append(f"{page.name}: {address}")
    return dead


def unclosed(text: str) -> int:
    """How many marks of generated blocks have no partner."""
    marks = len(re.findall(r"^<!-- (?:generated: .*|end) -->$", text, re.MULTILINE))
    return marks - 2 * len(BLOCK.findall(text))


def test_every_link_leads_somewhere(repository: Path) -> None:
    assert [link for page in pages(repository) for link in dead_links(page)] == []


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# `A` heading, here\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#a-heading-here) [b](there.md#gone) [c](gone.md) [d](#e)\n\n# E\n", encoding="utf-8")
    assert dead_links(page) == ["page.md: there.md#gone", "page.md: gone.md"]


def test_every_page_with_numbers_of_imprint_says_for_what_they_hold(repository: Path) -> None:
    numbers = re.compile(r"^.*`imprint`.*\d\.\d.*$", re.MULTILINE)
    # The numbers on that page are those of papers.
    measured = [page for page in pages(repository)[2:] if page.name != "references.md"]
    told = [page for page in measured if numbers.search(page.read_text(encoding="utf-8"))]
    assert {"results.md", "defences.md"} <= {page.name for page in told}
    limit = "single-precision gradients of one step that nobody clips"
    assert [page.name for page in told if limit not in " ".join(page.read_text(encoding="utf-8").split())] == []


@pytest.mark.parametrize("name", MOST_WORDS)
def test_a_page_is_no_longer_than_its_reader_has_time_for(repository: Path, name: str) -> None:
    assert words((repository / name).read_text(encoding="utf-8"), BY_HAND.get(name, ())) <= MOST_WORDS[name]


def test_words_of_code_addresses_and_generated_blocks_are_not_counted() -> None:
    text = "Two [words](a/long/address.md).\n```\nnot these\n```\n<!-- generated: a-table -->\n| nor these |\n<!-- end -->\n"
    assert words(text) == 2
    assert words("three `more-words` here") == 3
    table = "## Measured\nOne line.\n\n| a | b |\n|---|---|\n| c | 1.5 s |\n\n## More\n| d | e |\n"
    assert words(table, ["Measured"]) == 6
    assert words(table) == 11


def test_every_generated_block_is_closed_and_named_once(repository: Path) -> None:
    for page in pages(repository):
        text = page.read_text(encoding="utf-8")
        assert unclosed(text) == 0, page.name
        names = BLOCK.findall(text)
        assert len(names) == len(set(names)), page.name
    assert unclosed("<!-- generated: a -->\n\n| x |\n") == 1


@pytest.mark.parametrize("name", [*MOST_WORDS, *FROM_RECORDS])
def test_measured_numbers_stand_in_generated_blocks_alone(repository: Path, name: str) -> None:
    assert MEASURED.findall(by_hand((repository / name).read_text(encoding="utf-8"), BY_HAND.get(name, ()))) == []


def test_tables_measured_by_hand_are_there_and_say_when_and_on_what(repository: Path) -> None:
    for name, headings in BY_HAND.items():
        text = (repository / name).read_text(encoding="utf-8")
        sections = {heading(section): section for section in re.split(r"^(?=## )", text, flags=re.MULTILINE)}
        for each in headings:
            assert re.search(r"^\| .* \|$", sections[each], re.MULTILINE), each
            assert re.search(r"^AMD EPYC, 2 cores.*20\d\d-\d\d-\d\d", sections[each], re.MULTILINE), each
            assert re.search("No records .*were kept", sections[each]), each


def test_a_measured_number_is_seen() -> None:
    for written in (
        "36.76 dB",
        "18 [15, 20]",
        "+3.73 [+1.35, +6.30]",
        "66.77 +- 6.89",
        "± 6.9",
        "47.23%",
        "0.31 s",
        "1.2 h",
    ):
        assert MEASURED.search(written), written
    assert not MEASURED.search("variance 0.001, five seeds, 20 dB, Python 3.11")


def blocks(page: Path) -> dict[str, str]:
    """The generated blocks of a page by name."""
    text = page.read_text(encoding="utf-8")
    return {match.group(1): match.group() for match in BLOCK.finditer(text)}


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("README.md", ["quick-photos-columns"]),
        ("docs/results.md", ["finding-fedavg", "finding-papers-attack", "finding-noise", "finding-private-extractor"]),
    ],
)
def test_numbers_of_findings_are_those_of_their_table(repository: Path, page: str, names: list[str]) -> None:
    table = set(re.findall(r"\d+\.\d\d\b", (repository / "docs/results/quick-photos.md").read_text(encoding="utf-8")))
    for name in names:
        numbers = re.findall(r"\d+\.\d\d\b", blocks(repository / page)[name])
        assert len(numbers) > 5
        assert [number for number in numbers if number not in table] == [], name


def accuracies(repository: Path) -> dict[tuple[str, str], dict[int, float]]:
    """(defence, model) -> seed -> test accuracy of FedAvg in percent, mean over clients.

    Each model at the round where its validation accuracy, mean over clients, is best; the first of equals.
    """
    by_column: dict[tuple[str, str], dict[int, float]] = {}
    records = lzma.decompress((repository / "docs/results/records/quick-photos.jsonl.xz").read_bytes())
    for record in map(json.loads, records.splitlines()):
        if record["cell"]["train"]["method"] != "fedavg":
            continue
        for seed in record["seeds"]:
            for model in ("personal", "uploaded", "broadcast"):
                rounds = [each["models"][model] for each in seed["training"]["rounds"]]
                best = max(rounds, key=lambda each: fmean(each["validation"]))
                by_column.setdefault((record["cell"]["train"]["defense"], model), {})[seed["seed"]] = fmean(
                    best["test"]
                )
    return by_column


def test_the_accuracy_of_each_model_is_that_of_the_records(repository: Path) -> None:
    measured = accuracies(repository)
    written = blocks(repository / "docs" / "results.md")
    finding = {float(number) for number in re.findall(r"\d+\.\d\d\b", written["finding-accuracy"])}
    for model in ("personal", "uploaded", "broadcast"):
        cells = [""]
        for defense in ("none", "gaussian:0.001", "gaussian:0.1"):
            seeds = list(measured[defense, model].values())
            cells.append(f" {fmean(seeds):.1f} ± {stdev(seeds):.1f} ")
        (row,) = re.findall(rf"^\| {model}, .*$", written["quick-photos-models"], re.MULTILINE)
        assert "|".join(cells) + "|" in row
        undefended = measured["none", model]
        gaps = [noisy - undefended[seed] for seed, noisy in measured["gaussian:0.1", model].items()]
        reach = student.ppf(0.975, 4) * stdev(gaps) / 5**0.5
        assert len(gaps) == 5
        for number in (fmean(gaps), fmean(gaps) - reach, fmean(gaps) + reach):
            assert round(abs(number), 2) in finding, (model, number)
