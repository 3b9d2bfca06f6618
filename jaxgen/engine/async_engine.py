"""Run the engine in a thread of its own, and deliver its events to event loops; implements EngineClient."""

import asyncio
import concurrent.futures
import logging
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from jaxgen.client import EngineStatus
from jaxgen.core.errors import ConfigError, DeviceLostError, EngineDeadError, RequestRefusedError, one_line
from jaxgen.core.identity import UNKNOWN
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.quote import Quote
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.stats import EngineStats
from jaxgen.engine.anticipation import Anticipation
from jaxgen.engine.engine import Engine
from jaxgen.journal import Journal
from jaxgen.text.constraint import Constraint, Constraints
from jaxgen.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""Seconds after which Python's threads take turns, instead of 5 ms. The engine's thread and an event loop that passes
many tokens on want the interpreter at the same time, and the device has no step until the engine's gets it."""

MOST_MESSAGES = 16
"""Most messages that are taken between two steps: a burst of requests, each of which takes a tenth of a millisecond or
two, does not stop the streams that run."""

_Item = TokenEvent | Exception


@dataclass(slots=True, eq=False)
class _Stream:
    """Delivers the events of one request to ``put``, in the event loop that sent the request.

    ``put`` is called directly, without a task that waits for a queue, because it is called for every token.
    """

    loop: asyncio.AbstractEventLoop
    put: Callable[[_Item], None]
    request: Request
    over: bool = False
    """Whether the engine has no more events for the request."""

    def deliver(self, item: _Item) -> None:
        """Pass an event or error on, unless the request has ended. Runs in the event loop's own thread."""
        if self.over:
            return
        self.over = isinstance(item, Exception) or item.finish_reason is not None
        self.put(item)


@dataclass(frozen=True, slots=True)
class _Submit:
    request: Request
    stream: _Stream
    constraint: Constraint | None
    sent: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str
    stream: _Stream


@dataclass(frozen=True, slots=True)
class _Ask:
    request: Request
    answer: concurrent.futures.Future[Quote]


_Message = _Submit | _Abort | _Ask


