"""OpenAI's own SDK, the newest, sync and async: fields, objects as it types them, errors and retries."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from tests.clients.conftest import MODEL, Server

pytestmark = pytest.mark.clients
PROMPT = "def main():\n    value ="
MESSAGES: Any = [{"role": "system", "content": "Python"}, {"role": "user", "content": "def main():"}]
FIELDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.8, "top_p": 0.9, "seed": 7},
    "penalties": {"temperature": 0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "user": "me"},
    "stop": {"temperature": 0, "stop": ["\n", "zzz"]},
    "bias": {"temperature": 0, "logit_bias": {"17": 100.0}},
    "choices": {"seed": 1, "n": 2},
    "logprobs": {"seed": 2, "logprobs": 3},
    "echo": {"temperature": 0, "echo": True},
    "tokens": {"temperature": 0, "prompt": [[3, 4, 5], [6, 7]]},
    "prompts": {"temperature": 0, "prompt": ["a =", "b = ["]},
}


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "extra_body": {"ignore_eos": True}, **fields}


def joined(chunks: list[Completion]) -> list[tuple[str, Any, list[Any], list[Any]]]:
    """Of each choice its text, finish reason, tokens and their log-probabilities, however they were cut."""
    found: dict[int, tuple[list[str], list[Any], list[Any], list[Any]]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts, reasons, tokens, values = found.setdefault(choice.index, ([], [], [], []))
            texts.append(choice.text)
            reasons.append(choice.finish_reason)
            if choice.logprobs is not None:
                tokens += choice.logprobs.tokens or []
                values += choice.logprobs.token_logprobs or []
    return [
        ("".join(texts), reasons[-1], tokens, values) for _, (texts, reasons, tokens, values) in sorted(found.items())
    ]


def counts(usage: Any) -> tuple[int, int, int]:
    """Tokens of prompt, answer and both; not those that were cached, of which a second request has more."""
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


@pytest.mark.parametrize("name", FIELDS)
def test_completion_whole_and_streamed(client: openai.OpenAI, name: str) -> None:
    fields = body(**FIELDS[name])
    answer = client.completions.with_raw_response.create(**fields)
    whole = Completion.model_validate_json(answer.text, strict=True)  # the SDK itself does not check
    stream = list(client.completions.create(**fields, stream=True, stream_options={"include_usage": True}))
    assert stream[-1].choices == []
    assert counts(stream[-1].usage) == counts(whole.usage)
    assert joined(stream) == joined([whole])
    assert len({chunk.id for chunk in stream}) == 1


def test_what_fields_do(client: openai.OpenAI) -> None:
    greedy = client.completions.create(**body(temperature=0)).choices[0]
    assert greedy.finish_reason == "length"
    stopped = client.completions.create(**body(temperature=0, max_tokens=200, stop="\n")).choices[0]
    assert stopped.finish_reason == "stop"
    assert "\n" not in stopped.text
    biased = client.completions.create(**body(temperature=0, logit_bias={"17": 100}, logprobs=1)).choices[0]
    assert biased.logprobs is not None
    assert biased.logprobs.tokens is not None
    assert len(set(biased.logprobs.tokens)) == 1
    echoed = client.completions.create(**body(temperature=0, echo=True, logprobs=1)).choices[0]
    assert echoed.text == PROMPT + greedy.text
    assert echoed.logprobs is not None
    assert "".join(echoed.logprobs.tokens or []) == echoed.text
    assert (echoed.logprobs.token_logprobs or [0])[0] is None  # as OpenAI's server has it, against the SDK's types
    seeds = [client.completions.create(**body(seed=seed)).choices[0].text for seed in (1, 1, 2)]
    assert seeds[0] == seeds[1] != seeds[2]
    best = client.completions.create(**body(seed=1, best_of=3, n=2, logprobs=0))
    sums = [sum(choice.logprobs.token_logprobs or []) for choice in best.choices if choice.logprobs]
    assert len(sums) == 2
    assert sums[0] >= sums[1]
    assert best.usage is not None
    assert best.usage.completion_tokens == 3 * 12


def test_async(url: str) -> None:
    """Many at once, whole and streamed: each answer is the one of its seed alone."""

    async def ask(client: openai.AsyncOpenAI, seed: int) -> str:
        return (await client.completions.create(**body(seed=seed))).choices[0].text

    async def stream(client: openai.AsyncOpenAI, seed: int) -> str:
        chunks = await client.completions.create(**body(seed=seed), stream=True)
        return "".join([chunk.choices[0].text async for chunk in chunks])

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            alone = [await ask(client, seed) for seed in range(8)]
            assert await asyncio.gather(*(stream(client, seed) for seed in range(8))) == alone
            models = [model.id async for model in client.models.list()]
            assert models == [MODEL]
            with pytest.raises(openai.NotFoundError):
                await client.completions.create(**body(model="nobody"))

    asyncio.run(main())


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"seed": 3, "n": 2, "logprobs": True, "top_logprobs": 2},
        {"temperature": 0, "stop": ["\n"], "presence_penalty": 0.3, "response_format": {"type": "text"}},
    ],
)
def test_chat_whole_and_streamed(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_completion_tokens": 12, **fields}
    answer = client.chat.completions.with_raw_response.create(**asked)
    whole = ChatCompletion.model_validate_json(answer.text, strict=True)
    texts: dict[int, str] = {}
    tokens: dict[int, list[str]] = {}
    reasons: dict[int, Any] = {}
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            reasons[choice.index] = choice.finish_reason
            if choice.logprobs is not None:
                tokens.setdefault(choice.index, []).extend(entry.token for entry in choice.logprobs.content or [])
        usage = chunk.usage
    assert counts(usage) == counts(whole.usage)
    for choice in whole.choices:
        assert (texts[choice.index], reasons[choice.index]) == (choice.message.content, choice.finish_reason)
        said = [entry.token for entry in choice.logprobs.content or []] if choice.logprobs else []
        assert tokens.get(choice.index, []) == said


def test_the_streaming_helper_of_the_sdk(client: openai.OpenAI) -> None:
    """It puts chunks together itself, and refuses what does not fit."""
    asked: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "stop": "\n"}
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**asked)
    assert final.choices[0].message.content == whole.choices[0].message.content


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id) == model
    assert (model.id, model.object) == (MODEL, "model")


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"n": 0}, openai.BadRequestError, "n"),
        ({"temperature": 3}, openai.BadRequestError, "temperature"),
        ({"suffix": "end"}, openai.BadRequestError, "suffix"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "max_tokens"),
        ({"extra_body": {"what": 1}}, openai.BadRequestError, "what"),
        ({"model": "nobody"}, openai.NotFoundError, "model"),
        ({"prompt": "a" * 5 * 2**20}, openai.APIStatusError, None),
    ],
)
def test_errors(client: openai.OpenAI, fields: dict[str, Any], kind: type[openai.APIStatusError], param: str) -> None:
    with pytest.raises(kind) as caught:
        client.completions.create(**body(**fields))
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id
    if param is None:
        assert caught.value.status_code == 413


def test_keys(server: Server) -> None:
    base = f"{server('--api-key', 'secret')}/v1"
    with openai.OpenAI(base_url=base, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        assert client.with_options(api_key="secret").models.list().data


def test_a_full_queue_is_retried(server: Server) -> None:
    """429 with a time to wait; the SDK waits for it and comes again."""
    base = f"{server('--max-num-seqs', '1', '--max-queued-requests', '1')}/v1"

    def ask(client: openai.OpenAI) -> Any:
        try:
            return client.completions.create(**body()).choices[0].finish_reason
        except openai.RateLimitError as error:
            return error

    with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as client, ThreadPoolExecutor(8) as pool:
        running = client.completions.create(**body(max_tokens=2000), stream=True)
        next(iter(running))
        refused = [one for one in pool.map(ask, [client] * 8) if isinstance(one, openai.RateLimitError)]
        running.close()
        assert refused
        assert {error.code for error in refused} == {"queue_full"}
        assert all(int(error.response.headers["retry-after"]) >= 1 for error in refused)
        patient = client.with_options(max_retries=20)
        assert list(pool.map(ask, [patient] * 8)) == ["length"] * 8
