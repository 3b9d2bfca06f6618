"""What the engine does now, and what it did in the last hour."""

from playwright.sync_api import Page, expect

from tests.page.live.view import look
from tests.support.fake_steps import HISTORY_FIELDS, FakeSteps, now
from tests.support.restartable import Restartable

DASH = "\N{EN DASH}"


def test_shows_what_the_engine_does_now(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.now = now(
        classes={"interactive": {"running": 3, "waiting": 0}, "batch": {"running": 1, "waiting": 1200}},
        callers={"2bd806c97f0e": {"running": 1, "waiting": 2}, "others": {"running": 3, "waiting": 1198}},
    )
    look(page, server)
    requests = page.get_by_role("region", name="Requests", exact=True)
    expect(requests).to_contain_text("4 running of 8, 1,200 waiting")
    expect(requests.get_by_role("row", name="batch")).to_have_text("batch11,200")
    expect(requests.get_by_role("row", name="2bd806c97f0e")).to_have_text("2bd806c97f0e12")
    blocks = page.get_by_role("region", name="Cache blocks")
    for text in ("64 blocks of 16 tokens", "Used16 25 %", "Cached8 12.5 %", "Free40 62.5 %"):
        expect(blocks).to_contain_text(text)
    expect(blocks).not_to_contain_text("Host memory")
    latency = page.get_by_role("region", name="Latency")
    expect(latency).to_contain_text("64 tokens/s, 813 prompt tokens/s")
    expect(latency.get_by_role("row", name="Time to first token")).to_have_text("Time to first token120 ms480 ms21")
    expect(latency.get_by_role("row", name="Time between tokens")).to_have_text("Time between tokens11 ms19 ms640")
    expect(page.get_by_role("region", name="Offload link")).to_have_count(0)
    feed.say(ttft=None, gap=None, stalled_seconds=4.5)
    expect(latency.get_by_role("row", name="Time to first token")).to_have_text(f"Time to first token{DASH}{DASH}0")
    engine = page.get_by_role("region", name="Engine")
    expect(engine).to_contain_text("No step for4.5 s")
    feed.say(stalled_seconds=0.9)
    expect(engine).not_to_contain_text("No step for")


def test_a_compilation_after_ready_is_loud(page: Page, feed: FakeSteps, server: Restartable) -> None:
    look(page, server)
    engine = page.get_by_role("region", name="Engine")
    expect(engine).to_contain_text("Compilations after ready0")
    expect(engine.locator(".loud")).to_have_count(0)
    feed.say(compilations_after_ready=2)
    expect(engine.locator(".loud")).to_have_text("Compilations after ready2")


def test_shows_the_link_to_host_memory(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.now["blocks"] |= {"host": 30, "host_total": 120}
    rates = {"to_device_bytes_per_second": 3 * 2**20, "to_host_bytes_per_second": 0}
    feed.now["offload"] = rates | {"to_device_busy": 0.4, "to_host_busy": 0.0}
    look(page, server)
    link = page.get_by_role("region", name="Offload link")
    expect(link.get_by_role("row", name="To the device")).to_contain_text("3 MiB/s 40 %")
    expect(link.get_by_role("meter", name="To the device, busy")).to_have_js_property("value", 0.4)
    expect(page.get_by_role("region", name="Cache blocks")).to_contain_text("Host memoryUsed30 25 %Free90 75 %")


def test_shows_the_blocks_of_windows(page: Page, feed: FakeSteps, server: Restartable) -> None:
    one = {"total": 64, "free": 40, "cached": 8, "used": 16}
    other = {"total": 20, "free": 5, "cached": 5, "used": 10}
    feed.now["kinds"] = [{"name": "full", **one}, {"name": "window 1024", **other}]
    look(page, server)
    blocks = page.get_by_role("region", name="Cache blocks")
    expect(blocks).to_contain_text("Free40 62.5 %Layers with window 1024: 20 blocksUsed10 50 %Cached5 25 %Free5 25 %")


def test_shows_the_snapshots_of_states(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.now["snapshots"] = {"total": 8, "held": 2}
    look(page, server)
    expect(page.get_by_role("region", name="Cache blocks")).to_contain_text("Snapshots of statesHeld2 25 %Free6 75 %")


def test_shows_the_last_hour(page: Page, feed: FakeSteps, server: Restartable) -> None:
    changed = feed.samples[-7]
    changed[HISTORY_FIELDS.index("generated_tokens")] = 1234
    changed[HISTORY_FIELDS.index("ttft_p50")] = None
    look(page, server)
    hour = page.get_by_role("region", name="The last hour", exact=True)
    tokens = hour.get_by_role("figure").filter(has_text="Tokens per second")
    expect(tokens).to_contain_text("generated 30")
    expect(hour.get_by_role("figure").filter(has_text="Padding")).to_contain_text("25 %")
    time = hour.get_by_role("slider", name="Time")
    for _ in range(6):
        time.press("ArrowLeft")
    expect(tokens).to_contain_text("generated 123")
    expect(hour.get_by_role("figure").filter(has_text="Time to first token")).to_contain_text(f"P50 {DASH}")
    hour.get_by_text("As a table").click()
    expect(hour.get_by_role("table").get_by_role("row")).to_have_count(2 + 60)
    expect(hour.get_by_role("table").get_by_role("row").nth(3)).to_contain_text("123")


def test_charts_begin_with_the_second_sample(page: Page, feed: FakeSteps, server: Restartable) -> None:
    feed.samples = feed.samples[:1]
    look(page, server)
    expect(page.get_by_text("charts begin with the second")).to_be_visible()
