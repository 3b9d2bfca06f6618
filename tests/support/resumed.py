"""Streams with the ids of their events, and what a caller makes of them who loses one and goes on with it."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from httpx2 import ASGITransport, AsyncClient, Response
from starlette.testclient import TestClient

from jaxgen.core.request import Request
from jaxgen.server.config import Answers, ServerConfig
from tests.support.fakes import FakeEngine, StepTimeModel
from tests.support.server_app import client_of

HEADER = "Last-Event-ID"
RESPONSES = "/v1/responses"
SHARED = ServerConfig(answers=Answers(stream_secret="what all servers of a test share"))


class Event(NamedTuple):
    data: str
    last_id: str

    @property
    def value(self) -> Any:
        return json.loads(self.data)


def events_of(text: str, *, done: bool = True) -> list[Event]:
    """The events of a stream but the last, [DONE], if it ends with that, by the rules for EventSource."""
    *events, rest = text.split("\n\n")
    assert rest == ""
    found = []
    for event in events:
        fields = dict(line.split(": ", 1) for line in event.split("\n"))
        found.append(Event(fields["data"], fields.get("id", "")))
    if done:
        last = found.pop()
        assert last == ("[DONE]", ""), last
    assert all(event.last_id for event in found)
    return found


def post(client: TestClient, path: str, body: dict[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """Ask for a stream whose events have ids, unless the body says otherwise.

    No thread takes part, as one does in ``client.post``: on a busy machine a write would wait for it, and tokens would
    go out together.
    """

    async def directly() -> Response:
        app = ASGITransport(client.app, raise_app_exceptions=False)
        async with AsyncClient(transport=app, base_url=client.base_url) as direct:
            return await direct.post(path, json={"return_event_ids": True, **body, "stream": True}, headers=headers)

    assert client.portal is not None
    return client.portal.call(directly)


def ask(
    client: TestClient, path: str, body: dict[str, Any], last_id: str = "", key: str = "", status: int = 200
) -> Any:
    """The events of a stream, or the error."""
    headers = {HEADER: last_id} if last_id else {}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    answer = post(client, path, body, headers)
    assert answer.status_code == status, answer.text
    return events_of(answer.text, done=path != RESPONSES) if status == 200 else answer.json()["error"]


def streamed(
    engine: FakeEngine,
    path: str,
    body: dict[str, Any],
    last_id: str = "",
    key: str = "",
    status: int = 200,
    config: ServerConfig = SHARED,
) -> Any:
    """As ``ask``, of an app of its own."""
    with client_of(engine, config) as client:
        return ask(client, path, body, last_id, key, status)


def every(count: int) -> StepTimeModel:
    """Tokens come ``count`` at once."""

    async def pace(request: Request, index: int) -> None:
        if index % count == 0:
            for _ in range(4):
                await asyncio.sleep(0)

    return pace


one_by_one = every(1)
"""Each token is an event of its own."""


def whole(events: Iterable[Event]) -> dict[Any, Any]:
    """All that the events say, joined by choice: however output was cut into them it is the same."""
    found: dict[Any, Any] = {}
    for event in events:
        chunk = event.value
        found.setdefault("head", set()).add((chunk["id"], chunk["created"], chunk["object"]))
        if not chunk["choices"]:
            assert "usage" not in found, "told twice"
            found["usage"] = chunk["usage"]
        for choice in chunk["choices"]:
            _add(found.setdefault(choice["index"], {}), choice)
    return found


def _add(known: Any, new: Any, *path: Any) -> None:
    """Join what is new to what is known: texts and lists grow, calls are told apart by their number."""
    for name, value in new.items():
        where = (*path, name)
        if name == "tool_calls":
            for call in value:
                calls = known.setdefault(name, {})
                _add(calls.setdefault(call["index"], {}), {k: v for k, v in call.items() if k != "index"}, *where)
        elif isinstance(value, dict):
            _add(known.setdefault(name, {}), value, *where)
        elif isinstance(value, list):
            known[name] = known.get(name, []) + value
        elif name in ("text", "content", "reasoning", "reasoning_content", "arguments"):
            known[name] = (known.get(name) or "") + (value or "")
        elif value is not None and name != "index":
            assert name not in known, f"{where} came twice"
            known[name] = value


def whole_response(events: Iterable[Event]) -> list[dict[str, Any]]:
    """The events of /v1/responses, each the next by its number, with neighbouring deltas joined: however output was cut
    into them they are the same."""
    found: list[dict[str, Any]] = []
    for number, event in enumerate(events):
        value = event.value
        assert value.pop("sequence_number") == number
        before = found[-1] if found else {}
        if value["type"].endswith(".delta") and before["type"] == value["type"]:
            assert before.keys() == value.keys()
            for name in ("delta", "logprobs"):
                if name in value:
                    before[name] += value.pop(name)
            assert value.items() <= before.items()
            continue
        if value.get("response", {}).get("completed_at") is not None:
            value["response"]["completed_at"] = "a time"
        found.append(value)
    return found
