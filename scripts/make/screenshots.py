"""Make the pictures of docs/ui.md from a server of a small real model, as a user starts it.

    scripts/serve --model smollm2-135m --port 8123 &
    .venv/bin/python -m scripts.make.screenshots http://127.0.0.1:8123

Needs the extra test and Chromium.
"""

import argparse
import io
import json
import threading
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from PIL import Image
from playwright.sync_api import Browser, Page

from tests.support.browser import HOW, chromium, chromium_path

DESK: dict[str, Any] = {"viewport": {"width": 1100, "height": 720}}
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 720}, "is_mobile": True, "has_touch": True}
QUESTIONS = ("What is the capital of France?", "Write a Python function that reverses a string.")
SEED = "1"
COLOURS = 96
"""Of a picture: enough for a page of few colours, in a quarter of the bytes."""


def play(page: Page) -> None:
    """A conversation with a seed, whose last answer was checked."""
    seed = page.locator("#set-seed")
    seed.wait_for(state="attached")
    seed.evaluate("(field, value) => { field.value = value; field.dispatchEvent(new Event('input')); }", SEED)
    for number, question in enumerate(QUESTIONS):
        page.locator("#draft").fill(question)
        page.locator("#draft").press("Enter")
        page.get_by_role("article", name="Answer").nth(number).get_by_role("button", name="Regenerate").wait_for()
    page.get_by_role("button", name="Check determinism").click()
    page.locator(".again.good").wait_for()
    page.mouse.move(0, 0)


def play_from_the_beginning(page: Page) -> None:
    play(page)
    page.evaluate("scrollTo(0, 0)")


def live(page: Page) -> None:
    """An engine at work: prompts of different lengths, and answers to them."""
    url = page.url.partition("#")[0]
    callers = [threading.Thread(target=ask, args=(url, 10 + 30 * number)) for number in range(8)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    page.wait_for_timeout(1500)  # the feed's next events


def ask(url: str, words: int) -> None:
    body = json.dumps({"prompt": "one two three " * words, "max_tokens": 96, "ignore_eos": True}).encode()
    with urlopen(Request(f"{url}v1/completions", body, {"Content-Type": "application/json"})) as answer:
        answer.read()


def docs(page: Page) -> None:
    page.locator("#post-v1-chat-completions h4").first.wait_for()


SHOTS = {
    "ui-play": ("#play", play, {**DESK, "color_scheme": "light"}),
    "ui-play-dark": ("#play", play_from_the_beginning, {**DESK, "color_scheme": "dark"}),
    "ui-play-phone": ("#play", play, {**PHONE, "color_scheme": "light"}),
    "ui-live": ("#live", live, {**DESK, "color_scheme": "light"}),
    "ui-live-dark": ("#live", live, {**DESK, "color_scheme": "dark"}),
    "ui-docs": ("docs#post-v1-chat-completions", docs, {**DESK, "color_scheme": "light"}),
}
"""By name of the file: address, what is done there, and the browser's context."""


def shoot(browser: Browser, url: str, name: str, folder: Path) -> None:
    address, prepare, options = SHOTS[name]
    context = browser.new_context(**options)
    try:
        page = context.new_page()
        page.goto(f"{url.rstrip('/')}/{address}")
        prepare(page)
        page.wait_for_timeout(500)  # libraries that the answer needs, and the scroll to its end
        picture = Image.open(io.BytesIO(page.screenshot()))
    finally:
        context.close()
    path = folder / f"{name}.png"
    picture.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of a server without keys")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[2] / "docs")
    parser.add_argument("--only", choices=SHOTS, action="append")
    args = parser.parse_args()
    path = chromium_path()
    if path is None:
        parser.error(HOW)
    with chromium(path) as browser:
        for name in args.only or SHOTS:
            shoot(browser, args.url, name, args.folder)


if __name__ == "__main__":
    main()
