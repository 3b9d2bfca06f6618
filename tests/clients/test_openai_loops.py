"""OpenAI's own SDK in the loops of its documentation: what comes out goes back as it came, with a model that says what
it is told.

What a tool answered is in the model's next text, so each loop shows that it went there and back.
"""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import ParsedResponse
from pydantic import BaseModel

from tests.clients.conftest import SCRIPTED, call, script

pytestmark = pytest.mark.clients


class City(BaseModel):
    """What a structured answer is to be."""

    name: str
    people: int


BERN = City(name="Bern", people=137_000)
BERN_TEXT = BERN.model_dump_json()


class look_up(BaseModel):  # noqa: N801 - the SDK calls the function by the name of the class
    """Look a city up."""

    city: str


@pytest.fixture
def client(scripted: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{scripted}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.filterwarnings(
    "ignore:Pydantic serializer warnings:UserWarning"
)  # of the SDK's own type of what is parsed
def test_parse_and_append(client: openai.OpenAI) -> None:
    """Parsed messages go back as they came, with what the SDK has put into them."""
    tools = [openai.pydantic_function_tool(look_up)]
    turns = [call("look_up", city="Bern"), BERN_TEXT, BERN_TEXT]
    messages: list[Any] = [{"role": "user", "content": script(*turns)}]
    asked: Any = {"model": SCRIPTED, "tools": tools, "response_format": City}
    first = client.chat.completions.parse(messages=messages, **asked).choices[0].message
    assert first.tool_calls
    (found,) = first.tool_calls
    assert found.function.parsed_arguments == look_up(city="Bern")
    messages.append(first)
    messages.append({"role": "tool", "tool_call_id": found.id, "content": "137000"})
    second = client.chat.completions.parse(messages=messages, **asked).choices[0].message
    assert second.parsed == BERN
    messages += [second, {"role": "user", "content": "Again."}]
    assert client.chat.completions.parse(messages=messages, **asked).choices[0].message.parsed == BERN


def test_stream_and_append(client: openai.OpenAI) -> None:
    """The final message of the stream helper, with its calls, goes back as it came."""
    tools = [openai.pydantic_function_tool(look_up)]
    both = "I look. " + call("look_up", city="Bern") + call("look_up", city="Basel")
    messages: list[Any] = [{"role": "user", "content": script(both, "The last is $RESULT.")}]
    for expected in (None, "The last is 2."):
        with client.chat.completions.stream(model=SCRIPTED, messages=messages, tools=tools) as stream:
            kinds = {event.type for event in stream}
            message = stream.get_final_completion().choices[0].message
        messages.append(message)
        if expected is None:
            assert "tool_calls.function.arguments.done" in kinds
            assert [one.function.name for one in message.tool_calls or ()] == ["look_up", "look_up"]
            for number, one in enumerate(message.tool_calls or (), 1):
                messages.append({"role": "tool", "tool_call_id": one.id, "content": str(number)})
        else:
            assert message.content == expected


RESPONSE_TOOL: Any = {
    "type": "function",
    "name": "look_up",
    "parameters": look_up.model_json_schema(),
    "strict": False,
}


def _outputs(response: Any) -> list[Any]:
    """What came of the calls of a response."""
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {
            "type": "function_call_output",
            "call_id": one.call_id,
            "output": f"people of {json.loads(one.arguments)['city']}",
        }
        for one in calls
    ]


@pytest.mark.parametrize("stored", [True, False], ids=["previous_response_id", "items"])
def test_responses_in_turns(client: openai.OpenAI, stored: bool) -> None:
    """The documented loop, by the id of the response before or with all items in the input."""
    message = {"role": "user", "content": script(call("look_up", city="Bern"), "There are $RESULT.", "That is all.")}
    items: list[Any] = [message]
    previous: Any = openai.omit
    said = []
    for more in (None, None, [{"role": "user", "content": "And?"}]):
        items += more or []
        response = client.responses.create(
            model=SCRIPTED, input=items, tools=[RESPONSE_TOOL], previous_response_id=previous, store=stored
        )
        said.append(response.output_text)
        outputs = _outputs(response)
        items = outputs if stored else [*items, *response.output, *outputs]
        previous = response.id if stored else openai.omit
    assert said == ["", "There are people of Bern.", "That is all."]


def test_responses_parsed(client: openai.OpenAI) -> None:
    """Parsed, and streamed with parsed events; the output goes back with what the SDK has put into it."""
    asked: Any = {
        "model": SCRIPTED,
        "tools": [openai.pydantic_function_tool(look_up)["function"] | {"type": "function"}],
    }
    items: list[Any] = [{"role": "user", "content": script(call("look_up", city="Bern"), BERN_TEXT)}]
    first: ParsedResponse[City] = client.responses.parse(input=items, text_format=City, **asked)
    items += [*first.output, *_outputs(first)]
    with client.responses.stream(input=items, text_format=City, **asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.output_parsed == BERN
