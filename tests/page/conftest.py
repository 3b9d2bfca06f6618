"""A browser for the tests of the page, and servers for it to look at.

``page`` is an empty tab of a fresh context; a test fails if the browser complains: an error or a warning in the
console, an error that nobody caught, a violation of the security policy. ``troubles.allow("status of 401")`` expects
such a line.
``new_context(viewport=..., color_scheme="dark")`` makes further contexts, each with storage of its own; a second tab
with the same storage is ``page.context.new_page()``.

``fake(engine, config)`` starts a server around a fake engine (tests/support/fakes.py) in this process, which can
``stop()`` and ``start()`` at the same ``url``; ``model`` is the URL of a real ``jaxgen serve`` of the embedded model,
shared by all tests.

All tests of this folder get the mark ``browser``: ``scripts/test --only browser``. Do not call ``asyncio.run`` in them:
Playwright has the thread's loop.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from jaxgen.server.app import create_app
from jaxgen.server.config import DEFAULT_CONFIG, ServerConfig
from tests.support.browser import HOW, Troubles, chromium, chromium_path, watched
from tests.support.fakes import FakeEngine
from tests.support.journals import journaling_engine
from tests.support.restartable import Restartable, restartable
from tests.support.server_process import served

HERE = Path(__file__).parent


class Fake(Protocol):
    def __call__(self, engine: FakeEngine | None = None, config: ServerConfig = DEFAULT_CONFIG) -> Restartable: ...


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """For the package, not the session: other tests may want the thread's loop."""
    path = chromium_path()
    if path is None:
        pytest.skip(HOW)
    with chromium(path) as found:
        yield found


@pytest.fixture
def troubles() -> Iterator[Troubles]:
    found = Troubles()
    yield found
    found.check()


@pytest.fixture
def new_context(browser: Browser, troubles: Troubles, fake: Fake) -> Iterator[Callable[..., BrowserContext]]:
    """Makes contexts, which end with the test, and before the servers of ``fake``: pages read until they are closed."""
    with ExitStack() as stack:

        def make(**options: Any) -> BrowserContext:
            context = watched(browser, troubles, **options)
            stack.callback(context.close)
            return context

        yield make


@pytest.fixture
def page(new_context: Callable[..., BrowserContext]) -> Page:
    return new_context().new_page()


@pytest.fixture
def fake() -> Iterator[Fake]:
    """Starts servers around fake engines, which end with the test."""
    with ExitStack() as stack:

        def start(engine: FakeEngine | None = None, config: ServerConfig = DEFAULT_CONFIG) -> Restartable:
            return stack.enter_context(restartable(create_app(engine or journaling_engine(), config), config))

        yield start


@pytest.fixture(scope="package")
def model() -> Iterator[str]:
    """The URL, without a slash at its end, of ``jaxgen serve`` with the embedded model, which starts quickly."""
    with served("--kernels", "xla", "--single-shape") as server:
        yield server.root
