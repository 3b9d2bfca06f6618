"""Run batches: a few lines at a time, through the endpoints' own code, in the background of the engine."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Mapping
from time import time
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from jaxgen.core.errors import EngineDeadError, TooCostlyError
from jaxgen.server.batches.disk import DiskFullError
from jaxgen.server.batches.lines import Line, Validator, answered, not_answered, parse_line
from jaxgen.server.batches.store import Store
from jaxgen.server.batches.tables import new_id
from jaxgen.server.config import ServerConfig
from jaxgen.server.envelopes import anthropic_error, of_messages
from jaxgen.server.errors import as_api_error
from jaxgen.server.middleware.lifecycle import Lifecycle

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
RETRY_SECONDS = 30.0
SWEEP_SECONDS = 3600.0
_GIVEN_UP = {
    "expired": ("batch_expired", "This request was not run before the batch expired."),
    "cancelled": ("batch_cancelled", "This request was not run before the batch was cancelled."),
}


class LineEndpoint(Protocol):
    """An endpoint that answers batch lines."""

    async def answer_whole(self, data: dict[str, Any], caller: str) -> dict[str, Any]:
        """Return the response to a body. Raises the errors of an online request."""
        ...


class BatchRunner:
    """Runs one task for each unfinished batch; together they answer ``max_batch_lines_in_flight`` lines at a time.

    Lines in flight when the process ends are answered again: a line is done when its result is stored.
    """

    def __init__(
        self,
        store: Store,
        endpoints: Mapping[str, LineEndpoint],
        lifecycle: Lifecycle,
        config: ServerConfig,
        clock: Callable[[], float] = time,
    ) -> None:
        self._store = store
        self._endpoints = endpoints
        self._lifecycle = lifecycle
        self._config = config
        self._clock = clock
        self._slots = asyncio.Semaphore(config.max_batch_lines_in_flight)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelled: dict[str, asyncio.Event] = {}
        self._left: dict[str, int] = {}
        self._running = 0
        self._counter: Counter | None = None

    def register(self, registry: CollectorRegistry, model: str) -> None:
        """Add metrics of batch lines to a registry."""
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "batch_lines_running": ("Lines of batches that are computed.", lambda: self._running),
            "batch_lines_waiting": (
                "Lines of batches in progress that are not.",
                lambda: sum(self._left.values()) - self._running,
            ),
        }
        for name, (text, value) in gauges.items():
            Gauge(f"jaxgen_{name}", text, ["model_name"], registry=registry).labels(model).set_function(value)
        self._counter = Counter(
            "jaxgen_batch_lines", "Lines of batches with a result.", ["model_name"], registry=registry
        ).labels(model)

    async def run(self) -> None:
        """Resume unfinished batches of earlier processes, delete old ones; when cancelled, end every batch's task."""
        try:
            for batch_id in await self._store.do(self._store.active_batches):
                self.submit(batch_id)
            while True:
                await asyncio.sleep(SWEEP_SECONDS)
                await self._sweep()
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _sweep(self) -> None:
        """Delete batches that have been kept long enough."""
        try:
            await self._store.do(self._store.drop_ended)
        except DiskFullError:  # which the store has logged
            pass
        except (OSError, sqlite3.Error):
            logger.exception("ended batches are not deleted for %.0f s", SWEEP_SECONDS)

    def submit(self, batch_id: str) -> None:
        """Start or resume a batch."""
        if batch_id not in self._tasks:
            self._cancelled[batch_id] = asyncio.Event()
            self._tasks[batch_id] = task = asyncio.create_task(self._drive(batch_id))
            task.add_done_callback(lambda done: self._forget(batch_id, done))

    def cancel(self, batch_id: str) -> None:
        """Stop the lines of a batch whose status is ``cancelling``."""
        self.submit(batch_id)
        self._cancelled[batch_id].set()

    def _forget(self, batch_id: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("batch %s stands still until the next start", batch_id, exc_info=error)
        for known in (self._tasks, self._cancelled, self._left):
            known.pop(batch_id, None)

    async def _drive(self, batch_id: str) -> None:
        """Run a batch to its end. Try again after errors of the disk, which may be temporary."""
        while True:
            try:
                await self._work(batch_id)
            except DiskFullError:  # which the store has logged
                await asyncio.sleep(RETRY_SECONDS)
            except (OSError, sqlite3.Error):
                logger.exception("batch %s stands still for %.0f s", batch_id, RETRY_SECONDS)
                await asyncio.sleep(RETRY_SECONDS)
            except EngineDeadError:
                logger.warning("batch %s stands still: the engine has stopped", batch_id)
                return
            else:
                return

    async def _work(self, batch_id: str) -> None:
        store = self._store
        batch = await store.do(store.batch, None, batch_id)
        if batch["status"] == "validating":
            batch = await self._validate(batch)
        if batch["status"] == "in_progress":
            counts = batch["request_counts"]
            self._left[batch_id] = counts["total"] - counts["completed"] - counts["failed"]
            ending = await self._answer_all(batch)
        else:
            ending = {"cancelling": "cancelled", "finalizing": "completed"}.get(batch["status"], "")
        if not ending:
            return  # the batch has failed or ended
        if ending == "completed":
            batch = await store.do(store.move, batch_id, ("in_progress", "finalizing"), "finalizing")
            ending = "cancelled" if batch["status"] == "cancelling" else ending
        if ending in _GIVEN_UP and batch["request_counts"]["total"]:  # else it was cancelled before it was validated
            await self._give_up_rest(batch, *_GIVEN_UP[ending])
        await self._finish(batch, ending)

    async def _validate(self, batch: dict[str, Any]) -> dict[str, Any]:
        store, batch_id = self._store, batch["id"]
        validator = Validator(batch["endpoint"], self._config.max_batch_lines, self._config.max_body_bytes)
        line = offset = 0
        while page := await store.do(store.read_page, batch_id, batch["input_file_id"], line, offset):
            await store.do(validator.see_all, page.lines)
            line, offset = page.line, page.offset
            if validator.gave_up or self._cancelled[batch_id].is_set():
                break
        else:
            await store.do(validator.finish)
        if validator.faults:
            errors = {"object": "list", "data": [fault.as_json() for fault in validator.faults]}
            return await store.do(store.move, batch_id, ("validating",), "failed", errors=errors)
        return await store.do(store.move, batch_id, ("validating",), "in_progress", total=validator.total)

    async def _answer_all(self, batch: dict[str, Any]) -> str:
        """Answer the batch's lines. Return how that ended: completed, cancelled or expired."""
        cancelled = asyncio.create_task(self._cancelled[batch["id"]].wait())
        answering = asyncio.create_task(self._answer_lines(batch))
        left = batch["expires_at"] - self._clock()
        try:
            await asyncio.wait({answering, cancelled}, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                _raise_first(answering.exception())
                return "completed"
            return "cancelled" if cancelled.done() else "expired"
        finally:
            cancelled.cancel()
            answering.cancel()
            await asyncio.gather(cancelled, answering, return_exceptions=True)

    async def _answer_lines(self, batch: dict[str, Any]) -> None:
        store = self._store
        owner = await store.do(store.owner_of, batch["id"])
        line = offset = 0
        async with asyncio.TaskGroup() as lines:
            while page := await store.do(store.read_page, batch["id"], batch["input_file_id"], line, offset):
                for number, raw in page.lines:
                    await self._slot()
                    task = lines.create_task(self._answer_line(batch, owner, number, parse_line(raw)))
                    task.add_done_callback(lambda _: self._slots.release())
                line, offset = page.line, page.offset

    async def _slot(self) -> None:
        """Wait until another line may run."""
        await self._slots.acquire()
        try:
            while self._lifecycle.draining or self._lifecycle.trouble() is not None:
                await asyncio.sleep(POLL_SECONDS)
        except asyncio.CancelledError:
            self._slots.release()
            raise

    async def _answer_line(self, batch: dict[str, Any], owner: str, number: int, line: Line) -> None:
        """Answer a line, and store its result."""
        self._running += 1
        try:
            try:
                status, body = 200, await self._answer(line, owner)
            except EngineDeadError:
                raise
            except Exception as error:  # any error of a line is its result
                refusal = as_api_error(error)
                status, body = anthropic_error(refusal) if of_messages(line.url) else (refusal.status, refusal.body())
            result = number, status == 200, answered(line.custom_id, status, body)
            await self._keep(batch["id"], result)
            self._left[batch["id"]] -= 1
            if self._counter is not None:
                self._counter.inc()
        finally:
            self._running -= 1

    async def _answer(self, line: Line, owner: str) -> dict[str, Any]:
        """Return the answer to a line, once its caller's new grammars are not refused for what others have cost."""
        while True:
            try:
                return await self._endpoints[line.url].answer_whole(line.body, owner)
            except TooCostlyError as error:
                await asyncio.sleep(error.retry_after)

    async def _keep(self, batch_id: str, result: tuple[int, bool, str]) -> None:
        """Store a line's result, when the disk has room for it."""
        while True:
            try:
                await self._store.do(self._store.add_results, batch_id, [result])
            except DiskFullError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _give_up_rest(self, batch: dict[str, Any], code: str, message: str) -> None:
        store = self._store
        line = offset = 0
        while page := await store.do(store.read_page, batch["id"], batch["input_file_id"], line, offset):
            results = [
                (number, False, not_answered(parse_line(raw).custom_id, code, message)) for number, raw in page.lines
            ]
            await store.do(store.add_results, batch["id"], results)
            line, offset = page.line, page.offset

    async def _finish(self, batch: dict[str, Any], status: str) -> None:
        store, outputs = self._store, {}
        files = {"output_file_id": (new_id("file"), True), "error_file_id": (new_id("file"), False)}
        try:
            for name, (file_id, ok) in files.items():
                last = -1
                while (end := await store.do(store.copy_results, batch["id"], file_id, ok=ok, after=last)) is not None:
                    last = end
                if last >= 0:
                    outputs[name] = file_id
            await store.do(store.finish, batch["id"], status, outputs)
        except DiskFullError:
            for file_id, _ in files.values():
                await store.do(store.discard, file_id)
            raise


def _raise_first(error: BaseException | None) -> None:
    """Raise the first error of a group of tasks, if there is one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error
