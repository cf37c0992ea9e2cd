"""The HTML form of a report in a real browser: sorting, filtering and enlarging are clicked, and nothing is fetched."""

import io
import socket

import pytest
from PIL import Image

from reports.tables import report_files
from reports.tables.report import Entry, OnPage, Picture, Report, Table
from tests.browser import Opened, chromium

COLUMNS = ("cell", "method", "knowledge", "PSNR dB")
ROWS = [
    ("a1", "FedAvg", "gradient", "9.10 [8.00, 10.00]"),
    ("b2", "FedCG", "gradient + auxiliary", "24.50 [23.00, 26.00]"),
    ("c3", "FedCG", "gradient", "-"),
    ("d4", "FedAvg", "<b>none</b>", "-1.50 [-2.00, -1.00]*"),
]


def picture():
    buffer = io.BytesIO()
    Image.new("RGB", (2400, 40), "red").save(buffer, "PNG")
    return Picture("Reconstructions", "a red bar", buffer.getvalue())


def report():
    entries = [
        Entry(f"cell-{row[0]}", f"Cell {row[0]}", [("digest", "0" * 64)], ["few: too few"], "again") for row in ROWS
    ]
    cells = Table(
        "Cells", COLUMNS, ROWS,
        on_page=OnPage(("method", "knowledge"), [entry.anchor for entry in entries], [picture()]),
    )  # fmt: skip
    return Report("Of a folder", [], [cells, Table("Provenance", (), (), on_page=OnPage(entries=entries))], [])


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def opened(browser, tmp_path):
    def call(change=lambda text: text, **options):
        path = tmp_path / "page.html"
        path.write_text(change(report_files.html(report())))
        return Opened(browser, path, **options)

    return call


def shown(page):
    return [row.locator("th").inner_text() for row in page.locator("tbody tr:visible").all()]


def test_a_click_on_a_heading_sorts_by_it_and_what_is_empty_stands_last(opened):
    window = opened()
    page = window.page
    assert shown(page) == ["a1", "b2", "c3", "d4"]
    page.get_by_role("button", name="PSNR dB").click()
    assert shown(page) == ["b2", "a1", "d4", "c3"]
    heading = page.locator("thead th").nth(3)
    assert heading.get_attribute("aria-sort") == "descending"
    page.get_by_role("button", name="PSNR dB").click()
    assert shown(page) == ["d4", "a1", "b2", "c3"]
    page.get_by_role("button", name="method").click()
    assert shown(page) == ["d4", "a1", "b2", "c3"]
    assert heading.get_attribute("aria-sort") is None
    assert not window.complaints


def test_the_keyboard_sorts_as_a_click_does(opened):
    page = opened().page
    page.get_by_role("button", name="cell").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    assert shown(page) == ["d4", "c3", "b2", "a1"]


def test_filters_leave_the_rows_that_are_chosen_and_say_how_many(opened):
    page = opened().page
    assert page.get_by_role("combobox", name="knowledge").locator("option").all_inner_texts() == [
        "all", "<b>none</b>", "gradient", "gradient + auxiliary",
    ]  # fmt: skip
    page.get_by_role("combobox", name="method").select_option("FedCG")
    assert shown(page) == ["b2", "c3"]
    page.get_by_role("combobox", name="knowledge").select_option("gradient")
    assert shown(page) == ["c3"]
    assert page.locator("output").inner_text() == "1 of 4 rows"
    page.get_by_role("button", name="Show all").click()
    assert len(shown(page)) == 4
    page.get_by_role("combobox", name="knowledge").select_option("<b>none</b>")
    assert shown(page) == ["d4"]


def test_a_click_enlarges_a_picture_to_its_own_size(opened):
    page = opened().page
    picture = page.get_by_role("button", name="Enlarge: a red bar")
    assert picture.bounding_box()["width"] < 1000
    picture.click()
    large = page.locator("dialog img")
    assert large.bounding_box()["width"] == 2400
    page.keyboard.press("Escape")
    assert not large.is_visible()
    picture.click()
    page.get_by_role("button", name="Close").click()
    assert not large.is_visible()


def test_a_row_leads_to_its_entry_which_opens(opened):
    page = opened().page
    assert not page.locator("#cell-b2").is_visible()
    page.get_by_role("link", name="b2").click()
    assert page.locator("#cell-b2").is_visible()
    assert not page.locator("#cell-a1").is_visible()


def test_all_of_it_stands_there_without_scripts(opened):
    page = opened(java_script_enabled=False).page
    assert shown(page) == ["a1", "b2", "c3", "d4"]
    assert page.locator("figure img").bounding_box()["width"] > 500
    assert page.locator("button").count() == 0
    page.get_by_role("link", name="b2").click()
    assert page.locator("#cell-b2").is_visible()


def test_the_page_asks_nobody_for_anything(opened):
    window = opened()
    window.page.get_by_role("button", name="Enlarge: a red bar").click()
    assert window.requests[0] == window.address
    assert window.foreign_requests == []
    assert window.complaints == []


def test_the_policy_stops_what_escaping_would_have_missed(opened):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        there = f"http://127.0.0.1:{server.getsockname()[1]}/seen"
        planted = (
            f'<script>document.title = "run"</script><img src="{there}.png" onerror="document.title = \'run\'">'
            f'<link rel="stylesheet" href="{there}.css"><script src="{there}.js"></script>'
        )
        window = opened(lambda text: text.replace("<h1>", f"{planted}<h1>"))
        window.page.get_by_role("button", name="PSNR dB").click()
        assert shown(window.page) == ["b2", "a1", "d4", "c3"]
        assert window.page.title() == "Of a folder"
        window.page.wait_for_timeout(100)
        with pytest.raises(BlockingIOError):
            server.accept()
    refused = [text for text in window.complaints if "Content Security Policy" in text]
    assert all(any(rule in text for text in refused) for rule in ("script-src", "img-src", "style-src"))


def test_a_narrow_screen_scrolls_the_table_and_not_the_page(opened):
    page = opened(viewport={"width": 360, "height": 700}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
