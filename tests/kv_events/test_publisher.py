"""Events of a real engine over ZeroMQ: a subscriber keeps an index of the cache, and gets what it missed again."""

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from jaxgen.cache.block_log import AllBlocksCleared, BlockRemoved
from jaxgen.core.errors import ConfigError
from jaxgen.kv_events.config import KVEventsConfig
from tests.engine.test_block_events import held, workload
from tests.support.block_index import BlockIndex
from tests.support.engines import engine_config, make_engine, run
from tests.support.server_process import served

zmq = pytest.importorskip("zmq", reason="the extra events is not installed")
from jaxgen.kv_events.publisher import END, ZmqPublisher  # noqa: E402

TOPIC = "kv@pod@model"
PATIENCE_MS = 120_000


@pytest.fixture
def endpoints(tmp_path: Path) -> dict[str, str]:
    return {"endpoint": f"ipc://{tmp_path}/events", "replay_endpoint": f"ipc://{tmp_path}/replay"}


@pytest.fixture
def context() -> Iterator[Any]:
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


def publisher_of(endpoints: dict[str, Any], **fields: Any) -> ZmqPublisher:
    return ZmqPublisher(KVEventsConfig(topic=TOPIC, **endpoints, **fields))


def subscribed(context: Any, endpoint: str) -> Any:
    made = context.socket(zmq.SUB)
    made.rcvtimeo = PATIENCE_MS
    made.subscribe("kv@")
    made.connect(endpoint)
    return made


def asked_for(context: Any, endpoint: str, start: int) -> list[tuple[int, bytes]]:
    """Batches from a number on, as a REQ socket of vLLM's subscriber gets them."""
    found: list[tuple[int, bytes]] = []
    with context.socket(zmq.DEALER) as asking:
        asking.rcvtimeo = PATIENCE_MS
        asking.connect(endpoint)
        asking.send_multipart((b"", start.to_bytes(8, "big")))
        while True:
            empty, head, payload = asking.recv_multipart()
            assert empty == b""
            if head == END:
                assert payload == b""
                return found
            found.append((int.from_bytes(head, "big"), payload))


def test_a_subscriber_that_misses_batches_asks_for_them_and_has_the_cache(
    endpoints: dict[str, str], context: Any
) -> None:
    publisher = publisher_of(endpoints)
    subscriber, index, lost = subscribed(context, endpoints["endpoint"]), BlockIndex(), random.Random(5)
    engine = make_engine(config=engine_config(max_model_len=128, num_blocks=24), events=publisher)
    run(engine, workload(random.Random(1), 40))
    total, expected = publisher.stats().batches, 0
    assert total > 50
    publisher.publish([AllBlocksCleared()])  # the last live message, which also ends the loop
    while expected <= total:
        topic, head, payload = subscriber.recv_multipart()
        assert topic == TOPIC.encode()
        number = int.from_bytes(head, "big")
        if number < total and lost.random() < 0.3:
            continue  # never came
        if number > expected:
            for missed, again in asked_for(context, endpoints["replay_endpoint"], expected):
                if missed < number:
                    assert missed == expected
                    index.apply(again)
                    expected += 1
        assert number == expected
        if number == total:
            assert set(index.paths) == held(engine) != set()
        index.apply(payload)
        expected += 1
    assert index.paths == {}
    subscriber.close()
    publisher.close(10)


def test_a_replay_has_what_is_kept_from_the_number_asked_for(endpoints: dict[str, str], context: Any) -> None:
    publisher = publisher_of(endpoints, buffer_steps=3)
    for n in range(5):
        publisher.publish([BlockRemoved(bytes([n] * 16))])
    until = time.monotonic() + 120
    while [n for n, _ in asked_for(context, endpoints["replay_endpoint"], 0)] != [3, 4, 5]:
        assert time.monotonic() < until
    assert [n for n, _ in asked_for(context, endpoints["replay_endpoint"], 5)] == [5]
    assert asked_for(context, endpoints["replay_endpoint"], 6) == []
    publisher.close(10)


def test_a_batch_for_which_there_is_no_room_leaves_a_gap_in_the_numbers(
    endpoints: dict[str, str], context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ZmqPublisher, "_rouse", lambda self: None)  # its thread sleeps
    publisher = publisher_of(endpoints, max_queue_size=2)
    for _ in range(3):
        publisher.publish([AllBlocksCleared()])
    monkeypatch.undo()
    assert publisher.stats().dropped_batches == 2
    publisher._queue.clear()
    publisher.publish([AllBlocksCleared()])
    assert [n for n, _ in asked_for(context, endpoints["replay_endpoint"], 0)] in ([4], [])
    publisher.close(10)


def test_an_endpoint_that_is_in_use_is_named(endpoints: dict[str, str]) -> None:
    first = ZmqPublisher(KVEventsConfig(endpoint="tcp://*:*"))
    port = first._events.last_endpoint.decode().rpartition(":")[2]
    with pytest.raises(ConfigError, match=f"endpoint 'tcp://\\*:{port}' cannot be used"):
        ZmqPublisher(KVEventsConfig(endpoint=f"tcp://*:{port}"))
    first.close(10)


@pytest.mark.full
def test_a_server_publishes_what_its_cache_holds(endpoints: dict[str, str], context: Any) -> None:
    """Full: a server starts. What it renders of a prompt is what the events say is cached of it afterwards."""
    config = json.dumps({**endpoints, "topic": TOPIC})
    body = {"prompt": "def main():\n" * 40, "max_tokens": 1}
    index, subscriber = BlockIndex(), subscribed(context, endpoints["endpoint"])
    with served("--block-size", "16", "--kv-events-config", config) as server:
        (rendered,) = httpx2.post(f"{server.url}/completions/render", json=body).json()
        assert rendered["text"] == body["prompt"]
        httpx2.post(f"{server.url}/completions", json=body).raise_for_status()
        for _, payload in asked_for(context, endpoints["replay_endpoint"], 0):
            index.apply(payload)
        found = index.matched(rendered["token_ids"])
        assert found == len(rendered["token_ids"]) // 16 * 16 > 100
        quote = httpx2.post(f"{server.url}/latency", json=body).json()
        assert quote["cached_tokens"] in (found, found - 16)  # its last token is computed again
        assert quote["prompt_tokens"] == len(rendered["token_ids"])
        metrics = httpx2.get(server.root + "/metrics").text
    assert "jaxgen_kv_event_dropped_batches_total" in metrics
    assert subscriber.recv_multipart()[0] == TOPIC.encode()
    subscriber.close()
