"""What waits for the tokenizer is bounded, short texts pass long ones, and who has left holds no place."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx2
import pytest

from jaxgen.server.app import create_app
from jaxgen.server.config import ServerConfig
from jaxgen.server.errors import ApiError
from jaxgen.server.limits import Availability, Batches, Queue
from jaxgen.server.requests import text_queue
from jaxgen.server.requests.text_queue import SHORT_CHARS, TextQueue
from jaxgen.text.tokenizer import Tokenizer
from tests.support import tiny_tokenizers
from tests.support.batch_client import jsonl, line, run
from tests.support.fakes import FakeEngine
from tests.support.live_server import serve
from tests.support.server_app import body, client_of, error_of, fake_engine

LONG = SHORT_CHARS + 1
SECONDS = 120.0


async def until(state: Callable[[], bool]) -> None:
    deadline = monotonic() + SECONDS
    while not state():
        assert monotonic() < deadline
        await asyncio.sleep(0.001)


class Gate:
    """``block`` holds its thread until the gate is opened."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self._open = threading.Event()

    def block(self) -> None:
        self.begun.set()
        self._open.wait(SECONDS)

    def open(self) -> None:
        self._open.set()


@contextmanager
def gate() -> Iterator[Gate]:
    made = Gate()
    try:
        yield made
    finally:
        made.open()


def test_short_texts_do_not_wait_for_long_ones() -> None:
    async def main() -> None:
        queue = TextQueue(Queue())
        with gate() as closed:
            long = [asyncio.create_task(queue.run(closed.block, 50 * LONG)) for _ in range(3)]
            await until(closed.begun.is_set)
            assert await asyncio.wait_for(queue.run(lambda: "read", SHORT_CHARS), SECONDS) == "read"
            assert not any(task.done() for task in long)
        await asyncio.gather(*long)

    asyncio.run(main())


