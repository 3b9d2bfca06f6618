"""Chat requests with two tools, and a model's text that calls them."""

from typing import Any

from tests.support.fakes import MODEL, FakeEngine
from tests.support.server_app import client_of, stream_chunks

PATH = "/v1/chat/completions"
F: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
HI = {"role": "user", "content": "Hi"}
PARIS = ("get_weather", '{"city": "Paris 😀}"}')


def ask(engine: FakeEngine, status: int = 200, **fields: Any) -> Any:
    with client_of(engine) as client:
        answer = client.post(PATH, json={"model": MODEL, "messages": [HI], "tools": [F, WEATHER], **fields})
    assert answer.status_code == status, answer.text
    return stream_chunks(answer.text) if fields.get("stream") and status == 200 else answer.json()