class AsyncEngine:
    """Drives an Engine in a thread of its own and serves any number of event loops.

    After ``start``, ``build`` makes the engine in that thread: it loads and compiles, and the status is ``starting``
    until it returns. If it raises, or an error ends the thread, the status is ``dead`` and has the reason.
    """

    def __init__(
        self,
        model: ModelInfo,
        tokenizer: Tokenizer,
        build: Callable[[], Engine],
        constraints: Constraints | None = None,
    ):
        """``constraints`` None: requests that not every token is allowed for are refused."""
        self._model = model
        self._constraints = constraints
        self._tokenizer = tokenizer
        self._build = build
        self._inbox: deque[_Message] = deque()
        self._taken: deque[_Message] = deque()
        """Messages taken from the inbox and not applied yet."""
        self._wake = threading.Condition()
        self._anticipation = Anticipation()
        """Guarded by ``_wake``."""
        self._stopping = False
        self._streams: dict[str, _Stream] = {}
        self._status = EngineStatus("starting")
        self._settled = threading.Event()
        self._stats = EngineStats()
        self._journal: Journal | None = None
        self._identity = UNKNOWN
        self._busy_since: float | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="jaxgen-engine", daemon=True)

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def digest(self) -> str:
        """See EngineClient; empty while the engine starts."""
        return self._identity.digest

    @property
    def digest_parts(self) -> Mapping[str, Any]:
        """See EngineClient; empty while the engine starts."""
        return self._identity.parts

    def start(self) -> None:
        """Begin to load and compile, and return at once. Sets the process's switch interval to SWITCH_SECONDS, if it is
        longer."""
        if sys.getswitchinterval() > SWITCH_SECONDS:
            sys.setswitchinterval(SWITCH_SECONDS)
        self._thread.start()

    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until the engine is ready. Raises the error that ended the engine, or TimeoutError."""
        if not self._settled.wait(timeout):
            raise TimeoutError(f"the engine was not ready after {timeout} s")
        if self._error is not None:
            raise self._error

    def prepare_grammars(self) -> None:
        """Begin to make what the first request with a grammar would wait for, aside; it tells no errors."""
        if self._constraints is not None and self._model.generates:
            self._constraints.prepare()

    def stop(self, timeout: float | None = None) -> bool:
        """End the thread after the step under way; requests that have not ended raise EngineDeadError.

        Return whether it ended within ``timeout`` seconds (None: wait for ever). A thread that loads or compiles ends
        only after that.
        """
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def status(self) -> EngineStatus:
        since = self._busy_since
        if self._status.state != "ready" or since is None:
            return self._status
        return EngineStatus("ready", stalled_seconds=time.monotonic() - since)

    def stats(self) -> EngineStats:
        return self._stats

    @property
    def journal(self) -> Journal | None:
        """The journal of steps; None while the engine starts."""
        return self._journal

    async def follow(self, request: Request, take: Callable[[TokenEvent], bool]) -> None:
        """See EngineClient."""
        ended = asyncio.get_running_loop().create_future()

        def put(item: _Item) -> None:
            if ended.done():
                return
            try:
                if isinstance(item, Exception):
                    raise item
                if not take(item) or item.finish_reason is not None:
                    ended.set_result(None)
            except Exception as error:
                ended.set_exception(error)

        async with self._under_way(request, put):
            await ended

    async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        """Yield the request's events, as ``follow`` delivers them. Closing the iterator early aborts the request.

        The queue of events has no bound: a slow reader holds its own tokens, at most max_tokens.
        """
        items: asyncio.Queue[_Item] = asyncio.Queue()
        async with self._under_way(request, items.put_nowait):
            ended = False
            while not ended:
                item = await items.get()
                if isinstance(item, Exception):
                    raise item
                ended = item.finish_reason is not None
                yield item

    async def quote(self, request: Request) -> Quote:
        """See EngineClient. Answered between two steps."""
        self._check(request)
        answer: concurrent.futures.Future[Quote] = concurrent.futures.Future()
        self._send(_Ask(request, answer))
        return await asyncio.wrap_future(answer)

    @asynccontextmanager
    async def _under_way(self, request: Request, put: Callable[[_Item], None]) -> AsyncIterator[None]:
        """Send the request to the engine, and abort it if it has not ended when the context is left."""
        self._check(request)
        constraint = await self._start_constraint(request)
        stream = _Stream(asyncio.get_running_loop(), put, request)
        self._send(_Submit(request, stream, constraint))
        try:
            yield
        finally:
            if not stream.over:
                self._send(_Abort(request.request_id, stream))

    def _check(self, request: Request) -> None:
        """Raise RequestRefusedError for one that asks a model without a head for tokens or their probabilities."""
        wants_head = request.pooling is None or request.params.prompt_logprobs is not None
        if wants_head and not self._model.generates:
            raise RequestRefusedError(
                f"the model {self._model.name} has no head (lm_head.weight), so it gives embeddings alone: ask "
                "/v1/embeddings, or LLM.embed",
                "model",
            )

    async def _start_constraint(self, request: Request) -> Constraint | None:
        """Compile a request's constraint, if it has one. Neither the event loop nor the engine waits meanwhile."""
        params = request.params
        if not params.is_constrained or self._constraints is None:
            return None
        return await asyncio.wrap_future(self._constraints.start(params, request.answer, request.tenant))

    def _send(self, message: _Message) -> None:
        with self._wake:
            if self._status.state == "dead" or self._stopping:
                if not isinstance(message, _Abort):
                    raise EngineDeadError(self._status.reason or "the engine has stopped")
                return
            self._inbox.append(message)
            if isinstance(message, _Submit):
                self._anticipation.came(message.request.tenant, message.sent)
            self._wake.notify()

    def _main(self) -> None:
        try:
            engine = self._build()
            self._stats, self._journal, self._identity = engine.stats(), engine.journal, engine.identity
            self._status = EngineStatus("ready")
            self._settled.set()
            while self._receive(engine):
                began = time.monotonic()
                events = engine.step()
                with self._wake:
                    self._anticipation.stepped(time.monotonic() - began)
                # Set before events are posted: a client that has its answer then sees figures that count it.
                before, self._stats = self._stats, engine.stats()
                self._note_progress(moved=bool(events) or self._stats.steps > before.steps)
                self._post(events)
            engine.close()
            self._die("the engine has stopped")
        except BaseException as error:
            self._error = error
            if self._settled.is_set():
                logger.exception("the engine's thread ended by an error")
            # The message of a ConfigError is enough; for other errors the type matters too.
            self._die(one_line(str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"))
        finally:
            self._settled.set()

    def _receive(self, engine: Engine) -> bool:
        """Apply some of the messages received, and wait for one if there is no work. Return False when the thread must
        end."""
        with self._wake:
            self._await_next(engine)
            while not (self._inbox or self._stopping or (engine.has_work and engine.held_for == 0.0)):
                self._wake.wait(engine.held_for if engine.has_work else None)
            if self._stopping:
                return False
            self._taken.extend(self._inbox.popleft() for _ in range(min(MOST_MESSAGES, len(self._inbox))))
        came = bool(self._taken)
        while self._taken:
            message = self._taken[0]
            if isinstance(message, _Submit):
                self._accept(engine, message)
            elif isinstance(message, _Ask):
                _answer(engine, message)
            elif self._streams.get(message.request_id) is message.stream:
                engine.abort(message.request_id)
                del self._streams[message.request_id]
            self._taken.popleft()
        if came:
            self._stats = engine.stats()
        self._note_progress(moved=False)
        return True

    def _await_next(self, engine: Engine) -> None:
        """Wait for requests that are likely to come soon, so that the next step computes them."""
        if engine.runs_ahead:
            return
        began = now = time.monotonic()
        while engine.has_work and not self._stopping and (seconds := self._anticipation.seconds(now)) > 0.0:
            self._wake.wait(seconds)
            now = time.monotonic()
        self._anticipation.waited(now - began)

    def _note_progress(self, *, moved: bool) -> None:
        """Update since when requests have waited for a step to finish. Waiting for copies is not progress."""
        if not self._stats.num_running + self._stats.num_waiting:
            self._busy_since = None
        elif moved or self._busy_since is None:
            self._busy_since = time.monotonic()

    def _accept(self, engine: Engine, message: _Submit) -> None:
        request_id = message.request.request_id
        try:
            if request_id in self._streams:
                raise RequestRefusedError(f"request_id {request_id!r} is in use")
            waited = message.request.waited_seconds + time.monotonic() - message.sent
            engine.add(replace(message.request, waited_seconds=waited), message.constraint)
        except DeviceLostError:
            raise
        except Exception as error:  # any other error of one request is that request's answer
            _deliver(message.stream.loop, [(message.stream, error)])
            return
        self._streams[request_id] = message.stream

    def _post(self, events: list[TokenEvent]) -> None:
        """Deliver events to their event loops, with one wake-up per loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, _Item]]] = defaultdict(list)
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is None:
                continue
            by_loop[stream.loop].append((stream, event))
        for loop, items in by_loop.items():
            if not _deliver(loop, items):
                for stream, item in items:
                    self._forget(stream, item)
        now = time.monotonic()
        for event in events:
            if event.finish_reason is not None:  # it is delivered: before, an error would have lost it
                stream = self._streams.pop(event.request_id, None)
                if stream is not None and not stream.request.background:
                    with self._wake:
                        self._anticipation.ended(stream.request.tenant, now)

    def _forget(self, stream: _Stream, item: _Item) -> None:
        """Abort a request whose event loop is closed, since its client cannot."""
        if isinstance(item, TokenEvent) and self._streams.get(item.request_id) is stream:
            with self._wake:
                self._inbox.append(_Abort(item.request_id, stream))

    def _die(self, reason: str) -> None:
        with self._wake:
            self._status = EngineStatus("dead", reason)
            self._busy_since = None
            left = [*self._taken, *self._inbox]
            streams = [*self._streams.values(), *[message.stream for message in left if isinstance(message, _Submit)]]
            asked = [message.answer for message in left if isinstance(message, _Ask)]
            for known in (self._streams, self._taken, self._inbox):
                known.clear()
        for stream in streams:
            _deliver(stream.loop, [(stream, EngineDeadError(reason))])
        for answer in asked:
            if not answer.done() and answer.set_running_or_notify_cancel():
                answer.set_exception(EngineDeadError(reason))


def _answer(engine: Engine, message: _Ask) -> None:
    """Answer a question, unless its caller has gone."""
    if not message.answer.set_running_or_notify_cancel():
        return
    try:
        message.answer.set_result(engine.quote(message.request))
    except Exception as error:  # any error of one question is its answer
        message.answer.set_exception(error)


def _deliver(loop: asyncio.AbstractEventLoop, items: list[tuple[_Stream, _Item]]) -> bool:
    """Deliver items in the loop's own thread. Return False if the loop is closed."""

    def put() -> None:
        for stream, item in items:
            stream.deliver(item)

    try:
        loop.call_soon_threadsafe(put)
    except RuntimeError:
        return False
    return True
