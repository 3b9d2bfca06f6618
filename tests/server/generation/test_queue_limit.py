"""What waits is bounded, and who is refused learns when to come again."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.service_class import DEFAULT_CLASS, ServiceClass
from jaxgen.core.stats import EngineStats
from jaxgen.server.app import create_app
from jaxgen.server.config import ServerConfig
from jaxgen.server.errors import ApiError
from jaxgen.server.generation.generation import Generation
from jaxgen.server.generation.queue_limit import QueueLimit
from jaxgen.server.limits import Availability, Queue
from jaxgen.server.metrics.metrics import Metrics
from jaxgen.server.middleware.context import RequestContext
from jaxgen.server.middleware.deadline import Deadline
from tests.support.fakes import FakeEngine, says
from tests.support.live_server import serve
from tests.support.server_app import body, byte_by_byte, client_of, complete, error_of, fake_engine

HELLO = byte_by_byte("Hello")
RETRY = 5


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
        answers.append(httpx2.post(f"{url}/v1/completions", json=body(), timeout=120).status_code)

    with serve(create_app(engine, config)) as url:
        thread = threading.Thread(target=call)
        thread.start()
        assert arrived.wait(120)
        try:
            yield url
        finally:
            go_on.set()
            thread.join(120)
    assert answers == [200]


NUMBERS = EngineStats(steps=10, step_seconds=20.0, prompt_tokens=2, generation_tokens=2, padded_tokens=1)


@pytest.mark.parametrize("limits", [{"max_queued_requests": 1}, {"max_queued_tokens": 5}])
def test_what_is_over_the_limit_gets_429(limits: dict[str, Any]) -> None:
    with one_waits(ServerConfig(queue=Queue(**limits)), numbers=NUMBERS) as url:
        refused = httpx2.post(f"{url}/v1/completions", json=body())
        assert refused.status_code == 429
        assert {name: error_of(refused.json())[name] for name in ("code", "type")} == {
            "code": "queue_full",
            "type": "rate_limit_error",
        }
        assert refused.headers["retry-after"] == "6", "half of 3 tokens, at 4 seconds each"


def test_without_a_step_the_configured_time_is_told() -> None:
    with one_waits(ServerConfig(queue=Queue(max_queued_requests=1), availability=Availability(retry_after_s=7))) as url:
        assert httpx2.post(f"{url}/v1/completions", json=body()).headers["retry-after"] == "7"


def test_who_has_a_token_waits_no_more() -> None:
    with one_waits(ServerConfig(queue=Queue(max_queued_requests=1)), first_token=True) as url:
        answer = httpx2.post(f"{url}/v1/completions", json=body(max_tokens=1), timeout=120)
        assert answer.status_code == 200


def test_an_empty_queue_takes_any_request() -> None:
    engine = fake_engine(reply=says(HELLO))
    with client_of(engine, ServerConfig(queue=Queue(max_queued_requests=1, max_queued_tokens=1))) as client:
        for _ in range(2):
            answer = client.post("/v1/completions", json=body(n=3, prompt="a long one"))
            assert answer.status_code == 200, "and leaves it empty"


def test_a_failed_request_leaves_the_queue() -> None:
    async def pace(request: Request, index: int) -> None:
        raise RuntimeError("no")

    engine = FakeEngine(tokenizer=fake_engine().tokenizer, pace=pace)
    with client_of(engine, ServerConfig(queue=Queue(max_queued_requests=1))) as client:
        assert [client.post("/v1/completions", json=body()).status_code for _ in range(2)] == [500, 500]


def enters(queue: QueueLimit, caller: str, name: str, service: ServiceClass = DEFAULT_CLASS, prompt: int = 1) -> bool:
    try:
        queue.enter([Waits(Request(name, (5,) * prompt, SamplingParams(), service=service))], caller)
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("limits", [{"max_queued_requests": 4}, {"max_queued_tokens": 4}])
def test_a_caller_with_less_than_its_share_is_not_refused_for_others(limits: dict[str, Any]) -> None:
    queue = QueueLimit(fake_engine(), Queue(**limits), RETRY)
    assert [enters(queue, "a", f"a{i}") for i in range(5)] == [True] * 4 + [False]
    assert [enters(queue, "b", f"b{i}") for i in range(3)] == [True] * 2 + [False]  # of two callers' each
    assert [enters(queue, "c", f"c{i}") for i in range(2)] == [True, False]
    assert not enters(queue, "a", "a5")


def test_a_class_whose_requests_the_engine_refuses_in_time_has_a_queue_of_its_own() -> None:
    strict = ServiceClass(name="strict", first_token_seconds=1.0)
    late = ServiceClass(name="late", first_token_seconds=1.0, serve_late=True)
    queue = QueueLimit(fake_engine(), Queue(max_queued_requests=2), RETRY)
    assert [enters(queue, "a", f"a{i}", late) for i in range(3)] == [True, True, False]
    assert [enters(queue, "a", f"b{i}", strict) for i in range(3)] == [True, True, False]


def test_what_the_queue_refuses_of_a_class_that_promises_is_counted() -> None:
    engine, strict = fake_engine(), ServiceClass(name="strict", first_token_seconds=60.0)
    queue, metrics = QueueLimit(engine, Queue(max_queued_requests=1), RETRY), Metrics(engine, [strict])
    assert enters(queue, "", "a", strict)
    choices = [Waits(Request("b", (5,), SamplingParams(), service=strict))]

    async def main() -> None:
        async with Generation(engine, choices, queue, metrics, RequestContext("r", "POST", "/"), Deadline(None)):
            pass

    with pytest.raises(ApiError, match="at its limit"):
        asyncio.run(main())
    labels = {"model_name": engine.model.name, "service_class": "strict", "outcome": "refused"}
    assert metrics.registry.get_sample_value("jaxgen_service_class_requests_total", labels) == 1.0


class Waits:
    """What a Generation makes of the events of a request that gets none."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.finish_reason = None
        self.has_updates = False

    def feed(self, event: TokenEvent) -> None: ...


