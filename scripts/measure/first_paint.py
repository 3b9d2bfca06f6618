"""Measure how soon a browser paints the page, in a new context each time, so that nothing is kept from the time before.

    .venv/bin/python -m scripts.measure.first_paint http://127.0.0.1:8000 --rounds 20

Needs the extra test and Chromium.
"""

import argparse
from statistics import median

from playwright.sync_api import Browser

from tests.support.browser import HOW, chromium, chromium_path

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"


def first_paint_ms(browser: Browser, url: str) -> float:
    """Milliseconds from the navigation's beginning to the first text or picture."""
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(url)
        page.wait_for_function(f"() => {PAINT} > 0")  # a string alone would be evaluated, which the policy forbids
        return float(page.evaluate(PAINT))
    finally:
        context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    path = chromium_path()
    if path is None:
        parser.error(HOW)
    with chromium(path) as browser:
        for place in ("", "#live", "docs"):
            times = sorted(first_paint_ms(browser, f"{args.url.rstrip('/')}/{place}") for _ in range(args.rounds))
            print(
                f"/{place:6} median {median(times):.0f} ms, {times[0]:.0f} to {times[-1]:.0f} ms in {len(times)} rounds"
            )


if __name__ == "__main__":
    main()
