"""axe finds nothing on any page: in light and dark, and as wide as a phone."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from jaxgen.server.config import Access, ServerConfig
from tests.page.conftest import Fake
from tests.support.axe import violations
from tests.support.fakes import MODEL

PHONE = {"width": 360, "height": 740}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"color_scheme": "light", "viewport": PHONE, "has_touch": True, "is_mobile": True},
}
look = pytest.mark.parametrize("look", LOOKS)
NewContext = Callable[..., BrowserContext]


def width_is_enough(page: Page) -> bool:
    """Whether nothing makes the page wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


@look
@pytest.mark.parametrize("view", ["play", "live"])
def test_views(new_context: NewContext, model: str, look: str, view: str) -> None:
    page = new_context(**LOOKS[look]).new_page()
    page.goto(f"{model}/#{view}")
    expect(page.locator("header .state")).to_contain_text("jaxgen-default")
    assert violations(page) == []
    assert width_is_enough(page)


@look
def test_docs(new_context: NewContext, fake: Fake, look: str) -> None:
    page = new_context(**LOOKS[look]).new_page()
    page.goto(f"{fake().url}/docs#post-v1-chat-completions")
    route = page.locator("#post-v1-chat-completions")
    route.get_by_label("Message in messages").click()
    route.get_by_text("200 The response.").click()
    expect(route.get_by_text("choices", exact=True)).to_be_visible()
    assert violations(page) == []
    assert width_is_enough(page)


@look
def test_the_question_for_a_key(new_context: NewContext, fake: Fake, look: str, troubles: Any) -> None:
    troubles.allow("status of 401")
    page = new_context(**LOOKS[look]).new_page()
    page.goto(fake(config=ServerConfig(access=Access(api_keys=("secret",)))).url)
    page.get_by_label("This server asks for a key").fill("wrong")
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_text("does not know this key")).to_be_visible()
    assert violations(page) == []
    assert width_is_enough(page)
    assert MODEL not in page.content()


def test_axe_finds_what_is_wrong(page: Page, fake: Fake) -> None:
    page.goto(fake().url)
    page.evaluate("() => { document.querySelector('main').innerHTML = '<img src=\"icon.svg\">'; }")
    assert any(line.startswith("image-alt") for line in violations(page))
