"""Batches, from the lines of a file to their results, over a fake engine."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.testclient import TestClient

from jaxgen.client import EngineStatus
from jaxgen.core.errors import ConfigError, EngineDeadError, TooCostlyError
from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.batches.store import Store
from jaxgen.server.batches.tables import _let_shrink
from jaxgen.server.config import ServerConfig
from jaxgen.server.errors import ApiError
from jaxgen.server.limits import Batches, Limits
from jaxgen.server.schema import answers as shapes
from tests.server.api.test_chat import CHAT
from tests.support.batch_client import PATH, jsonl, line, lines_of, never, run, start, upload, wait
from tests.support.fakes import MODEL, FakeEngine
from tests.support.server_app import client_of, error_of, fake_engine


@pytest.fixture
def engine() -> FakeEngine:
    return fake_engine()


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return ServerConfig(batches=Batches(batch_dir=tmp_path))


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
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}, "content"),
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


def test_an_error_of_a_line_has_the_shape_of_its_endpoint(config: ServerConfig) -> None:
    fields = {"model": "nobody", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    item = {"custom_id": "a", "method": "POST", "url": "/v1/messages", "body": fields}
    with client_of(fake_engine(), config) as client:
        _, _, (failed,) = run(client, jsonl(item), endpoint="/v1/messages")
    assert failed["response"]["status_code"] == 404
    body = failed["response"]["body"]
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")


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
    config = ServerConfig(batches=Batches(batch_dir=tmp_path, max_batch_lines=5), limits=Limits(max_body_bytes=1000))
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
    with client_of(made, ServerConfig(batches=Batches(batch_dir=tmp_path, max_batch_lines_in_flight=3))) as client:
        batch, done, _ = run(client, jsonl(*(line(str(i)) for i in range(20))))
        metrics = client.get("/metrics").text
    assert (batch.status, len(done), most) == ("completed", 20, 3)
    assert 'jaxgen_batch_lines_total{model_name="fake/model-1"} 20.0' in metrics
    for state in ("running", "waiting"):
        assert f'jaxgen_batch_lines_{state}{{model_name="fake/model-1"}} 0.0' in metrics


def test_batches_take_turns(tmp_path: Path) -> None:
    """A large batch waits for a small one to begin, and its second half for that one to end."""
    begun, ended = threading.Event(), threading.Event()

    async def pace(request: Request, index: int) -> None:
        while not (begun if len(turns.requests) <= 50 else ended).is_set():
            await asyncio.sleep(0.001)

    turns = fake_engine(pace=pace)
    with client_of(turns, ServerConfig(batches=Batches(batch_dir=tmp_path, max_batch_lines_in_flight=2))) as client:
        large = start(client, upload(client, jsonl(*(line(str(i)) for i in range(100)))))
        small = start(client, upload(client, jsonl(line("a"), line("b"))))
        begun.set()
        assert wait(client, small.id).status == "completed"
        assert client.get(f"/v1/batches/{large.id}").json()["status"] == "in_progress"
        ended.set()


def test_a_batch_that_is_cancelled_gives_each_line_an_end(tmp_path: Path) -> None:
    engine = fake_engine(pace=never)
    with client_of(engine, ServerConfig(batches=Batches(batch_dir=tmp_path, max_batch_lines_in_flight=2))) as client:
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
    monkeypatch.setattr("jaxgen.server.batches.store.WINDOW_S", 1)
    with client_of(fake_engine(pace=never), ServerConfig(batches=Batches(batch_dir=tmp_path))) as client:
        ended, done, failed = run(client, jsonl(line("a", seed=1), line("b", seed=9)))
    assert (ended.status, len(done)) == ("expired", 1)
    assert [(item["custom_id"], item["error"]["code"]) for item in failed] == [("b", "batch_expired")]


def test_the_next_process_goes_on_where_one_ended(tmp_path: Path) -> None:
    config = ServerConfig(batches=Batches(batch_dir=tmp_path, max_batch_lines_in_flight=4))
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
    engine.state = EngineStatus("starting")  # so that the line has not begun when the server drains
    with TestClient(app) as client:
        batch = start(client, upload(client, jsonl(line("a"))))
        wait(client, batch.id, "in_progress")
        app.state.lifecycle.draining = True
        engine.state = EngineStatus("ready")
        sleep(0.25)
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


def test_a_line_has_one_result_and_the_first_stays(tmp_path: Path) -> None:
    store = Store(tmp_path, Batches())
    file_id = store.add_file("", "batch", "in", "file-1", 1)["id"]
    batch_id = store.add_batch("", file_id, PATH, None)["id"]
    store.add_results(batch_id, [(0, True, "first")])
    store.add_results(batch_id, [(0, False, "again"), (1, False, "other")])
    assert store.batch("", batch_id)["request_counts"] == {"total": 0, "completed": 1, "failed": 1}
    assert [store.copy_results(batch_id, name, ok=name == "ok", after=-1) for name in ("ok", "no")] == [0, 1]
    assert [store.path(name).read_text() for name in ("ok", "no")] == ["first\n", "other\n"]
    with pytest.raises(ConfigError, match="in use by another server"):
        Store(tmp_path, Batches())
    store.close()


def test_ended_batches_are_kept_for_their_time(tmp_path: Path) -> None:
    now = [1e9]
    store = Store(tmp_path, Batches(batch_lifetime_s=100), lambda: now[0])
    file_id = store.add_file("", "batch", "in", "file-1", 1)["id"]
    ended, active = (store.add_batch("", file_id, PATH, None)["id"] for _ in range(2))
    store.finish(ended, "completed", {}, {})
    for now[0], left in ((1e9 + 99, [active, ended]), (1e9 + 100, [active])):
        store.drop_ended()
        assert [batch["id"] for batch in store.batches("", after=None, limit=9)["data"]] == left
    assert store.file("", file_id)["id"] == file_id
    store.close()


def test_a_database_of_an_older_version_gets_its_columns(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "batches.sqlite")
    db.executescript(
        "PRAGMA journal_mode=WAL;"
        "CREATE TABLE results (batch TEXT, line INTEGER, ok INTEGER, text TEXT, PRIMARY KEY (batch, line)) "
        "WITHOUT ROWID;"
        "INSERT INTO results VALUES ('running', 0, 1, 'four');"
        "CREATE TABLE batches (number INTEGER PRIMARY KEY, id TEXT UNIQUE, owner TEXT, status TEXT, input TEXT, "
        "fields TEXT, total INTEGER DEFAULT 0, completed INTEGER DEFAULT 0, failed INTEGER DEFAULT 0);"
        "INSERT INTO batches (id, owner, status, input, fields) VALUES "
        """('old', '', 'failed', 'x', '{"endpoint": 1}'), ('running', 'o', 'in_progress', 'x', '{}')"""
    )
    db.close()
    now = 1e9
    store = Store(tmp_path, Batches(max_stored_bytes=20, batch_lifetime_s=100), lambda: now)
    assert store.batch("", "old")["endpoint"] == 1
    assert store._db.execute("PRAGMA auto_vacuum").fetchone()[0] == 2
    with pytest.raises(ApiError, match="batches of 7 bytes"):
        store.check_quota("o", 14)
    with pytest.raises(ApiError, match="batches of 15 bytes"):
        store.check_quota("", 6)
    now += 100
    store.drop_ended()
    store.check_quota("", 6)
    store.close()


def test_an_older_database_is_used_though_the_disk_has_no_room_for_a_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
            if sql == "VACUUM":
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            return super().execute(sql, *values)

    _let_shrink(sqlite3.connect(tmp_path / "x", factory=Full), tmp_path / "x")
    assert "keeps the room" in caplog.text


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=f"--batch-dir {tmp_path}/file"):
        Store(tmp_path / "file", Batches())


def test_a_line_waits_where_new_grammars_of_its_caller_are_refused(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = [TooCostlyError("3 grammars of yours took too much", 0.0)] * 2

    async def grammar(*_: object) -> None:
        if refusals:
            raise refusals.pop()

    monkeypatch.setattr("jaxgen.server.api.completions.answer_grammar", grammar)
    _, done, failed = run(client, jsonl(line("a")))
    assert (len(done), failed, refusals) == (1, [], [])


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
