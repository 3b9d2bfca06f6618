"""Callers that do not read, and callers that are answered before they have sent all."""

import asyncio
import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import openai
import psutil
import pytest

from jaxgen.core.request import Request
from jaxgen.server.app import create_app
from jaxgen.server.config import Access, ServerConfig
from jaxgen.server.connections import protocol
from jaxgen.server.limits import Connections
from tests.support.fakes import counts_up
from tests.support.live_server import serve
from tests.support.raw_http import WAIT_SECONDS, answer_on, connected, head, post, refused, rest_of, split, where
from tests.support.server_app import body, fake_engine

KEYED = ServerConfig(access=Access(api_keys=("secret",)))
MEGABYTE = 2**20


def keep_little(transport: asyncio.Transport, _: float) -> None:
    """Set no limit on time in the kernel, but let it take so little that the server has the rest."""
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_reader_that_reads_nothing_ends_with_its_request(
    stream: bool, kernel: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``kernel``: with the kernel's own limit, or without it, as beside Linux."""
    if not kernel:
        monkeypatch.setattr(protocol, "limit_unread", keep_little)

    async def pace(request: Request, index: int) -> None:
        if stream and index == 119:
            await asyncio.Event().wait()

    engine = fake_engine(reply=counts_up, pace=pace)
    limits = ServerConfig(connections=Connections(write_timeout_s=0.5))
    with (
        serve(create_app(engine, limits), limits) as url,
        connected(url, receive_buffer=4096) as connection,
    ):
        # Several megabytes: more than the kernel keeps.
        connection.sendall(post(body(prompt=[100], n=128, max_tokens=120, logprobs=5, stream=stream)))
        deadline = monotonic() + WAIT_SECONDS
        while not any("read nothing" in record.message for record in caplog.records):
            assert monotonic() < deadline
            sleep(0.01)
        got = b""
        with suppress(ConnectionResetError):
            got = rest_of(connection)
        assert len(got) < MEGABYTE, "the rest is gone"
        assert engine.idle.wait(WAIT_SECONDS)
    said = [record.message for record in caplog.records if record.name == "jaxgen.server.connections"]
    assert said == ["closed a connection of 127.0.0.1: it read nothing for 0.5 s (--write-timeout)"]
    assert len(engine.aborted) == (128 if stream else 0)


def test_a_reader_that_pauses_gets_all(caplog: pytest.LogCaptureFixture) -> None:
    limits = ServerConfig(connections=Connections(write_timeout_s=60))
    with (
        serve(create_app(fake_engine(reply=counts_up)), limits) as url,
        connected(url, receive_buffer=4096) as connection,
    ):
        fields = body(prompt=[100], n=64, max_tokens=120, logprobs=5, stream=True)
        connection.sendall(post(fields, "Connection: close"))
        sleep(0.5)
        assert rest_of(connection).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert not any("read nothing" in record.message for record in caplog.records)


def sockets_between(port: int, callers_port: int) -> list[str]:
    """The states of the server's end, also once its process has closed it."""
    ends: list[tuple[Any, Any, str]] = [(one.laddr, one.raddr, one.status) for one in psutil.net_connections("tcp")]
    return [status for here, there, status in ends if there and (here.port, there.port) == (port, callers_port)]


def test_what_the_kernel_keeps_for_a_reader_ends_too() -> None:
    """The answer is short enough that the server has written it all, and closed its end."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return  # only Linux has it
    limits = ServerConfig(connections=Connections(write_timeout_s=0.5))
    with (
        serve(create_app(fake_engine(reply=counts_up)), limits) as url,
        connected(url, receive_buffer=4096) as connection,
    ):
        ports = where(url)[1], connection.getsockname()[1]
        connection.sendall(post(body(prompt=[100], n=8, max_tokens=120, logprobs=5), "Connection: close"))
        deadline = monotonic() + WAIT_SECONDS
        while sockets_between(*ports) != ["FIN_WAIT1"]:
            assert monotonic() < deadline
            sleep(0.01)
        while sockets_between(*ports):
            assert monotonic() < deadline
            sleep(0.05)
        with pytest.raises(ConnectionResetError):
            rest_of(connection)


@pytest.fixture(scope="module")
def keyed() -> Iterator[str]:
    with serve(create_app(fake_engine(), KEYED), KEYED) as url:
        yield url


def too_long_body(megabytes: int) -> bytes:
    return b" " * (megabytes * MEGABYTE)


@pytest.mark.parametrize("megabytes", [8, pytest.param(100, marks=pytest.mark.full)])
@pytest.mark.parametrize("key", ["secret", "wrong"])
@pytest.mark.parametrize("then", ["keep-alive", "close"])
def test_python_sees_why_its_body_is_refused(keyed: str, megabytes: int, key: str, then: str) -> None:
    """It reads only after it has sent all; on a machine with other work 100 MB take some seconds."""
    connection = http.client.HTTPConnection(*where(keyed), timeout=WAIT_SECONDS)
    for _ in range(2):
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Connection": then}
        connection.request("POST", "/v1/completions", too_long_body(megabytes), headers)
        answer = connection.getresponse()
        assert answer.status == (413 if key == "secret" else 401)
        assert "error" in json.loads(answer.read())
    connection.close()


def test_openais_client_sees_why_its_body_is_refused(keyed: str) -> None:
    for key, status in (("wrong", 401), ("secret", 413)):
        with (
            openai.OpenAI(base_url=f"{keyed}/v1", api_key=key, max_retries=0) as client,
            pytest.raises(openai.APIStatusError) as refusal,
        ):
            client.completions.create(model="m", prompt=" " * 16 * MEGABYTE)
        assert refusal.value.status_code == status


@pytest.mark.parametrize("megabytes", [8, pytest.param(100, marks=pytest.mark.full)])
@pytest.mark.parametrize("expect", ["Expect: 100-continue", "Expect:"])
def test_curl_sees_why_its_body_is_refused(keyed: str, tmp_path: Path, megabytes: int, expect: str) -> None:
    """On a machine with other work 100 MB take some seconds."""
    curl = shutil.which("curl")
    if curl is None:
        return
    file = tmp_path / "body"
    file.write_bytes(too_long_body(megabytes))
    for key, status in (("secret", "413"), ("wrong", "401")):
        fields = ["-H", expect, "-H", f"Authorization: Bearer {key}", "-H", "Content-Type: application/json"]
        command = [curl, "-sS", "-w", "%{http_code}", "-o", str(tmp_path / "answer"), *fields]
        ran = subprocess.run(
            [*command, "--data-binary", f"@{file}", f"{keyed}/v1/completions"],
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
            check=False,
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, status, "")
        assert "error" in json.loads((tmp_path / "answer").read_text())


def test_a_body_of_chunks_without_an_end_is_answered_and_ends(keyed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_BYTES", 4 * MEGABYTE)
    with connected(keyed) as connection:
        connection.sendall(head("/v1/completions", "Transfer-Encoding: chunked", method="POST"))
        chunk = b"%x\r\n" % MEGABYTE + b" " * MEGABYTE + b"\r\n"
        assert split(answer_on(connection))[0] == 401
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(chunk * 64)


def test_a_body_that_stops_after_its_answer_ends(keyed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.2)
    with connected(keyed) as connection:
        connection.sendall(head("/v1/completions", "Content-Length: 1000", method="POST") + b"{")
        status, _, content = split(rest_of(connection))
        assert status == 401
        assert "error" in json.loads(content)


def test_a_small_refused_body_leaves_the_connection(keyed: str) -> None:
    start = head("/v1/completions", "Content-Length: 100000", method="POST")
    with connected(keyed) as connection:
        for _ in range(3):
            connection.sendall(start)
            assert split(answer_on(connection))[0] == 401
            connection.sendall(b" " * 100000)
        connection.sendall(head("/health", "Connection: close"))
        assert split(rest_of(connection))[0] == 200


def test_a_slow_body_is_answered_though_the_rest_comes_later() -> None:
    limits = ServerConfig(connections=Connections(body_timeout_s=0.2))
    with serve(create_app(fake_engine(), limits), limits) as url, connected(url) as connection:
        connection.sendall(head("/v1/completions", "Content-Length: 3000000", method="POST"))
        connection.recv(1, socket.MSG_PEEK)  # its answer has come
        for _ in range(30):
            connection.sendall(b" " * 100_000)
        assert refused(rest_of(connection)) == (408, "body_timeout")
