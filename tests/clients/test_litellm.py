"""LiteLLM's SDK, as OpenAI's and as vLLM's server, with a model that says what it is told; and its errors."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import litellm
import pytest
from pydantic import BaseModel

from tests.clients.conftest import MODEL, SCRIPTED, Server, call, run_page, script

pytestmark = [
    pytest.mark.clients,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),  # of its own types, by pydantic
]
PROVIDERS = pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


class City(BaseModel):
    """What a structured answer is to be."""

    name: str
    people: int


def options(url: str, provider: str, model: str = SCRIPTED) -> dict[str, Any]:
    return {"model": f"{provider}/{model}", "api_base": f"{url}/v1", "api_key": "none", "num_retries": 0}


@PROVIDERS
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_tool_loop(scripted: str, provider: str, streamed: bool) -> None:
    """Messages go back as they came, with what LiteLLM has put into them."""
    turns = [call("look_up", city="Bern") + call("look_up", city="Basel"), "The last is $RESULT."]
    messages: list[Any] = [{"role": "user", "content": script(*turns)}]
    for _ in turns:
        usage = {"stream_options": {"include_usage": True}} if streamed else {}
        asked = {"tools": TOOLS, "max_tokens": 200, "stream": streamed, **usage, **options(scripted, provider)}
        answer: Any = litellm.completion(messages=messages, **asked)
        if streamed:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        messages.append(message)
        for number, one in enumerate(message.tool_calls or (), 1):
            answered = {"role": "tool", "tool_call_id": one.id, "name": one.function.name, "content": str(number)}
            messages.append(answered)
    assert message.content == "The last is 2."
    assert answer.usage.total_tokens > 0


@PROVIDERS
def test_structured_answer(scripted: str, provider: str) -> None:
    bern = City(name="Bern", people=1)
    asked = [{"role": "user", "content": script(bern.model_dump_json())}]
    answer: Any = litellm.completion(messages=asked, response_format=City, **options(scripted, provider))
    assert City.model_validate_json(answer.choices[0].message.content) == bern


def test_responses(scripted: str) -> None:
    """By the id of the response before."""
    tools: Any = [{"type": "function", **TOOLS[0]["function"], "strict": False}]  # type: ignore[dict-item]
    asked = {"tools": tools, **options(scripted, "openai")}
    first: Any = litellm.responses(input=script(call("look_up", city="Bern"), "It is $RESULT."), **asked)
    (found,) = [item for item in first.output if item.type == "function_call"]
    output: Any = [{"type": "function_call_output", "call_id": found.call_id, "output": "7"}]
    second: Any = litellm.responses(input=output, previous_response_id=first.id, **asked)
    assert second.output[0].content[0].text == "It is 7."


def test_errors(server: Server) -> None:
    """LiteLLM finds out from text and status what was wrong, and routers act on it."""
    url = server("--api-key", "secret", "--max-num-seqs", "1", "--max-queued-requests", "1")
    for provider in ("openai", "hosted_vllm"):
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": "def"}], **options(url, provider, MODEL)}
        with pytest.raises(litellm.AuthenticationError):
            litellm.completion(**asked)
        asked["api_key"] = "secret"
        with pytest.raises(litellm.NotFoundError):
            litellm.completion(**{**asked, "model": f"{provider}/nobody"})
        with pytest.raises(litellm.ContextWindowExceededError):
            litellm.completion(**{**asked, "messages": [{"role": "user", "content": "def " * 20_000}]})
        with pytest.raises(litellm.BadRequestError) as caught:
            litellm.completion(**asked, temperature=3)
        assert "temperature" in str(caught.value)
        _fill(asked)


def _fill(asked: dict[str, Any]) -> None:
    """With one running and one waiting, others are refused, and LiteLLM knows why."""

    def ask(_: int) -> Any:
        try:
            return litellm.completion(**asked, max_tokens=12)
        except litellm.RateLimitError as error:
            return error

    running: Any = litellm.completion(**asked, max_tokens=1000, stream=True, extra_body={"ignore_eos": True})
    next(iter(running))
    with ThreadPoolExecutor(8) as pool:
        assert any(isinstance(one, litellm.RateLimitError) for one in pool.map(ask, range(8)))


def test_page(scripted: str) -> None:
    assert run_page("clients.md", "## LiteLLM", scripted, SCRIPTED) == ["There is no script.\n"]
