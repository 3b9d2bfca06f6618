"""Servers that are killed in mid-stream: the rest comes from another one, started with the same flags."""

import json
import re
from base64 import urlsafe_b64decode
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from tests.server.responses.test_responses import built
from tests.support.resumed import HEADER, Event, events_of, whole, whole_response
from tests.support.server_process import ServerProcess, served

FLAGS = ("--served-model-name", "m", "--stream-secret", "what both servers share")
COMPLETIONS, RESPONSES = "completions", "responses"
LENGTH = 300
STREAM = {"stream": True, "return_event_ids": True}
SAMPLED = {"temperature": 1.0, "presence_penalty": 0.8, "frequency_penalty": 0.4, "logprobs": 3, "n": 2}
REGEX = {"structured_outputs": {"regex": "([a-z]{3,7} ){30,90}"}}
CASES: list[tuple[str, dict[str, Any]]] = [(COMPLETIONS, SAMPLED), (RESPONSES, REGEX)]
"""Each route and each way to choose tokens once; the other pairs are test_resume's and test_responses'."""


def asked(route: str, fields: dict[str, Any]) -> dict[str, Any]:
    if route == RESPONSES:
        return {"model": "m", "input": "Count.", "max_output_tokens": LENGTH, **STREAM, **fields}
    same = {"model": "m", "prompt": "def main():", "max_tokens": LENGTH, "return_token_ids": True, **STREAM}
    return {**same, **fields}


def begin(server: ServerProcess, route: str, body: dict[str, Any], count: int) -> str:
    """A stream's first ``count`` events. The server is killed when they are here, however much more it has sent."""
    text = ""
    with httpx2.stream("POST", f"{server.url}/{route}", json=body, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for part in answer.iter_text():
            text += part
            if text.count("\n\n") >= count:
                server.process.kill()
                server.process.wait()
                return "\n\n".join(text.split("\n\n")[:count]) + "\n\n"
    raise AssertionError(f"the stream had fewer than {count} events")


def begun(route: str, text: str) -> list[Event]:
    """The events that came as a whole."""
    return events_of(text[: text.rindex("\n\n")] + "\n\n", done=False)


def stream_of(server: ServerProcess, route: str, body: dict[str, Any], last_id: str = "") -> list[Event]:
    headers = {HEADER: last_id} if last_id else {}
    answer = httpx2.post(f"{server.url}/{route}", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text, done=route == COMPLETIONS)


def told_by(route: str, events: list[Event]) -> Any:
    """What the events say, without the names and the times of the answer, and what the cache had of the prompt."""
    if route == COMPLETIONS:
        answer = whole(events)
        assert len(answer.pop("head")) == 1
        answer.get("usage", {}).pop("prompt_tokens_details", None)
        return answer
    found = whole_response(events)
    text = re.sub(r"_[0-9a-f]{32}", "", json.dumps(found))
    assert built(found) == found[-1]["response"]["output"]
    assert len({event["response"]["id"] for event in found if "response" in event}) == 1
    return re.sub(r'"(created_at|cached_tokens)": \d+', "", text)


def check(route: str, text: str, body: dict[str, Any], server: ServerProcess) -> None:
    """The stream whose beginning came goes on at a server as it was, and as the seed in its ids says."""
    told = begun(route, text)
    seed = int.from_bytes(urlsafe_b64decode(told[0].last_id.partition(".")[0])[17:25], signed=True)
    expected = told_by(route, stream_of(server, route, {**body, "seed": seed}))
    for cut in (len(told), len(told) // 2, 1):
        rest = stream_of(server, route, body, told[cut - 1].last_id)
        assert told_by(route, [*told[:cut], *rest]) == expected
    if route == COMPLETIONS:
        tokens = [whole(told)[index]["token_ids"] for index in range(body.get("n", 1))]
        known = {**body, "resume": {"last_event_id": told[-1].last_id, "token_ids": tokens}}
        assert told_by(route, [*told, *stream_of(server, route, known)]) == expected


@pytest.mark.full
def test_killed_in_mid_stream() -> None:
    """Full: three servers start."""
    killed = []
    for route, fields in CASES:
        with served(*FLAGS) as first:
            body = asked(route, fields)
            killed.append((route, body, begin(first, route, body, 25)))
    with served(*FLAGS) as other:
        for route, body, text in killed:
            check(route, text, body, other)
        client = OpenAI(base_url=other.url, api_key="x", max_retries=0)
        route, body, text = killed[0]
        told = begun(route, text)
        extra = {name: body[name] for name in ("return_token_ids", "return_event_ids")}
        rest = client.completions.create(
            **{name: value for name, value in body.items() if name not in extra},
            extra_body=extra,
            extra_headers={HEADER: told[-1].last_id},
        )
        chunks = [chunk.model_dump(exclude_unset=True) for chunk in rest]
        joined = whole([*told, *(Event(json.dumps(chunk), "x") for chunk in chunks)])
        assert joined == whole([*told, *stream_of(other, route, body, told[-1].last_id)])
