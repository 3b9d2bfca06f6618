"""What stands between the page and its server: keys, prefixes, proxies."""

import pytest
from playwright.sync_api import Page, expect

from jaxgen.server.config import Access, Proxy, ServerConfig
from tests.page.conftest import Fake
from tests.support.browser import Troubles
from tests.support.fakes import MODEL
from tests.support.proxy import proxy

KEYS = ServerConfig(access=Access(api_keys=("secret",)))
BEHIND = ServerConfig(proxy=Proxy(root_path="/llm"))


def give_key(page: Page, key: str) -> None:
    page.get_by_label("This server asks for a key").fill(key)
    page.get_by_role("button", name="Use it").click()


def test_a_key_is_asked_for_once_and_kept_for_the_tab(page: Page, fake: Fake, troubles: Troubles) -> None:
    troubles.allow("status of 401")
    server = fake(config=KEYS)
    page.goto(server.url)
    give_key(page, "wrong")
    expect(page.get_by_text("does not know this key")).to_be_visible()
    give_key(page, "secret")
    expect(page.get_by_text(MODEL).first).to_be_visible()
    expect(page.get_by_role("dialog")).not_to_be_visible()
    page.goto(f"{server.url}/docs")
    expect(page.get_by_role("heading", name="GET /metrics")).to_be_visible()
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    second = page.context.new_page()
    second.goto(server.url)
    expect(second.get_by_role("dialog")).to_be_visible()


def test_without_a_key_the_page_says_why_it_is_empty(page: Page, fake: Fake, troubles: Troubles) -> None:
    troubles.allow("status of 401")
    page.goto(fake(config=KEYS).url)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("alert").filter(has_text="API key")).to_be_visible()
    page.get_by_role("button", name="Try again").click()
    give_key(page, "secret")
    expect(page.get_by_text(MODEL).first).to_be_visible()


def walk_through(page: Page, url: str) -> None:
    """Everything the page loads comes from below the prefix, or the browser would complain."""
    page.goto(url)
    expect(page).to_have_url(f"{url.rstrip('/')}/")
    expect(page.get_by_text(MODEL).first).to_be_visible()
    page.get_by_role("link", name="API").click()
    expect(page.get_by_role("heading", name="GET /metrics")).to_be_visible()
    page.locator("#get-health > summary").click()
    expect(page.get_by_label("Command for GET /health")).to_have_text(f"curl {url.rstrip('/')}/health")
    page.get_by_role("link", name="Live").click()
    expect(page).to_have_title("Live · jaxgen")
    expect(page).to_have_url(f"{url.rstrip('/')}/#live")
    page.goto("about:blank")  # before what it reads from ends


@pytest.mark.parametrize("end", ["/llm", "/llm/"])
def test_below_a_prefix_that_is_passed_on(page: Page, fake: Fake, end: str) -> None:
    walk_through(page, fake(config=BEHIND).url + end)


@pytest.mark.parametrize("config", [BEHIND, ServerConfig()])
def test_below_a_prefix_that_a_proxy_strips(page: Page, fake: Fake, config: ServerConfig) -> None:
    with proxy(fake(config=config).url, strip="/llm") as front:
        walk_through(page, f"{front.url}/llm/")


def test_through_a_proxy_that_passes_the_prefix_on(page: Page, fake: Fake) -> None:
    with proxy(fake(config=BEHIND).url) as front:
        walk_through(page, f"{front.url}/llm")
