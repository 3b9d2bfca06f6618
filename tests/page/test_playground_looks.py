"""axe finds nothing in the playground, whatever it shows, and nothing is wider than a phone."""

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import Fake
from tests.page.playground import Held, becomes_true, chat_engine, is_done, opened, send, setting
from tests.page.test_axe import LOOKS, NewContext, look, width_is_enough
from tests.support.axe import violations

MARKDOWN = """# Title

Some **bold** text, `code` and a [link](https://example.org/).

- one
- two

$$e^{i\\pi} = -1$$

```python
print("a line that is longer than a phone is wide, and then some more of it")
```

| a | b |
|---|---|
| 1 | 2 |

> quoted
"""


@pytest.mark.full
@look
def test_everything_that_an_answer_shows(new_context: NewContext, fake: Fake, look: str) -> None:
    """Full: axe looks at a page of some hundred elements six times."""
    page = new_context(**LOOKS[look]).new_page()
    opened(page, fake(chat_engine(MARKDOWN, embedded=True)).url)
    assert violations(page) == []
    if look == "phone":
        page.get_by_role("button", name="Parameters").click()
        assert violations(page) == []
    setting(page, "temperature").fill("9")
    setting(page, "structure").select_option("regex")
    send(page, "Wrong")
    expect(page.get_by_role("alert")).to_be_visible()
    assert violations(page) == []
    setting(page, "temperature").fill("0")
    setting(page, "structure").select_option("")
    setting(page, "logprobs").fill("3")
    setting(page, "return_latency").check()
    send(page, "Right")
    found = is_done(page)
    found.get_by_role("option").nth(4).focus()
    found.get_by_role("button", name="Check determinism").click()
    expect(found).to_contain_text("Same bits")
    found.locator("summary").last.click()
    found.get_by_role("button", name="Regenerate").click()
    expect(is_done(page)).to_contain_text("2/2")
    assert violations(page) == []
    for name in ("Raw", "Text", "Edit"):
        found.get_by_role("button", name=name).click()
        assert violations(page) == []
    assert width_is_enough(page)


@pytest.mark.parametrize("wide", [True, False])
def test_panels_are_open_where_there_is_room(new_context: NewContext, fake: Fake, wide: bool) -> None:
    page = new_context(**(LOOKS["light"] if wide else LOOKS["phone"])).new_page()
    opened(page, fake(chat_engine()).url)
    panel, button = page.locator("#parameters"), page.get_by_role("button", name="Parameters")
    expect(panel).to_be_visible(visible=wide)
    expect(button).to_have_attribute("aria-expanded", str(wide).lower())
    button.click()
    expect(panel).to_be_visible(visible=not wide)


def test_panels_of_a_phone_open_where_their_buttons_are(new_context: NewContext, fake: Fake) -> None:
    page = new_context(**LOOKS["phone"]).new_page()
    opened(page, fake(chat_engine("Some lines.\n\n" * 60)).url)
    send(page, "Hi")
    is_done(page)
    becomes_true(page, "scrollY > 1000")
    for name in ("Playground", "Chats", "Parameters"):
        expect(page.get_by_text(name, exact=True).first).to_be_in_viewport()
    expect(page.locator("#draft")).to_be_in_viewport()
    button = page.get_by_role("button", name="Parameters")
    button.press("Enter")
    expect(page.locator("#parameters")).to_be_focused()
    expect(setting(page, "temperature")).to_be_in_viewport()
    page.get_by_role("button", name="Chats").press("Enter")
    expect(page.locator("#parameters")).not_to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#conversations")).not_to_be_visible()
    expect(page.get_by_role("button", name="Chats")).to_be_focused()
    button.click()
    send(page, "And on")
    expect(page.locator("#parameters")).not_to_be_visible()


AT_END = "document.documentElement.scrollHeight - scrollY - innerHeight < 1"


@pytest.mark.parametrize("leaves", [False, True])
def test_the_page_stays_at_its_end_until_the_user_leaves_it(page: Page, fake: Fake, leaves: bool) -> None:
    """Also if it has grown by much when the browser tells that it was scrolled."""
    held = Held(500)
    opened(page, fake(chat_engine("Some lines.\n\n" * 60, pace=held)).url)
    send(page, "Hi")
    becomes_true(page, f"scrollY > 500 && {AT_END}")
    if leaves:
        page.mouse.wheel(0, -400)
        becomes_true(page, f"!({AT_END})")
    else:
        page.evaluate("""() => {
            document.querySelector("main").style.paddingBottom = "1000px";
            dispatchEvent(new Event("scroll"));
        }""")
        assert not page.evaluate(AT_END)
    held.release()
    is_done(page)
    if leaves:
        assert not page.evaluate(AT_END)
    else:
        becomes_true(page, AT_END)


def test_what_has_the_focus_is_not_behind_a_bar(page: Page, fake: Fake) -> None:
    opened(page, fake(chat_engine("Some lines.\n\n" * 60)).url)
    send(page, "Hi")
    last = is_done(page).get_by_role("button", name="Delete")
    page.evaluate("scrollTo(0, 0)")
    for one in (last, page.get_by_role("article", name="You").get_by_role("button", name="Copy")):
        one.focus()
        inside = one.evaluate("""node => {
            const { left, top, width, height } = node.getBoundingClientRect();
            return document.elementFromPoint(left + width / 2, top + height / 2) === node;
        }""")
        assert inside
