"""Callers that leave while something stands behind their request, and what is read of it meanwhile."""

import asyncio

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from jaxgen.server.connections import protocol
from jaxgen.server.connections.head import MAX_BEHIND_BYTES
from tests.support.raw_http import head, split
from tests.support.wire import Wire, settle

LONG = head("/long", "Content-Length: 2", method="POST")


class App:
    """Answers at once, but /long when the test says so, and /refused before its body has come.

    ``left``: the paths whose callers left before their answer.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.left: list[str] = []
        self.answer = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        self.asked.append(path)
        if path == "/refused":
            await PlainTextResponse("no", 413)(scope, receive, send)
            return
        while (await receive()).get("more_body"):
            pass
        if path == "/long":
            gone = asyncio.ensure_future(receive())
            answered = asyncio.ensure_future(self.answer.wait())
            await asyncio.wait({gone, answered}, return_when=asyncio.FIRST_COMPLETED)
            answered.cancel()
            if gone.done():
                assert gone.result()["type"] == "http.disconnect"
                self.left.append(path)
                return
            gone.cancel()
        await PlainTextResponse(path)(scope, receive, send)


def statuses(sent: bytes) -> list[int]:
    return [int(answer[:3]) for answer in sent.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    "behind",
    [
        b"",
        b"\r\n",
        b"GET /li",
        b"what \r\n\r\n",
        head(),
        head() * 40,
        head("/long", "Content-Length: 9", method="POST") + b"abc",
        head("/", "X: " + "a" * (MAX_BEHIND_BYTES - 100)),
    ],
    ids=["nothing", "a line", "half", "rubbish", "a request", "too many", "half a body", "much"],
)
@pytest.mark.parametrize("together", [True, False])
def test_a_caller_that_leaves_is_noticed_whatever_is_behind_its_request(behind: bytes, together: bool) -> None:
    async def main() -> None:
        app = App()
        wire = Wire(app)
        first = LONG + b"{}"
        for part in [first + behind] if together else [first, behind]:
            wire.protocol.data_received(part)
            assert wire.reading, "an end behind it would not be seen"
        await settle()
        await wire.leave()
        assert (app.asked, app.left, wire.sent) == (["/long"], ["/long"], b"")

    asyncio.run(main())


def test_what_is_behind_a_request_is_bounded_and_is_answered_in_turn() -> None:
    async def main() -> None:
        app = App()
        wire = Wire(app)
        body = b" " * 3 * MAX_BEHIND_BYTES
        long_body = head("/second", f"Content-Length: {len(body)}", method="POST") + body
        await wire.bring(LONG + b"{}")
        for at in range(0, len(long_body), 10_000):
            if wire.reading:
                await wire.bring(long_body[at : at + 10_000])
                came = at + 10_000
        assert not wire.reading
        assert came <= MAX_BEHIND_BYTES + 10_000
        app.answer.set()
        await settle()
        assert (wire.reading, app.asked) == (True, ["/long", "/second"])
        await wire.bring(long_body[came:] + head("/third"))
        assert statuses(wire.sent) == [200] * 3
        await wire.leave()

    asyncio.run(main())


def test_what_comes_behind_a_refusal_that_waits_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_BYTES", 1000)

    async def main() -> None:
        app = App()
        for flood in (900, 1100):
            wire = Wire(app)
            await wire.bring(LONG + b"{}what\r\n\r\n", b"a" * flood)
            assert (wire.reading, wire.aborted, wire.sent) == (True, flood > 1000, b"")
            app.answer.set()
            await settle()
            assert statuses(wire.sent) == [200, 400]
            app.answer.clear()
            await wire.leave()

    asyncio.run(main())


def test_a_server_that_stops_gives_the_answer_before_the_refusal() -> None:
    async def main() -> None:
        app = App()
        wire = Wire(app)
        await wire.bring(LONG + b"{}" + head() + head("/", "Host: two"))
        wire.protocol.shutdown()
        app.answer.set()
        await settle()
        assert statuses(wire.sent) == [200, 200, 400]
        await wire.leave()

    asyncio.run(main())


def test_a_head_behind_a_request_has_its_time_after_the_answer() -> None:
    async def main() -> None:
        app = App()
        wire = Wire(app)
        timer = wire.protocol
        await wire.bring(LONG + b"{}" + head()[:10])
        assert timer._head_timer is None
        app.answer.set()
        await settle()
        assert timer._head_timer is not None
        assert timer.timeout_keep_alive_task is None
        await wire.bring(head()[10:])
        assert timer._head_timer is None
        assert statuses(wire.sent) == [200, 200]
        await wire.leave()

    asyncio.run(main())


@pytest.mark.parametrize("together", [True, False])
def test_a_request_with_the_rest_of_a_refused_body_is_not_idle(together: bool) -> None:
    async def main() -> None:
        app = App()
        wire = Wire(app)
        await wire.bring(head("/refused", "Content-Length: 100", method="POST"), b"a" * 90)
        assert split(wire.sent)[0] == 413
        rest, following = b"a" * 10, LONG + b"{}"
        await wire.bring(*([rest + following] if together else [rest, following]))
        assert app.asked == ["/refused", "/long"]
        assert (wire.protocol.timeout_keep_alive_task, wire.gate.idle) == (None, {})
        app.answer.set()
        await settle()
        assert wire.protocol.timeout_keep_alive_task is not None
        assert len(wire.gate.idle) == 1
        await wire.leave()
        assert wire.gate.num_open == 0

    asyncio.run(main())
