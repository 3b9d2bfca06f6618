"""A feed that the test writes, a server with it, and a tab that looks at neither yet."""

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.support.fake_steps import FakeSteps
from tests.support.restartable import Restartable, restartable


@pytest.fixture
def feed() -> FakeSteps:
    return FakeSteps()


@pytest.fixture
def server(feed: FakeSteps) -> Iterator[Restartable]:
    with restartable(feed.app()) as found:
        yield found


@pytest.fixture
def page(server: Restartable, new_context: Callable[..., BrowserContext]) -> Page:
    """A tab that is closed before the server ends."""
    return new_context().new_page()
