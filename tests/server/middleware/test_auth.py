"""API keys: which routes want one, keys of a file, and what callers with different keys share."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from starlette.testclient import TestClient

from jaxgen.core.errors import ConfigError
from jaxgen.server.app import create_app
from jaxgen.server.config import Access, ServerConfig
from jaxgen.server.middleware.auth import ApiKeys, Permissions
from tests.support.fakes import MODEL
from tests.support.live_server import serve
from tests.support.server_app import body, client_of, error_of, fake_engine

KEYS = ServerConfig(access=Access(api_keys=("first-key", "clé-2")))


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer first-ke",
        "Bearer first-keyy",
        "Basic first-key",
        "first-key",
        "Bearer first-key first-key",
    ],
)
def test_every_route_but_the_probes_wants_a_key(header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    engine = fake_engine()
    with client_of(engine, KEYS) as client:
        for method, path in [
            ("POST", "/v1/completions"),
            ("OPTIONS", "/v1/completions"),
            ("GET", "/v1/models"),
            ("GET", f"/v1/models/{MODEL}"),
            ("GET", "/metrics"),
            ("GET", "/nowhere"),
            ("GET", "/health/"),
            ("GET", "http://testserver//health"),
        ]:
            answer = client.request(method, path, headers=headers)
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert error_of(answer.json())["type"] == "invalid_request_error"
            assert "first-key" not in answer.text
        for path in ("/metrics", "/v1/models"):
            assert client.head(path, headers=headers).status_code == 401
        for path in ("/health", "/ready", "/livez"):
            assert client.get(path, headers=headers).status_code == 200
    assert engine.requests == []


def test_metrics_may_be_read_without_a_key() -> None:
    with client_of(fake_engine(), ServerConfig(access=replace(KEYS.access, public_metrics=True))) as client:
        assert client.get("/metrics").status_code == 200
        for path in ("/v1/models", "/metrics/", "/steps/history"):
            assert client.get(path).status_code == 401, path
        described = client.get("/openapi.json", headers={b"authorization": b"Bearer first-key"}).json()["paths"]
    assert "401" not in described["/metrics"]["get"]["responses"]
    assert "401" in described["/version"]["get"]["responses"]


@pytest.mark.parametrize("header", [b"Bearer first-key", b"bearer  first-key ", "Bearer clé-2".encode()])
def test_any_of_the_keys_opens_every_route(header: bytes) -> None:
    with client_of(fake_engine(), KEYS) as client:
        headers = {b"authorization": header}
        assert client.post("/v1/completions", json=body(), headers=headers).status_code == 200
        assert client.get("/metrics", headers=headers).status_code == 200
        assert client.get("/nowhere", headers=headers).status_code == 404


def test_the_openai_client_presents_its_key() -> None:
    with serve(create_app(fake_engine(), KEYS)) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="first-key", max_retries=0) as client:
            assert client.completions.create(model=MODEL, prompt="Say").choices
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.completions.create(model=MODEL, prompt="Say")


def test_keys_of_a_file_change_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n first \n\nsecond\n")

    def statuses(client: TestClient) -> list[int]:
        keys = ("first", "second", "third", "given", "# ours")
        return [client.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code for key in keys]

    with client_of(fake_engine(), ServerConfig(access=Access(api_keys=("given",), api_key_file=file))) as client:
        assert statuses(client) == [200, 200, 401, 200, 401]
        file.write_text("third")
        assert statuses(client) == [401, 401, 200, 200, 401]
        file.unlink()
        assert statuses(client) == [401, 401, 200, 200, 401], "the keys known last"
        file.write_text("")
        assert statuses(client) == [401, 401, 401, 200, 401]
        assert client.get("/v1/models").status_code == 401


@pytest.mark.parametrize("content", ["", "# nothing\n", None])
def test_a_file_without_keys_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match="--api-key-file"):
        create_app(fake_engine(), ServerConfig(access=Access(api_key_file=file)))


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbffirst\nsecond\n",
        b"\xef\xbb\xbf# ours\r\n  first\t\r\n\r\nsecond  \r\n",
        "\u00a0first\u00a0\nsecond\u2003weight=2".encode(),
        b"first\nsecond\nno\xffutf8\n",
    ],
)
def test_a_file_as_editors_leave_it_has_the_keys_that_were_meant(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    keys = ApiKeys((), file)
    assert all(keys.caller(key) is not None for key in (b"first", b"second"))
    assert keys.caller(b"\xef\xbb\xbffirst") is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"first\nsec ret\n", "line 2: behind a key may be weight=NUMBER"),
        ("sec\u00a0ret".encode(), "line 1: behind a key may be"),
        ("first\nsecret\n".encode("utf-16"), "is UTF-16: save it as UTF-8"),
    ],
)
def test_what_is_no_key_is_refused_by_line_and_not_repeated(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=says) as refused:
        ApiKeys((), file)
    said = str(refused.value)
    assert said.startswith(f"--api-key-file {file}")
    assert "ret" not in said.removeprefix(f"--api-key-file {file}")


@pytest.mark.parametrize(
    ("words", "rights"),
    [
        ("", Permissions()),
        ("operator", Permissions(operator=True)),
        ("weight=2", Permissions(2.0)),
        ("operator weight=0.5", Permissions(0.5, operator=True)),
        ("weight=2 operator", Permissions(2.0, operator=True)),
        *[
            (words, None)
            for words in ("operator operator", "operator=1", "weight=1 weight=2", "weight", "weight=0", "x")
        ],
    ],
)
def test_a_line_has_a_key_and_its_rights(tmp_path: Path, words: str, rights: Permissions | None) -> None:
    file = tmp_path / "keys"
    file.write_text(f"first\nsecond {words}\n")
    if rights is None:
        with pytest.raises(ConfigError, match="line 2: behind a key may be"):
            ApiKeys((), file)
        return
    keys = ApiKeys((), file)
    assert [keys.rights(keys.caller(key) or "") for key in (b"first", b"second")] == [Permissions(), rights]


@pytest.mark.parametrize(("mode", "lines"), [(0o600, 0), (0o640, 0), (0o644, 1)])
def test_a_file_that_everybody_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, lines: int
) -> None:
    file = tmp_path / "keys"
    file.write_text("first")
    file.chmod(mode)
    ApiKeys((), file)
    assert [record.getMessage() for record in caplog.records] == lines * [
        f"--api-key-file {file} can be read by every user of this machine (mode 0644)"
    ]


def test_a_file_that_goes_missing_warns_once_and_once_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, aside = tmp_path / "keys", tmp_path / "aside"
    file.write_text("first")
    file.chmod(0o600)
    keys = ApiKeys((), file)

    def said() -> list[str]:
        found = [keys.caller(b"first") for _ in range(3)]
        assert None not in found, "the keys known last"
        messages = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return messages

    assert said() == []
    file.rename(aside)
    (gone,) = said()
    assert "stay as they were" in gone
    assert said() == []
    aside.rename(file)  # the same file: its time is as it was
    (back,) = said()
    assert "are read again" in back
    file.write_text("first\nsec ret")
    (wrong,) = said()
    assert "line 2" in wrong
    assert said() == []
    file.write_text("first\nsecret weight=2")
    (right,) = said()
    assert "are read again" in right
    assert keys.caller(b"secret") is not None


def test_a_file_is_read_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, reads = tmp_path / "keys", list[Path]()
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        reads.append(path)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    file.write_text("first")
    keys = ApiKeys((), file)
    for content in ("first\nsecond", "first\nsec ret"):
        reads.clear()
        file.write_text(content)
        assert all(keys.caller(b"first") is not None for _ in range(3))
        assert reads == [file]


def test_callers_share_no_prefixes() -> None:
    def salts(config: ServerConfig, *keys: str, **fields: Any) -> list[str | None]:
        engine = fake_engine()
        with client_of(engine, config) as client:
            for key in keys:
                headers = {"Authorization": f"Bearer {key}"}
                assert client.post("/v1/completions", json=body(**fields), headers=headers).status_code == 200
        return [request.cache_salt for request in engine.requests]

    assert salts(ServerConfig(access=Access(api_keys=("a",))), "a") == [None]
    first, again, second = salts(ServerConfig(access=Access(api_keys=("a", "b"))), "a", "a", "b")
    assert first == again
    assert first != second
    assert first is not None
    assert first.endswith("/")
    assert first[:-1] not in ("a", "b")
    (salted,) = salts(ServerConfig(access=Access(api_keys=("a", "b"))), "a", cache_salt="s")
    assert salted == f"{first}s"


def test_keys_do_not_show_in_the_configurations_text() -> None:
    assert "first-key" not in repr(KEYS)


def test_a_file_that_seems_unchanged_is_read_again_when_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "jaxgen")
    file = tmp_path / "keys"
    file.write_text("one")
    file.chmod(0o600)
    keys, times = ApiKeys(file=file), file.stat()
    file.write_text("two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert keys.caller(b"two") is None
    assert keys.reload()
    assert keys.caller(b"two") is not None
    assert keys.caller(b"one") is None
    file.unlink()
    assert keys.reload()
    assert keys.caller(b"two") is not None
    assert not ApiKeys(("given",)).reload()
    assert [record.levelname for record in caplog.records][:2] == ["INFO", "WARNING"]


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}])
def test_a_missing_and_a_wrong_key_have_one_code_in_each_shape(headers: dict[str, str]) -> None:
    with client_of(fake_engine(), ServerConfig(access=Access(api_keys=("key",)))) as client:
        answers = [client.post(path, headers=headers) for path in ("/v1/chat/completions", "/v1/messages", "/v1/none")]
        answers.append(client.get("/v1/models", headers={**headers, "anthropic-version": "2023-06-01"}))
    assert [answer.status_code for answer in answers] == [401] * 4
    errors = [answer.json()["error"] for answer in answers]
    codes = [error.get("code", error.get("details", {}).get("error_code")) for error in errors]
    assert codes == ["invalid_api_key"] * 4
