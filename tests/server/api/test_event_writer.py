"""Events go out at once where the connection takes them, in order where it does not."""

import asyncio

import pytest
from starlette.types import Message

from jaxgen.server.api.sse import EventWriter
from tests.support.passing_time import let_pass


class Connection:
    """Takes a message only while ``open``; ``sent`` has the bodies that it took."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.sent: list[bytes] = []
        self.tasks: list[asyncio.Task[None] | None] = []

    async def send(self, message: Message) -> None:
        self.tasks.append(asyncio.current_task())
        await self.open.wait()
        self.sent.append(message["body"])


def test_nothing_waits_while_the_connection_takes_all() -> None:
    async def run() -> None:
        connection = Connection()
        writer = EventWriter(connection.send)
        writer.write_at_once([b"a", b"b"])
        assert (connection.sent, writer.is_free) == ([b"ab"], True)
        writer.write_at_once([b"c"])
        await writer.write([b"d"], last=True)
        assert connection.sent == [b"ab", b"c", b"d"]
        assert None not in connection.tasks
        assert asyncio.current_task() is connection.tasks[-1]

    asyncio.run(run())


def test_what_waits_goes_first() -> None:
    async def run() -> None:
        connection = Connection()
        writer = EventWriter(connection.send)
        connection.open.clear()
        writer.write_at_once([b"a"])
        assert not writer.is_free
        later = asyncio.ensure_future(writer.write([b"b"]))
        await asyncio.sleep(0.01)
        assert (connection.sent, later.done()) == ([], False)
        connection.open.set()
        await later
        assert (connection.sent, writer.is_free) == ([b"a", b"b"], True)

    asyncio.run(run())


@pytest.mark.parametrize("waits", [False, True])
def test_a_connection_that_fails_is_told_of(*, waits: bool) -> None:
    async def send(message: Message) -> None:
        if waits:
            await asyncio.sleep(0.01)
        raise OSError("gone")

    async def run() -> None:
        writer = EventWriter(send)
        writer.write_at_once([b"a"])
        await writer.write([b"b"])

    with pytest.raises(OSError, match="gone"):
        asyncio.run(run())


def test_what_is_given_up_does_not_go_out() -> None:
    async def run() -> None:
        connection = Connection()
        writer = EventWriter(connection.send)
        connection.open.clear()
        writer.write_at_once([b"a"])
        writer.close()
        connection.open.set()
        await asyncio.sleep(0.01)
        assert connection.sent == []
        EventWriter(connection.send).close()

    asyncio.run(run())


def test_a_silent_writer_pings_unless_the_connection_is_full() -> None:
    async def minutes() -> None:
        let_pass(200)
        await asyncio.sleep(0.01)

    async def run() -> None:
        connection = Connection()
        writer = EventWriter(connection.send, ping=lambda: b":", ping_seconds=60)
        while len(connection.sent) < 2:
            await minutes()
        assert set(connection.sent) == {b":"}
        connection.open.clear()
        connection.sent.clear()
        writer.write_at_once([b"a"])
        await minutes()
        waiting = asyncio.ensure_future(writer.write([b"b"]))
        await minutes()
        connection.open.set()
        await waiting
        writer.close()
        assert connection.sent == [b"a", b"b"]
        await minutes()
        assert connection.sent == [b"a", b"b"], "nothing after the end"

    asyncio.run(run())


def test_a_ping_that_fails_is_told_with_the_next_write() -> None:
    async def run() -> None:
        pinged = asyncio.Event()

        async def send(message: Message) -> None:
            if not pinged.is_set():
                pinged.set()
                raise OSError("gone")

        writer = EventWriter(send, ping=lambda: b":", ping_seconds=0.01)
        await pinged.wait()
        await writer.write([b"a"])

    with pytest.raises(OSError, match="gone"):
        asyncio.run(run())
