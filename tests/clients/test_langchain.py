"""LangChain's OpenAI clients: text and chat; one, many at once, streamed, async."""

import asyncio
from typing import Any

import pytest
from langchain_openai import ChatOpenAI, OpenAI

from tests.clients.conftest import MODEL, SCRIPTED, post, run_page

pytestmark = pytest.mark.clients
PROMPTS = ["def main():", "import ", "for i in"]


def options(url: str) -> dict[str, Any]:
    return {"base_url": f"{url}/v1", "api_key": "none", "model": MODEL, "temperature": 0, "max_tokens": 12}


def test_completions(url: str) -> None:
    model = OpenAI(**options(url), logit_bias={"17": -100}, seed=1, max_retries=0)
    alone = [model.invoke(prompt) for prompt in PROMPTS]
    assert all(alone)
    assert model.batch(PROMPTS) == alone
    assert asyncio.run(model.abatch(PROMPTS)) == alone
    assert ["".join(model.stream(prompt)) for prompt in PROMPTS] == alone
    generated = OpenAI(**options(url), n=2, best_of=3, max_retries=0).generate(PROMPTS)
    assert [len(one) for one in generated.generations] == [2, 2, 2]
    assert generated.llm_output is not None
    assert generated.llm_output["token_usage"]["completion_tokens"] == 3 * 3 * 12


def test_chat(url: str) -> None:
    model = ChatOpenAI(**options(url), max_retries=0)
    alone = [model.invoke(prompt) for prompt in PROMPTS]
    assert all(message.content for message in alone)
    for many in (model.batch(PROMPTS), asyncio.run(model.abatch(PROMPTS))):
        assert [message.content for message in many] == [message.content for message in alone]
    for prompt, message in zip(PROMPTS, alone, strict=True):
        streamed = None
        for piece in model.stream(prompt, stream_usage=True):
            streamed = piece if streamed is None else streamed + piece
        assert streamed is not None
        assert streamed.content == message.content
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            assert streamed.usage_metadata[name] == message.usage_metadata[name]
        assert streamed.response_metadata["finish_reason"] == message.response_metadata["finish_reason"]


def test_chat_with_logprobs(url: str) -> None:
    message = ChatOpenAI(**options(url), max_retries=0).bind(logprobs=True, top_logprobs=2).invoke("def main():")
    entries = message.response_metadata["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == message.content
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)


def test_pages(scripted: str, url: str) -> None:
    """The embeddings are those of the strings, not of token ids of another tokenizer."""
    assert run_page("clients.md", "## LangChain", scripted, SCRIPTED) == ["There is no script.\n"]
    parsed = run_page("structured.md", "## From Python", url, MODEL)
    assert all(printed.startswith("name=") for printed in parsed)
    names: dict[str, Any] = {}
    run_page("embeddings.md", "### LangChain", url, MODEL, names)
    body = {"model": MODEL, "input": ["The warranty lasts two years.", "Returns are free."]}
    same = [one["embedding"] for one in post(f"{url}/v1/embeddings", body)["data"]]
    for vector, wanted in zip(names["vectors"], same, strict=True):
        assert vector == pytest.approx(wanted, abs=1e-7)
