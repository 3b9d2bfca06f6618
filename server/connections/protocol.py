"""uvicorn's HTTP protocol with bounds on what callers send and on how long they take."""

import asyncio
import errno
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from jaxgen.server.addresses import unmapped
from jaxgen.server.connections.bounds import UNIX, Bounds
from jaxgen.server.connections.gate import ConnectionSlot
from jaxgen.server.connections.head import (
    MAX_BEHIND_BYTES,
    MAX_HEAD_BYTES,
    MAX_PIPELINED,
    Head,
    as_refusal,
    check,
    too_long,
    without_upgrade,
)
from jaxgen.server.connections.lingering_close import (
    LINGER_BYTES,
    LINGER_SECONDS,
    REFUSED_SECONDS,
    LingeringClose,
    answer,
)
from jaxgen.server.connections.outlet import Outlet, limit_unread, send_undelimited
from jaxgen.server.connections.unread import UnreadLimit
from jaxgen.server.errors import ApiError


class ConnectionProtocol(HttpToolsProtocol):
    """One connection. ``slot``: its place, where a TLS handshake came before; ``arrived``: when it was accepted."""

    def __init__(
        self,
        bounds: Bounds,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        slot: ConnectionSlot | None = None,
        arrived: float | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._bounds = bounds
        self._limits = bounds.limits
        self._arrived = self.loop.time() if arrived is None else arrived
        self._slot = slot
        self._stream: asyncio.Transport | None = None
        self._unanswered: list[RequestResponseCycle] = []
        """The request that is being answered, and those parsed behind it."""
        self._unparsed = bytearray()
        """What came behind the request that is being answered."""
        self._head = Head()
        self._begun = False
        """Whether the head of a request has begun and not ended."""
        self._in_body = False
        self._ignored_upgrade = False
        self._idle_bytes = 0
        """Bytes since the parser last found something of a body, or the end of a head."""
        self._dropped = 0
        """Bytes of a body that came after its answer, or of what came behind a refusal that waits."""
        self._last_words: ApiError | None = None
        """What to answer once the requests before are answered; what comes until then is dropped."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._drain_timer: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        limit_unread(transport, self._limits.write_timeout_s)
        peer = get_remote_addr(transport)
        slot = self._slot = self._slot or self._bounds.gate.admit(peer[0] if peer else None)
        if slot is None:
            transport.abort()
        elif slot.refusal is not None:
            transport.write(answer(slot.refusal))
            LingeringClose(transport, lambda _: slot.release(), seconds=REFUSED_SECONDS)
        else:
            super().connection_made(transport)
            if self._bounds.unix:
                self.client = (UNIX, 0)
            elif self.client is not None:
                self.client = (unmapped(self.client[0]), self.client[1])
            self._stream = transport
            self._peer = self.client[0] if self.client else "a caller"
            self._unread = UnreadLimit(transport, self._limits.write_timeout_s, self._bounds.log, self._peer)
            self.transport = Outlet(transport, self._close)  # type: ignore[assignment]
            late = self._arrived + self._limits.header_timeout_s
            self._head_timer = self.loop.call_at(late, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._slot is not None:
            self._slot.release()
        if self._stream is None:  # the TLS handshake failed
            return
        self._stop_timers()
        if isinstance(exc, OSError) and exc.errno == errno.ETIMEDOUT:
            self._unread.say()
        self._closing()
        super().connection_lost(exc)
        for cycle in self._unanswered:  # uvicorn tells only the newest
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def shutdown(self) -> None:
        if self._stream is not None and (self.transport.is_closing() or self._drain_timer is not None):
            self._stream.close()
        elif self._last_words is None:  # which end the connection as well
            super().shutdown()

    def cut(self, *, late: bool) -> None:
        """End the connection at once if it has nothing left to send, or it is late."""
        if self._stream is not None and (late or not self.num_unsent):
            self._stream.abort()

    @property
    def num_unsent(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return 0 if self._stream is None else self._stream.get_write_buffer_size()

    def _close(self) -> None:
        """Close the connection as uvicorn asks for; later, while the rest of an answered request is on its way."""
        assert self._stream is not None
        if self.transport.is_closing():
            return
        self._closing()
        self._stop_timers()
        if self._in_body:
            LingeringClose(self._stream, self.connection_lost)
            return
        self._stream.close()
        if self.num_unsent:
            self._unread.start()

    def _rest(self) -> None:
        """Note that the connection waits for its next request, of which nothing has come."""
        if self._slot is not None and self.timeout_keep_alive_task is not None and not self._begun:
            self._slot.rest(self._close_idle)

    def _unset_keepalive_if_required(self) -> None:
        super()._unset_keepalive_if_required()
        if self._slot is not None:
            self._slot.wake()

    def _close_idle(self) -> bool:
        """Close the connection at once, unless its caller has not read its last answer yet."""
        if self._stream is None or self.num_unsent:
            return False
        self._stream.abort()
        return True

    def _closing(self) -> None:
        outlet: Any = self.transport
        outlet.shut()

    def _stop_timers(self) -> None:
        self._unset_keepalive_if_required()
        self._unread.stop()
        for timer in (self._head_timer, self._drain_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._drain_timer = None

    # What comes

    def data_received(self, data: bytes) -> None:
        if self._last_words is None:
            self._unparsed += data
            self._parse()
            return
        self._dropped += len(data)
        if self._dropped > LINGER_BYTES:
            assert self._stream is not None
            self._stream.abort()

    def _parse(self) -> None:
        """Parse what has come, up to a request's end while it is answered.

        What is behind it is read even so: the caller's end comes last, and must be seen.
        """
        if not self._unparsed and not self._begun:
            return
        self._unset_keepalive_if_required()
        while self._unparsed and not self._next_waits:
            piece = bytes(self._unparsed[:MAX_HEAD_BYTES])
            del self._unparsed[:MAX_HEAD_BYTES]
            try:
                self._feed(piece)
            except ApiError as error:
                self._unparsed.clear()
                self._refuse(error)
                return
        if len(self._unparsed) > MAX_BEHIND_BYTES:
            self.flow.pause_reading()
        if self._head_timer is None and not self._in_body and not self._is_answering:
            self._head_timer = self.loop.call_later(self._limits.header_timeout_s, self._head_is_late)

    def _feed(self, data: bytes) -> None:
        """Parse a piece, so short that no head can be much longer than its bound. Raises ApiError."""
        self._idle_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            raise as_refusal(error) from error
        if self._idle_bytes > MAX_HEAD_BYTES:
            raise too_long()

    def _feed_without_upgrade(self, rest: bytes) -> None:
        """Parse a request again without its Upgrade: the parser would take its body for another protocol's."""
        head = without_upgrade(self.parser, self.url, self.headers)
        self._ignored_upgrade = False
        self.parser = httptools.HttpRequestParser(self)
        self._feed(head)
        self._feed(rest)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()  # the end of a refused body may have come in the same piece
        self._begun = True
        self._idle_bytes = self._dropped = 0
        self._head = Head()

    def on_url(self, url: bytes) -> None:
        self._head.add_url(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head.add_field(len(name) + len(value))
        if not self._in_body:  # trailers say nothing that we use
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        version = self.parser.get_http_version()
        check(self.parser.get_method(), version, self.headers)
        if self.parser.should_upgrade():
            self._ignored_upgrade = True
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ApiError(
                503,
                "Too many requests wait on this connection: read their answers first.",
                headers={"Retry-After": "1"},
            )
        super().on_headers_complete()
        self._unanswered = [*(cycle for cycle in self._unanswered if not cycle.response_complete), self.cycle]
        if self.pipeline:  # behind a request uvicorn pauses reading, and would not see the caller's end
            self.flow.resume_reading()
        self._begun, self._in_body, self._idle_bytes = False, True, 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if version == "1.0":
            send_undelimited(self.cycle)
            self.cycle.waiting_for_100_continue = False
        elif self.expect_100_continue:
            # Whether a client that waits sends its body after an error is its own choice: what comes next has no start.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)
        if self.cycle.response_complete:
            self._dropped += len(body)
            if self._dropped > LINGER_BYTES:
                raise ApiError(
                    413, "The request was answered before its body ended, and the rest of the body is too long to read."
                )

    def on_message_complete(self) -> None:
        if self._ignored_upgrade:
            return
        self._idle_bytes, self._in_body = 0, False
        super().on_message_complete()
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            self._rest()

    # What goes

    @property
    def _is_answering(self) -> bool:
        return any(not cycle.response_complete for cycle in self._unanswered)

    @property
    def _next_waits(self) -> bool:
        """Whether what comes next belongs to no request that is being answered."""
        return bool(self.pipeline) or (self._is_answering and not self._in_body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._is_answering:  # the next one has begun; the rest of its body may have come
            self._parse()
        elif self._last_words is not None:
            self._end_with(self._last_words)
        elif self._in_body:
            # The rest of this body is dropped, and the connection serves on, if that does not take too long.
            assert self._stream is not None
            self._unset_keepalive_if_required()
            self._drain_timer = self.loop.call_later(LINGER_SECONDS, self._stream.abort)
        else:
            self._rest()
            self._parse()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._unread.stop()

    # Ends

    def _refuse(self, error: ApiError) -> None:
        """Answer the request that is arriving with an error, after those before it, and end the connection."""
        assert self._stream is not None
        if self.transport.is_closing():
            return
        cycle = self.cycle
        if not self._is_answering:
            if self._in_body:  # the answer was given: there is nothing more to say
                self._stream.close()
            else:
                self._end_with(error)
        elif self._in_body and not self.pipeline and not cycle.response_started:
            cycle.disconnected = True
            cycle.message_event.set()
            self._end_with(error)
        else:
            if self._in_body and self.pipeline:  # its own turn has not come
                self.pipeline.popleft()
                cycle.response_complete = True
            elif self._in_body:
                cycle.keep_alive = False
            self._last_words, self._dropped = error, 0

    def _end_with(self, error: ApiError) -> None:
        assert self._stream is not None
        self._bounds.log.say(f"refused {error.status}", f"answered {error.status} to {self._peer}: {error.message}")
        self._closing()
        self._stop_timers()
        self._stream.write(answer(error, self.server_state.default_headers))
        LingeringClose(self._stream, self.connection_lost)

    def _head_is_late(self) -> None:
        self._head_timer = None
        seconds = self._limits.header_timeout_s
        late = ApiError(408, f"The request's head took longer than {seconds:g} s to arrive.", code="header_timeout")
        if self._begun:
            self._refuse(late)
        else:
            self._close()
