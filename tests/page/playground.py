"""What tests of the playground share: servers that converse, and ways to use the page."""

import asyncio
from time import monotonic
from typing import Any

from playwright.sync_api import Locator, Page, expect

from jaxgen.core.model_info import ChatFormat, ModelInfo
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import NEUTRAL, SamplingDefaults
from tests.support.fakes import MODEL, FakeEngine, says
from tests.support.server_app import byte_by_byte, fake_engine

CHAT = ChatFormat(
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if add_generation_prompt %}<answer>{% endif %}",
    {},
)


def chat_engine(text: str = "Hello there.", *, embedded: bool = False, **fields: Any) -> FakeEngine:
    """An engine that answers every conversation with the whole text, a byte a token."""
    length = len(text.encode())
    defaults = SamplingDefaults(max_tokens=length) if length > 512 else NEUTRAL
    model = ModelInfo(MODEL, max_model_len=200_000, vocab_size=400, chat=CHAT, embedded=embedded, defaults=defaults)
    return fake_engine(**{"model": model, "reply": says(byte_by_byte(text)), **fields})


class Held:
    """The pace of an engine that stops at an event until it is let go."""

    def __init__(self, at: int) -> None:
        self.at = at
        self._free = False

    async def __call__(self, request: Request, index: int) -> None:
        while index >= self.at and not self._free:
            await asyncio.sleep(0.01)

    def release(self) -> None:
        self._free = True


def opened(page: Page, url: str) -> Locator:
    """The place where the user writes, once the page is there, with all parameters unfolded."""
    page.goto(url)
    draft = page.locator("#draft")
    expect(draft).to_be_visible()
    page.evaluate("document.querySelectorAll('#parameters details').forEach((one) => { one.open = true; })")
    return draft


def send(page: Page, text: str) -> None:
    page.locator("#draft").fill(text)
    page.locator("#draft").press("Enter")


def answers(page: Page) -> Locator:
    return page.get_by_role("article", name="Answer")


def is_done(page: Page, number: int = 1) -> Locator:
    """The answer of this number, counted from 1, once it has ended."""
    found = answers(page).nth(number - 1)
    expect(found.get_by_role("button", name="Regenerate")).to_be_enabled()
    return found


def becomes_true(page: Page, expression: str) -> None:
    """Wait until JavaScript says true. The page's policy forbids Playwright's own way, which is ``eval``."""
    deadline = monotonic() + 30
    while not page.evaluate(expression):
        assert monotonic() < deadline, expression
        page.wait_for_timeout(20)


def setting(page: Page, name: str) -> Locator:
    return page.locator(f"#set-{name}")


def body_of(request: Any) -> dict[str, Any]:
    """The JSON that a request sent."""
    found: dict[str, Any] = request.value.post_data_json
    return found


def sent_by(page: Page, text: str) -> dict[str, Any]:
    """The body of the request that sends the text."""
    with page.expect_request("**/v1/**completions") as request:
        send(page, text)
    return body_of(request)
