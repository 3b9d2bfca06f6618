"""Streamed answers of the app around a fake engine, and how their chunks are joined."""

from typing import Any

from tests.support.fakes import FakeEngine
from tests.support.server_app import body, client_of, stream_chunks


def streamed(engine: FakeEngine, **fields: Any) -> list[Any]:
    with client_of(engine) as client:
        answer = client.post("/v1/completions", json=body(stream=True, **fields))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.text.endswith("data: [DONE]\n\n")
    return stream_chunks(answer.text)


def joined(chunks: list[Any]) -> list[dict[str, Any]]:
    """The chunks' choices, each joined to one, in the order of their indices."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for piece in chunk["choices"]:
            choice = choices.setdefault(
                piece["index"], {"index": piece["index"], "text": "", "logprobs": None, "finish_reason": None}
            )
            assert choice["finish_reason"] is None, "nothing follows a finish reason"
            choice["text"] += piece["text"]
            choice["finish_reason"] = piece["finish_reason"]
            if piece["logprobs"] is not None:
                known = choice["logprobs"] or {name: [] for name in piece["logprobs"]}
                choice["logprobs"] = {name: known[name] + piece["logprobs"][name] for name in known}
    return [choices[index] for index in sorted(choices)]
