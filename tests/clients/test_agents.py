"""openai-agents over both APIs, with a model that says what it is told."""

import asyncio
from typing import Any, Literal

import pytest
from agents import Agent, ModelSettings, OpenAIProvider, RunConfig, Runner, SQLiteSession, function_tool
from openai import AsyncOpenAI
from pydantic import BaseModel

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


def people(city: str) -> str:
    """Say how many people live in a city."""
    return f"{len(city)} in {city}"


PEOPLE = function_tool(people)


def agents_config(url: str, api: Api) -> RunConfig:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)  # of this event loop alone
    provider = OpenAIProvider(openai_client=client, use_responses=api == "responses")
    return RunConfig(model_provider=provider, tracing_disabled=True)


@pytest.mark.parametrize("api", APIS)
def test_openai_agents(scripted: str, api: Api) -> None:
    """A tool and a structured answer, then a further turn of the session."""
    agent = Agent("Counter", "You count.", model=SCRIPTED, tools=[PEOPLE], output_type=City)
    config, session = agents_config(scripted, api), SQLiteSession("one")
    turns = [call("people", city="Bern"), BERN_TEXT]
    first = Runner.run_sync(agent, script(*turns), run_config=config, session=session)
    assert first.final_output == BERN
    second = Runner.run_sync(agent, script(BERN_TEXT), run_config=config, session=session)
    assert second.final_output == BERN


@pytest.mark.parametrize("api", APIS)
def test_openai_agents_streamed(scripted: str, api: Api) -> None:
    """Two calls at once, then a hand-over to another agent, streamed."""
    other = Agent("Other", "You end it.", model=SCRIPTED)
    settings = ModelSettings(temperature=0.0, include_usage=True, parallel_tool_calls=True)
    agent = Agent("First", "You begin.", model=SCRIPTED, tools=[PEOPLE], handoffs=[other], model_settings=settings)
    both = call("people", city="Bern") + call("people", city="Basel")
    turns = [both, call("transfer_to_other"), "It was $RESULT"]

    async def main() -> tuple[Any, str, int]:
        result = Runner.run_streamed(agent, script(*turns), run_config=agents_config(scripted, api))
        names = [event.item.type async for event in result.stream_events() if event.type == "run_item_stream_event"]
        return result.final_output, result.last_agent.name, names.count("tool_call_item")

    output, name, calls = asyncio.run(main())
    assert (name, calls) == ("Other", 2)
    assert "assistant" in output


def test_page(scripted: str) -> None:
    assert run_page("clients.md", "## OpenAI Agents", scripted, SCRIPTED) == ["There is no script.\n"]
