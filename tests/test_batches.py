"""Files and batches through the openai client's own types, over a fake engine."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from itertools import islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from openai.types import Batch, FileDeleted, FileObject
from pydantic import BaseModel
from starlette.testclient import TestClient

from jaxgen.config import ConfigError
from jaxgen.request import EngineDeadError, Request
from server import answer_schema as shapes
from server.app import create_app
from server.batches.store import Store
from server.config import ServerConfig
from tests.fakes import MODEL, FakeEngine
from tests.server_app import client_of, error_of, fake_engine
from tests.test_server_chat import CHAT

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
    deadline = monotonic() + 30
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


@pytest.fixture
def engine() -> FakeEngine:
    return fake_engine()


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return ServerConfig(batch_dir=tmp_path)


@pytest.fixture
def client(engine: FakeEngine, config: ServerConfig) -> Iterator[TestClient]:
    with client_of(engine, config) as made:
        yield made


def test_every_line_is_answered_as_it_would_be_online(client: TestClient, engine: FakeEngine) -> None:
    lines = [line(f"l{i}", seed=i) for i in range(100)]
    batch, done, failed = run(client, jsonl(*lines), metadata={"a": "b"})
    assert (batch.status, batch.metadata, failed) == ("completed", {"a": "b"}, [])
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 100, "completed": 100, "failed": 0}
    assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert [item["custom_id"] for item in done] == [item["custom_id"] for item in lines]
    assert all(request.background for request in engine.requests)
    for item, result in zip(lines, done, strict=True):
        online = client.post(PATH, json=item["body"]).json()
        assert (result["error"], result["response"]["status_code"]) == (None, 200)
        assert result["response"]["body"]["choices"] == online["choices"]
    assert not engine.requests[-1].background


@pytest.mark.parametrize(
    ("endpoint", "fields", "said"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}, "choices"),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 3}, "usage"),
        ("/v1/embeddings", {"input": ["Hi", "Ho"]}, "data"),
    ],
)
def test_every_endpoint_answers_lines(config: ServerConfig, endpoint: str, fields: dict[str, Any], said: str) -> None:
    model = replace(fake_engine().model, chat=CHAT)
    item = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": MODEL, **fields}}
    with client_of(fake_engine(model=model), config) as client:
        batch, done, failed = run(client, jsonl(item), endpoint=endpoint)
        online = client.post(endpoint, json=item["body"]).json()
    assert (batch.status, failed) == ("completed", [])
    assert done[0]["response"]["body"][said] == online[said]


def test_a_bad_request_is_an_error_of_its_line(client: TestClient) -> None:
    bad = [line("type", n="2"), line("stream", stream=True), line("model", model="gpt"), line("long", max_tokens=999)]
    batch, done, failed = run(client, jsonl(line("good"), *bad, b"\n", line("last")))
    assert batch.status == "completed"
    assert [item["custom_id"] for item in done] == ["good", "last"]
    found = {item["custom_id"]: (item["response"]["status_code"], item["response"]["body"]) for item in failed}
    assert [status for status, _ in found.values()] == [400, 400, 404, 400]
    params = [error_of(body)["param"] for _, body in found.values()]
    assert params == ["n", "stream", "model", "max_tokens"]
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 4)


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"\n \n", "empty_file", None),
        (jsonl(line("a"), line("b"), line("a")), "duplicate_custom_id", 3),
        (jsonl(line("a"), line("b") | {"method": "GET"}), "invalid_method", 2),
        (jsonl(line("a") | {"url": "/v1/embeddings"}), "mismatched_url", 1),
        (jsonl(line("a"), b"{\n"), "invalid_json_line", 2),
        (jsonl(line("a"), b"\xff\n"), "invalid_json_line", 2),
        (jsonl(line("a") | {"body": []}), "invalid_line", 1),
        (jsonl(line("a") | {"custom_id": ""}), "invalid_custom_id", 1),
        (jsonl(*(line(str(i)) for i in range(6))), "too_many_requests", None),
        (jsonl(line("a"), line("b", prompt="x" * 2000), line("c")), "line_too_long", 2),
    ],
)
def test_a_file_that_is_no_batch_fails_whole(
    engine: FakeEngine, tmp_path: Path, content: bytes, code: str, number: int | None
) -> None:
    config = ServerConfig(batch_dir=tmp_path, max_batch_lines=5, max_body_bytes=1000)
    with client_of(engine, config) as client:
        batch, done, failed = run(client, content)
    assert (batch.status, done, failed, engine.requests) == ("failed", [], [], [])
    assert batch.errors is not None
    assert [(fault.code, fault.line) for fault in batch.errors.data or []] == [(code, number)]


def test_only_so_many_lines_are_in_flight(tmp_path: Path) -> None:
    most = 0

    async def slowly(request: Request, index: int) -> None:
        nonlocal most
        most = max(most, len(made.open))
        await asyncio.sleep(0.001)

    made = fake_engine(pace=slowly)
    with client_of(made, ServerConfig(batch_dir=tmp_path, max_batch_lines_in_flight=3)) as client:
        batch, done, _ = run(client, jsonl(*(line(str(i)) for i in range(20))))
        metrics = client.get("/metrics").text
    assert (batch.status, len(done), most) == ("completed", 20, 3)
    assert 'jaxgen_batch_lines_total{model_name="fake/model-1"} 20.0' in metrics
    for state in ("running", "waiting"):
        assert f'jaxgen_batch_lines_{state}{{model_name="fake/model-1"}} 0.0' in metrics


def test_batches_take_turns(tmp_path: Path) -> None:
    async def slowly(request: Request, index: int) -> None:
        await asyncio.sleep(0.001)

    with client_of(fake_engine(pace=slowly), ServerConfig(batch_dir=tmp_path, max_batch_lines_in_flight=2)) as client:
        big = start(client, upload(client, jsonl(*(line(str(i)) for i in range(500)))))
        small = start(client, upload(client, jsonl(line("a"), line("b"))))
        assert wait(client, small.id).status == "completed"
        assert client.get(f"/v1/batches/{big.id}").json()["status"] == "in_progress"


async def never(request: Request, index: int) -> None:
    if "9" in request.request_id[-3:] or request.params.seed == 9:
        await asyncio.Event().wait()


def test_a_batch_that_is_cancelled_gives_each_line_an_end(tmp_path: Path) -> None:
    engine = fake_engine(pace=never)
    with client_of(engine, ServerConfig(batch_dir=tmp_path, max_batch_lines_in_flight=2)) as client:
        batch = start(client, upload(client, jsonl(*(line(f"l{i}", seed=9 if i > 2 else 1) for i in range(9)))))
        while client.get(f"/v1/batches/{batch.id}").json()["request_counts"]["completed"] < 3:
            sleep(0.01)
        assert client.post(f"/v1/batches/{batch.id}/cancel").json()["status"] == "cancelling"
        ended = wait(client, batch.id)
        done, failed = lines_of(client, ended.output_file_id), lines_of(client, ended.error_file_id)
        assert (ended.status, len(done), len(failed)) == ("cancelled", 3, 6)
        assert {item["error"]["code"] for item in failed} == {"batch_cancelled"}
        assert not engine.open
        answer = client.post(f"/v1/batches/{batch.id}/cancel")
        assert answer.status_code == 409
        # The slots that its lines had are free.
        assert run(client, jsonl(*(line(str(i)) for i in range(4))))[0].status == "completed"


def test_a_batch_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.batches.store.WINDOW_S", 1)
    with client_of(fake_engine(pace=never), ServerConfig(batch_dir=tmp_path)) as client:
        ended, done, failed = run(client, jsonl(line("a", seed=1), line("b", seed=9)))
    assert (ended.status, len(done)) == ("expired", 1)
    assert [(item["custom_id"], item["error"]["code"]) for item in failed] == [("b", "batch_expired")]


def test_the_next_process_goes_on_where_one_ended(tmp_path: Path) -> None:
    config = ServerConfig(batch_dir=tmp_path, max_batch_lines_in_flight=4)
    with client_of(fake_engine(pace=never), config) as client:
        batch = start(client, upload(client, jsonl(*(line(f"l{i}", seed=9 * (i % 2)) for i in range(7)))))
        while client.get(f"/v1/batches/{batch.id}").json()["request_counts"]["completed"] < 4:
            sleep(0.01)
    engine = fake_engine()
    (tmp_path / "files" / "file-left").write_bytes(b"cut off")
    with client_of(engine, config) as client:
        ended = wait(client, batch.id)
        assert [item["custom_id"] for item in lines_of(client, ended.output_file_id)] == [f"l{i}" for i in range(7)]
    assert len(engine.requests) == 3
    assert not (tmp_path / "files" / "file-left").exists()


def test_a_server_that_drains_takes_no_further_lines(engine: FakeEngine, config: ServerConfig) -> None:
    app = create_app(engine, config)
    with TestClient(app) as client:
        app.state.lifecycle.draining = True
        batch = start(client, upload(client, jsonl(line("a"))))
        wait(client, batch.id, "in_progress")
        sleep(0.05)
        assert engine.requests == []
        app.state.lifecycle.draining = False
        assert wait(client, batch.id).status == "completed"


def test_an_engine_that_dies_leaves_lines_to_the_next(config: ServerConfig) -> None:
    async def dies(request: Request, index: int) -> None:
        if request.params.seed == 9:
            raise EngineDeadError("gone")

    dead = fake_engine(pace=dies)
    with client_of(dead, config) as client:
        batch = start(client, upload(client, jsonl(line("a"), line("b", seed=9), line("c", seed=9))))
        while len(dead.requests) < 3 or dead.open:
            sleep(0.01)
        assert client.get(f"/v1/batches/{batch.id}").json()["status"] == "in_progress"
    with client_of(fake_engine(), config) as client:
        ended = wait(client, batch.id)
        assert [item["custom_id"] for item in lines_of(client, ended.output_file_id)] == ["a", "b", "c"]
        assert ended.error_file_id is None


def test_files(client: TestClient) -> None:
    ids = [upload(client, f"{i}".encode()) for i in range(3)]
    assert client.get(f"/v1/files/{ids[1]}/content").content == b"1"
    assert client.get(f"/v1/files/{ids[1]}").json()["bytes"] == 1
    page = client.get("/v1/files", params={"limit": 2}).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
    page = client.get("/v1/files", params={"after": page["last_id"], "purpose": "batch"}).json()
    assert ([item["id"] for item in page["data"]], page["has_more"]) == ([ids[0]], False)
    page = client.get("/v1/files", params={"order": "asc", "limit": 1}).json()
    assert page["data"][0]["id"] == ids[0]
    deleted = client.delete(f"/v1/files/{ids[0]}")
    assert FileDeleted.model_validate(deleted.json(), strict=True).deleted
    assert client.get(f"/v1/files/{ids[0]}").status_code == 404
    assert client.get("/v1/files", params={"purpose": "batch_output"}).json()["data"] == []


def test_a_file_stays_while_a_batch_needs_it(tmp_path: Path) -> None:
    with client_of(fake_engine(pace=never), ServerConfig(batch_dir=tmp_path)) as client:
        file_id = upload(client, jsonl(line("a", seed=9)))
        batch = start(client, file_id)
        assert client.delete(f"/v1/files/{file_id}").status_code == 409
        client.post(f"/v1/batches/{batch.id}/cancel")
        wait(client, batch.id)
        assert client.delete(f"/v1/files/{file_id}").status_code == 200


@pytest.mark.parametrize(
    ("fields", "files", "param"),
    [
        ({}, {"file": b"x"}, "purpose"),
        ({"purpose": "fine-tune"}, {"file": b"x"}, "purpose"),
        ({"purpose": "batch"}, {"other": b"x"}, "other"),
        ({"purpose": "batch", "expires_after[seconds]": "3600"}, {"file": b"x"}, "expires_after[seconds]"),
    ],
)
def test_a_bad_upload_is_refused_by_name(client: TestClient, fields: Any, files: Any, param: str) -> None:
    answer = client.post("/v1/files", data=fields, files={name: (name, content) for name, content in files.items()})
    assert (answer.status_code, error_of(answer.json())["param"]) == (400, param)


def test_an_upload_without_a_file_is_refused(client: TestClient) -> None:
    for content in ({"data": {"purpose": "batch"}}, {"json": {"purpose": "batch"}}, {"content": b"--x"}):
        assert client.post("/v1/files", **content).status_code == 400
    broken = {"content-type": "multipart/form-data; boundary=x"}
    assert client.post("/v1/files", content=b"--y--", headers=broken).status_code == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/audio"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"output_expires_after": {}}, "output_expires_after"),
    ],
)
def test_a_bad_batch_is_refused_by_name(client: TestClient, fields: Any, param: str) -> None:
    asked = {"input_file_id": "file-1", "endpoint": PATH, "completion_window": "24h"} | fields
    answer = client.post("/v1/batches", json=asked)
    assert (answer.status_code, error_of(answer.json())["param"]) == (400, param)


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=99999", "after=file-1", "order=up", "nonsense=1"])
def test_bad_queries_are_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"/v1/files?{query}")
    assert (answer.status_code, error_of(answer.json())["param"]) == (400, query.partition("=")[0])


def test_quotas(tmp_path: Path) -> None:
    limits = {"max_files": 2, "max_stored_bytes": 300, "max_file_bytes": 250, "max_batches": 1}
    with client_of(fake_engine(pace=never), ServerConfig(batch_dir=tmp_path, **limits)) as client:  # type: ignore[arg-type]
        file_id = upload(client, jsonl(line("a", seed=9)))
        for content, status in ((b"x" * 251, 413), (b"x" * 250, 403)):
            form = {"files": {"file": content}, "data": {"purpose": "batch"}}
            assert client.post("/v1/files", **form).status_code == status  # type: ignore[arg-type]
        upload(client, b"x")
        assert client.post("/v1/files", files={"file": b"x"}, data={"purpose": "batch"}).status_code == 403
        start(client, file_id)
        asked = {"input_file_id": file_id, "endpoint": PATH, "completion_window": "24h"}
        assert client.post("/v1/batches", json=asked).status_code == 403
        assert len(list((tmp_path / "files").iterdir())) == 2


def test_a_body_far_over_the_limit_is_not_read(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        yield head
        for _ in range(100):
            yield b"x" * 2**16
        pytest.fail("reads on and on")

    with client_of(fake_engine(), ServerConfig(batch_dir=tmp_path, max_file_bytes=2**18)) as client:
        kind = {"content-type": "multipart/form-data; boundary=x"}
        answer = client.post("/v1/files", content=b"".join([*islice(chunks(), 20)]), headers=kind)
        assert answer.status_code == 413


def test_what_a_key_made_is_its_own(tmp_path: Path) -> None:
    config = ServerConfig(batch_dir=tmp_path, api_keys=("one", "two"))
    mine, other = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
    with client_of(fake_engine(), config) as client:
        file_id = upload(client, jsonl(line("a")), **mine)
        asked = {"input_file_id": file_id, "endpoint": PATH, "completion_window": "24h"}
        assert client.post("/v1/batches", json=asked, headers=other).status_code == 404
        batch_id = client.post("/v1/batches", json=asked, headers=mine).json()["id"]
        paths = [f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{batch_id}"]
        assert [client.get(path, headers=other).status_code for path in paths] == [404] * 3
        assert [client.get(path, headers=mine).status_code for path in paths] == [200] * 3
        assert client.delete(f"/v1/files/{file_id}", headers=other).status_code == 404
        assert client.post(f"/v1/batches/{batch_id}/cancel", headers=other).status_code == 404
        for path in ("/v1/files", "/v1/batches"):
            assert client.get(path, headers=other).json()["data"] == []
            assert client.get(path, params={"after": "x"}, headers=other).status_code == 400
            assert len(client.get(path, headers=mine).json()["data"]) >= 1


def test_a_line_has_one_result_and_the_first_stays(tmp_path: Path) -> None:
    store = Store(tmp_path, ServerConfig())
    file_id = store.add_file("", "batch", "in", BytesIO(jsonl(line("a"), line("b"))))["id"]
    batch_id = store.add_batch("", file_id, PATH, None)["id"]
    store.add_results(batch_id, [(0, True, "first")])
    store.add_results(batch_id, [(0, False, "again"), (1, False, "other")])
    assert store.batch("", batch_id)["request_counts"] == {"total": 0, "completed": 1, "failed": 1}
    assert [store.copy_results(batch_id, name, ok=name == "ok", after=-1) for name in ("ok", "no")] == [0, 1]
    assert [store.path(name).read_text() for name in ("ok", "no")] == ["first\n", "other\n"]
    with pytest.raises(ConfigError, match="in use by another server"):
        Store(tmp_path, ServerConfig())
    store.close()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"--batch-dir {tmp_path}/file"):
        Store(tmp_path / "file", ServerConfig())


def test_without_a_directory_the_routes_say_so() -> None:
    with client_of(fake_engine()) as client:
        for path in ("/v1/files", "/v1/batches", "/v1/files/file-1", "/v1/batches/batch_1"):
            answer = client.get(path)
            assert (answer.status_code, error_of(answer.json())["code"]) == (404, "batches_disabled")


def test_answers_are_as_the_openapi_document_describes_them(client: TestClient) -> None:
    batch, _, _ = run(client, jsonl(line("a"), line("b", prompt="")), metadata={"a": "b"})
    described: dict[str, type[BaseModel]] = {
        "/v1/files": shapes.Files,
        f"/v1/files/{batch.input_file_id}": shapes.File,
        "/v1/batches": shapes.Batches,
        f"/v1/batches/{batch.id}": shapes.Batch,
    }
    for path, shape in described.items():
        shape.model_validate(client.get(path).json(), strict=True)
    shapes.DeletedFile.model_validate(client.delete(f"/v1/files/{batch.input_file_id}").json(), strict=True)
