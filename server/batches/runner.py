"""Run batches: a few lines at a time, through the endpoints' own code, in the background of the engine."""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from jaxgen.core.errors import EngineDeadError
from jaxgen.server.batches.answers import LineAnswers, LineEndpoint
from jaxgen.server.batches.disk import DiskFullError
from jaxgen.server.batches.lines import Fault, Validator, faults_json, not_answered
from jaxgen.server.batches.pages import Page
from jaxgen.server.batches.places import Places
from jaxgen.server.batches.store import Store
from jaxgen.server.batches.tables import new_id
from jaxgen.server.errors import INTERNAL_MESSAGE, ApiError
from jaxgen.server.limits import Batches
from jaxgen.server.middleware.lifecycle import Lifecycle

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
RETRY_SECONDS = 30.0
SWEEP_SECONDS = 3600.0
_TEMPORARY = (DiskFullError, OSError, sqlite3.OperationalError)
"""Errors of the disk, which may be over at the next try."""
_GIVEN_UP = {
    "expired": ("batch_expired", "This request was not run before the batch expired."),
    "cancelled": ("batch_cancelled", "This request was not run before the batch was cancelled."),
}


class BatchRunner:
    """Runs one task for each unfinished batch; together they answer ``max_batch_lines_in_flight`` lines at a time, and
    somewhat more where several owners have lines.

    Lines in flight when the process ends are answered again: a line is done when its result is stored.
    """

    def __init__(
        self,
        store: Store,
        endpoints: Mapping[str, LineEndpoint],
        lifecycle: Lifecycle,
        limits: Batches,
        max_body_bytes: int,
        clock: Callable[[], float] = time,
    ) -> None:
        self._store = store
        self._answers = LineAnswers(endpoints)
        self._lifecycle = lifecycle
        self._limits = limits
        self._max_body_bytes = max_body_bytes
        self._clock = clock
        self._places = Places(limits.max_batch_lines_in_flight)
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
        """Run a batch to its end, and clear away what it needed. Try again after errors of the disk."""
        try:
            for part in (self._work, self._clear):
                while not await self._tried(part, batch_id):
                    await asyncio.sleep(RETRY_SECONDS)
        except EngineDeadError:
            logger.warning("batch %s stands still: the engine has stopped", batch_id)

    async def _tried(self, part: Callable[[str], Awaitable[None]], batch_id: str) -> bool:
        """Return whether a part of a batch's life is done; it is to be tried again after errors that may be over."""
        try:
            await part(batch_id)
        except DiskFullError:  # which the store has logged
            return False
        except _TEMPORARY:
            logger.exception("batch %s stands still for %.0f s", batch_id, RETRY_SECONDS)
            return False
        return True

    async def _work(self, batch_id: str) -> None:
        """Run a batch to its end. It fails, with its results, at errors of neither the disk nor the engine."""
        try:
            await self._run_lines(batch_id)
        except (*_TEMPORARY, EngineDeadError):
            raise
        except ApiError as error:  # of the store: the input is gone, or the owner's quota is used up
            await self._fail(batch_id, Fault(error.code or "failed", error.message))
        except Exception:
            logger.exception("batch %s ends as failed", batch_id)
            await self._fail(batch_id, Fault("internal_error", INTERNAL_MESSAGE))

    async def _fail(self, batch_id: str, fault: Fault) -> None:
        batch = await self._store.do(self._store.batch, None, batch_id)
        await self._finish(batch, "cancelled" if batch["status"] == "cancelling" else "failed", [fault])

    async def _clear(self, batch_id: str) -> None:
        """Delete the stored results of a batch, which are in its files now."""
        while not await self._store.do(self._store.clear, batch_id):
            pass

    async def _run_lines(self, batch_id: str) -> None:
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
        faults: list[Fault] = []
        if ending in _GIVEN_UP and batch["request_counts"]["total"]:  # else it was cancelled before it was validated
            faults = await self._give_up_rest(batch, *_GIVEN_UP[ending])
        await self._finish(batch, ending, faults)

    async def _validate(self, batch: dict[str, Any]) -> dict[str, Any]:
        store, batch_id = self._store, batch["id"]
        validator = Validator(batch["endpoint"], self._limits.max_batch_lines, self._max_body_bytes)
        page = Page()
        most = self._max_body_bytes
        while (next_page := await self._next(batch, page, longest=most)) is not None:
            page = next_page
            await store.do(validator.see_all, page.lines)
            if validator.gave_up or self._cancelled[batch_id].is_set():
                break
        else:
            await store.do(validator.finish)
        if validator.faults:
            errors = faults_json(validator.faults)
            return await store.do(store.move, batch_id, ("validating",), "failed", errors=errors)
        return await store.do(store.move, batch_id, ("validating",), "in_progress", total=validator.total)

    async def _next(self, batch: dict[str, Any], page: Page, *, longest: int | None = None) -> Page | None:
        """Return the lines after those of a page, as ``Store.read_page`` does."""
        return await self._store.do(self._store.read_page, batch["id"], batch["input_file_id"], page, longest=longest)

    async def _answer_all(self, batch: dict[str, Any]) -> str:
        """Answer the batch's lines. Return how that ended: completed, cancelled or expired."""
        left = batch["expires_at"] - self._clock()
        if left <= 0:
            return "expired"
        cancelled = asyncio.create_task(self._cancelled[batch["id"]].wait())
        answering = asyncio.create_task(self._answer_lines(batch))
        try:
            await asyncio.wait({answering, cancelled}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
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
        page = Page()
        async with asyncio.TaskGroup() as lines:
            while (next_page := await self._next(batch, page)) is not None:
                page = next_page
                for number, raw in page.lines:
                    await self._place(owner)
                    task = lines.create_task(self._answer_line(batch["id"], owner, number, raw))
                    task.add_done_callback(lambda _: self._places.give_back(owner))

    async def _place(self, owner: str) -> None:
        """Take a place for another line of an owner, when it may run."""
        await self._places.take(owner)
        try:
            while self._lifecycle.draining or self._lifecycle.trouble() is not None:
                await asyncio.sleep(POLL_SECONDS)
        except asyncio.CancelledError:
            self._places.give_back(owner)
            raise

    async def _answer_line(self, batch_id: str, owner: str, number: int, raw: bytes) -> None:
        """Answer a line, and store its result."""
        self._running += 1
        try:
            await self._keep(batch_id, (number, *await self._answers.result(raw, owner)))
            self._left[batch_id] -= 1
            if self._counter is not None:
                self._counter.inc()
        finally:
            self._running -= 1

    async def _keep(self, batch_id: str, result: tuple[int, bool, str]) -> None:
        """Store a line's result, when the disk has room for it."""
        while True:
            try:
                await self._store.do(self._store.add_results, batch_id, [result])
            except DiskFullError:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    async def _give_up_rest(self, batch: dict[str, Any], code: str, message: str) -> list[Fault]:
        """Store results of the lines that have none. Return why not all of them could be stored."""
        store = self._store
        page = Page()
        try:
            while (next_page := await self._next(batch, page)) is not None:
                page = next_page
                results = [(number, False, not_answered(raw, code, message)) for number, raw in page.lines]
                await store.do(store.add_results, batch["id"], results)
        except DiskFullError:
            raise
        except ApiError as error:
            return [Fault(error.code or "failed", error.message)]
        except OSError:
            logger.exception("batch %s ends without results of its other lines", batch["id"])
            return [Fault("input_file_unreadable", "The input file could not be read again.")]
        return []

    async def _finish(self, batch: dict[str, Any], status: str, faults: Sequence[Fault]) -> None:
        """End a batch, with its results in files. ``faults``: why it ends early, or lacks results."""
        store, outputs = self._store, {}
        files = {"output_file_id": (new_id("file"), True), "error_file_id": (new_id("file"), False)}
        try:
            for name, (file_id, ok) in files.items():
                last = -1
                while (end := await store.do(store.copy_results, batch["id"], file_id, ok=ok, after=last)) is not None:
                    last = end
                if last >= 0:
                    outputs[name] = file_id
            fields = {"errors": faults_json(faults)} if faults else {}
            await store.do(store.finish, batch["id"], status, outputs, fields)
        except Exception:
            for file_id, _ in files.values():
                await store.do(store.discard, file_id)
            raise


def _raise_first(error: BaseException | None) -> None:
    """Raise the first error of a group of tasks, if there is one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error is not None:
        raise error
