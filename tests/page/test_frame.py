"""The frame of the page: its views, and what it knows of the server."""

from collections.abc import Callable

from playwright.sync_api import BrowserContext, Page, expect

from tests.page.conftest import Fake
from tests.support.fakes import MODEL


def test_says_what_is_served(page: Page, fake: Fake) -> None:
    page.goto(fake().url)
    expect(page.get_by_text(MODEL).first).to_be_visible()


def test_views_have_addresses(page: Page, fake: Fake) -> None:
    page.goto(fake().url)
    page.get_by_role("link", name="Live").click()
    expect(page).to_have_title("Live · jaxgen")
    page.reload()
    expect(page).to_have_title("Live · jaxgen")
    page.go_back()
    expect(page).to_have_title("Playground · jaxgen")


def test_shows_the_embedded_model(page: Page, model: str) -> None:
    page.goto(model)
    expect(page.get_by_text("jaxgen-default").first).to_be_visible()


def ground(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_a_theme_is_kept_and_shown_in_every_tab(new_context: Callable[..., BrowserContext], fake: Fake) -> None:
    context = new_context(color_scheme="dark")
    page, other, url = context.new_page(), context.new_page(), fake().url
    for one in (page, other):
        one.goto(f"{url}/#live")
    dark = ground(page)
    theme = page.get_by_label("Theme")
    expect(theme).to_have_value("")
    theme.select_option("light")
    expect(other.locator("html")).to_have_attribute("data-theme", "light")
    light = ground(page)
    assert light != dark
    other.goto(f"{url}/docs")
    expect(other.get_by_label("Theme")).to_have_value("light")
    assert ground(other) == light
    other.get_by_label("Theme").select_option("")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    assert page.evaluate("localStorage.length") == 0
