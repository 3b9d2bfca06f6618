"""Unix sockets: what is in their way, what becomes of their files, and a server that is asked through one."""

import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import pytest
import uvicorn

from jaxgen.core.errors import ConfigError
from jaxgen.server.app import create_app
from jaxgen.server.commands.announcement import Place, place_of
from jaxgen.server.commands.listener import listen, listening
from jaxgen.server.config import ServerConfig
from jaxgen.server.connections.config import ConnectionConfig
from jaxgen.server.flags.access import warn_if_open
from jaxgen.server.limits import Connections
from tests.support.fakes import says
from tests.support.live_server import configured
from tests.support.server_app import body, byte_by_byte, fake_engine
from tests.support.server_process import served

WAIT_SECONDS = 60.0


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as refused, listening(None, None, path):
        pass
    return str(refused.value)


@contextmanager
def run_at(listener: socket.socket, config: ConnectionConfig) -> Iterator[None]:
    """A server in a thread."""
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        thread.join(WAIT_SECONDS)


def test_a_socket_is_there_while_it_is_open(tmp_path: Path) -> None:
    path, before = tmp_path / "s", os.umask(0o027)
    try:
        with listening(None, None, path):
            assert stat.S_IMODE(path.stat().st_mode) == 0o750, "as the umask leaves it"
    finally:
        os.umask(before)
    assert not path.exists()


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    (tmp_path / "link").symlink_to(file)
    for path in (file, tmp_path, tmp_path / "link"):
        assert refusal(path) == f"--uds {path} exists and is not a socket: name a path that does not exist"
    assert file.read_text() == "kept"


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with listening(None, None, path), socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))


def test_another_server_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(None, None, path):
        assert refusal(path) == f"--uds {path}: another server listens there: name another path, or stop that server"
        assert path.is_socket()


def test_the_file_of_another_server_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with listening(None, None, path):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.is_socket()


def test_a_path_that_no_socket_can_have(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere" / "s", tmp_path / ("s" * 120)):
        assert refusal(path).startswith(f"cannot listen at --uds {path}: ")


def test_a_server_is_asked_through_its_socket(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Callers are ``unix`` in the log, or whom they ask for; no bound on an address concerns them."""
    caplog.set_level(logging.DEBUG, "jaxgen")
    limits = ServerConfig(connections=Connections(max_connections_per_address=1))
    config = configured(create_app(fake_engine(reply=says(byte_by_byte("Hello")))), limits, unix=True)
    path = tmp_path / "s"
    with listening(None, None, path) as listener:
        warn_if_open(listener, limits.access, certificates=False)
        place = Place("http://localhost", f"the Unix socket {path}, ", f"--unix-socket {path} ", browsable=False)
        assert place_of(listener, "http") == place
        first, second = (httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path))) for _ in range(2))
        with run_at(listener, config), first, second:
            answer = first.post("http://localhost/v1/completions", json=body())
            assert answer.json()["choices"][0]["text"] == "Hello"
            assert second.get("http://a/health", headers={"X-Forwarded-For": "203.0.113.9"}).status_code == 200
    clients = [record.fields["client"] for record in caplog.records if hasattr(record, "fields")]
    assert clients == ["unix", "203.0.113.9"]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("host", ["::", "0::0"])
def test_all_addresses_are_those_of_ipv4_too(host: str, caplog: pytest.LogCaptureFixture) -> None:
    """A caller by IPv4 has the address that it has where only IPv4 is served: it may be a proxy's, or in the log."""
    caplog.set_level(logging.DEBUG, "jaxgen")
    with closing(listen(host, 0)) as listener, run_at(listener, configured(create_app(fake_engine()))):
        port = listener.getsockname()[1]
        for address in ("127.0.0.1", "[::1]"):
            url = f"http://{address}:{port}/health"
            assert httpx2.get(url).status_code == 200
            assert httpx2.get(url, headers={"X-Forwarded-For": "203.0.113.9"}).status_code == 200
    clients = [record.fields["client"] for record in caplog.records if hasattr(record, "fields")]
    assert clients == ["127.0.0.1", "203.0.113.9", "::1", "203.0.113.9"]


def test_one_address_of_ipv6_is_one() -> None:
    with closing(listen("::1", 0)) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", listener.getsockname()[1]))


@pytest.mark.full
def test_serve_at_a_unix_socket_below_a_prefix(tmp_path: Path) -> None:
    """Full: a server starts."""
    path = tmp_path / "s"
    quick = ("--kernels", "xla", "--single-shape")
    with served(*quick, "--root-path", "/ai", at=("--uds", str(path)), environment={"JAXGEN_PORT": "1"}) as server:
        assert f"curl --unix-socket {path} http://localhost/v1/completions" in server.line
        with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path))) as client:
            for prefix in ("", "/ai"):
                answer = client.post(
                    f"http://localhost{prefix}/v1/completions", json={"model": "jaxgen-default", "prompt": "def "}
                )
                assert answer.json()["usage"]["completion_tokens"] == 16
        server.process.terminate()
        assert server.process.wait(WAIT_SECONDS) == 0
    assert not path.exists()
