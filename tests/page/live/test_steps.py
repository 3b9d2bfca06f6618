"""The steps: bars, the numbers of one of them, what holds them still."""

from playwright.sync_api import Page, expect

from tests.page.live.view import bars, look, readout
from tests.support.fake_steps import FakeSteps, step
from tests.support.restartable import Restartable


def heights(page: Page, *columns: int) -> list[list[int]]:
    """The pixels of decodes and of padding in columns of the steps' bars, counted from the right edge."""
    found: list[list[int]] = page.evaluate(
        """(columns) => {
          const canvas = document.querySelector(".bars canvas");
          const style = getComputedStyle(document.documentElement);
          const rgb = (name) => style.getPropertyValue(name).match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
          const { width, height } = canvas;
          const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
          const count = (x, [r, g, b]) => {
            let found = 0;
            for (let i = 4 * x; i < 4 * width * 130; i += 4 * width) {
              found += data[i] === r && data[i + 1] === g && data[i + 2] === b;
            }
            return found;
          };
          return columns.map((back) => ["--decodes", "--padding"].map((name) => count(width - back, rgb(name))));
        }""",
        columns,
    )
    return found


def test_walks_from_step_to_step(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.tell([step(number) for number in range(1, 31)] + [step(31, width=8, decodes=3, prompt=0, waiting=0, host=9)])
    look(page, server)
    expect(readout(page)).to_contain_text("Step 31")
    expect(readout(page)).to_contain_text("3 decodes, 0 prompt tokens, 5 padding of 8 tokens; 10 ms, predicted 11 ms")
    expect(readout(page)).to_contain_text("5 running, 0 waiting; 40 blocks free, 8 cached, 9 in host memory")
    bars(page).press("ArrowLeft")
    bars(page).press("ArrowLeft")
    expect(readout(page)).to_contain_text("Step 29")
    expect(bars(page)).to_have_attribute("aria-valuetext", readout(page).inner_text())
    expect(readout(page)).to_contain_text("4 decodes, 8 prompt tokens, 4 padding of 16 tokens")
    bars(page).press("Home")
    expect(readout(page)).to_contain_text("Step 1 ")
    bars(page).press("Escape")
    feed.tell([step(32)])
    expect(readout(page)).to_contain_text("Step 32")


def test_a_bar_is_as_high_as_its_tokens(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.tell([step(1, decodes=8, prompt=0), step(2, decodes=4, prompt=0, width=8)])
    look(page, server)
    expect(readout(page)).to_contain_text("Step 2")
    # In the middle of both bars; the budget of 16 tokens is 120 pixels high.
    (first, first_padding), (last, last_padding) = heights(page, 8, 3)
    assert abs(first - 60) <= 1
    assert abs(first_padding - 60) <= 2  # the line of the budget is over it
    assert abs(last - 30) <= 1
    assert abs(last_padding - 30) <= 1


def test_pauses(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.tell([step(number) for number in range(1, 3001)])
    look(page, server)
    expect(readout(page)).to_contain_text("Step 3,000 ")
    page.get_by_role("button", name="Pause").click()
    feed.tell([step(number) for number in range(3001, 3051)])  # for which the oldest are forgotten
    feed.say(preemptions=7)
    expect(page.get_by_text("Preemptions").locator("..")).to_contain_text("7")
    expect(readout(page)).to_contain_text("Step 3,000 ")
    page.get_by_role("button", name="Resume").click()
    expect(readout(page)).to_contain_text("Step 3,050 ")


def test_a_click_holds_a_step(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.tell([step(number) for number in range(1, 11)])
    look(page, server)
    expect(readout(page)).to_contain_text("Step 10")
    box = bars(page).bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] - 5 * 3 - 2, box["y"] + 50)
    expect(readout(page)).to_contain_text("Step 7 ")
    feed.tell([step(11)])
    page.mouse.move(0, 0)
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    expect(readout(page)).to_contain_text("Step 7 ")


def test_says_what_was_dropped(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.tell([step(1)])
    look(page, server)
    expect(readout(page)).to_contain_text("Step 1 ")
    feed.tell([step(900)], dropped=898)
    expect(page.get_by_text("898 records were dropped")).to_be_visible()


def test_no_padding_where_kernels_skip_it(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.hello["skips_padding"] = True
    feed.tell([step(1, decodes=3, prompt=1)])
    look(page, server)
    expect(readout(page)).to_contain_text("3 decodes, 1 prompt token; 10 ms")
    expect(page.get_by_text("1 step in view: 75 % decodes, 25 % prompts;")).to_be_visible()
    expect(page.get_by_role("figure")).to_have_count(5)  # of the last hour
    expect(page.get_by_text("padding")).to_have_count(0)
    ((decodes, padding),) = heights(page, 3)
    assert abs(decodes - 90) <= 1, "the highest step fills the chart"
    assert padding == 0
