"""Responses that are kept: continued, asked for again and deleted, by the caller that made them and by no other."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseItemList
from pydantic import BaseModel
from starlette.testclient import TestClient
from starlette.types import Message

from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.config import ServerConfig
from jaxgen.server.limits import Batches, Limits, Responses
from jaxgen.server.schema import answers as shapes
from tests.server.middleware.test_auth import KEYS
from tests.server.responses.test_responses import PARIS, PATH, WEATHER, F, events_of
from tests.server.tool_calls.test_parser import written
from tests.support.batch_client import jsonl, run
from tests.support.fakes import MODEL, FakeEngine
from tests.support.live_server import serve
from tests.support.server_app import call, client_of, error_of
from tests.support.tool_engines import prompt_of, tool_engine

FIRST = {b"authorization": b"Bearer first-key"}
OTHER = {b"authorization": "Bearer clé-2".encode()}


@pytest.fixture
def engine() -> FakeEngine:
    return tool_engine("hermes", "Hello")


@pytest.fixture
def client(engine: FakeEngine) -> Iterator[TestClient]:
    with client_of(engine) as client:
        yield client


def ask(client: TestClient, status: int = 200, **fields: Any) -> dict[str, Any]:
    answer = client.post(PATH, json={"model": MODEL, "input": "Hi", **fields})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = events_of(answer.text)[-1]["response"] if fields.get("stream") else answer.json()
    return found


def test_a_request_continues_a_response(client: TestClient, engine: FakeEngine) -> None:
    first = ask(client, instructions="Be brief.")
    assert (first["store"], first["previous_response_id"]) == (True, None)
    items = [{"role": "user", "content": "And"}, {"role": "developer", "content": "Now!"}]
    second = ask(client, input=items, previous_response_id=first["id"], instructions="Be long.", stream=True)
    assert (second["store"], second["previous_response_id"]) == (True, first["id"])
    third = ask(client, input="More", previous_response_id=second["id"])
    assert prompt_of(engine).count("<|im_start|>") == 7
    at_once = [
        {"role": "user", "content": "Hi"},
        *first["output"],
        *items,
        *second["output"],
        {"role": "user", "content": "More"},
    ]
    continued = engine.requests[-1].prompt
    ask(client, input=at_once)
    assert engine.requests[-1].prompt == continued
    assert third["usage"]["input_tokens"] == len(continued)


def test_one_response_is_continued_twice(client: TestClient, engine: FakeEngine) -> None:
    first = ask(client)
    prompts = []
    for text in ("A", "B"):
        ask(client, input=text, previous_response_id=first["id"])
        prompts.append(prompt_of(engine))
    assert prompts[0].replace("user\nA", "user\nB") == prompts[1]


def test_outputs_of_calls_alone_continue_a_response_with_calls() -> None:
    engine = tool_engine("hermes", "I look." + written("hermes", [PARIS]))
    with client_of(engine) as client:
        first = ask(client, tools=[F, WEATHER])
        output = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "Rain"}
        ask(client, input=[output], previous_response_id=first["id"], tools=[F, WEATHER])
        assert "<tool_response>Rain</tool_response>" in prompt_of(engine)
        error = error_of(ask(client, 400, input=[{**output, "call_id": "x"}], previous_response_id=first["id"]))
        assert error["param"] == "input.0.call_id"
        assert error_of(ask(client, 400, input=[output]))["param"] == "input.0.call_id"


def test_an_item_is_referred_to_by_its_id(client: TestClient, engine: FakeEngine) -> None:
    """With its type or without; once it is kept it is part of what is kept."""
    first = ask(client, input=[{"role": "user", "content": "Hi", "id": "mine"}])
    for kind in ({}, {"type": "item_reference"}, {"type": None}):
        references = [{**kind, "id": "mine"}, {**kind, "id": first["output"][0]["id"]}]
        again = ask(client, input=[*references, {"role": "user", "content": "And"}])
        assert prompt_of(engine).startswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>")
    ask(client, previous_response_id=again["id"])
    assert prompt_of(engine).count("Hello") == 2
    client.delete(f"{PATH}/{again['id']}")
    error = error_of(ask(client, 400, input=[{"type": "item_reference", "id": again["output"][0]["id"]}]))
    assert error["param"] == "input.0.id"


def test_a_response_is_there_for_its_caller_until_it_is_deleted() -> None:
    engine = tool_engine("hermes", "Hello")
    with client_of(engine, KEYS) as client:
        made = client.post(PATH, json={"model": MODEL, "input": "Hi"}, headers=FIRST).json()
        path = f"{PATH}/{made['id']}"
        found = client.get(path, headers=FIRST)
        assert (found.json(), found.headers["content-type"]) == (made, "application/json")
        for method, target in (
            ("GET", path),
            ("DELETE", path),
            ("GET", f"{path}/input_items"),
            ("POST", f"{path}/cancel"),
        ):
            answer = client.request(method, target, headers=OTHER)
            assert answer.status_code == 404, (method, target)
            assert made["id"] in error_of(answer.json())["message"]
        fields = {"model": MODEL, "input": "Hi"}
        asked: list[tuple[dict[str, Any], str]] = [
            ({"previous_response_id": made["id"]}, "previous_response_id"),
            ({"input": [{"type": "item_reference", "id": made["output"][0]["id"]}]}, "input.0.id"),
        ]
        for given, param in asked:
            refused = client.post(PATH, json={**fields, **given}, headers=OTHER)
            assert (refused.status_code, error_of(refused.json())["param"]) == (400, param)
            assert client.post(PATH, json={**fields, **given}, headers=FIRST).status_code == 200
        gone = client.delete(path, headers=FIRST).json()
        assert gone == {"id": made["id"], "object": "response", "deleted": True}
        assert [client.request(m, path, headers=FIRST).status_code for m in ("GET", "DELETE")] == [404, 404]
        refused = client.post(PATH, json={**fields, "previous_response_id": made["id"]}, headers=FIRST)
        assert error_of(refused.json())["code"] == "previous_response_not_found"


def test_what_is_not_to_be_kept_is_not(client: TestClient) -> None:
    for stream in (False, True):
        made = ask(client, store=False, stream=stream)
        assert made["store"] is False
        assert client.get(f"{PATH}/{made['id']}").status_code == 404
        assert error_of(ask(client, 400, previous_response_id=made["id"]))["param"] == "previous_response_id"
        reference = [{"type": "item_reference", "id": made["output"][0]["id"]}]
        assert error_of(ask(client, 400, input=reference))["param"] == "input.0.id"


def test_a_response_that_was_cut_off_is_kept_and_one_that_failed_is_not() -> None:
    async def fail_late(request: Request, index: int) -> None:
        await asyncio.sleep(0)
        if request.params.max_tokens > 3 and index == 3:
            raise RuntimeError("secret")

    with client_of(tool_engine("hermes", "Hello", pace=fail_late)) as client:
        short = ask(client, max_output_tokens=2)
        assert client.get(f"{PATH}/{short['id']}").json()["status"] == "incomplete"
        failed = ask(client, stream=True)
        assert failed["status"] == "failed"
        assert client.get(f"{PATH}/{failed['id']}").status_code == 404
        assert client.post(PATH, json={"model": MODEL, "input": "Hi"}).status_code == 500


def test_a_server_that_keeps_nothing_says_so() -> None:
    with client_of(tool_engine("hermes", "Hello"), ServerConfig(responses=Responses(max_stored_responses=0))) as client:
        made = ask(client)
        assert made["store"] is False
        assert client.get(f"{PATH}/{made['id']}").status_code == 404
        assert error_of(ask(client, 400, store=True))["param"] == "store"
        assert error_of(ask(client, 400, previous_response_id=made["id"]))["param"] == "previous_response_id"


def test_limits_of_the_configuration_hold() -> None:
    config = ServerConfig(responses=Responses(max_stored_responses=2), limits=Limits(max_messages=5))
    with client_of(tool_engine("hermes", "Hello"), config) as client:
        made = [ask(client)["id"] for _ in range(3)]
        assert [client.get(f"{PATH}/{name}").status_code for name in made] == [404, 200, 200]
        second = ask(client, previous_response_id=made[2])
        third = ask(client, previous_response_id=second["id"])
        error = error_of(ask(client, 400, previous_response_id=third["id"]))
        assert error["message"] == "input has 1 items and continues 6; this server takes 5 together."


def test_what_is_kept_counts_as_if_it_had_been_sent() -> None:
    """Else a short body could refer to one long item thousands of times."""
    with client_of(tool_engine("hermes", "Hello"), ServerConfig(limits=Limits(max_body_bytes=2000))) as client:
        first = ask(client, input=[{"role": "user", "content": "x" * 700, "id": "long"}])
        ask(client, input=[{"id": "long"}, {"id": "long"}])
        error = error_of(ask(client, 400, input=[{"id": "long"}] * 3))
        assert (error["param"], "2000 bytes" in error["message"]) == ("input.2.id", True)
        error = error_of(ask(client, 400, input=[{"id": "long"}] * 2, previous_response_id=first["id"]))
        assert error["param"] == "input.1.id"
        second = ask(client, input="x" * 900, previous_response_id=first["id"])
        error = error_of(ask(client, 400, previous_response_id=second["id"]))
        assert (error["param"], "2000 bytes" in error["message"]) == ("previous_response_id", True)


def test_input_items_are_all_that_was_answered(client: TestClient) -> None:
    items = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi", "cache_control": {}}], "id": "mine"},
        {"type": "reasoning", "id": "rs", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "1"}]},
    ]
    first = ask(client, input=items, instructions="Not an item.")
    second = ask(client, input="And", previous_response_id=first["id"])
    path = f"{PATH}/{second['id']}/input_items"
    listed = client.get(path, params={"order": "asc", "include[]": "message.output_text.logprobs"}).json()
    ResponseItemList.model_validate(listed)
    shapes.InputItems.model_validate(listed)
    kinds = [item["type"] for item in listed["data"]]
    assert kinds == ["message", "message", "function_call", "function_call_output", "message", "message"]
    assert listed["data"][1] == {
        "id": "mine",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Hi"}],
    }
    assert listed["data"][4] == first["output"][0]
    assert (listed["first_id"], listed["has_more"]) == (listed["data"][0]["id"], False)
    newest = client.get(path, params={"limit": 2}).json()
    assert newest["data"] == listed["data"][:-3:-1]
    assert newest["has_more"]
    rest = client.get(path, params={"after": newest["last_id"]}).json()
    assert rest["data"] == listed["data"][-3::-1]
    empty = client.get(path, params={"after": listed["first_id"]}).json()
    assert (empty["data"], empty["first_id"], empty["last_id"]) == ([], None, None)


def test_items_that_come_again_have_ids_of_their_own(client: TestClient) -> None:
    """Agents send the output back beside the response that it is of. Pages of items go by ids."""
    response = ask(client, input=[{"role": "user", "content": "Hi", "id": "mine"}])
    for _ in range(2):
        again = [*response["output"], {"id": "mine"}, {"id": "mine"}]
        response = ask(client, input=again, previous_response_id=response["id"])
    path = f"{PATH}/{response['id']}/input_items"
    whole = client.get(path, params={"order": "asc", "limit": 100}).json()["data"]
    assert len({item["id"] for item in whole}) == len(whole) == 9
    assert [item["id"] for item in whole].index("mine") == 0
    for limit in (1, 2):
        seen, page = list[Any](), {"has_more": True, "last_id": None}
        while page["has_more"]:
            after = {} if page["last_id"] is None else {"after": page["last_id"]}
            page = client.get(path, params={"order": "asc", "limit": limit, **after}).json()
            seen += page["data"]
            assert len(seen) <= len(whole)
        assert seen == whole
    asked = ask(client, input=[{"id": whole[3]["id"]}, {"role": "user", "content": "And"}])
    assert asked["status"] == "completed"


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("?stream=true", "stream"),
        ("?starting_after=3", "stream"),
        ("?include_obfuscation=true", "include_obfuscation"),
        ("?color=red", "color"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?limit=101", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=nothing", "after"),
        ("/input_items?before=mine", "before"),
    ],
)
def test_parameters_of_the_query_are_checked(client: TestClient, path: str, param: str) -> None:
    made = ask(client)
    answer = client.get(f"{PATH}/{made['id']}{path}")
    error = error_of(answer.json())
    assert (answer.status_code, error["param"]) == (400, param)
    assert ("Last-Event-ID" in error["message"]) == (param == "stream"), "how to go on with a stream"


def test_only_background_responses_could_be_cancelled(client: TestClient) -> None:
    answer = client.post(f"{PATH}/{ask(client)['id']}/cancel")
    assert (answer.status_code, "background" in error_of(answer.json())["message"]) == (400, True)


def test_answers_are_as_they_are_described(client: TestClient) -> None:
    path = f"{PATH}/{ask(client)['id']}"
    described: dict[tuple[str, str], type[BaseModel]] = {
        ("GET", path): shapes.Response,
        ("GET", f"{path}/input_items"): shapes.InputItems,
        ("DELETE", path): shapes.DeletedResponse,
    }
    for (method, target), shape in described.items():
        shape.model_validate_json(client.request(method, target).content)
    answer = client.put(path)
    assert (answer.status_code, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD", "DELETE"})


def test_the_openai_client_continues_and_reads_and_deletes() -> None:
    with (
        serve(create_app(tool_engine("hermes", "Hello"))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        first = client.responses.create(model=MODEL, input="Hi")
        second = client.responses.create(model=MODEL, input="And", previous_response_id=first.id)
        assert client.responses.retrieve(first.id, include=["message.output_text.logprobs"]) == first
        items = list(client.responses.input_items.list(second.id, limit=1, order="asc"))
        assert [item.type for item in items] == ["message"] * 3
        client.responses.delete(first.id)
        for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError):
                call(first.id)
        with pytest.raises(openai.BadRequestError, match="background"):
            client.responses.cancel(second.id)
        counted = client.responses.input_tokens.count(model=MODEL, input="More", previous_response_id=second.id)
        third = client.responses.create(model=MODEL, input="More", previous_response_id=second.id)
        assert third.usage is not None
        assert counted.input_tokens == third.usage.input_tokens


def test_lines_of_batches_are_not_kept(tmp_path: Path) -> None:
    def line(name: str, **fields: Any) -> dict[str, Any]:
        body = {"model": MODEL, "input": "Hi", **fields}
        return {"custom_id": name, "method": "POST", "url": PATH, "body": body}

    with client_of(tool_engine("hermes", "Hello"), ServerConfig(batches=Batches(batch_dir=tmp_path))) as client:
        kept = ask(client)["id"]
        lines = (line("a"), line("b", store=True), line("c", previous_response_id=kept), line("d", store=False))
        _, done, failed = run(client, jsonl(*lines), endpoint=PATH)
        answers = {one["custom_id"]: one["response"]["body"] for one in done}
        assert set(answers) == {"a", "d"}
        assert all(not answer["store"] for answer in answers.values())
        assert client.get(f"{PATH}/{answers['a']['id']}").status_code == 404
        params = {one["custom_id"]: one["response"]["body"]["error"]["param"] for one in failed}
        assert params == {"b": "store", "c": "previous_response_id"}


def test_a_response_that_its_caller_leaves_is_not_kept() -> None:
    sent = bytearray()

    async def forever(request: Request, index: int) -> None:
        if index == 2:
            await asyncio.Event().wait()

    app = create_app(tool_engine("hermes", "Hello", pace=forever))

    async def leave() -> None:
        gone = asyncio.Event()

        async def send(message: Message) -> None:
            sent.extend(message.get("body", b""))
            if b"output_text.delta" in sent:
                gone.set()

        await call(app, {"model": MODEL, "input": "Hi", "stream": True}, send, leave=gone, path=PATH)

    asyncio.run(leave())
    created = json.loads(sent.split(b"\n")[1].removeprefix(b"data: "))
    with TestClient(app) as client:
        assert client.get(f"{PATH}/{created['response']['id']}").status_code == 404
