"""Events have ids where the request, or the server's flag, asks for them; other streams are as OpenAI's."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from jaxgen.server.config import Answers, ServerConfig
from jaxgen.server.flags.serve_options import make_parser
from jaxgen.server.flags.server_flags import server_config
from tests.server.api.test_chat import chat_engine, user
from tests.support.fakes import MODEL
from tests.support.resumed import HEADER, RESPONSES, one_by_one, post
from tests.support.server_app import client_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"model": MODEL, "prompt": "Say", "max_tokens": 5},
    CHAT: {"model": MODEL, "messages": [user("Hi")], "max_tokens": 5},
    RESPONSES: {"model": MODEL, "input": "Hi", "max_output_tokens": 5},
}
HEAD = {"id", "object", "created", "model", "system_fingerprint", "choices"}
OF_OPENAI: dict[str, tuple[set[str], set[str]]] = {
    COMPLETIONS: (HEAD, {"index", "text", "logprobs", "finish_reason"}),
    CHAT: (HEAD, {"index", "delta", "logprobs", "finish_reason"}),
}
"""Fields of OpenAI's chunks, and of their choices."""
ALL = ServerConfig(answers=Answers(stream_event_ids=True))


def stream(client: TestClient, path: str, headers: dict[str, str] | None = None, **fields: Any) -> str:
    answer = post(client, path, {**BODIES[path], "return_event_ids": None, **fields}, headers)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.parametrize("path", BODIES)
def test_a_plain_stream_has_the_lines_of_openai_and_no_others(path: str) -> None:
    with client_of(chat_engine()) as client:
        text = stream(client, path)
    names = [line.partition(": ")[0] for line in text.split("\n") if line]
    events = text.count("\n\n")
    assert events > 2
    assert names == (["event", "data"] if path == RESPONSES else ["data"]) * events


@pytest.mark.parametrize("path", OF_OPENAI)
def test_a_plain_stream_has_the_fields_of_openai_and_no_others(path: str) -> None:
    head, choice = OF_OPENAI[path]
    with client_of(chat_engine()) as client:
        *events, done, rest = stream(client, path).split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    for event in events:
        chunk = json.loads(event.removeprefix("data: "))
        assert chunk.keys() == head
        (found,) = chunk["choices"]
        assert found.keys() <= choice
        assert found.get("delta", {}).keys() <= {"role", "content", "refusal"}


@pytest.mark.parametrize(
    ("config", "fields", "headers", "shown"),
    [
        (ServerConfig(), {"return_event_ids": True}, {}, True),
        (ServerConfig(), {}, {"X-Event-IDs": "true"}, True),
        (ServerConfig(), {}, {"x-event-ids": "1"}, True),
        (ServerConfig(), {"return_event_ids": False}, {"X-Event-IDs": "true"}, False),
        (ServerConfig(), {"return_event_ids": None}, {"X-Event-IDs": ""}, False),
        (ALL, {}, {}, True),
        (ALL, {"return_event_ids": False}, {}, False),
        (ALL, {}, {"X-Event-IDs": "false"}, False),
    ],
)
@pytest.mark.parametrize("path", BODIES)
def test_who_asks_gets_ids(
    path: str, config: ServerConfig, fields: dict[str, Any], headers: dict[str, str], shown: bool
) -> None:
    with client_of(chat_engine(), config) as client:
        text = stream(client, path, headers, **fields)
    num_ids = text.count("\nid: ")
    assert num_ids == (text.count("\n\n") - text.count("[DONE]") if shown else 0)


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_goes_on_with_ids_however_they_were_asked_for(path: str) -> None:
    """The field is no part of what is computed; who wants the rest without ids says so."""
    with client_of(chat_engine(pace=one_by_one)) as client:
        begun = stream(client, path, {"X-Event-IDs": "true"}).split("\n\n")
        last = {HEADER: begun[1].partition("\nid: ")[2]}
        rest = stream(client, path, last)
        assert rest.count("\nid: ") == rest.count("\n\n") - rest.count("[DONE]") > 0
        assert stream(client, path, last, return_event_ids=True) == rest
        plain = stream(client, path, last, return_event_ids=False)
        assert plain == "".join(event.partition("\nid: ")[0] + "\n\n" for event in rest.split("\n\n")[:-1])


@pytest.mark.parametrize("path", BODIES)
def test_what_cannot_be_asked_is_refused(path: str) -> None:
    with client_of(chat_engine()) as client:
        answer = client.post(path, json={**BODIES[path], "return_event_ids": True})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "return_event_ids")
        answer = client.post(path, json={**BODIES[path], "stream": True}, headers={"X-Event-IDs": "please"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Event-IDs")
        answer = client.post(path, json=BODIES[path], headers={"X-Event-IDs": "true"})
        assert answer.status_code == 200, "a gateway may send the header with every request"


def test_the_flag_sets_the_servers_default() -> None:
    assert not server_config(make_parser().parse_args([])).answers.stream_event_ids
    assert server_config(make_parser().parse_args(["--stream-event-ids"])).answers.stream_event_ids
