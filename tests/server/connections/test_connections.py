"""Bounds on connections, in all and by address, with and without TLS, and on descriptors."""

import asyncio
import errno
import http.client
import logging
import os
import resource
import socket
import ssl
import struct
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
import trustme

from jaxgen.core.errors import ConfigError
from jaxgen.server.addresses import Callers, proxies
from jaxgen.server.app import create_app
from jaxgen.server.commands.tls import tls_options
from jaxgen.server.config import Proxy, ServerConfig
from jaxgen.server.connections import descriptors
from jaxgen.server.connections.gate import MAX_REFUSALS, Gate
from jaxgen.server.connections.minute_log import MinuteLog
from jaxgen.server.limits import Connections
from tests.support.live_server import serve
from tests.support.raw_http import WAIT_SECONDS, ask, connected, head, refused, rest_of, split, where
from tests.support.server_app import fake_engine

LOG = logging.getLogger("jaxgen.server.connections")


class Silent(MinuteLog):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(LOG)
        self.said: list[str] = []

    def say(self, kind: str, message: str) -> None:
        self.said.append(message)


def gate(most: int, most_of_one: int, trusted: str = "") -> Gate:
    return Gate(most, most_of_one, Callers(proxies(trusted)), Silent())


def codes(made: Gate, *addresses: str | None) -> list[str | None]:
    """What each of new connections is refused with."""
    slots = [made.admit(address) for address in addresses]
    return [slot.refusal.code if slot is not None and slot.refusal is not None else None for slot in slots]


def test_the_gate_bounds_each_address_and_all() -> None:
    made = gate(4, 2, "10.0.0.0/8")
    full = "too_many_connections"
    assert codes(made, "1.1.1.1", "1.1.1.1", "1.1.1.1", "::ffff:1.1.1.1") == [None, None, full, full]
    assert codes(made, "10.0.0.1", "10.0.0.1", "2.2.2.2") == [None, None, full]
    assert made.num_open == 4


def test_addresses_of_one_network_of_ipv6_are_one() -> None:
    assert codes(gate(9, 1), "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", None, "unix") == [
        None,
        "too_many_connections",
        None,
        None,
        None,
    ]


def test_a_place_is_given_back_once() -> None:
    made = gate(1, 1)
    first = made.admit("1.1.1.1")
    assert first is not None
    refused_one = made.admit("1.1.1.1")
    assert refused_one is not None
    for slot in (first, first, refused_one):
        slot.release()
    assert made.num_open == 0
    assert codes(made, "1.1.1.1", "1.1.1.1") == [None, "too_many_connections"]


def test_refusals_are_bounded() -> None:
    made = gate(1, 1)
    slots = [made.admit("1.1.1.1") for _ in range(MAX_REFUSALS + 3)]
    assert [slot is None for slot in slots] == [False] * (MAX_REFUSALS + 1) + [True] * 2


@pytest.mark.parametrize("text", ["10.0.0.1/8", "localhost", "1.2.3", "::1,nobody"])
def test_proxies_that_are_no_addresses_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--forwarded-allow-ips {text.split(',')[-1]!r}"):
        ServerConfig(proxy=Proxy(forwarded_allow_ips=text))


def test_everybody_and_nobody_may_be_a_proxy() -> None:
    assert Callers(proxies("*")).name("8.8.8.8") is None
    assert Callers(proxies(" 10.0.0.7 , fd00::/8")).name("fd00::1") is None
    assert Callers(proxies("")).name("127.0.0.1") == "127.0.0.1"


def health(url: str) -> int:
    """The status of /health on a new connection, which stands for how callers use the server meanwhile."""
    connection = http.client.HTTPConnection(*where(url), timeout=WAIT_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status
    finally:
        connection.close()


def until_health_is(url: str, status: int) -> None:
    """The server sees an end some time after we have made it."""
    deadline = monotonic() + WAIT_SECONDS
    while health(url) != status:
        assert monotonic() < deadline
        sleep(0.01)


@pytest.mark.parametrize(
    "limits",
    [
        ServerConfig(connections=Connections(max_connections=5)),
        ServerConfig(connections=Connections(max_connections_per_address=5), proxy=Proxy(forwarded_allow_ips="")),
    ],
    ids=["all", "address"],
)
def test_connections_beyond_a_bound_are_told_so(limits: ServerConfig, caplog: pytest.LogCaptureFixture) -> None:
    with serve(create_app(fake_engine()), limits) as url, ExitStack() as held:
        for _ in range(5):
            held.enter_context(connected(url)).sendall(head())
        until_health_is(url, 503)
        answer = ask(url)
        assert refused(answer) == (503, "too_many_connections")
        assert int(split(answer)[1]["retry-after"]) > 0
        held.close()
        until_health_is(url, 200)
    said = [record.message for record in caplog.records if record.name == LOG.name]
    assert len(said) == 1, "one line, however many connections are refused"
    assert "--max-connections" in said[0]


def test_proxies_have_no_bound_of_their_own() -> None:
    with (
        serve(create_app(fake_engine()), ServerConfig(connections=Connections(max_connections_per_address=1))) as url,
        ExitStack() as held,
    ):
        for _ in range(5):
            held.enter_context(connected(url))
        assert health(url) == 200


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], ssl.SSLContext]:
    folder, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    made, cert = authority.issue_cert("127.0.0.1"), folder / "cert.pem"
    made.private_key_and_cert_chain_pem.write_to_path(str(cert))
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return tls_options(Path(cert), None, None), context


