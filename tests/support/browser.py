"""Debian's Chromium, driven by Playwright, and what goes wrong in its pages."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, expect, sync_playwright

# As in make_browser of scripts/ci/environment.sh.
NAMES = ("chromium", "chromium-browser", "google-chrome")
HOW = "no Chromium here: apt-get install --no-install-recommends chromium fonts-dejavu-core, or name one in CHROMIUM"
PATIENCE_MS = 120_000
"""What a test waits for at most: long, since a slow machine is no fault."""


def chromium_path() -> str | None:
    """The browser that is named in ``CHROMIUM``, or the first that is installed; None: there is none."""
    named = os.environ.get("CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """A browser without a window, for many contexts."""
    # Chromium has no sandbox for root, and a container has little shared memory.
    options = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        expect.set_options(timeout=PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Troubles:
    """Errors and warnings of a context's consoles, errors that no code caught, violations of the security policy."""

    found: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)

    def allow(self, pattern: str) -> None:
        """Expect lines in which this regular expression is found, as ``status of 401``."""
        self.allowed.append(pattern)

    def watch(self, context: BrowserContext) -> None:
        context.on("console", self._console)
        context.on("weberror", lambda found: self.found.append(f"uncaught: {found.error}"))

    def check(self) -> None:
        bad = [line for line in self.found if not any(re.search(pattern, line) for pattern in self.allowed)]
        assert not bad, "the browser complains:\n" + "\n".join(bad)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.found.append(f"{message.type}: {message.text} ({message.location['url']})")


def watched(browser: Browser, troubles: Troubles, **options: Any) -> BrowserContext:
    """A fresh context, with storage of its own. ``options``: Playwright's, as ``viewport`` and ``color_scheme``."""
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_MS)
    troubles.watch(context)
    return context
