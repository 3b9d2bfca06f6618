"""pydantic-ai over both APIs, with a model that says what it is told."""

import asyncio
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.conftest import SCRIPTED, call, run_page, script

pytestmark = pytest.mark.clients
Api = Literal["chat", "responses"]
APIS: list[Api] = ["chat", "responses"]


class City(BaseModel):
    """What a structured answer is to be."""

    name: str
    people: int


BERN = City(name="Bern", people=137_000)
BERN_TEXT = BERN.model_dump_json()


def pydantic_model(url: str, api: Api) -> OpenAIChatModel | OpenAIResponsesModel:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    return kind(SCRIPTED, provider=provider)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", ["plain", "tool", "native", "prompted"])
def test_pydantic_ai(scripted: str, api: Api, kind: str) -> None:
    """Each way to ask for an output type, with a tool before it; the history goes on, and through JSON."""
    way: Any = {"plain": City, "tool": ToolOutput(City), "native": NativeOutput(City), "prompted": PromptedOutput(City)}
    agent: Any = Agent(pydantic_model(scripted, api), output_type=way[kind], instructions="Count.", retries=0)
    agent.tool_plain(lambda city: len(city), name="count")
    final = call("final_result", **BERN.model_dump()) if kind in ("plain", "tool") else BERN_TEXT
    first = agent.run_sync(script(call("count", city="Bern"), final))
    assert first.output == BERN
    history = ModelMessagesTypeAdapter.validate_json(first.all_messages_json())
    assert agent.run_sync(script(final), message_history=history).output == BERN


@pytest.mark.parametrize("api", APIS)
def test_pydantic_ai_streamed(scripted: str, api: Api) -> None:
    """Text that comes after a tool's result, piece by piece."""
    agent: Any = Agent(pydantic_model(scripted, api), retries=0)
    agent.tool_plain(lambda city: len(city), name="count")

    async def main() -> list[str]:
        async with agent.run_stream(script(call("count", city="Bern"), "It has $RESULT letters.")) as result:
            pieces = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
            assert result.usage.output_tokens > 0
            return pieces

    pieces = asyncio.run(main())
    assert "".join(pieces) == "It has 4 letters."
    assert len(pieces) > 1


def test_page(scripted: str) -> None:
    assert run_page("clients.md", "## pydantic-ai", scripted, SCRIPTED) == ["There is no script.\n"]
