"""How the tests of the live view look at it."""

from collections.abc import Callable

from playwright.sync_api import Locator, Page

from tests.support.browser import PATIENCE_MS
from tests.support.fake_steps import BEGIN, Record
from tests.support.restartable import Restartable


def look(page: Page, server: Restartable, name: str = "") -> None:
    page.goto(f"{server.url}/#live{name}")


def bars(page: Page) -> Locator:
    return page.get_by_role("slider", name="Steps")


def readout(page: Page) -> Locator:
    return page.locator(".readout")


def wait_until(page: Page, happened: Callable[[], bool]) -> None:
    for _ in range(PATIENCE_MS // 20):
        if happened():
            return
        page.wait_for_timeout(20)
    raise AssertionError("it did not happen")


def hide(page: Page, hidden: bool) -> None:
    """As a browser does to a tab that is not in front; one without a window has all in front."""
    state = "hidden" if hidden else "visible"
    page.evaluate(
        """state => {
          Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        state,
    )


def a_request(number: int, begin: float = BEGIN) -> list[Record]:
    """Half a second in the queue, a prompt of three chunks, a preemption after the first token, then its end."""
    return [
        [begin, number, "queued", "interactive", 100],
        [begin + 0.5, number, "begun", 16, 32],
        [begin + 0.7, number, "restored", 32],
        [begin + 0.7, number, "chunk", 48, 16],
        [begin + 0.8, number, "chunk", 64, 16],
        [begin + 0.9, number, "chunk", 80, 20],
        [begin + 1.0, number, "first"],
        [begin + 2.0, number, "preempted"],
        [begin + 6.0, number, "begun", 96, 0],
        [begin + 6.0, number, "chunk", 96, 14],
        [begin + 6.1, number, "chunk", 110, 1],
        [begin + 7.0, number, "ended", "stop", 20],
    ]