def test_a_request_that_is_cancelled_before_its_tasks_begin_leaves_the_queue() -> None:
    engine = fake_engine()
    queue = QueueLimit(engine, Queue(), RETRY)
    choices = [Waits(Request(name, (5,), SamplingParams())) for name in "ab"]
    context = RequestContext("r", "POST", "/")

    async def run() -> None:
        async with Generation(engine, choices, queue, Metrics(engine), context, Deadline(None)) as generation:
            assert queue.num_tokens == 2
            await generation.finish()

    async def main() -> None:
        task = asyncio.create_task(run())
        asyncio.get_running_loop().call_soon(task.cancel)  # before what its first step makes has a first step
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert engine.requests == []
    assert queue.num_tokens == 0


def test_a_request_that_is_given_up_before_its_tasks_begin_says_why() -> None:
    engine = fake_engine()
    choices = [Waits(Request("a", (5,), SamplingParams()))]
    context, why = RequestContext("r", "POST", "/"), ApiError(503, "why")

    async def give_up(*, before: bool) -> None:
        deadline = Deadline(None)
        if before:
            deadline.give_up(why)
        queue = QueueLimit(engine, Queue(), RETRY)
        async with Generation(engine, choices, queue, Metrics(engine), context, deadline) as generation:
            deadline.give_up(why)
            await generation.finish()

    for before in (False, True):
        with pytest.raises(ApiError, match="why"):
            asyncio.run(give_up(before=before))


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


def test_the_answer_that_a_resumed_stream_brings_counts_like_its_prompt() -> None:
    queue = QueueLimit(fake_engine(), Queue(max_queued_tokens=10), RETRY)
    begun = [Waits(Request(name, (5,), SamplingParams(max_tokens=20), answer=(7,) * 6)) for name in "ab"]
    queue.enter(begun[:1])
    assert queue.num_tokens == 7
    with pytest.raises(ApiError, match="1 requests with 7 tokens"):
        queue.enter(begun[1:])
