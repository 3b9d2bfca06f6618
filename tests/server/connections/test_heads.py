"""What comes before a request's body: bounds, deadlines and the rules of HTTP."""

import asyncio
import json
import socket
from collections.abc import Iterator

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from jaxgen.server.app import create_app
from jaxgen.server.config import ServerConfig
from jaxgen.server.connections.head import MAX_FIELDS, MAX_HEAD_BYTES, MAX_PIPELINED
from jaxgen.server.limits import Connections
from tests.support.live_server import serve
from tests.support.raw_http import answer_on, ask, connected, head, post, refused, rest_of, split
from tests.support.server_app import body, fake_engine, stream_chunks


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serve(create_app(fake_engine())) as url:
        yield url


@pytest.fixture(scope="module")
def hasty() -> Iterator[str]:
    """A server that gives a head half a second."""
    with serve(create_app(fake_engine()), ServerConfig(connections=Connections(header_timeout_s=0.5))) as url:
        yield url


def long_field(length: int) -> str:
    return "X-Long: " + "a" * length


def test_heads_within_the_bounds_are_taken(url: str) -> None:
    many = [f"X-{index}: a" for index in range(MAX_FIELDS - 2)]
    for fields in ([long_field(MAX_HEAD_BYTES - 200)], many):
        assert split(ask(url, head("/health", *fields, "Connection: close")))[0] == 200


@pytest.mark.parametrize(
    ("request_head", "expected"),
    [
        (head("/health", long_field(MAX_HEAD_BYTES)), (431, "headers_too_large")),
        (head("/health", *(f"X-{index}: a" for index in range(MAX_FIELDS))), (431, "headers_too_large")),
        (head("/" + "a" * MAX_HEAD_BYTES), (414, "uri_too_long")),
    ],
    ids=["long field", "many fields", "long line"],
)
@pytest.mark.parametrize("piece", [1000, 100_000])
def test_heads_beyond_the_bounds_are_refused(
    url: str, request_head: bytes, expected: tuple[int, str], piece: int
) -> None:
    assert refused(ask(url, *(request_head[at : at + piece] for at in range(0, len(request_head), piece)))) == expected


@pytest.mark.parametrize("start", [head()[:-2] + b"X: ", head()[:-2], b"GET /", b"", b"\r\n"])
def test_a_head_without_an_end_is_refused_while_it_comes(url: str, start: bytes) -> None:
    """Neither the parser nor we keep more of it than the bound."""
    with connected(url) as connection:
        connection.sendall(start)
        for _ in range(10 * MAX_HEAD_BYTES // 1000):
            connection.sendall(b"\r\n" * 500 if start == b"\r\n" else b"a" * 1000)
        connection.shutdown(socket.SHUT_WR)
        assert refused(rest_of(connection))[0] in (400, 414, 431)


@pytest.mark.parametrize(
    "tail",
    [b"0\r\n" + b"".join(b"X-%d: a\r\n" % index for index in range(1000)), b"0\r\nX: " + b"a" * 3 * MAX_HEAD_BYTES],
    ids=["many", "long"],
)
def test_trailers_are_bounded_too(url: str, tail: bytes) -> None:
    start = head("/v1/completions", "Transfer-Encoding: chunked", method="POST") + b"1\r\n{\r\n"
    assert refused(ask(url, start, tail, b"\r\n"))[0] == 431


def test_trailers_and_extensions_within_bounds_change_nothing(url: str) -> None:
    content = json.dumps(body(max_tokens=2)).encode()
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in content)
    start = head("/v1/completions", "Transfer-Encoding: chunked", "Connection: close", method="POST")
    assert split(ask(url, start, chunks, b"0\r\nX-Sum: 1\r\n\r\n"))[0] == 200


