"""llama-index's ``OpenAILike`` and ``OpenAIResponses``, with a model that says what it is told."""

from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.llms import LLM
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from pydantic import BaseModel

from tests.clients.conftest import MODEL, SCRIPTED, call, run_page, script

pytestmark = pytest.mark.clients
KINDS = pytest.mark.parametrize("kind", [OpenAILike, OpenAILikeResponses])


class City(BaseModel):
    """What a structured answer is to be."""

    name: str
    people: int


def made(kind: Any, url: str) -> Any:
    return kind(
        model=SCRIPTED,
        api_base=f"{url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=100_000,
        max_retries=0,
    )


def people(city: str) -> str:
    """Say how many people live in a city."""
    return f"{len(city)} in {city}"


@KINDS
def test_chat(scripted: str, kind: type[LLM]) -> None:
    model = made(kind, scripted)
    messages = [ChatMessage("Be brief.", role="system"), ChatMessage(script("One.", "Two."), role="user")]
    first = model.chat(messages).message
    assert first.content == "One."
    pieces = list(model.stream_chat([*messages, first, ChatMessage("Go on.", role="user")]))
    assert pieces[-1].message.content == "Two."


@KINDS
def test_tools(scripted: str, kind: type[LLM]) -> None:
    """The model asks for a tool, llama-index calls it, and the result is in what the model says then."""
    model, tool = made(kind, scripted), FunctionTool.from_defaults(people)
    messages = [ChatMessage(script(call("people", city="Bern"), "It was $RESULT."), role="user")]
    asked = model.chat_with_tools([tool], chat_history=messages)
    (found,) = model.get_tool_calls_from_response(asked)
    result = ChatMessage(
        str(tool.call(**found.tool_kwargs)), role="tool", additional_kwargs={"tool_call_id": found.tool_id}
    )
    final = model.chat_with_tools([tool], chat_history=[*messages, asked.message, result])
    assert final.message.content == "It was 4 in Bern."


@KINDS
def test_structured_answer(scripted: str, kind: type[LLM]) -> None:
    bern = City(name="Bern", people=1)
    # It asks for a call over the one API, for a text over the other.
    said = call("City", **bern.model_dump()) if kind is OpenAILike else bern.model_dump_json()
    answer = made(kind, scripted).as_structured_llm(City).chat([ChatMessage(script(said), role="user")])
    assert answer.raw == bern


def test_pages(scripted: str, url: str) -> None:
    assert run_page("clients.md", "## LlamaIndex", scripted, SCRIPTED) == ["There is no script.\n"]
    names: dict[str, Any] = {}
    run_page("embeddings.md", "### LlamaIndex", url, MODEL, names)
    assert sum(number * number for number in names["vector"]) == pytest.approx(1, abs=1e-4)
