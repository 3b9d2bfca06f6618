"""Files: listed, kept while needed, refused by name, bounded by quotas, and each its key's own."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from openai.types import FileDeleted
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from jaxgen.client import EngineStatus
from jaxgen.server.app import create_app
from jaxgen.server.config import Access, ServerConfig
from jaxgen.server.limits import Availability, Batches
from jaxgen.server.schema import answers as shapes
from tests.support.batch_client import PATH, jsonl, line, never, start, upload, wait
from tests.support.fakes import MODEL
from tests.support.server_app import client_of, error_of, fake_engine


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with client_of(fake_engine(), ServerConfig(batches=Batches(batch_dir=tmp_path))) as made:
        yield made


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


def test_a_file_that_the_disk_has_lost_says_so(tmp_path: Path, client: TestClient) -> None:
    file_id = upload(client, jsonl(line("a")))
    (tmp_path / "files" / file_id).unlink()
    answer = client.get(f"/v1/files/{file_id}/content")
    assert (answer.status_code, error_of(answer.json())["code"]) == (404, "file_not_found")
    errors = wait(client, start(client, file_id).id).errors
    assert errors is not None
    assert [fault.code for fault in errors.data or []] == ["input_file_missing"]
    assert client.delete(f"/v1/files/{file_id}").status_code == 200


def test_a_file_stays_while_a_batch_needs_it(tmp_path: Path) -> None:
    with client_of(fake_engine(pace=never), ServerConfig(batches=Batches(batch_dir=tmp_path))) as client:
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
    with client_of(fake_engine(pace=never), ServerConfig(batches=Batches(batch_dir=tmp_path, **limits))) as client:
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

    with client_of(fake_engine(), ServerConfig(batches=Batches(batch_dir=tmp_path, max_file_bytes=2**18))) as client:
        kind = {"content-type": "multipart/form-data; boundary=x"}
        answer = client.post("/v1/files", content=b"".join([*islice(chunks(), 20)]), headers=kind)
        assert answer.status_code == 413


def test_what_a_key_made_is_its_own(tmp_path: Path) -> None:
    config = ServerConfig(batches=Batches(batch_dir=tmp_path), access=Access(api_keys=("one", "two")))
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
        assert client.delete(f"/v1/batches/{batch_id}", headers=other).status_code == 404
        for path in ("/v1/files", "/v1/batches"):
            assert client.get(path, headers=other).json()["data"] == []
            assert client.get(path, params={"after": "x"}, headers=other).status_code == 400
            assert len(client.get(path, headers=mine).json()["data"]) >= 1


def test_without_a_directory_the_routes_say_so() -> None:
    with client_of(fake_engine()) as client:
        for path in ("/v1/files", "/v1/batches", "/v1/files/file-1", "/v1/batches/batch_1"):
            answer = client.get(path)
            assert (answer.status_code, error_of(answer.json())["code"]) == (404, "batches_disabled")


def test_uploads_and_downloads_are_under_way_until_they_are_sent(tmp_path: Path) -> None:
    app = create_app(fake_engine(), ServerConfig(batches=Batches(batch_dir=tmp_path)))
    counts: list[int] = []

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            counts.append(app.state.lifecycle.num_requests)
            await send(message)

        await app(scope, receive, counted if scope["type"] == "http" else send)

    with TestClient(watched) as client:
        file_id = upload(client, b"x" * 200_000)
        assert client.get(f"/v1/files/{file_id}/content").content == b"x" * 200_000
        assert client.post("/detokenize", json={"model": MODEL, "tokens": [5]}).status_code == 200
    assert len(counts) > 6, "the download came in pieces"
    assert set(counts) == {1}
    assert app.state.lifecycle.num_requests == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/files"),
        ("GET", "/v1/files"),
        ("GET", "/v1/files/file-1/content"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/batches/batch_1"),
        ("POST", "/v1/batches/batch_1/cancel"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
    ],
)
def test_what_needs_no_engine_is_refused_while_draining_and_not_while_starting(
    tmp_path: Path, method: str, path: str
) -> None:
    app = create_app(
        fake_engine(state=EngineStatus("starting")),
        ServerConfig(batches=Batches(batch_dir=tmp_path), availability=Availability(retry_after_s=7)),
    )
    with TestClient(app) as client:
        assert client.request(method, path).status_code < 500
        app.state.lifecycle.draining = True
        refused = client.request(method, path)
        assert (refused.status_code, error_of(refused.json())["code"]) == (503, "draining")
        assert refused.headers["retry-after"] == "7"
        assert client.get("/v1/models").status_code == 200


def test_ended_batches_count_in_the_quota_until_they_are_deleted(tmp_path: Path) -> None:
    asked = {"endpoint": PATH, "completion_window": "24h", "metadata": {"a": "é" * 500}}
    with client_of(fake_engine(), ServerConfig(batches=Batches(batch_dir=tmp_path, max_stored_batches=2))) as client:
        asked["input_file_id"] = file_id = upload(client, b"{}\n")
        made = [wait(client, client.post("/v1/batches", json=asked).json()["id"]) for _ in range(2)]
        refused = client.post("/v1/batches", json=asked)
        assert (refused.status_code, error_of(refused.json())["code"]) == (403, "quota_exceeded")
        deleted = client.delete(f"/v1/batches/{made[0].id}")
        shapes.DeletedBatch.model_validate(deleted.json(), strict=True)
        assert [client.get(f"/v1/batches/{batch.id}").status_code for batch in made] == [404, 200]
        assert client.post("/v1/batches", json=asked).status_code == 200
        assert client.get(f"/v1/files/{file_id}").status_code == 200


def test_the_bytes_of_batches_count_for_files_and_batches(tmp_path: Path) -> None:
    with client_of(fake_engine(), ServerConfig(batches=Batches(batch_dir=tmp_path, max_stored_bytes=25_000))) as client:
        asked = {"input_file_id": upload(client, b"{}\n"), "endpoint": PATH, "completion_window": "24h"}
        asked["metadata"] = {f"{i:02}": "é" * 400 for i in range(16)}  # type: ignore[assignment]
        assert [client.post("/v1/batches", json=asked).status_code for _ in range(2)] == [200, 403]
        form: dict[str, Any] = {"files": {"file": b"x" * 13_000}, "data": {"purpose": "batch"}}
        assert client.post("/v1/files", **form).status_code == 403


def test_a_batch_that_has_not_ended_cannot_be_deleted(tmp_path: Path) -> None:
    with client_of(fake_engine(pace=never), ServerConfig(batches=Batches(batch_dir=tmp_path))) as client:
        batch = start(client, upload(client, jsonl(line("a", seed=9))))
        refused = client.delete(f"/v1/batches/{batch.id}")
        assert (refused.status_code, error_of(refused.json())["code"]) == (409, "batch_active")
        client.post(f"/v1/batches/{batch.id}/cancel")
        wait(client, batch.id)
        assert client.delete(f"/v1/batches/{batch.id}").status_code == 200
        gone = [client.delete(f"/v1/batches/{batch.id}"), client.post(f"/v1/batches/{batch.id}/cancel")]
        assert [answer.status_code for answer in gone] == [404, 404]


def test_metadata_is_bounded_in_bytes(client: TestClient) -> None:
    asked = {"input_file_id": upload(client, b"{}\n"), "endpoint": PATH, "completion_window": "24h"}
    for value, status in (("a" * 512, 200), ("\U0001f600" * 512, 400)):
        answer = client.post("/v1/batches", json={**asked, "metadata": {f"{i:064}": value for i in range(16)}})
        assert answer.status_code == status, answer.text
    assert error_of(answer.json())["param"] == "metadata"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("../../etc/passwd", "passwd"),
        ("/abs/in.jsonl", "in.jsonl"),
        ("a\\b\\in.jsonl", "in.jsonl"),
        ("a/b\\ c ", "c"),
        ("folder/", "file"),
        ("..", "file"),
        ("übung 東京.jsonl", "übung 東京.jsonl"),
    ],
)
def test_a_file_has_the_last_part_of_its_name(client: TestClient, sent: str, kept: str) -> None:
    answer = client.post("/v1/files", files={"file": (sent, b"x")}, data={"purpose": "batch"})
    assert (answer.status_code, answer.json()["filename"]) == (200, kept)


def test_a_name_in_the_form_of_earlier_clients_is_read(client: TestClient) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    name = b"; filename*=utf-8''a%2F%C3%BCbung%20%E6%9D%B1.jsonl"
    content = form % (b"purpose", b"", b"batch") + form % (b"file", name, b"x") + b"--x--\r\n"
    answer = client.post("/v1/files", content=content, headers={"content-type": "multipart/form-data; boundary=x"})
    assert (answer.status_code, answer.json()["filename"]) == (200, "übung 東.jsonl")


@pytest.mark.parametrize("char", ["\x00", "\x1b", "\x7f", "\x9b", "\u2028", "\u200f", "\u202e", "\u2066", "\u061c"])
def test_a_name_that_shows_as_another_is_refused(client: TestClient, char: str) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
    name = b'; filename="a%slnosj"' % char.encode()
    content = form % (b"purpose", b"", b"batch") + form % (b"file", name, b"x") + b"--x--\r\n"
    answer = client.post("/v1/files", content=content, headers={"content-type": "multipart/form-data; boundary=x"})
    assert answer.status_code == 400
    if char not in "\x00\x7f":  # which the form's parser refuses
        assert f"U+{ord(char):04X}" in error_of(answer.json())["message"]
    assert client.get("/v1/files").json()["data"] == []
