"""A caller of /v1/files and /v1/batches, which reads answers by the openai client's own types."""

import asyncio
import json
from time import monotonic, sleep
from typing import Any

from openai.types import Batch, FileObject
from starlette.testclient import TestClient

from jaxgen.core.request import Request
from tests.support.fakes import MODEL

PATH = "/v1/completions"
ENDED = ("completed", "failed", "cancelled", "expired")


def line(name: str, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": f"Say {name}", "max_tokens": 4, **fields}
    return {"custom_id": name, "method": "POST", "url": PATH, "body": body}


def jsonl(*lines: Any) -> bytes:
    return b"".join(item if isinstance(item, bytes) else json.dumps(item).encode() + b"\n" for item in lines)


def upload(client: TestClient, content: bytes, **headers: str) -> str:
    answer = client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}, headers=headers)
    assert answer.status_code == 200, answer.text
    return FileObject.model_validate(answer.json(), strict=True).id


def start(client: TestClient, file_id: str, endpoint: str = PATH, **fields: Any) -> Batch:
    asked = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h", **fields}
    answer = client.post("/v1/batches", json=asked)
    assert answer.status_code == 200, answer.text
    return Batch.model_validate(answer.json(), strict=True)


def wait(client: TestClient, batch_id: str, *states: str) -> Batch:
    deadline = monotonic() + 120
    while (batch := Batch.model_validate(client.get(f"/v1/batches/{batch_id}").json())).status not in (states or ENDED):
        assert monotonic() < deadline, batch
        sleep(0.01)
    return batch


def lines_of(client: TestClient, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    answer = client.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 200
    return [json.loads(text) for text in answer.text.splitlines()]


def run(client: TestClient, content: bytes, **fields: Any) -> tuple[Batch, list[Any], list[Any]]:
    """The batch when it has ended, with its results and its errors."""
    batch = wait(client, start(client, upload(client, content), **fields).id)
    return batch, lines_of(client, batch.output_file_id), lines_of(client, batch.error_file_id)


async def never(request: Request, index: int) -> None:
    if "9" in request.request_id[-3:] or request.params.seed == 9:
        await asyncio.Event().wait()
