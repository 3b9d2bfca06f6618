"""What readers of the step feed get: all of them the same, but for what is theirs alone."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from jaxgen.client import EngineStatus
from jaxgen.journal import NUM_STEPS, StepRecord
from jaxgen.server.app import create_app
from jaxgen.server.config import DEFAULT_CONFIG, Access, ServerConfig
from jaxgen.server.step_feed import hub
from jaxgen.server.step_feed.history import FIELDS
from tests.support.journals import JournalingEngine, journaling_engine
from tests.support.live_server import serve
from tests.support.server_app import client_of, error_of, fake_engine
from tests.support.step_feed import next_of, reading

HEX = "0123456789abcdef" * 2


@contextmanager
def served(engine: JournalingEngine, config: ServerConfig = DEFAULT_CONFIG) -> Iterator[str]:
    with serve(create_app(engine, config)) as url:
        yield url


def test_a_stream_begins_with_what_there_was() -> None:
    engine = journaling_engine()
    for number in range(1, NUM_STEPS + 11):
        engine.write_step(number)
    engine.write_arrival(0, f"cmpl-{HEX}-0-0")
    with served(engine) as url, reading(url) as events:
        assert next(events) == (
            "hello",
            {
                "model": engine.model.name,
                "token_budget": 32,
                "max_num_seqs": 4,
                "block_size": 16,
                "skips_padding": False,
                "max_model_len": 128,
                "interval_seconds": 0.2,
                "step_fields": list(StepRecord._fields),
                "event_fields": ["time", "request", "kind", "values"],
            },
        )
        name, before = next(events)
        assert name == "steps"
        assert [step[0] for step in before["steps"]] == list(range(11, NUM_STEPS + 11))
        assert before["dropped"] == 0
        ((_, *event),) = before["events"]
        assert event == [0, "queued", "default", 8]
        name, now = next(events)
        assert name == "now"
        assert now["blocks"] == {"total": 100, "free": 40, "cached": 20, "used": 40, "host": 0, "host_total": 0}
        assert (now["kinds"], now["snapshots"]) == (None, None)
        assert now["classes"] == {"default": {"running": 0, "waiting": 1}}
        assert (now["callers"], now["ttft"], now["gap"], now["offload"]) == ({}, None, None, None)
        assert (now["state"], now["stalled_seconds"]) == ("ready", 0.0)
        assert next(events) == ("mine", {"requests": {"0": f"cmpl-{HEX}"}})


def test_news_come_once_and_in_order() -> None:
    engine = journaling_engine()
    with served(engine) as url, reading(url) as events, reading(url) as others:
        for stream in (events, others):
            assert next(stream)[0] == "hello"
            assert next(stream)[0] == "now", "there were no steps"
        made = [engine.write_step(number) for number in range(1, 4)]
        engine.write_event(5, "first")
        told = next_of(events, "steps")
        assert told["dropped"] == 0
        engine.write_step(4)
        later = next_of(events, "steps")
        numbers = [step[0] for step in told["steps"] + later["steps"]]
        assert numbers == [1, 2, 3, 4]
        assert told["steps"][0] == [1, round(made[0].time, 4), 0.012346, 0.02, *made[0][4:]]
        assert [event[1:] for event in told["events"] + later["events"]] == [[5, "first"]]
        both = next_of(others, "steps")["steps"]
        while len(both) < 4:
            both += next_of(others, "steps")["steps"]
        assert [step[0] for step in both] == numbers
        assert next_of(events, "now")["time"] < next_of(events, "now")["time"]


def test_who_comes_again_begins_anew() -> None:
    engine = journaling_engine()
    with served(engine) as url:
        for number in (1, 2, 3):
            engine.write_step(number)
            with reading(url) as events:
                assert [step[0] for step in next_of(events, "steps")["steps"]] == list(range(1, number + 1))


def test_a_server_without_a_journal_says_so() -> None:
    with client_of(fake_engine()) as client:
        for path in ("/steps", "/steps/history"):
            answer = client.get(path)
            assert answer.status_code == 404
            assert "journal" in error_of(answer.json())["message"]


@pytest.mark.parametrize(("state", "code"), [("starting", "starting"), ("dead", "engine_dead")])
def test_an_engine_that_is_not_ready(state: str, code: str) -> None:
    engine = journaling_engine()
    engine.state = EngineStatus(state)  # type: ignore[arg-type]
    engine.journal = None if state == "starting" else engine.journal
    with client_of(engine) as client:
        answer = client.get("/steps")
    assert answer.status_code == 503
    assert error_of(answer.json())["code"] == code


def test_the_head_of_the_feed() -> None:
    with served(journaling_engine()) as url:
        answer = httpx2.head(f"{url}/steps")
    assert (answer.status_code, answer.content) == (200, b"")


def test_too_many_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MOST_READERS", 2)
    with served(journaling_engine()) as url:
        with reading(url), ExitStack() as second:
            second.enter_context(reading(url))
            refused = httpx2.get(f"{url}/steps")
            assert refused.status_code == 429
            assert error_of(refused.json())["code"] == "too_many_readers"
            assert "retry-after" in refused.headers
        with reading(url) as events:
            assert next(events)[0] == "hello"


def test_readers_of_one_key_keep_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MOST_READERS", 1)
    with served(journaling_engine(), ServerConfig(access=Access(api_keys=("ann", "bob")))) as url, reading(url, "ann"):
        assert httpx2.get(f"{url}/steps", headers={"Authorization": "Bearer ann"}).status_code == 429
        with reading(url, "bob") as events:
            assert next(events)[0] == "hello"


def name_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def test_two_keys_learn_nothing_of_each_other(tmp_path: Path) -> None:
    """Each learns the ids of its own requests and its own name, also of requests that come later."""
    keys = tmp_path / "keys"
    keys.write_text("ann\nbob\n")
    engine = journaling_engine()
    ann, bob = name_of("ann"), name_of("bob")
    engine.write_arrival(0, f"cmpl-{HEX}-0-0", ann).running = True
    engine.write_event(0, "begun", 0, 0)
    engine.write_arrival(1, "cmpl-of-bob", bob, "fast")
    streams = {}
    with served(engine, ServerConfig(access=Access(api_key_file=keys))) as url, ExitStack() as open_streams:
        assert httpx2.get(f"{url}/steps").status_code == 401
        assert httpx2.get(f"{url}/steps/history").status_code == 401
        for key in ("ann", "bob"):
            streams[key] = open_streams.enter_context(reading(url, key))
        seen: dict[str, list[str]] = {key: [] for key in streams}
        for key, others in (("ann", "fast"), ("bob", "begun")):
            assert others not in str(next_of(streams[key], "steps")["events"])
        for key, events in streams.items():
            while not seen[key] or "mine" not in seen[key][-1]:
                seen[key].append(str(next(events)))
        engine.write_arrival(2, f"resp-{HEX}-0-0", bob)
        seen["bob"].append(str(("mine", next_of(streams["bob"], "mine"))))
        engine.write_arrival(3, f"chatcmpl-{HEX}-0-1", ann)
        seen["ann"].append(str(("mine", next_of(streams["ann"], "mine"))))
        nows = {key: next_of(events, "now") for key, events in streams.items()}
    assert seen["ann"][-1] == str(("mine", {"requests": {"3": f"chatcmpl-{HEX}"}}))
    assert seen["bob"][-1] == str(("mine", {"requests": {"2": f"resp_{HEX}"}}))
    assert nows["ann"]["classes"] == nows["bob"]["classes"]
    assert nows["ann"]["callers"] == {
        ann[:12]: {"running": 1, "waiting": 1},
        "others": {"running": 0, "waiting": 2},
    }
    assert set(nows["bob"]["callers"]) == {bob[:12], "others"}
    told = {key: "".join(texts) + str(nows[key]) for key, texts in seen.items()}
    assert bob[:12] not in told["ann"]
    assert "of-bob" not in told["ann"]
    assert ann[:12] not in told["bob"]
    assert HEX not in told["bob"].replace(f"resp_{HEX}", "")


def test_a_caller_sees_the_events_of_its_requests_and_an_operator_all(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann\nbob\nroot operator\n")
    engine = journaling_engine()
    shown = {"ann": [0, 3], "bob": [1, 2], "root": [0, 1, 2, 3]}
    for number, key in enumerate(("ann", "bob")):
        engine.write_arrival(number, f"cmpl-{number}", name_of(key))
    with served(engine, ServerConfig(access=Access(api_key_file=keys))) as url, ExitStack() as stack:
        streams = {key: stack.enter_context(reading(url, key)) for key in shown}
        seen = {key: next_of(events, "steps")["events"] for key, events in streams.items()}
        engine.write_arrival(2, "cmpl-2", name_of("bob"))
        del engine.written.live[1]  # its later events are still its owner's
        engine.write_event(1, "ended", "length", 17)
        engine.write_arrival(3, "cmpl-3", name_of("ann"))
        for key, events in streams.items():
            while {event[1] for event in seen[key]} != set(shown[key]):
                seen[key] += next_of(events, "steps")["events"]
    assert [event[1:3] for event in seen["bob"]] == [[1, "queued"], [2, "queued"], [1, "ended"]]


@pytest.mark.parametrize("keyed", [False, True])
def test_the_id_of_a_kept_response_is_not_everybodys(keyed: bool) -> None:
    """Who has the id of a response can read it, where nobody needs a key."""
    engine = journaling_engine()
    engine.write_arrival(0, f"resp-{HEX}-0-0")
    engine.write_arrival(1, f"embd-{HEX}-3")
    config = ServerConfig(access=Access(api_keys=("key",))) if keyed else DEFAULT_CONFIG
    with served(engine, config) as url, reading(url, "key" if keyed else "") as events:
        found = next_of(events, "mine")["requests"]
    assert found == ({"0": f"resp_{HEX}"} if keyed else {}) | {"1": f"embd-{HEX}"}


def test_a_drain_ends_the_streams() -> None:
    app = create_app(journaling_engine())
    with serve(app) as url, reading(url) as events:
        assert next(events)[0] == "hello"
        assert app.state.lifecycle.num_requests == 0, "a drain does not wait for them"
        app.state.lifecycle.draining = True
        assert {name for name, _ in events} <= {"now"}
        refused = httpx2.get(f"{url}/steps")
        assert (refused.status_code, error_of(refused.json())["code"]) == (503, "draining")


def test_the_end_of_the_engine_is_told_and_ends_the_streams() -> None:
    engine = journaling_engine()
    with served(engine) as url, reading(url) as events:
        assert next(events)[0] == "hello"
        engine.state = EngineStatus("dead")
        list(events)


def test_history_needs_no_reader() -> None:
    with client_of(journaling_engine()) as client:
        found = client.get("/steps/history").json()
    assert found == {"interval_seconds": 10, "fields": list(FIELDS), "samples": []}
