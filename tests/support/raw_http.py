"""HTTP by hand: what no client library would send, and what comes back to the byte."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.support.server_app import error_of

WAIT_SECONDS = 60.0
"""Far more than anything may take, so that a test that would hang fails instead."""


def where(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


@contextmanager
def connected(url: str, *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """A connection to the server. ``receive_buffer``: bytes that the kernel keeps for a caller that reads nothing."""
    with socket.socket() as made:
        if receive_buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        made.settimeout(WAIT_SECONDS)
        made.connect(where(url))
        yield made


def rest_of(connection: socket.socket) -> bytes:
    """All that comes until the server closes. A reset is an error: callers would lose what they have not read."""
    got = b""
    while part := connection.recv(2**16):
        got += part
    return got


def answer_on(connection: socket.socket) -> bytes:
    """One whole answer with a content-length, whose connection stays open: it may come in several pieces."""
    got = b""
    while b"\r\n\r\n" not in got or len(split(got)[2]) < int(split(got)[1]["content-length"]):
        part = connection.recv(2**16)
        assert part, "closed"
        got += part
    return got


def ask(url: str, *parts: bytes) -> bytes:
    """What the server says to ``parts`` until it closes the connection."""
    with connected(url) as connection:
        for part in parts:
            connection.sendall(part)
        return rest_of(connection)


def head(
    path: str = "/health", *fields: str, method: str = "GET", host: str = "localhost", version: str = "1.1"
) -> bytes:
    """A request's head, without an empty line at its end where ``fields`` has to go on."""
    return "\r\n".join((f"{method} {path} HTTP/{version}", f"Host: {host}", *fields, "", "")).encode()


def post(fields: dict[str, Any], *headers: str, path: str = "/v1/completions", version: str = "1.1") -> bytes:
    """A whole request with a JSON body."""
    body = json.dumps(fields).encode()
    length = f"Content-Length: {len(body)}"
    return head(path, length, *headers, method="POST", version=version) + body


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """The status, the header fields by their names in small letters, and what comes after them."""
    first, _, content = answer.partition(b"\r\n\r\n")
    status, *lines = first.decode("latin-1").split("\r\n")
    assert status.startswith("HTTP/1.1 "), answer[:200]
    return (
        int(status.split()[1]),
        {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)},
        content,
    )


def refused(answer: bytes) -> tuple[int, str | None]:
    """The status and the code of an answer that must be a whole error in OpenAI's format that ends its connection."""
    status, fields, content = split(answer)
    assert fields["content-type"] == "application/json"
    assert fields["connection"] == "close"
    assert len(content) == int(fields["content-length"])
    code: str | None = error_of(json.loads(content))["code"]
    return status, code
