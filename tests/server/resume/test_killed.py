"""Servers that are killed in mid-stream: the rest comes from another one, and from the same one started again."""

import json
from base64 import urlsafe_b64decode
from typing import Any

import httpx2
import pytest
from openai import OpenAI

from tests.support.resumed import HEADER, Event, events_of, whole
from tests.support.server_process import ServerProcess, served

FLAGS = ("--served-model-name", "m")
LENGTH = 300
SAMPLED = {"temperature": 1.0, "presence_penalty": 0.8, "frequency_penalty": 0.4, "logprobs": 3, "n": 2}
GRAMMAR = {"structured_outputs": {"regex": "([a-z]{3,7} ){30,90}"}, "stream_options": {"include_usage": True}}
CASES: list[dict[str, Any]] = [SAMPLED, GRAMMAR]


def asked(fields: dict[str, Any]) -> dict[str, Any]:
    same = {"model": "m", "prompt": "def main():", "max_tokens": LENGTH, "return_token_ids": True, "stream": True}
    return {**same, **fields}


def begin(server: ServerProcess, body: dict[str, Any], count: int) -> str:
    """The bytes of a stream up to event ``count``, in which the server is killed."""
    text = ""
    with httpx2.stream("POST", f"{server.url}/completions", json=body, timeout=60) as answer:
        assert answer.status_code == 200
        try:
            for part in answer.iter_text():
                text += part
                if text.count("\n\n") >= count and server.process.poll() is None:
                    server.process.kill()
                    server.process.wait()
        except httpx2.HTTPError:
            return text
    raise AssertionError("the stream came to its end")


def rest_at(server: ServerProcess, body: dict[str, Any], last_id: str) -> list[Event]:
    answer = httpx2.post(f"{server.url}/completions", json=body, headers={HEADER: last_id}, timeout=60)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text)


def without_circumstances(answer: dict[Any, Any]) -> dict[Any, Any]:
    """Without the name and the time of the answer, and what the cache had of the prompt."""
    usage = {name: value for name, value in answer.get("usage", {}).items() if name != "prompt_tokens_details"}
    return {name: value for name, value in answer.items() if name not in ("head", "usage")} | {"usage": usage}


def check(text: str, body: dict[str, Any], *servers: ServerProcess) -> None:
    """The stream whose beginning came goes on at each server as it was, and as the seed in its ids says."""
    told = events_of(text[: text.rindex("\n\n")] + "\n\ndata: [DONE]\n\n")
    seed = int.from_bytes(urlsafe_b64decode(told[0].last_id.partition(".")[0])[17:25], signed=True)
    unbroken = httpx2.post(f"{servers[0].url}/completions", json={**body, "seed": seed}, timeout=60)
    expected = without_circumstances(whole(events_of(unbroken.text)))
    tokens = [whole(told)[index]["token_ids"] for index in range(body.get("n", 1))]
    for server in servers:
        for cut in (len(told), len(told) // 2, 1):
            joined = whole([*told[:cut], *rest_at(server, body, told[cut - 1].last_id)])
            assert without_circumstances(joined) == expected
            assert len(joined["head"]) == 1
        known = {**body, "resume": {"last_event_id": told[-1].last_id, "token_ids": tokens}}
        rest = events_of(httpx2.post(f"{server.url}/completions", json=known, timeout=60).text)
        assert without_circumstances(whole([*told, *rest])) == expected


@pytest.mark.full
def test_killed_in_mid_stream() -> None:
    """Full: four servers start."""
    begun = []
    for fields in CASES:
        with served(*FLAGS) as first:
            begun.append((asked(fields), begin(first, asked(fields), 25)))
    with served(*FLAGS) as other, served(*FLAGS) as again:
        for body, text in begun:
            assert text.count("\n\n") >= 25
            check(text, body, other, again)
        client = OpenAI(base_url=other.url, api_key="x", max_retries=0)
        body, text = begun[0]
        told = events_of(text[: text.rindex("\n\n")] + "\n\ndata: [DONE]\n\n")
        extra = {name: body[name] for name in ("return_token_ids",)}
        rest = client.completions.create(
            **{name: value for name, value in body.items() if name not in extra},
            extra_body=extra,
            extra_headers={HEADER: told[-1].last_id},
        )
        chunks = [chunk.model_dump(exclude_unset=True) for chunk in rest]
        joined = whole([*told, *(Event(json.dumps(chunk), "x") for chunk in chunks)])
        assert joined == whole([*told, *rest_at(again, body, told[-1].last_id)])
