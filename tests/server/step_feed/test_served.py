"""The feed of a real engine behind a real server, and what its page says of it."""

import re
import subprocess
import sys
from collections.abc import Iterator

import httpx2
import pytest

from jaxgen.core.model_info import ModelInfo
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.journal import StepRecord
from jaxgen.server.app import create_app
from jaxgen.server.step_feed.history import FIELDS
from jaxgen.text.tokenizer import Tokenizer
from tests.support.engines import LLAMA, make_engine
from tests.support.journals import journaling_engine
from tests.support.live_server import serve
from tests.support.paths import ROOT
from tests.support.step_feed import FeedEvent, next_of, reading
from tests.support.tiny_tokenizers import byte_level

PAGE = (ROOT / "docs" / "steps.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    engine = AsyncEngine(ModelInfo("tiny", 256, LLAMA.vocab_size), Tokenizer(byte_level()), make_engine)
    engine.start()
    engine.wait_ready()
    try:
        with serve(create_app(engine)) as url:
            yield url
    finally:
        engine.stop()


def until_ended(events: Iterator[FeedEvent], requests: int) -> tuple[list[list[float]], dict[int, list[list[object]]]]:
    """The steps, and each request's events, up to the end of so many requests."""
    steps, found = [], dict[int, list[list[object]]]()
    while sum(one[-1][0] == "ended" for one in found.values()) < requests:
        told = next_of(events, "steps")
        assert told["dropped"] == 0
        steps += told["steps"]
        for _, number, *what in told["events"]:
            found.setdefault(number, []).append(what)
    return steps, found


def test_a_completion_in_the_feed(url: str) -> None:
    with reading(url) as events:
        hello = next_of(events, "hello")
        sent = {"prompt": list(range(3, 35)), "max_tokens": 9, "n": 2, "ignore_eos": True}
        answer = httpx2.post(f"{url}/v1/completions", json=sent, timeout=60)
        assert answer.status_code == 200, answer.text
        steps, found = until_ended(events, 2)
        now = next_of(events, "now")
    with reading(url) as again:
        mine = next_of(again, "mine")["requests"]
    usage = answer.json()["usage"]
    assert [mine[str(number)] for number in found] == [answer.json()["id"]] * 2
    by_field = [dict(zip(hello["step_fields"], step, strict=True)) for step in steps]
    told = [what for account in found.values() for what in account]
    cached = sum(what[1] for what in told if what[0] == "begun")  # type: ignore[misc]
    assert sum(step["prompt"] for step in by_field) == 2 * usage["prompt_tokens"] - cached
    assert sum(step["decodes"] for step in by_field) == usage["completion_tokens"] - 2
    assert all(step["width"] <= hello["token_budget"] for step in by_field)
    for account in found.values():
        assert account[0] == ["queued", "default", usage["prompt_tokens"]]
        assert account[-1] == ["ended", "length", 9]
    assert now["ttft"]["count"] == 2
    assert now["gap"]["count"] == 16
    assert now["tokens_per_second"]["generated"] > 0


def test_a_caller_who_leaves_is_an_abort(url: str) -> None:
    sent = {"prompt": [5, 6, 7], "max_tokens": 200, "stream": True, "ignore_eos": True}
    with reading(url) as events:
        next_of(events, "hello")
        with httpx2.stream("POST", f"{url}/v1/completions", json=sent, timeout=60) as answer:
            assert answer.status_code == 200, answer.read()
            next(answer.iter_lines())
        ends: list[list[object]] = []
        while not any(what[:2] == ["ended", "abort"] for what in ends):
            ends += [what for _, _, *what in next_of(events, "steps")["events"]]


def test_the_example_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(code.splitlines()) <= 16
    engine = journaling_engine()
    engine.write_step(41)
    with serve(create_app(engine)) as url:
        program = code.replace("http://127.0.0.1:8000", url)
        process = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "41 12.3 ms 3 5\n"
        finally:
            process.kill()
            process.communicate()


def test_the_page_has_every_field() -> None:
    last_hour = PAGE[PAGE.index("## The last hour") :]
    assert [field for field in FIELDS if f"`{field}`" not in last_hour] == []
    assert [field for field in StepRecord._fields if f"`{field}`" not in PAGE] == []
