"""Run the engine in a thread of its own, and deliver its events to event loops; implements EngineClient.

Any thread calls public methods; private ones from ``_main`` on run in the engine's thread. Host only, no jax.
"""

import asyncio
import concurrent.futures
import logging
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from jaxgen.client import EngineStatus
from jaxgen.core.errors import ConfigError, DeviceLostError, EngineDeadError, RequestRefusedError, one_line
from jaxgen.core.identity import UNKNOWN
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.quote import Quote
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.stats import EngineStats
from jaxgen.engine.engine import Engine
from jaxgen.engine.inbox import STOPPED, Inbox
from jaxgen.engine.messages import Abort, Ask, Item, Message, Stream, Submit, deliver
from jaxgen.journal import Journal
from jaxgen.text.constraint import Constraint, Constraints
from jaxgen.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""Seconds after which Python's threads take turns, instead of 5 ms. An event loop that passes many tokens on competes
with the engine's thread for the interpreter. The device has no step until the engine's thread gets it."""


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
        """``constraints`` None: a request is refused if not every token is allowed for it."""
        self._model = model
        self._constraints = constraints
        self._tokenizer = tokenizer
        self._build = build
        self._inbox = Inbox()
        self._taken: deque[Message] = deque()
        """Messages taken from the inbox and not applied yet. Only the engine's thread touches it."""
        self._streams: dict[str, Stream] = {}
        self._status = EngineStatus("starting")
        self._started = threading.Event()
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
        if not self._started.wait(timeout):
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
        self._inbox.close()
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

        def put(item: Item) -> None:
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
        items: asyncio.Queue[Item] = asyncio.Queue()
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
        self._inbox.put(Ask(request, answer))
        return await asyncio.wrap_future(answer)

    @asynccontextmanager
    async def _under_way(self, request: Request, put: Callable[[Item], None]) -> AsyncIterator[None]:
        """Send the request to the engine, and abort it if it has not ended when the context is left."""
        self._check(request)
        constraint = await self._start_constraint(request)
        stream = Stream(asyncio.get_running_loop(), put, request)
        self._inbox.put(Submit(stream, constraint))
        answered = False
        try:
            yield
            answered = True
        finally:
            if not stream.over:
                self._inbox.put(Abort(stream, answered))

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

    def _main(self) -> None:
        try:
            engine = self._build()
            self._stats, self._journal, self._identity = engine.stats(), engine.journal, engine.identity
            self._status = EngineStatus("ready")
            self._started.set()
            while self._receive(engine):
                began = time.monotonic()
                events = engine.step()
                self._inbox.stepped(time.monotonic() - began)
                # Set before events are posted: a client that has its answer then sees figures that count it.
                before, self._stats = self._stats, engine.stats()
                self._note_progress(moved=bool(events) or self._stats.steps > before.steps)
                self._post(events)
            engine.close()
            self._die(STOPPED)
        except BaseException as error:
            self._error = error
            if self._started.is_set():
                logger.exception("the engine's thread ended by an error")
            # The message of a ConfigError is enough; for other errors the type matters too.
            self._die(one_line(str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"))
        finally:
            self._started.set()

    def _receive(self, engine: Engine) -> bool:
        """Apply some of the messages received, and wait for one if there is no work. Return False when the thread must
        end."""
        if not self._inbox.take(engine, self._taken):
            return False
        came = bool(self._taken)
        while self._taken:
            message = self._taken[0]  # it stays there until it is applied: ``_die`` answers what an error left there
            if isinstance(message, Submit):
                self._accept(engine, message)
            elif isinstance(message, Ask):
                _answer(engine, message)
            elif self._streams.get(message.stream.request.request_id) is message.stream:
                engine.abort(message.stream.request.request_id)
                del self._streams[message.stream.request.request_id]
                if message.answered:
                    self._inbox.ended(message.stream.request)
            self._taken.popleft()
        if came:
            self._stats = engine.stats()
        self._note_progress(moved=False)
        return True

    def _note_progress(self, *, moved: bool) -> None:
        """Update since when requests have waited for a step to finish. Waiting for copies is not progress."""
        if not self._stats.num_running + self._stats.num_waiting:
            self._busy_since = None
        elif moved or self._busy_since is None:
            self._busy_since = time.monotonic()

    def _accept(self, engine: Engine, message: Submit) -> None:
        request_id = message.request.request_id
        try:
            if request_id in self._streams:
                raise RequestRefusedError(f"request_id {request_id!r} is in use")
            waited = message.request.waited_seconds + time.monotonic() - message.sent
            engine.add(replace(message.request, waited_seconds=waited), message.constraint)
        except DeviceLostError:
            raise
        except Exception as error:  # any other error of one request is that request's answer
            deliver(message.stream.loop, [(message.stream, error)])
            return
        self._streams[request_id] = message.stream

    def _post(self, events: list[TokenEvent]) -> None:
        """Deliver events to their event loops, with one wake-up per loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, Item]]] = defaultdict(list)
        for event in events:
            stream = self._streams.get(event.request_id)
            if stream is None:
                continue
            by_loop[stream.loop].append((stream, event))
        for loop, items in by_loop.items():
            if not deliver(loop, items):
                for stream, item in items:
                    self._forget(stream, item)
        for event in events:
            if event.finish_reason is not None:  # it is delivered: before, an error would have lost it
                stream = self._streams.pop(event.request_id, None)
                if stream is not None:
                    self._inbox.ended(stream.request)

    def _forget(self, stream: Stream, item: Item) -> None:
        """Abort a request whose event loop is closed, since its client cannot."""
        if isinstance(item, TokenEvent) and self._streams.get(item.request_id) is stream:
            self._inbox.put(Abort(stream))

    def _die(self, reason: str) -> None:
        self._status = EngineStatus("dead", reason)
        self._busy_since = None
        self._inbox.close(reason)
        left = [*self._taken, *self._inbox.empty()]
        streams = [*self._streams.values(), *[message.stream for message in left if isinstance(message, Submit)]]
        asked = [message.answer for message in left if isinstance(message, Ask)]
        for known in (self._streams, self._taken):
            known.clear()
        for stream in streams:
            deliver(stream.loop, [(stream, EngineDeadError(reason))])
        for answer in asked:
            if not answer.done() and answer.set_running_or_notify_cancel():
                answer.set_exception(EngineDeadError(reason))


def _answer(engine: Engine, message: Ask) -> None:
    """Answer a question, unless its caller has gone."""
    if not message.answer.set_running_or_notify_cancel():
        return
    try:
        message.answer.set_result(engine.quote(message.request))
    except Exception as error:  # any error of one question is its answer
        message.answer.set_exception(error)
