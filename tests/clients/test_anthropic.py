"""Anthropic's own SDK for Python: messages whole and streamed, its helpers, counts, models, errors."""

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message
from pydantic import BaseModel

from tests.clients.conftest import SCRIPTED, call, script

pytestmark = pytest.mark.clients
TOOL: Any = {
    "name": "people",
    "description": "Count.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TURNS = (call("people", city="Bern"), "It was $RESULT.")


class City(BaseModel):
    name: str
    people: int


@pytest.fixture
def client(scripted: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=scripted, api_key="none", max_retries=0) as made:
        yield made


def asked(*texts: str, **fields: Any) -> Any:
    messages = [{"role": "user", "content": script(*texts)}]
    return {"model": SCRIPTED, "max_tokens": 500, "messages": messages, **fields}


def plain(message: Any) -> dict[str, Any]:
    """Without what differs from one answer to the next."""
    found: dict[str, Any] = message.to_dict()
    for block in found["content"]:
        block.pop("id", None)
        block.pop("parsed_output", None)
    return {**found, "id": ""}


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("texts", [("Hello 😀",), ("Well. " + TURNS[0],), ("",)])
def test_whole_and_streamed(client: anthropic.Anthropic, texts: tuple[str, ...], beta: bool) -> None:
    messages: Any = client.beta.messages if beta else client.messages
    fields = asked(
        *texts, tools=[TOOL], system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    )
    fields |= {"betas": ["context-management-2025-06-27"]} if beta else {}
    raw = messages.with_raw_response.create(**fields)
    Message.model_validate_json(raw.text(), strict=True)  # the SDK itself does not check
    whole = raw.parse()
    assert raw.headers["request-id"] == whole._request_id
    with messages.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        assert plain(stream.get_final_message()) == plain(whole)
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    events = list(messages.create(**fields, stream=True))
    assert [event.type for event in events[-2:]] == ["message_delta", "message_stop"]


def test_the_helpers_of_streams(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**asked("Hello")) as stream:
        assert "".join(stream.text_stream) == "Hello"
        assert stream.get_final_text() == "Hello"
    with client.messages.stream(**asked(TURNS[0], tools=[TOOL])) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "input_json"]
    assert snapshots[-1] == {"city": "Bern"}

    async def asynchronously() -> str:
        async with (
            anthropic.AsyncAnthropic(base_url=str(client.base_url), api_key="none", max_retries=0) as other,
            other.messages.stream(**asked("Hello")) as stream,
        ):
            return await stream.get_final_text()

    assert asyncio.run(asynchronously()) == "Hello"


def test_a_tool_and_its_result_or_error(client: anthropic.Anthropic) -> None:
    fields = asked(*TURNS, "That failed: $RESULT", tools=[TOOL])
    for result in ({"content": "4"}, {"content": [{"type": "text", "text": "no such city"}], "is_error": True}):
        answer = client.messages.create(**fields)
        (use,) = answer.content
        assert answer.stop_reason == "tool_use"
        assert use.type == "tool_use"
        assert use.input == {"city": "Bern"}
        fields["messages"] += [
            answer.to_param(),
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, **result}]},
        ]
        said = client.messages.create(**fields).content[0]
        assert said.type == "text"
        assert said.text in ("It was 4.", "That failed: Error: no such city")
        fields["messages"] = fields["messages"][:1]
        fields["messages"][0]["content"] = script(TURNS[0], "That failed: $RESULT")


def test_the_runner_of_tools(client: anthropic.Anthropic) -> None:
    @anthropic.beta_tool
    def people(city: str) -> str:
        """Count."""
        return f"{len(city)} in {city}"

    for stream in (False, True):
        runner = client.beta.messages.tool_runner(**asked(*TURNS), tools=[people], stream=stream)
        last: Any = runner.until_done()
        assert last.content[0].text == "It was 4 in Bern."


def test_an_answer_of_a_form(client: anthropic.Anthropic) -> None:
    said = '{"name": "Bern", "people": 137000}'
    parsed = client.messages.parse(**asked(said), output_format=City)
    assert parsed.parsed_output == City(name="Bern", people=137000)
    with client.messages.stream(**asked(said), output_format=City) as stream:
        assert stream.get_final_message().parsed_output == City(name="Bern", people=137000)


def test_the_count_is_what_is_used(client: anthropic.Anthropic) -> None:
    fields = asked("Hello", tools=[TOOL], system="Be brief.", tool_choice={"type": "auto"})
    usage = client.messages.create(**fields).usage
    fields.pop("max_tokens")
    for counted in (client.messages.count_tokens(**fields), client.beta.messages.count_tokens(**fields)):
        assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_models(client: anthropic.Anthropic) -> None:
    (model,) = client.models.list(limit=5)
    assert client.models.retrieve(SCRIPTED) == model
    assert (model.id, model.type) == (SCRIPTED, "model")
    assert [one.id for one in client.beta.models.list()] == [SCRIPTED]


def test_errors_have_their_classes(client: anthropic.Anthropic) -> None:
    wrong: list[tuple[dict[str, Any], type[anthropic.APIStatusError]]] = [
        ({"model": "nobody"}, anthropic.NotFoundError),
        ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, anthropic.BadRequestError),
    ]
    for fields, kind in wrong:
        with pytest.raises(kind) as failed:
            client.messages.create(**{**asked("Hello"), **fields})
        assert failed.value.request_id


def test_a_silent_stream(silent: str) -> None:
    """Its pings are no events of the helpers, and its client waits. The process that renders templates is there
    before."""
    with anthropic.Anthropic(base_url=silent, api_key="none", max_retries=0) as client:
        fields = asked("Hello")
        client.messages.count_tokens(model=SCRIPTED, messages=fields["messages"])
        with client.messages.stream(**fields, timeout=6.0) as stream:
            assert stream.get_final_text() == "Hello"
