"""Tokens and log-probabilities of a seeded request are the same to the bit on every route and beside any load; and
what one route has computed is cached for the next."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from jaxgen import LLM, SamplingParams
from jaxgen.core.sampling_params import choice_seed
from jaxgen.server.app import create_app
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.live_server import serve

FIELDS = {
    "prompt": "def main(): return",
    "max_tokens": 20,
    "temperature": 0.9,
    "top_p": 0.95,
    "seed": 7,
    "logprobs": 5,
    "ignore_eos": True,
    "presence_penalty": 0.3,
}
Answer = dict[int, list[tuple[float, dict[str, float]]]]
"""By choice: each token's log-probability and the most probable ones; JSON keeps every bit of a double."""


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny_checkpoint(directory)
    template = "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}[assistant]"
    (directory / "chat_template.jinja").write_text(template)
    with LLM(str(directory), max_model_len=256, token_budget=32, max_num_seqs=6, block_size=16, num_blocks=24) as llm:
        yield llm


@pytest.fixture(scope="module")
def url(llm: LLM) -> Iterator[str]:
    with serve(create_app(llm.engine)) as url:
        yield f"{url}/v1/completions"


async def answer_of(client: httpx2.AsyncClient, url: str, **fields: Any) -> Answer:
    """Sends a request; joins the pieces of a streamed answer."""
    sent = await client.post(url, json={"model": "m", **FIELDS, **fields})
    assert sent.status_code == 200, sent.text
    if fields.get("stream"):
        events = [line.removeprefix("data: ") for line in sent.text.splitlines() if line.startswith("data: {")]
        choices = [choice for event in events for choice in json.loads(event)["choices"]]
    else:
        choices = sent.json()["choices"]
    found: Answer = {}
    for choice in choices:
        logprobs = choice["logprobs"] or {"token_logprobs": [], "top_logprobs": []}
        pieces = zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        found.setdefault(choice["index"], []).extend(pieces)
    return found


def answers(url: str, *requests: dict[str, Any], load: int = 0) -> list[Answer]:
    """All at once, among ``load`` strangers."""

    async def collect() -> list[Answer]:
        async with httpx2.AsyncClient(timeout=120) as client:
            strangers = [
                client.post(url, json={"model": "m", "prompt": "x" * (7 * i + 1), "max_tokens": 10 + 5 * i})
                for i in range(load)
            ]
            found = asyncio.gather(*(answer_of(client, url, **fields) for fields in requests))
            await asyncio.gather(*strangers)
            return await found

    return asyncio.run(collect())


@pytest.fixture(scope="module")
def reference(llm: LLM, url: str) -> Answer:
    fields = {"model": llm.engine.model.name, "n": 3}
    (found,) = answers(url, fields)
    assert [len(found[choice]) for choice in range(3)] == [20] * 3
    assert found[0] != found[1] != found[2]
    return found


def test_streamed_or_not_alone_or_beside_others(llm: LLM, url: str, reference: Answer) -> None:
    fields = {"model": llm.engine.model.name, "n": 3}
    assert answers(url, fields) == [reference]  # its prompt is cached now
    streamed = {**fields, "stream": True}
    assert answers(url, streamed) == [reference]
    assert answers(url, streamed, fields, {**fields, "cache_salt": "another"}, load=8) == [reference] * 3


def test_a_choice_is_a_request_of_its_own_seed(llm: LLM, url: str, reference: Answer) -> None:
    name = llm.engine.model.name
    alone = answers(url, *({"model": name, "seed": choice_seed(7, choice)} for choice in range(3)), load=3)
    assert [found[0] for found in alone] == [reference[choice] for choice in range(3)]
    listed = {"model": name, "n": 3, "prompt": ["another", FIELDS["prompt"]]}
    (found,) = answers(url, listed)
    assert [found[3 + choice] for choice in range(3)] == [reference[choice] for choice in range(3)]


def test_best_of_chooses_among_the_same(llm: LLM, url: str, reference: Answer) -> None:
    best = max(range(3), key=lambda choice: sum(logprob for logprob, _ in reference[choice]))
    (found,) = answers(url, {"model": llm.engine.model.name, "n": 1, "best_of": 3})
    assert found[0] == reference[best]


def test_a_program_gets_the_same_tokens(llm: LLM, url: str) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.9, top_p=0.95, seed=7, ignore_eos=True, presence_penalty=0.3)
    (completion,) = llm.generate([str(FIELDS["prompt"])], params)
    plain = {"model": llm.engine.model.name, **FIELDS, "logprobs": None}
    assert httpx2.post(url, json=plain, timeout=60).json()["choices"][0]["text"] == completion.text


def test_the_prefix_of_a_continued_response_is_cached(llm: LLM, url: str) -> None:
    base, fields = url.removesuffix("/completions"), {"model": llm.engine.model.name, "max_output_tokens": 4}
    first = httpx2.post(f"{base}/responses", json={**fields, "input": "x" * 60}, timeout=60).json()
    more = {"input": "And?", "previous_response_id": first["id"]}
    second = httpx2.post(f"{base}/responses", json={**fields, **more}, timeout=60).json()
    length = first["usage"]["input_tokens"]
    assert second["usage"]["input_tokens"] > length
    assert second["usage"]["input_tokens_details"]["cached_tokens"] >= length // 16 * 16 > 0
