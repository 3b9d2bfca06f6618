"""Every answer says what its bits depend on: system_fingerprint is the engine's digest, as OpenAI's clients read it."""

from typing import Any

import openai
import pytest

from jaxgen.core.operations import Choice
from jaxgen.core.stats import EngineStats
from jaxgen.server.app import create_app
from tests.server.api.test_chat import chat_engine, user
from tests.support.fakes import MODEL
from tests.support.live_server import serve
from tests.support.server_app import client_of, fake_engine, stream_chunks

FINGERPRINT = "fp_0123456789abcdef"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": ["Say", "Do"], "n": 2},
    "/v1/chat/completions": {"messages": [user("Hi")], "n": 2},
}


@pytest.mark.parametrize("path", BODIES)
def test_it_is_in_the_answer_and_in_every_chunk(path: str) -> None:
    engine = chat_engine()
    body = {"model": MODEL, "max_tokens": 3, **BODIES[path]}
    with client_of(engine) as client:
        assert client.post(path, json=body).json()["system_fingerprint"] == FINGERPRINT
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        chunks = stream_chunks(client.post(path, json=streamed).text)
    assert len(chunks) > 8
    assert {chunk["system_fingerprint"] for chunk in chunks} == {FINGERPRINT}


def test_openais_client_reads_it() -> None:
    with (
        serve(create_app(chat_engine())) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=3)
        chunks = client.completions.create(model=MODEL, prompt="Say", max_tokens=3, stream=True)
        assert {answer.system_fingerprint, *(chunk.system_fingerprint for chunk in chunks)} == {FINGERPRINT}


def test_capabilities_say_what_it_is_made_of() -> None:
    for fields in ({}, {"digest": "", "digest_parts": {}}):  # the latter while the engine starts
        engine = fake_engine(**fields)
        with client_of(engine) as client:
            found = client.get("/capabilities").json()
        assert (found["digest"], found["digest_parts"]) == (engine.digest, engine.digest_parts)


def test_capabilities_say_which_kernels_each_operation_has() -> None:
    numbers = EngineStats(kernel_choices={"products": Choice("XLA", "too slow")})
    with client_of(fake_engine(numbers=numbers)) as client:
        found = client.get("/capabilities").json()
    assert found["kernels"] == {"products": {"implementation": "XLA", "reason": "too slow"}}
    assert found["speculative_decoding"] is False
