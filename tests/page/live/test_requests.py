"""The timeline of a request, and the list of requests."""

from collections.abc import Callable

from playwright.sync_api import BrowserContext, Page, expect

from tests.page.live.view import a_request, bars, look
from tests.support.fake_steps import BEGIN, FakeSteps, step
from tests.support.restartable import Restartable


def test_shows_the_timeline_of_a_request(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.tell([step(5, time=BEGIN + 1.5, seconds=0.9)], [*a_request(4), [BEGIN + 8, 5, "queued", "batch", 3]])
    feed.mine = {"4": "cmpl-abc"}
    look(page, server)
    page.get_by_role("button", name="cmpl-abc").click()
    assert page.url.endswith("#live/cmpl-abc")
    timeline = page.get_by_role("article", name="Request cmpl-abc")
    expect(timeline.locator(".why")).to_have_text(
        "7 s in all, most of it (57 %) waiting after a preemption: 500 ms in the queue, 200 ms for 32 tokens from host "
        "memory, 300 ms of prompt (52 tokens in 3 chunks), 1.9 s of decodes (20 tokens), 4 s preempted, "
        "100 ms to compute 15 tokens again."
    )
    expect(timeline).to_contain_text("The longest step in this time took 900 ms (step 5, ")
    rows = [[*row.get_by_role("cell").all_inner_texts()][-2:] for row in timeline.get_by_role("row").all()[1:]]
    assert rows == [
        ["+0 s", "500 ms"],
        ["+500 ms", "200 ms"],
        ["+700 ms", "300 ms"],
        ["+1 s", "1 s"],
        ["+2 s", "4 s"],
        ["+6 s", "100 ms"],
        ["+6.1 s", "900 ms"],
    ]
    facts = "Classinteractive Prompt100 tokens Found in the cache16 tokens From host memory32 tokens Generated20 tokens"
    facts = facts.replace("tokens ", "tokens").replace("e P", "eP")
    expect(timeline.locator(".facts")).to_have_text(f"{facts}Endedstop")
    timeline.get_by_role("button", name="Close").click()
    expect(timeline).to_have_count(0)
    assert page.url.endswith("#live")


def test_an_address_opens_a_request(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.tell([step(1)], a_request(4) + a_request(5) + a_request(6))
    feed.mine = {"4": "cmpl-ab", "5": "cmpl-a", "6": "cmpl-a"}
    look(page, server, "/cmpl-a")
    expect(page.get_by_role("article", name="Request cmpl-a", exact=True)).to_be_visible()
    page.goto(f"{server.url}/#live/4")
    expect(page.get_by_role("article", name="Request cmpl-ab", exact=True)).to_be_visible()
    page.goto(f"{server.url}/#live/cmpl-none")
    expect(page.get_by_text("Request cmpl-none is not known")).to_be_visible()
    # The choices of an answer share its id, which means the first of them.
    rows = page.get_by_role("region", name="Recent requests").get_by_role("row")
    rows.nth(2).get_by_role("button").click()
    assert page.url.endswith("#live/cmpl-a")
    rows.nth(1).get_by_role("button").click()
    assert page.url.endswith("#live/6")


def test_lists_ones_own_requests(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.tell([step(1)], [*a_request(4), [BEGIN + 8, 5, "queued", "batch", 3]])
    look(page, server)
    rows = page.get_by_role("region", name="Recent requests").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("waiting")
    expect(rows.nth(2)).to_contain_text("ended stop")
    page.get_by_label("Only mine").check()
    expect(page.get_by_text("None of yours yet")).to_be_visible()
    feed.messages.append(("mine", {"requests": {"5": "chatcmpl-5"}}))
    expect(rows.nth(1)).to_contain_text("chatcmpl-5")
    expect(rows).to_have_count(2)


def test_fits_a_phone(server: Restartable, new_context: Callable[..., BrowserContext], feed: FakeSteps) -> None:
    page = new_context(viewport={"width": 360, "height": 740}, has_touch=True).new_page()
    feed.tell([step(number) for number in range(1, 400)], a_request(1))
    feed.mine = {"1": "cmpl-0123456789abcdef0123456789abcdef"}
    look(page, server, "/1")
    expect(page.locator(".why")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    bars(page).tap()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
