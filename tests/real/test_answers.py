"""A real model behind the API: a chat comes to the end of its turn, and an answer keeps to a JSON schema."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from jaxgen import LLM
from jaxgen.server.app import create_app
from tests.support.float64_llama import Float64Llama
from tests.support.real_model import NAME, encoded

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
)
END = "<|im_end|>"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "married"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def client(served: LLM) -> Iterator[TestClient]:
    with TestClient(create_app(served.engine)) as found:
        yield found


def chat(client: TestClient, text: str, **fields: Any) -> dict[str, Any]:
    body = {"model": NAME, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 100}
    answer = client.post("/v1/chat/completions", json={**body, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_chat_comes_to_the_end_of_its_turn(client: TestClient, served: LLM, reference: Float64Llama) -> None:
    """As in the reference, by the template of the file."""
    found = chat(client, QUESTION)
    (choice,) = found["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER, "stop")
    prompt, turn = encoded(served, PROMPT), encoded(served, ANSWER + END)
    assert found["usage"]["prompt_tokens"] == len(prompt)
    rows = reference.logprobs((*prompt, *turn[:-1]), len(prompt) - 1)
    assert rows.argmax(axis=1).tolist() == list(turn)


def test_an_answer_keeps_to_a_schema(client: TestClient) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
    (choice,) = chat(client, "Describe a person named Alice who is 30 and married.", response_format=form)["choices"]
    assert choice["finish_reason"] == "stop"
    person = json.loads(choice["message"]["content"])
    jsonschema_rs.validate(SCHEMA, person)
    assert person["name"].startswith("Alice")
