"""When the view reads the feed, and what happens to its connection."""

from playwright.sync_api import Page, expect

from tests.page.live.view import a_request, hide, look, readout, wait_until
from tests.support.browser import Troubles
from tests.support.fake_steps import BEGIN, FakeSteps, step
from tests.support.restartable import Restartable


def test_a_dropped_connection_loses_and_doubles_nothing(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.tell([step(1), step(2)], a_request(4)[:5])
    look(page, server, "/4")
    why = page.locator(".why")
    expect(why).to_contain_text("32 tokens in 2 chunks")
    feed.steps.append(step(3))
    feed.events.append(a_request(4)[5])
    feed.drop()
    expect(page.get_by_text("Reconnecting")).to_be_visible()
    expect(why).to_contain_text("52 tokens in 3 chunks")
    expect(page.get_by_text("Connected.")).to_be_visible()
    expect(page.get_by_text("3 steps in view")).to_be_visible()
    assert feed.opened == 2


def test_a_restart_begins_afresh(page: Page, feed: FakeSteps, server: Restartable, troubles: Troubles) -> None:
    troubles.allow("Failed to load resource|ERR_")
    feed.tell([step(number) for number in range(1, 9)], a_request(1))
    look(page, server, "/1")
    expect(page.get_by_text("8 steps in view")).to_be_visible()
    server.stop()
    expect(page.get_by_text("Reconnecting")).to_be_visible()
    feed.restart()
    server.start()
    expect(page.get_by_text("Connected.")).to_be_visible()
    expect(page.get_by_text("No request yet")).to_be_visible()
    expect(page.get_by_text("No step yet")).to_be_visible()
    feed.tell([step(1, time=BEGIN + 100, decodes=1)])
    expect(page.get_by_text("1 step in view")).to_be_visible()


def test_an_engine_without_a_journal(page: Page, feed: FakeSteps, server: Restartable, troubles: Troubles) -> None:
    troubles.allow("status of 404")
    feed.missing = True
    look(page, server)
    expect(page.get_by_text("This server has no step feed")).to_be_visible()


def test_reads_only_while_it_is_looked_at(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.tell([step(1)])
    page.goto(server.url)
    expect(page).to_have_title("Playground · jaxgen")
    assert feed.opened == 0
    page.get_by_role("link", name="Live").click()
    expect(readout(page)).to_contain_text("Step 1 ")
    page.get_by_role("link", name="Playground").click()
    wait_until(page, lambda: feed.readers == 0)
    page.get_by_role("link", name="Live").click()
    wait_until(page, lambda: feed.readers == 1)
    hide(page, True)
    wait_until(page, lambda: feed.readers == 0)
    feed.tell([step(2)])
    hide(page, False)
    expect(page.get_by_text("2 steps in view")).to_be_visible()
    assert feed.opened == 3


def test_two_tabs(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.tell([step(1)])
    other = page.context.new_page()
    look(page, server)
    look(other, server)
    expect(readout(other)).to_contain_text("Step 1 ")
    page.get_by_role("button", name="Pause").click()
    feed.tell([step(2)])
    expect(readout(other)).to_contain_text("Step 2 ")
    expect(readout(page)).to_contain_text("Step 1 ")
    other.close()
    wait_until(page, lambda: feed.readers == 1)