def test_trailers_become_no_headers() -> None:
    """A key, an address or an id among them would come too late to be checked."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        await PlainTextResponse(b",".join(name for name, _ in scope["headers"]))(scope, receive, send)

    raw = (
        head("/", "Transfer-Encoding: chunked", "Connection: close", method="POST")
        + b"1\r\na\r\n0\r\nX-Late: 1\r\n\r\n"
    )
    with serve(app) as url:
        assert split(ask(url, raw))[2] == b"host,transfer-encoding,connection"


def test_a_head_that_trickles_ends(hasty: str) -> None:
    with connected(hasty) as connection:
        connection.sendall(head()[:-2])
        assert refused(rest_of(connection)) == (408, "header_timeout")


def test_a_connection_that_says_nothing_ends_without_an_answer(hasty: str) -> None:
    with connected(hasty) as connection:
        assert rest_of(connection) == b""


def test_the_second_request_of_a_connection_has_a_deadline_too() -> None:
    limits = ServerConfig(connections=Connections(header_timeout_s=2.0))  # in which the first must come
    with serve(create_app(fake_engine()), limits) as url, connected(url) as connection:
        connection.sendall(head())
        assert answer_on(connection).endswith(b"}")
        connection.sendall(b"GET /hea")
        assert refused(rest_of(connection)) == (408, "header_timeout")


def test_an_answer_under_way_is_not_cut_by_the_next_head() -> None:
    """What comes after the request, an empty line or half a head, neither ends its answer nor mixes into it."""

    async def slowly(request: object, index: int) -> None:
        await asyncio.sleep(1.5 if index == 7 else 0)  # longer than a head may take

    with serve(
        create_app(fake_engine(pace=slowly)), ServerConfig(connections=Connections(header_timeout_s=1.0))
    ) as url:
        for rest, *headers in ((b"\r\n", "Connection: close"), (b"GET /hea",)):
            with connected(url) as connection:
                connection.sendall(post(body(max_tokens=8), *headers) + rest)
                status, fields, content = split(rest_of(connection))
            length = int(fields["content-length"])
            assert status == 200
            assert len(json.loads(content[:length])["choices"][0]["text"]) > 0
            if rest != b"\r\n":
                assert refused(content[length:]) == (408, "header_timeout")


def test_pipelined_requests_are_answered_in_order_and_bounded(url: str) -> None:
    with connected(url) as connection:
        connection.sendall(b"".join(head(f"/v1/models/{index}") for index in range(1000)))
        got = rest_of(connection)
    answers = got.split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"404"] * (MAX_PIPELINED + 1) + [b"503"]
    assert [f"`{index}`".encode() in answer for index, answer in enumerate(answers[:-1])] == [True] * len(answers[:-1])


def test_garbage_behind_a_request_is_refused_after_its_answer(url: str) -> None:
    status, fields, content = split(ask(url, post(body(max_tokens=3)) + b"\x00\x01\x02 what\r\n\r\n"))
    assert status == 200
    assert refused(content[int(fields["content-length"]) :]) == (400, "invalid_http_request")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET /health HTTP/1.0\r\nHost: a\r\nhost: b\r\n\r\n", 400),
        (head(version="2.0"), 505),
        (head(version="1.2"), 505),
        (head(version="9.9"), 505),
        (b"GET /health\r\n\r\n", 505),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET a b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (head("/v1/completions", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n", 400),
    ],
)
def test_what_is_no_http_of_ours_is_refused_in_openais_shape(url: str, raw: bytes, status: int) -> None:
    assert refused(ask(url, raw))[0] == status


@pytest.mark.parametrize("stream", [False, True])
def test_answers_to_http_1_0_have_no_chunks(url: str, stream: bool) -> None:
    raw = post(body(max_tokens=5, stream=stream), "Connection: keep-alive", version="1.0").replace(
        b"Host: localhost\r\n", b""
    )
    status, fields, content = split(ask(url, raw))
    assert status == 200
    assert "transfer-encoding" not in fields
    assert fields["connection"] == "close"
    if stream:
        assert content.endswith(b"data: [DONE]\n\n")
        assert len(stream_chunks(content.decode())) > 1
    else:
        assert len(json.loads(content)["choices"]) == 1


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
def test_an_offer_to_upgrade_is_ignored_with_its_body_kept(url: str, upgrade: str) -> None:
    """Java's client offers HTTP/2 with every request that has no TLS."""
    fields = ("Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", "HTTP2-Settings: AAMAAABkAAQAAP__")
    raw = post(body(max_tokens=2), *fields)
    with connected(url) as connection:
        for part in (raw, raw[:-10], raw[-10:], head("/health", "Connection: close")):
            connection.sendall(part)
        answers = rest_of(connection).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200"] * 3
    assert b'"usage"' in answers[1]
