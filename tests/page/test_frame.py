"""The frame of the page: its views, and what it knows of the server."""

from playwright.sync_api import Page, expect

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
