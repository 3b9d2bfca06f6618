"""What waits is bounded, and who is refused learns when to come again."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from jaxgen.request import Request, TokenEvent
from jaxgen.sampling_params import SamplingParams
from jaxgen.stats import EngineStats
from server.app import create_app
from server.config import ServerConfig
from server.generation import Generation
from server.metrics import Metrics
from server.queue import Queue
from server.record import RequestRecord
from server.timeouts import Deadline
from tests.fakes import FakeEngine, says
from tests.live_server import serve
from tests.server_app import body, byte_by_byte, client_of, complete, error_of, fake_engine

HELLO = byte_by_byte("Hello")


@contextmanager
def one_waits(config: ServerConfig, *, first_token: bool = False, **fields: Any) -> Iterator[str]:
    """A server on which one request waits for its first token, or has it and waits for the next."""
    arrived, go_on = threading.Event(), threading.Event()

    async def pace(request: Request, index: int) -> None:
        if index < first_token:
            return
        arrived.set()
        while not go_on.is_set():
            await asyncio.sleep(0.001)

    engine = fake_engine(reply=says(HELLO), pace=pace, **fields)
    answers: list[int] = []

    def call() -> None:
        answers.append(httpx2.post(f"{url}/v1/completions", json=body(), timeout=60).status_code)

    with serve(create_app(engine, config)) as url:
        thread = threading.Thread(target=call)
        thread.start()
        assert arrived.wait(30)
        try:
            yield url
        finally:
            go_on.set()
            thread.join(30)
    assert answers == [200]


NUMBERS = EngineStats(steps=10, step_seconds=20.0, prompt_tokens=2, generation_tokens=2, padded_tokens=1)


@pytest.mark.parametrize("limits", [{"max_queued_requests": 1}, {"max_queued_tokens": 5}])
def test_what_is_over_the_limit_gets_429(limits: dict[str, Any]) -> None:
    with one_waits(ServerConfig(**limits), numbers=NUMBERS) as url:
        refused = httpx2.post(f"{url}/v1/completions", json=body())
        assert refused.status_code == 429
        assert error_of(refused.json())["code"] == "queue_full"
        assert refused.headers["retry-after"] == "6", "half of 3 tokens, at 4 seconds each"


def test_without_a_step_the_configured_time_is_told() -> None:
    with one_waits(ServerConfig(max_queued_requests=1, retry_after_s=7)) as url:
        assert httpx2.post(f"{url}/v1/completions", json=body()).headers["retry-after"] == "7"


def test_who_has_a_token_waits_no_more() -> None:
    with one_waits(ServerConfig(max_queued_requests=1), first_token=True) as url:
        answer = httpx2.post(f"{url}/v1/completions", json=body(max_tokens=1), timeout=30)
        assert answer.status_code == 200


def test_an_empty_queue_takes_any_request() -> None:
    engine = fake_engine(reply=says(HELLO))
    with client_of(engine, ServerConfig(max_queued_requests=1, max_queued_tokens=1)) as client:
        for _ in range(2):
            answer = client.post("/v1/completions", json=body(n=3, prompt="a long one"))
            assert answer.status_code == 200, "and leaves it empty"


def test_a_failed_request_leaves_the_queue() -> None:
    async def pace(request: Request, index: int) -> None:
        raise RuntimeError("no")

    engine = FakeEngine(tokenizer=fake_engine().tokenizer, pace=pace)
    with client_of(engine, ServerConfig(max_queued_requests=1)) as client:
        assert [client.post("/v1/completions", json=body()).status_code for _ in range(2)] == [500, 500]


class Waits:
    """What a Generation makes of the events of a request that gets none."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.finish_reason = None
        self.has_news = False

    def feed(self, event: TokenEvent) -> None: ...


def test_a_request_that_is_cancelled_before_its_tasks_begin_leaves_the_queue() -> None:
    engine = fake_engine()
    queue = Queue(engine, ServerConfig())
    choices = [Waits(Request(name, (5,), SamplingParams())) for name in "ab"]
    record = RequestRecord("r", "POST", "/")

    async def run() -> None:
        async with Generation(engine, choices, queue, Metrics(engine), record, Deadline(None)) as generation:
            assert queue.num_tokens == 2
            await generation.finish()

    async def main() -> None:
        task = asyncio.create_task(run())
        asyncio.get_running_loop().call_soon(task.cancel)  # before what its first step makes has a first step
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert engine.requests == []
    assert queue.num_tokens == 0


@pytest.mark.parametrize(("given", "kept"), [("abc-1", True), ("", False), ("x" * 129, False), ("a b", False)])
def test_request_ids_come_back(given: str, kept: bool) -> None:
    with client_of(fake_engine()) as client:
        for path in ("/health", "/nowhere"):
            found = client.get(path, headers={"x-request-id": given}).headers["x-request-id"]
            assert (found == given) is kept
            assert kept or found.startswith("req-")


def test_streams_have_an_id_too() -> None:
    with client_of(fake_engine()) as client:
        answer = client.post("/v1/completions", json=body(stream=True), headers={"x-request-id": "abc"})
        assert answer.headers["x-request-id"] == "abc"
    assert complete(fake_engine(reply=says(HELLO)))["choices"][0]["text"] == "Hello"
