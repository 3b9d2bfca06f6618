"""Attacks on a server in a process of its own: its memory stays bounded, and it answers others meanwhile.

Bounds are far above what is seen (a few MiB, a few ms), and far below what the same attacks take without them.
"""

import http.client
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic, sleep

import psutil
import pytest

from tests.support.fake_server import fake_server
from tests.support.raw_http import WAIT_SECONDS, connected, head, post, rest_of, where
from tests.support.server_app import body

MEGABYTE = 2**20
LIMITS = {"header_timeout_s": 1.0, "write_timeout_s": 1.0, "max_arriving_bytes": MEGABYTE}
MOST_GROWTH = 100 * MEGABYTE


class Watch:
    """Asks /health and reads the server's memory all the time, from a thread."""

    def __init__(self, url: str, process: psutil.Process) -> None:
        self.worst = 0.0
        self.statuses: set[int] = set()
        self._url = url
        self._process = process
        self._before = self._most = process.memory_info().rss
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.wait(0.02):
            begun = monotonic()
            connection = http.client.HTTPConnection(*where(self._url), timeout=WAIT_SECONDS)
            try:
                connection.request("GET", "/health")
                self.statuses.add(connection.getresponse().status)
            finally:  # an answer that never comes counts too
                connection.close()
                self.worst = max(self.worst, monotonic() - begun)
            self._most = max(self._most, self._process.memory_info().rss)

    @property
    def growth(self) -> int:
        return self._most - self._before

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


@contextmanager
def unharmed(url: str, process: psutil.Process) -> Iterator[None]:
    """The server neither grows nor stalls while the enclosed attack runs."""
    with Watch(url, process) as watch:
        yield
        sleep(0.1)
    assert watch.statuses == {200}
    assert watch.growth < MOST_GROWTH
    assert watch.worst < WAIT_SECONDS


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, psutil.Process]]:
    with fake_server(connections=LIMITS) as made:
        yield made


def flood(url: str, start: bytes, piece: bytes, length: int) -> None:
    """Send ``piece`` over and over, until the server ends the connection or ``length`` bytes are sent."""
    with connected(url) as connection:
        try:
            connection.sendall(start)
            for _ in range(length // len(piece)):
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            rest_of(connection)
        except ConnectionError:
            return


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (head()[:-2], b"".join(b"X-%06d: a\r\n" % index for index in range(5000))),
        (head()[:-2] + b"X: ", b"a" * 2**16),
        (b"GET /", b"a" * 2**16),
        (
            head("/v1/completions", "Transfer-Encoding: chunked", method="POST") + b"1\r\n{\r\n0\r\n",
            b"X: a\r\n" * 10000,
        ),
        (b"", head("/v1/models") * 5000),
    ],
    ids=["many fields", "long field", "long line", "trailers", "pipelined"],
)
def test_floods_before_a_body_cost_nothing(server: tuple[str, psutil.Process], start: bytes, piece: bytes) -> None:
    with unharmed(*server):
        flood(server[0], start, piece, 107 * MEGABYTE)


def test_slow_heads_end(server: tuple[str, psutil.Process]) -> None:
    url, _ = server
    with unharmed(*server), ExitStack() as held:
        slow = [held.enter_context(connected(url)) for _ in range(200)]
        for connection in slow:
            connection.sendall(head()[:-2] + b"X: ")
        for connection in slow:
            assert rest_of(connection).startswith(b"HTTP/1.1 408 ")


def test_readers_that_read_nothing_end(server: tuple[str, psutil.Process]) -> None:
    url, process = server
    fields = body(prompt=[100], n=128, max_tokens=120, stream=True)
    with unharmed(*server), ExitStack() as held:
        for _ in range(20):
            held.enter_context(connected(url, receive_buffer=4096)).sendall(post(fields))
        deadline = monotonic() + WAIT_SECONDS
        sleep(0.5)
        while sum(found.status == psutil.CONN_ESTABLISHED for found in process.net_connections()) > 1:
            assert monotonic() < deadline
            sleep(0.1)


def test_long_bodies_without_an_end_are_bounded_together(server: tuple[str, psutil.Process]) -> None:
    """The short bodies of others are read meanwhile."""
    url, _ = server
    start = head("/v1/completions", "Content-Length: 4000000", method="POST")
    with unharmed(*server), ExitStack() as held:
        slow = [held.enter_context(connected(url)) for _ in range(40)]
        for connection in slow:
            connection.sendall(start + b" " * MEGABYTE)
        told: set[socket.socket] = set()
        deadline = monotonic() + WAIT_SECONDS
        while len(told) <= 30:
            assert monotonic() < deadline
            for connection in select.select([one for one in slow if one not in told], [], [], 0.1)[0]:
                assert connection.recv(2**16).startswith(b"HTTP/1.1 503 ")
                told.add(connection)
        with connected(url) as short:
            short.sendall(post(body(max_tokens=2), "Connection: close"))
            assert rest_of(short).startswith(b"HTTP/1.1 200 ")