def test_handshakes_count(tls: tuple[dict[str, Any], ssl.SSLContext]) -> None:
    options, context = tls
    limits = ServerConfig(connections=Connections(max_connections=3))
    with serve(create_app(fake_engine()), limits, **options) as url, ExitStack() as held:
        silent = [held.enter_context(connected(url)) for _ in range(3)]
        silent[0].sendall(b"\x16\x03\x01")
        with connected(url) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as beyond:
            assert refused(rest_of(beyond)) == (503, "too_many_connections")


def test_handshakes_end(tls: tuple[dict[str, Any], ssl.SSLContext]) -> None:
    options, context = tls
    limits = ServerConfig(connections=Connections(max_connections=3, header_timeout_s=1.0))
    with serve(create_app(fake_engine()), limits, **options) as url, ExitStack() as held:
        silent = [held.enter_context(connected(url)) for _ in range(3)]
        silent[0].sendall(b"\x16\x03\x01")
        for connection in silent:
            connection.settimeout(30)  # uvloop's own limit is a minute
        for connection in silent:
            assert rest_of(connection) == b"", "handshakes that do not go on end"
        deadline = monotonic() + WAIT_SECONDS
        while True:
            with connected(url) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                secure.sendall(head("/health", "Connection: close"))
                if split(rest_of(secure))[0] == 200:
                    break
            assert monotonic() < deadline
        with connected(url) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            secure.sendall(head()[:-2])
            assert refused(rest_of(secure)) == (408, "header_timeout")


def test_handshakes_that_fail_give_their_places_back(tls: tuple[dict[str, Any], ssl.SSLContext]) -> None:
    options, context = tls
    with serve(create_app(fake_engine()), ServerConfig(connections=Connections(max_connections=4)), **options) as url:
        for _ in range(4):
            with connected(url) as plain:
                plain.sendall(head())  # no TLS
                while plain.recv(100):
                    pass
            with connected(url) as plain:
                plain.sendall(b"\x16\x03\x01")
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset at its end
        deadline = monotonic() + WAIT_SECONDS
        status = 503
        while status == 503:
            assert monotonic() < deadline
            with connected(url) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
                secure.sendall(head("/v1/models", "Connection: close"))
                status = split(rest_of(secure))[0]
        assert status == 200


def test_a_server_stops_though_handshakes_hang(tls: tuple[dict[str, Any], ssl.SSLContext]) -> None:
    with ExitStack() as held, serve(create_app(fake_engine()), **tls[0]) as url:
        held.enter_context(connected(url)).sendall(b"\x16\x03\x01")
        sleep(0.1)


def test_an_event_is_logged_at_once_and_then_with_its_count(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        log = MinuteLog(LOG, seconds=0.1)
        for _ in range(5):
            log.say("a", "first")
        log.say("b", "other")
        assert [record.message for record in caplog.records] == ["first", "other"]
        while len(caplog.records) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        log.say("a", "later")

    asyncio.run(asyncio.wait_for(main(), WAIT_SECONDS))
    assert [record.message for record in caplog.records] == [
        "first",
        "other",
        "first; 4 more in the last 0.1 s",
        "later",
    ]


@pytest.mark.parametrize(
    ("soft", "hard", "room", "new_soft"),
    [
        (1024, resource.RLIM_INFINITY, 4096, 4096 + MAX_REFUSALS + descriptors.SPARE),
        (10_000, 20_000, 4096, None),
        (256, 2048, 2048 - MAX_REFUSALS - descriptors.SPARE, 2048),
        (256, 256, 128, None),
    ],
)
def test_descriptors_are_made_room_for(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    soft: int,
    hard: int,
    room: int,
    new_soft: int | None,
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: made.append(limits))
    assert descriptors.make_room(4096) == room
    assert made == ([] if new_soft is None else [(new_soft, hard)])
    assert bool(caplog.records) == (room < 4096)


def test_no_descriptors_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    log = Silent()
    descriptors.watch(log)
    assert log.said == []
    monkeypatch.setattr(os, "open", none_left)
    descriptors.watch(log)
    assert log.said == ["new connections are refused: Too many open files (ulimit -n)"]


def test_the_log_has_the_callers_address(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jaxgen")
    forwarded = head("/v1/models", "X-Forwarded-For: 203.0.113.9, 127.0.0.1", "Connection: close")
    for trusted in ("127.0.0.1", ""):
        with serve(create_app(fake_engine()), ServerConfig(proxy=Proxy(forwarded_allow_ips=trusted))) as url:
            assert split(ask(url, forwarded))[0] == 200
    found = [record.fields["client"] for record in caplog.records if hasattr(record, "fields")]
    assert found == ["203.0.113.9", "127.0.0.1"]
