"""A page in a real browser: Chromium without a window, driven by Playwright. Both are optional; what lacks is said."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser; where there is none the test is skipped, with the reason."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make browser")
    program = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no Chromium on this machine (looked for {', '.join(CHROMIUM)})")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


class Opened:
    """A page that was opened from a file, and what the browser asked for and complained of since."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        """`options` are those of Playwright's contexts, e.g. color_scheme, viewport, java_script_enabled."""
        self.context = browser.new_context(**options)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.address = path.resolve().as_uri()
        self.page.goto(self.address)

    @property
    def foreign_requests(self) -> list[str]:
        """What was asked for beside the page itself and what it holds."""
        return [
            url for url in self.requests if url != self.address and not url.startswith(("data:", f"{self.address}#"))
        ]