def test_the_shorter_goes_first_unless_the_longer_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(text_queue, "monotonic", lambda: now[0])
    read: list[str] = []

    async def main() -> None:
        queue = TextQueue(Queue())
        with gate() as closed:
            tasks = [asyncio.create_task(queue.run(closed.block, LONG))]
            await until(closed.begun.is_set)
            for name, length, at in (("old", 4 * 2**20, 0.0), ("new", 4 * 2**20, 1.0), ("short", LONG, 1.0)):
                now[0] = at
                tasks.append(asyncio.create_task(queue.run(lambda name=name: read.append(name), length)))  # type: ignore[misc]
                await asyncio.sleep(0)
            now[0] = 10.0
            tasks.append(asyncio.create_task(queue.run(lambda: read.append("late"), LONG)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert read == ["short", "old", "new", "late"]


def test_what_waits_is_bounded_in_each_lane() -> None:
    queue = TextQueue(Queue(max_queued_characters=3 * LONG))
    with queue.place(2 * LONG):
        with pytest.raises(ApiError, match="at its limit") as refused, queue.place(2 * LONG):
            pass
        assert (refused.value.status, refused.value.code) == (429, "queue_full")
        assert int((refused.value.headers or {})["Retry-After"]) >= 1
        with queue.place(LONG), queue.place(1000):
            assert queue.num_chars == 3 * LONG + 1000
    assert queue.num_chars == 0
    with queue.place(100 * LONG):  # an empty lane takes any request
        pass


def test_who_has_left_gives_the_place_and_the_text_back() -> None:
    class Text:
        def read(self) -> None:
            pytest.fail("its caller has left")

    async def main() -> None:
        queue = TextQueue(Queue(max_queued_characters=LONG))

        async def ask(read: Callable[[], None]) -> None:
            with queue.place(LONG):
                await queue.run(read, LONG)

        with gate() as closed:
            busy = asyncio.create_task(queue.run(closed.block, LONG))
            await until(closed.begun.is_set)
            text = Text()
            gone, waits = weakref.ref(text), asyncio.create_task(ask(text.read))
            await asyncio.sleep(0.01)
            assert queue.num_chars == LONG
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            assert queue.num_chars == 0
            del text, waits
            await asyncio.sleep(0)
            assert gone() is None
        await busy

    asyncio.run(main())


def test_an_error_is_the_callers_and_keeps_no_text() -> None:
    class Text:
        def read(self) -> None:
            raise ValueError("no text")

    async def main() -> None:
        queue = TextQueue(Queue())
        text = Text()
        gone = weakref.ref(text)
        with pytest.raises(ValueError, match="no text"):
            await queue.run(text.read, LONG)
        del text
        deadline = monotonic() + SECONDS
        while gone() is not None and monotonic() < deadline:  # the thread lets go of it a little later
            await asyncio.sleep(0.01)
        assert gone() is None

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


@contextmanager
def busy_server(config: ServerConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Gate]]:
    """A server whose tokenizer stands still over texts of more than SHORT_CHARS, until the gate is opened."""
    encode = Tokenizer.encode
    with serve(create_app(unbounded_engine(), config)) as url, gate() as closed:

        def slowly(self: Tokenizer, text: str, **options: Any) -> list[int]:
            if len(text) > SHORT_CHARS:
                closed.block()
            return encode(self, text, **options)

        monkeypatch.setattr(Tokenizer, "encode", slowly)
        yield url, closed


def unbounded_engine() -> FakeEngine:
    """Its tokenizer makes one token of any word, so that no text is too long by its characters."""
    return fake_engine(tokenizer=Tokenizer(tiny_tokenizers.word_level()))


def waiting(url: str) -> float:
    for text in httpx2.get(f"{url}/metrics").text.splitlines():
        if text.startswith("jaxgen_num_prompt_characters_waiting{"):
            return float(text.rpartition(" ")[2])
    pytest.fail("no such metric")


def test_a_server_with_long_texts_answers_short_ones_and_refuses_more(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ServerConfig(
        queue=Queue(max_queued_characters=2 * LONG), availability=Availability(request_timeout_s=None)
    )
    answers: list[int] = []

    def ask(url: str, **options: Any) -> None:
        try:
            answers.append(httpx2.post(f"{url}/v1/completions", json=body(prompt="x" * LONG), **options).status_code)
        except httpx2.TimeoutException:
            answers.append(0)

    with busy_server(config, monkeypatch) as (url, closed):
        threads = [threading.Thread(target=ask, args=(url,), kwargs={"timeout": SECONDS})]
        threads[0].start()
        assert closed.begun.wait(SECONDS)
        ask(url, timeout=0.2)  # it leaves
        assert answers == [0]
        deadline = monotonic() + SECONDS
        while waiting(url) > LONG:
            assert monotonic() < deadline, "who has left has a place"
            sleep(0.01)
        threads.append(threading.Thread(target=ask, args=(url,), kwargs={"timeout": SECONDS}))
        threads[1].start()
        while waiting(url) < 2 * LONG:
            assert monotonic() < deadline
            sleep(0.01)
        refused = httpx2.post(f"{url}/v1/completions", json=body(prompt="x" * LONG))
        assert (refused.status_code, error_of(refused.json())["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        ordinary = httpx2.post(f"{url}/v1/completions", json=body(prompt="one " * 60 + "x" * 6000), timeout=SECONDS)
        assert ordinary.status_code == 200
        closed.open()
        for thread in threads:
            thread.join(SECONDS)
    assert answers == [0, 200, 200]


def test_lines_of_batches_wait_and_are_not_refused(tmp_path: Path) -> None:
    config = ServerConfig(
        batches=Batches(batch_dir=tmp_path), queue=Queue(inline_encode_chars=0, max_queued_characters=1)
    )
    with client_of(fake_engine(), config) as client:
        _, done, failed = run(client, jsonl(*(line(str(i)) for i in range(20))))
    assert (len(done), failed) == (20, [])
