"""``/docs``: what ``/openapi.json`` says, to read."""

import re

import pytest
from playwright.sync_api import Page, expect

from jaxgen.server.config import Access, ServerConfig
from jaxgen.server.openapi import ROUTES
from tests.page.conftest import Fake
from tests.support.browser import Troubles

KEYS = ServerConfig(access=Access(api_keys=("secret",)))


@pytest.fixture
def docs(page: Page, fake: Fake) -> Page:
    page.goto(f"{fake().url}/docs")
    expect(page.get_by_role("status")).to_have_text(f"{len(ROUTES)} routes")
    return page


def test_every_route_is_shown(docs: Page) -> None:
    shown = docs.locator(".route h3").all_inner_texts()
    assert sorted(shown) == sorted(f"{route.method} {route.path}" for route in ROUTES)
    for route in ROUTES:
        assert docs.get_by_text(route.summary).first.is_visible()


def test_every_schema_opens_to_its_end(docs: Page) -> None:
    """A schema that leads back to itself would open for ever: each opens what it has not shown above itself."""
    docs.evaluate("""async () => {
        const opened = new Set();
        for (let depth = 0; depth < 6; depth += 1) {
            for (const one of document.querySelectorAll("details:not([open])")) {
                const way = [];
                for (let at = one; at; at = at.parentElement.closest("details")) {
                    way.push(at.firstElementChild.textContent);
                }
                one.open = new Set(way).size === way.length;
            }
            while ([...document.querySelectorAll("details[open]")].some((one) => one.children.length < 2)) {
                await new Promise(requestAnimationFrame);
            }
        }
    }""")
    assert docs.locator(".fields > li").count() > 500
    assert "undefined" not in docs.locator("main").inner_text()
    assert "[object" not in docs.locator("main").inner_text()


def test_a_field_says_its_type_and_opens_what_is_in_it(docs: Page) -> None:
    route = docs.locator("#post-v1-chat-completions")
    route.locator("> summary").click()
    field = route.locator(".fields > li").filter(has=docs.get_by_text("stop", exact=True)).first
    expect(field).to_contain_text("string or array of string or null")
    route.get_by_label("StreamOptions in stream_options").click()
    expect(route.locator(".name").get_by_text("include_usage")).to_be_visible()


def test_the_search_finds_paths_and_fields(docs: Page) -> None:
    docs.get_by_label("Search").fill("post /v1/ best_of")
    expect(docs.get_by_role("status")).to_have_text("3 routes")
    expect(docs.locator(".route h3")).to_contain_text(["/v1/completions", "/v1/completions/render", "/v1/latency"])
    docs.get_by_label("Search").fill("nothing of that name")
    expect(docs.locator(".route")).to_have_count(0)


def test_a_route_has_an_address(docs: Page) -> None:
    docs.locator("#get-v1-models-model > summary").click()
    expect(docs).to_have_url(re.compile("/docs#get-v1-models-model$"))
    docs.reload()
    expect(docs.locator("#get-v1-models-model")).to_have_attribute("open", "")
    expect(docs.locator("#get-v1-models-model pre")).to_be_in_viewport()
    expect(docs.locator("#get-health")).not_to_have_attribute("open", "")


def test_the_keyboard_alone_opens_a_route(docs: Page) -> None:
    docs.get_by_label("Search").press("Tab")
    docs.keyboard.press("Enter")
    expect(docs.locator(".route").first).to_have_attribute("open", "")


def test_the_command_is_that_of_this_server(page: Page, fake: Fake, troubles: Troubles) -> None:
    troubles.allow("status of 401")
    server = fake(config=KEYS)
    page.goto(f"{server.url}/docs#post-v1-completions")
    page.get_by_label("This server asks for a key").fill("secret")
    page.keyboard.press("Enter")
    command = page.get_by_label("Command for POST /v1/completions")
    expect(command).to_contain_text(f"curl {server.url}/v1/completions")
    expect(command).to_contain_text("Authorization: Bearer $JAXGEN_API_KEY")
    page.locator("#get-health > summary").click()
    expect(page.get_by_label("Command for GET /health")).to_have_text(f"curl {server.url}/health")
