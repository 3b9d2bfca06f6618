"""The files of the page, and what stands at ``/`` without it."""

import gzip
import logging
import re
from collections.abc import Iterator
from importlib.resources import files
from posixpath import dirname, join, normpath

import pytest
from starlette.testclient import TestClient

from jaxgen.server.app import create_app
from jaxgen.server.config import Access, Cors, ServerConfig
from jaxgen.server.web_ui.site_routes import page_routes
from tests.support.live_server import serve
from tests.support.raw_http import ask, head
from tests.support.server_app import client_of, error_of, fake_engine

PATHS = sorted(route.path for route in page_routes())
SITE = files("jaxgen.server.web_ui") / "site"
KEYS = ServerConfig(access=Access(api_keys=("secret",)))


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Of a server with a key, which is not sent."""
    with client_of(fake_engine(), KEYS) as found:
        yield found


@pytest.mark.parametrize("path", PATHS)
def test_every_file_is_open_and_carries_the_policy(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    own = ("script-src", "style-src", "font-src", "connect-src")
    assert [policy[name] for name in own] == ["'self'"] * 4
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"


def test_types() -> None:
    with client_of(fake_engine()) as client:
        types = {path: client.get(path).headers["content-type"].partition(";")[0] for path in PATHS}
    assert (types["/"], types["/docs"], types["/icon.svg"]) == ("text/html", "text/html", "image/svg+xml")
    assert {kind for path, kind in types.items() if path.endswith(".js")} == {"text/javascript"}
    assert {kind for path, kind in types.items() if path.endswith(".css")} == {"text/css"}
    assert types["/vendor/Temml.woff2"] == "font/woff2"


@pytest.mark.parametrize("page", ["/", "/docs"])
def test_pages_name_only_files_that_there_are_and_have_no_inline_script_or_style(client: TestClient, page: str) -> None:
    text = client.get(page).text
    named = re.findall(r'(?:src|href)="([^"#]+)"', text)
    assert named
    assert {f"/{name}" for name in named} <= set(PATHS)
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\bon\w+=", text)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_known_file_is_not_sent_again(client: TestClient, encoding: str) -> None:
    headers = {"accept-encoding": encoding}
    first = client.get("/app.js", headers=headers)
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
        again = client.get("/app.js", headers={**headers, "if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert "content-security-policy" in again.headers
    assert client.get("/app.js", headers={**headers, "if-none-match": '"other"'}).content == first.content


def test_a_file_is_compressed_for_those_who_take_it() -> None:
    plain = (SITE / "app.js").read_bytes()
    with serve(create_app(fake_engine())) as url:
        first, body = asked(url, "Accept-Encoding: gzip, br")
        assert b"content-encoding: gzip" in first
        assert gzip.decompress(body) == plain
        assert len(body) < len(plain)
        assert b"vary: accept-encoding" in first
        first, body = asked(url)
        assert b"content-encoding" not in first
        assert body == plain
        first, body = asked(url, method="HEAD")
        assert f"content-length: {len(plain)}".encode() in first
        assert body == b""


def asked(url: str, *fields: str, method: str = "GET") -> tuple[bytes, bytes]:
    """The head and the body of what the server sends."""
    first, _, body = ask(url, head("/app.js", "Connection: close", *fields, method=method)).partition(b"\r\n\r\n")
    return first, body


def test_head_says_what_get_would(client: TestClient) -> None:
    for path in PATHS:
        told, got = client.head(path), client.get(path)
        assert told.status_code == 200
        assert told.headers["content-length"] == got.headers["content-length"]
        assert told.headers["etag"] == got.headers["etag"]


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        "/docs.html",
        "/docs/",
        "/play",
        "/live/",
        "/..%2fsite_routes.py",
        "/play/..%2f..%2fsite_routes.py",
        "/%2e%2e/site_routes.py",
        "/play/%2e%2e/app.js",
        "/app.js%00",
        "//app.js/",
    ],
)
def test_nothing_else_is_served(path: str) -> None:
    with client_of(fake_engine()) as client:
        answer = client.get(f"http://testserver{path}", follow_redirects=False)
        assert answer.status_code == 404
        error_of(answer.json())
    with client_of(fake_engine(), KEYS) as client:
        assert client.get(f"http://testserver{path}", follow_redirects=False).status_code == 401


def test_what_the_page_reads_wants_a_key(client: TestClient) -> None:
    for path in ("/openapi.json", "/capabilities", "/v1/models", "/version", "/metrics"):
        assert client.get(path).status_code == 401


def test_other_methods_are_refused(client: TestClient) -> None:
    answer = client.post("/", json={})
    assert answer.status_code == 405
    error_of(answer.json())


def test_without_the_page_the_routes_are_listed() -> None:
    with client_of(fake_engine(), ServerConfig(access=Access(api_keys=("secret",)), ui=False)) as client:
        answer = client.get("/")
        assert answer.headers["content-type"] == "application/json"
        assert {"POST /v1/chat/completions", "GET /openapi.json"} <= set(answer.json()["routes"])
        for path in set(PATHS) - {"/"}:
            assert client.get(path, headers={"authorization": "Bearer secret"}).status_code == 404


def test_files_are_logged_as_probes_are(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "jaxgen")
    with client_of(fake_engine()) as client:
        client.get("/")
        client.get("/style.css")
        client.get("/v1/models")
    levels = [(one.fields["path"], one.levelname) for one in caplog.records if hasattr(one, "fields")]
    assert levels == [("/", "DEBUG"), ("/style.css", "DEBUG"), ("/v1/models", "INFO")]


def test_pages_of_other_origins_get_nothing_but_where_they_are_named() -> None:
    other = {"origin": "https://other.example"}
    with client_of(fake_engine()) as client:
        assert client.get("/", headers=other).status_code == 403
        assert client.get("/", headers={"origin": "http://testserver"}).status_code == 200
    with client_of(fake_engine(), ServerConfig(access=Access(cors=Cors(origins=("https://other.example",))))) as client:
        assert client.get("/app.js", headers=other).headers["access-control-allow-origin"] == "https://other.example"


def test_every_module_of_the_page_is_asked_for_at_once() -> None:
    found: set[str] = set()

    def follow(name: str) -> None:
        found.add(name)
        for other in re.findall(r'from "(\.[^"]+)"', (SITE / name).read_text(encoding="utf-8")):
            path = normpath(join(dirname(name), other))
            if path not in found:
                follow(path)

    follow("app.js")
    preloaded = re.findall(r'modulepreload" href="([^"]+)"', (SITE / "index.html").read_text(encoding="utf-8"))
    assert sorted(preloaded) == sorted(found - {"app.js"})
