"""The batch directory: open to its user alone, and whole when the disk is full or a caller leaves."""

import errno
import logging
import os
import resource
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.server.app import create_app
from jaxgen.server.batches import store as stores
from jaxgen.server.batches.store import Store
from jaxgen.server.batches.tables import connect
from jaxgen.server.config import Access, ServerConfig
from jaxgen.server.limits import Availability, Batches
from tests.support.batch_client import PATH, jsonl, line, lines_of, start, upload, wait
from tests.support.fakes import says
from tests.support.live_server import serve
from tests.support.server_app import TOKENIZER, client_of, error_of, fake_engine

SECONDS = 120.0
FORM = (
    b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
)


def until(state: Callable[[], Any]) -> None:
    deadline = monotonic() + SECONDS
    while not state():
        assert monotonic() < deadline
        sleep(0.005)


@pytest.fixture(params=[0o000, 0o077, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    """The mode of the directory and of all that is in it, with ids left out."""
    found = [directory, *directory.rglob("*")]
    return {path.name.partition("-")[0] if path.parent.name == "files" else path.name: mode_of(path) for path in found}


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


ALL_PRIVATE = {
    "b": 0o700,
    "files": 0o700,
    "file": 0o600,
    "lock": 0o600,
    "batches.sqlite": 0o600,
    "batches.sqlite-wal": 0o600,
    "batches.sqlite-shm": 0o600,
}


@pytest.mark.usefixtures("umask")
def test_what_is_kept_is_open_to_its_user_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "b"
    with client_of(fake_engine(), ServerConfig(batches=Batches(batch_dir=directory))) as client:
        batch = start(client, upload(client, jsonl(line("a"), line("b", n="2"))))
        wait(client, batch.id)
        assert modes(directory) == ALL_PRIVATE
    assert "access" not in caplog.text


def test_an_older_directory_is_closed_to_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "b"
    with client_of(fake_engine(), ServerConfig(batches=Batches(batch_dir=directory))) as client:
        upload(client, jsonl(line("a")))
        for path in (directory, *directory.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    for _ in range(2):
        with client_of(fake_engine(), ServerConfig(batches=Batches(batch_dir=directory))) as client:
            upload(client, b"x")
            assert modes(directory) == ALL_PRIVATE
    (said,) = [record.getMessage() for record in caplog.records if "access" in record.getMessage()]
    assert said.startswith(f"--batch-dir {directory}: ")


def test_the_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 54321)
    with pytest.raises(ConfigError, match=f"^--batch-dir {tmp_path}: {tmp_path} belongs to the user .* runs as 54321:"):
        Store(tmp_path, Batches())
    assert list(tmp_path.iterdir()) == []


@contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """Writes beyond it fail in this process, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, bool]]:
    """The level of each line about the disk, and whether it has a traceback."""
    lines = [record for record in caplog.records if record.name.startswith("jaxgen.server.batches")]
    return [(record.levelname, record.exc_info is not None) for record in lines]


def test_an_upload_that_the_disk_has_no_room_for_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    form: dict[str, Any] = {"files": {"file": b"x" * 3_000_000}, "data": {"purpose": "batch"}}
    with client_of(fake_engine(), ServerConfig(batches=Batches(batch_dir=tmp_path))) as client:
        with no_file_longer_than(1_500_000):
            for _ in range(2):
                answer = client.post("/v1/files", **form)
                assert (answer.status_code, error_of(answer.json())["code"]) == (507, "disk_full")
        assert told(caplog) == [("ERROR", False)]
        until(lambda: not list((tmp_path / "files").iterdir()))
        assert client.get("/v1/files").json()["data"] == []
        assert client.post("/v1/files", **form).status_code == 200
        assert told(caplog) == [("ERROR", False), ("INFO", False)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_may_be_full_when_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with client_of(fake_engine(), ServerConfig(batches=Batches(batch_dir=tmp_path))) as client:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fsync)
            answer = client.post("/v1/files", files={"file": b"x"}, data={"purpose": "batch"})
        assert answer.status_code == 507
        until(lambda: not list((tmp_path / "files").iterdir()))
        upload(client, b"x")


def test_a_batch_goes_on_when_the_database_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("jaxgen.server.batches.runner.RETRY_SECONDS", 0.02)
    databases: list[sqlite3.Connection] = []

    def watched(path: Path) -> sqlite3.Connection:
        databases.append(connect(path))
        return databases[-1]

    monkeypatch.setattr(stores, "connect", watched)
    engine = fake_engine(reply=says([*TOKENIZER.encode("done")]))  # results of one length
    names = [f"{i:02}" for i in range(60)]
    with client_of(engine, ServerConfig(batches=Batches(batch_dir=tmp_path, max_batch_lines_in_flight=4))) as client:
        file_id = upload(client, jsonl(*map(line, names)))
        (pages,) = databases[0].execute("PRAGMA page_count").fetchone()
        databases[0].execute(f"PRAGMA max_page_count = {pages}")
        batch = start(client, file_id)
        until(lambda: told(caplog))
        sleep(0.2)  # several tries
        asked = {"input_file_id": file_id, "endpoint": PATH, "completion_window": "24h"}
        refused = client.post("/v1/batches", json={**asked, "metadata": {str(i): "v" * 512 for i in range(16)}})
        assert (refused.status_code, error_of(refused.json())["code"]) == (507, "disk_full")
        assert client.get(f"/v1/batches/{batch.id}").json()["status"] == "in_progress"
        assert told(caplog) == [("ERROR", False)]
        databases[0].execute("PRAGMA max_page_count = 100000")
        ended = wait(client, batch.id)
        assert [item["custom_id"] for item in lines_of(client, ended.output_file_id)] == names
        assert ended.error_file_id is None
    assert told(caplog) == [("ERROR", False), ("INFO", False)]
    assert len(engine.requests) == len(names), "what was computed has waited"


def test_results_without_room_leave_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxgen.server.batches.runner.RETRY_SECONDS", 0.02)
    copy, tries = Store.copy_results, list[str]()

    def copy_results(self: Store, batch_id: str, file_id: str, *, ok: bool, after: int) -> int | None:
        if after >= 0 and len(tries) < 2:
            tries.append(file_id)
            assert self.path(file_id).exists()
            raise OSError(errno.ENOSPC, "full")
        return copy(self, batch_id, file_id, ok=ok, after=after)

    monkeypatch.setattr(Store, "copy_results", copy_results)
    with client_of(fake_engine(), ServerConfig(batches=Batches(batch_dir=tmp_path))) as client:
        file_id = upload(client, jsonl(*(line(str(i)) for i in range(3))))
        ended = wait(client, start(client, file_id).id)
        assert len(tries) == 2
        assert {path.name for path in (tmp_path / "files").iterdir()} == {file_id, ended.output_file_id}
        assert len(lines_of(client, ended.output_file_id)) == 3


def test_a_file_is_gone_before_the_database_needs_room_to_say_so(tmp_path: Path) -> None:
    database: list[sqlite3.Connection] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stores, "connect", lambda path: database.append(connect(path)) or database[0])  # type: ignore[func-returns-value]
        store = Store(tmp_path, Batches())
    store.path("file-1").write_bytes(b"x")
    store.add_file("", "batch", "in", "file-1", 1)
    database[0].create_function("there", 0, lambda: store.path("file-1").exists())
    database[0].execute(
        "CREATE TEMP TRIGGER asks BEFORE DELETE ON files WHEN there() BEGIN SELECT RAISE(ABORT, 'no room'); END"
    )
    store.delete_file("", "file-1")
    assert store.files("", purpose=None, after=None, limit=9, newest_first=True)["data"] == []
    store.close()


@contextmanager
def uploading(url: str, length: int, content: bytes, *, key: str = "") -> Iterator[socket.socket]:
    """A connection with the beginning of an upload."""
    where = urlsplit(url)
    head = f"POST /v1/files HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-length: {length}\r\n"
    if key:
        head += f"authorization: Bearer {key}\r\n"
    with socket.create_connection((where.hostname, where.port), timeout=SECONDS) as connection:
        connection.sendall(head.encode() + b"content-type: multipart/form-data; boundary=x\r\n\r\n" + content)
        yield connection


def test_a_caller_who_leaves_in_mid_upload_leaves_no_file(tmp_path: Path) -> None:
    files = tmp_path / "files"
    with serve(create_app(fake_engine(), ServerConfig(batches=Batches(batch_dir=tmp_path)))) as url:
        with uploading(url, 9_000_000, FORM + b"y" * 3_000_000):
            until(lambda: sum(path.stat().st_size for path in files.iterdir()) > 2_000_000)
            assert [mode_of(path) for path in files.iterdir()] == [0o600]
        until(lambda: not list(files.iterdir()))


def test_only_so_many_uploads_are_under_way(tmp_path: Path) -> None:
    config = ServerConfig(
        batches=Batches(batch_dir=tmp_path, max_uploads=1), availability=Availability(retry_after_s=7)
    )
    form: dict[str, Any] = {"files": {"file": b"x"}, "data": {"purpose": "batch"}}
    with serve(create_app(fake_engine(), config)) as url:
        with uploading(url, 9_000_000, FORM + b"y" * 3_000_000):
            until(lambda: list((tmp_path / "files").iterdir()))
            refused = httpx2.post(f"{url}/v1/files", **form)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")
            assert error_of(refused.json())["code"] == "too_many_uploads"
        until(lambda: httpx2.post(f"{url}/v1/files", **form).status_code == 200)


@pytest.mark.parametrize(
    ("limits", "length", "status"),
    [
        ({"max_files": 1}, 1000, 403),
        ({"max_stored_bytes": 200_000}, 300_000, 403),
        ({"max_file_bytes": 200_000}, 300_000, 413),
    ],
)
def test_what_is_too_much_is_refused_before_it_is_sent(
    tmp_path: Path, limits: dict[str, int], length: int, status: int
) -> None:
    config = ServerConfig(batches=Batches(batch_dir=tmp_path, **limits))
    with serve(create_app(fake_engine(), config)) as url:
        made = httpx2.post(f"{url}/v1/files", files={"file": b"x"}, data={"purpose": "batch"})
        assert made.status_code == 200
        with uploading(url, length, b"") as connection:
            assert connection.recv(4096).startswith(f"HTTP/1.1 {status} ".encode())
        assert len(list((tmp_path / "files").iterdir())) == 1


def test_a_form_that_ends_early_or_comes_byte_by_byte(tmp_path: Path) -> None:
    kind = {"content-type": "multipart/form-data; boundary=x"}

    def parts(content: bytes) -> Iterator[bytes]:
        for i in range(len(content)):
            yield content[i : i + 1]

    with client_of(fake_engine(), ServerConfig(batches=Batches(batch_dir=tmp_path))) as client:
        answer = client.post("/v1/files", content=FORM + b"abc", headers=kind)
        assert (answer.status_code, error_of(answer.json())["param"]) == (400, "file")
        twice = FORM + b"abc\r\n" + FORM.partition(b"batch\r\n")[2] + b"d\r\n--x--\r\n"
        answer = client.post("/v1/files", content=twice, headers=kind)
        assert (answer.status_code, error_of(answer.json())["param"]) == (400, "file")
        answer = client.post("/v1/files", content=parts(FORM + b"a\r\n--y\r\nbc\r\n--x--\r\n"), headers=kind)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["filename"], answer.json()["bytes"]) == ("f", 10)
        assert client.get(f"/v1/files/{answer.json()['id']}/content").content == b"a\r\n--y\r\nbc"
        until(lambda: len(list((tmp_path / "files").iterdir())) == 1)


def test_one_caller_with_all_uploads_keeps_no_other_out(tmp_path: Path) -> None:
    config = ServerConfig(batches=Batches(batch_dir=tmp_path, max_uploads=1), access=Access(api_keys=("one", "two")))
    form: dict[str, Any] = {"files": {"file": b"x"}, "data": {"purpose": "batch"}}
    part = FORM + b"y" * 3_000_000
    with serve(create_app(fake_engine(), config)) as url, uploading(url, 9_000_000, part, key="one"):
        until(lambda: list((tmp_path / "files").iterdir()))
        for key, status in (("one", 429), ("two", 200)):
            answer = httpx2.post(f"{url}/v1/files", headers={"Authorization": f"Bearer {key}"}, **form)
            assert answer.status_code == status
