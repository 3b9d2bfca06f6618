"""Idle connections stay for those who use them again, and give way to new ones at the bounds."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import aiohttp
import pytest

from jaxgen.server.addresses import Callers, proxies
from jaxgen.server.app import create_app
from jaxgen.server.config import DEFAULT_CONFIG, ServerConfig
from jaxgen.server.connections.gate import ConnectionSlot, Gate
from jaxgen.server.limits import Connections
from tests.server.connections.test_connections import Silent
from tests.support.live_server import configured, serve
from tests.support.raw_http import answer_on, connected, head, post, refused, rest_of, split
from tests.support.server_app import body, fake_engine


def gate(most: int, most_of_one: int, *, least_idle: float = 0.0) -> Gate:
    return Gate(most, most_of_one, Callers(proxies("")), Silent(), least_idle=least_idle)


def admitted(made: Gate, address: str) -> ConnectionSlot:
    slot = made.admit(address)
    assert slot is not None
    assert slot.refusal is None
    return slot


def is_refused(made: Gate, address: str) -> bool:
    slot = made.admit(address)
    return slot is None or slot.refusal is not None


def resting(slot: ConnectionSlot, closed: list[ConnectionSlot], *, closes: bool = True) -> None:
    def close() -> bool:
        closed.append(slot)
        return closes

    slot.rest(close)


def test_the_longest_idle_connection_gives_way() -> None:
    made, closed = gate(3, 3), list[ConnectionSlot]()
    busy, first, second = (admitted(made, address) for address in ("1.1.1.1", "2.2.2.2", "3.3.3.3"))
    resting(busy, closed)
    busy.wake()
    resting(first, closed)
    resting(second, closed)
    admitted(made, "4.4.4.4")
    assert (closed, made.num_open) == ([first], 3)
    first.release()  # when its end is told
    assert made.num_open == 3
    admitted(made, "4.4.4.4")
    assert closed == [first, second]
    assert is_refused(made, "4.4.4.4"), "the others are not idle"


def test_an_address_at_its_bound_closes_its_own() -> None:
    made, closed = gate(9, 2), list[ConnectionSlot]()
    other, *own = (admitted(made, address) for address in ("1.1.1.1", "2.2.2.2", "2.2.2.2"))
    resting(other, closed)
    assert is_refused(made, "2.2.2.2")
    resting(own[1], closed)
    admitted(made, "2.2.2.2")
    assert closed == [own[1]]


def test_what_has_just_become_idle_stays_and_what_cannot_be_closed_too() -> None:
    made, closed = gate(1, 1, least_idle=60.0), list[ConnectionSlot]()
    resting(admitted(made, "1.1.1.1"), closed)
    assert is_refused(made, "2.2.2.2")
    assert closed == []
    made = gate(1, 1)
    resting(admitted(made, "1.1.1.1"), closed, closes=False)
    assert is_refused(made, "2.2.2.2")


@contextmanager
def served(limits: ServerConfig) -> Iterator[str]:
    config = configured(create_app(fake_engine()), limits)
    config.bounds.gate.least_idle = 0.0
    with serve(config) as url:
        yield url


def answered(connection: socket.socket, request: bytes) -> None:
    """Ask, and take the whole answer, after which the connection is idle."""
    connection.sendall(request)
    assert split(answer_on(connection))[0] == 200


def test_a_full_server_takes_new_connections_in_place_of_idle_ones() -> None:
    with served(ServerConfig(connections=Connections(max_connections=2))) as url, ExitStack() as held:
        one, two = (held.enter_context(connected(url)) for _ in range(2))
        answered(one, post(body()))
        answered(two, head())
        new = held.enter_context(connected(url))
        answered(new, head())
        assert rest_of(one) == b"", "closed, and not reset"
        answered(two, head())


def test_connections_that_ask_or_say_nothing_are_not_closed_for_new_ones() -> None:
    with served(ServerConfig(connections=Connections(max_connections=2))) as url, ExitStack() as held:
        silent, begun = (held.enter_context(connected(url)) for _ in range(2))
        answered(begun, head())
        begun.sendall(head()[:10])  # the next request has begun
        with connected(url) as beyond:
            assert refused(rest_of(beyond)) == (503, "too_many_connections")
        answered(begun, head()[10:])
        answered(silent, head())


def test_connections_are_idle_for_as_long_as_the_flag_says() -> None:
    default = DEFAULT_CONFIG.connections.timeout_keep_alive_s
    assert configured(create_app(fake_engine())).timeout_keep_alive == default == 120
    with served(ServerConfig(connections=Connections(timeout_keep_alive_s=0.2))) as url, connected(url) as idle:
        answered(idle, head())
        assert rest_of(idle) == b""


@pytest.mark.full  # it waits for longer than uvicorn's own 5 s
def test_aiohttp_uses_its_connection_again() -> None:
    made = []

    async def note(*_: object) -> None:
        made.append(1)

    async def main(url: str) -> None:
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(note)
        async with aiohttp.ClientSession(trace_configs=[trace]) as session:
            for pause in (5.5, 0.0):
                async with session.post(f"{url}/v1/completions", json=body()) as answer:
                    assert answer.status == 200
                    await answer.read()
                await asyncio.sleep(pause)

    with serve(create_app(fake_engine())) as url:
        asyncio.run(main(url))
    assert made == [1]
