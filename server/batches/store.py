"""Store files and batches on disk: the files' bytes in a directory, everything else in SQLite next to it."""

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import filelock

from jaxgen.core.errors import ConfigError
from jaxgen.server.batches.disk import DiskWatch, make_private, private
from jaxgen.server.batches.pages import PAGE_BYTES, PAGE_LINES, Page, read_page
from jaxgen.server.batches.quota import ACTIVE_MARKS, Quotas
from jaxgen.server.batches.tables import ACTIVE, batch_json, connect, file_json, give_back, list_page, new_id
from jaxgen.server.errors import ApiError
from jaxgen.server.limits import Batches

WINDOW_S = 24 * 60 * 60
CLEARED_LINES = 16
"""Results that are deleted at a time: of long ones, a journal of all would take as much of the disk as they do."""
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Store:
    """The files and batches of a server. ``do`` runs all methods but ``path`` and ``close``, in one thread, one by one.

    A line's result is stored and counted in one transaction, and a line keeps its first result. A process that is
    killed leaves the database as after its last transaction; files without a row in the database are removed.
    """

    def __init__(self, directory: Path, limits: Batches, clock: Callable[[], float] = time) -> None:
        """Raises ConfigError where the directory cannot be written, belongs to another user, or another server uses
        it."""
        self._limits = limits
        self._clock = clock
        self._disk = DiskWatch(directory)
        self._files = directory / "files"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jaxgen-batches")
        try:
            make_private(directory, self._files)
            self._lock = filelock.FileLock(directory / "lock", mode=0o600, thread_local=False)
            self._lock.acquire(timeout=0)
            self._db = connect(directory / "batches.sqlite")
            self._quotas = Quotas(self._db, limits)
            self._sweep()
        except filelock.Timeout as error:
            raise ConfigError(f"--batch-dir {directory} is in use by another server: name another directory") from error
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"--batch-dir {directory} cannot be used: {error}") from error

    async def do[**P, R](self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``work`` in the store's thread, and return its result. Raises DiskFullError where the disk is full."""

        def watched() -> R:
            with self._disk.writing(lambda: self._db.total_changes):
                return work(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._thread, watched)

    def start(self, *works: Callable[[], object]) -> None:
        """Start ``works`` in the store's thread, after all that it does before, without waiting for them."""
        with suppress(RuntimeError):  # the store is closed; the next start removes files without a row
            for work in works:
                self._thread.submit(work)

    def close(self) -> None:
        """Close the store once all work of ``do`` has ended."""
        self._thread.shutdown()
        self._db.close()
        self._lock.release()

    def path(self, file_id: str) -> Path:
        return self._files / file_id

    # Files

    def check_quota(self, owner: str, size: int) -> None:
        """Raise ApiError 403 where a further file of ``size`` bytes is over the owner's quota."""
        self._quotas.check_file(owner, size)

    def add_file(self, owner: str, purpose: str, filename: str, file_id: str, size: int) -> dict[str, Any]:
        """Add a file that has been written to its ``path``. Raises ApiError 403 over the owner's quota."""
        self.check_quota(owner, size)
        with self._db:
            self._insert_file(file_id, owner, purpose, filename, size)
        return self.file(owner, file_id)

    def discard(self, file_id: str) -> None:
        """Remove a file that has not been added."""
        if self._db.execute("SELECT id FROM files WHERE id = ?", (file_id,)).fetchone() is None:
            self.path(file_id).unlink(missing_ok=True)

    def file(self, owner: str, file_id: str) -> dict[str, Any]:
        """Return a file's object. Raises ApiError 404."""
        row = self._db.execute("SELECT * FROM files WHERE id = ? AND owner = ?", (file_id, owner)).fetchone()
        if row is None:
            raise ApiError(404, f"No such file: {file_id[:100]!r}.", param="file_id", code="file_not_found")
        return file_json(row)

    def files(
        self, owner: str, *, purpose: str | None, after: str | None, limit: int, newest_first: bool
    ) -> dict[str, Any]:
        return list_page(
            self._db,
            "files",
            owner,
            file_json,
            where="" if purpose is None else "AND purpose = ?",
            values=() if purpose is None else (purpose,),
            after=after,
            limit=limit,
            newest_first=newest_first,
        )

    def delete_file(self, owner: str, file_id: str) -> None:
        """Delete a file. Raises ApiError: 404, or 409 while a batch needs the file."""
        self.file(owner, file_id)
        user = self._db.execute(
            f"SELECT id FROM batches WHERE input = ? AND status IN ({ACTIVE_MARKS})", (file_id, *ACTIVE)
        ).fetchone()
        if user is not None:
            raise ApiError(409, f"The batch {user['id']} needs this file: cancel it first.", code="file_in_use")
        # First: the database may need the room, on a disk that is full.
        self.path(file_id).unlink(missing_ok=True)
        with self._db:
            self._db.execute("DELETE FROM files WHERE id = ?", (file_id,))

    # Batches

    def add_batch(self, owner: str, input_file: str, endpoint: str, metadata: dict[str, str] | None) -> dict[str, Any]:
        """Add a batch. Raises ApiError: 404 without the file, 400 for its purpose, 403 over the owner's quota."""
        if self.file(owner, input_file)["purpose"] != "batch":
            raise ApiError(400, "input_file_id: the file's purpose must be batch.", param="input_file_id")
        batch_id, now = new_id("batch"), int(self._clock())
        fields = {
            "endpoint": endpoint,
            "metadata": metadata,
            "created_at": now,
            "expires_at": now + WINDOW_S,
        }
        text = _encode(fields)
        self.drop_ended()
        self._quotas.check_batch(owner, len(text.encode()))
        with self._db:
            self._db.execute(
                "INSERT INTO batches (id, owner, status, input, fields, bytes, stored) "
                "VALUES (?, ?, 'validating', ?, ?, ?, 0)",
                (batch_id, owner, input_file, text, len(text.encode())),
            )
        return self.batch(owner, batch_id)

    def delete_batch(self, owner: str, batch_id: str) -> None:
        """Delete a batch that has ended; its files stay. Raises ApiError: 404, or 409 where it has not ended."""
        status = self.batch(owner, batch_id)["status"]
        if status in ACTIVE:
            raise ApiError(409, f"The batch is {status}: cancel it first, and wait for its end.", code="batch_active")
        with self._db:
            self._db.execute("DELETE FROM batches WHERE id = ?", (batch_id,))

    def drop_ended(self) -> None:
        """Delete the batches that ended longer ago than they are kept; their files stay."""
        past = self._clock() - self._limits.batch_lifetime_s
        with self._db:
            self._db.execute("DELETE FROM batches WHERE ended <= ?", (past,))

    def batch(self, owner: str | None, batch_id: str) -> dict[str, Any]:
        """Return a batch's object. ``owner`` None: of any owner. Raises ApiError 404."""
        return batch_json(self._row(owner, batch_id))

    def owner_of(self, batch_id: str) -> str:
        return str(self._db.execute("SELECT owner FROM batches WHERE id = ?", (batch_id,)).fetchone()["owner"])

    def batches(self, owner: str, *, after: str | None, limit: int) -> dict[str, Any]:
        """Return a page of an owner's batches, the newest first."""
        return list_page(self._db, "batches", owner, batch_json, after=after, limit=limit, newest_first=True)

    def active_batches(self) -> list[str]:
        """Return the ids of unfinished batches, the oldest first."""
        rows = self._db.execute(f"SELECT id FROM batches WHERE status IN ({ACTIVE_MARKS}) ORDER BY number", ACTIVE)
        return [row["id"] for row in rows]

    def move(self, batch_id: str, sources: Sequence[str], status: str, **fields: Any) -> dict[str, Any]:
        """Change the status and ``fields`` of a batch if its status is one of ``sources``; return the batch.

        Raises ApiError 404.
        """
        row = self._row(None, batch_id)
        if row["status"] in sources:
            total = fields.pop("total", row["total"])
            with self._db:
                self._db.execute("UPDATE batches SET total = ? WHERE id = ?", (total, batch_id))
                self._set_status(row, status, fields)
        return self.batch(None, batch_id)

    def finish(self, batch_id: str, status: str, outputs: dict[str, str], fields: Mapping[str, Any]) -> None:
        """End a batch. ``outputs``: ids of the files with its results, by field; ``fields``: further ones."""
        row = self._row(None, batch_id)
        for file_id in outputs.values():
            with self.path(file_id).open("rb+") as file:
                os.fsync(file.fileno())
        with self._db:
            for name, file_id in outputs.items():
                filename = f"{batch_id}_{name.removesuffix('_file_id')}.jsonl"
                self._insert_file(file_id, row["owner"], "batch_output", filename, self.path(file_id).stat().st_size)
            self._db.execute("UPDATE batches SET stored = 0 WHERE id = ?", (batch_id,))
            self._set_status(row, status, {**outputs, **fields})

    def clear(self, batch_id: str) -> bool:
        """Delete some of the results of a batch that has ended, or give their room back. Return whether that is all."""
        with self._db:
            cursor = self._db.execute(
                "DELETE FROM results WHERE batch = ? AND line IN (SELECT line FROM results WHERE batch = ? LIMIT ?)",
                (batch_id, batch_id, CLEARED_LINES),
            )
        return cursor.rowcount == 0 and not give_back(self._db)

    def _row(self, owner: str | None, batch_id: str) -> sqlite3.Row:
        row: sqlite3.Row | None = self._db.execute("SELECT * FROM batches WHERE id = ?", (batch_id,)).fetchone()
        if row is None or owner not in (None, row["owner"]):
            raise ApiError(404, f"No such batch: {batch_id[:100]!r}.", param="batch_id", code="batch_not_found")
        return row

    def _set_status(self, row: sqlite3.Row, status: str, fields: Mapping[str, Any]) -> None:
        """Change the status and ``fields`` of the batch of ``row``, within a transaction."""
        now = int(self._clock())
        text = _encode(json.loads(row["fields"]) | fields | {f"{status}_at": now})
        self._db.execute(
            "UPDATE batches SET status = ?, fields = ?, bytes = ?, ended = ? WHERE id = ?",
            (status, text, len(text.encode()), None if status in ACTIVE else now, row["id"]),
        )

    # Lines

    def read_page(self, batch_id: str, file_id: str, before: Page, *, longest: int | None = None) -> Page | None:
        """Return the lines without a result after those of a page, as ``pages.read_page`` does.

        Raises ApiError 404 where the file is not there; OSError.
        """
        try:
            page = read_page(self.path(file_id), before.line, before.offset, longest)
        except FileNotFoundError as error:
            message = f"The input file {file_id} is not in the server's batch directory any more."
            raise ApiError(404, message, code="input_file_missing") from error
        if page is None:
            return None
        rows = self._db.execute(
            "SELECT line FROM results WHERE batch = ? AND line BETWEEN ? AND ?", (batch_id, before.line, page.line)
        )
        done = {row["line"] for row in rows}
        return replace(page, lines=tuple(item for item in page.lines if item[0] not in done))

    def add_results(self, batch_id: str, results: Sequence[tuple[int, bool, str]]) -> None:
        """Store results: (line, ok, text). A line that has a result keeps it.

        Raises ApiError 403 over the owner's quota; then none is stored.
        """
        with self._db:
            for line, ok, text in results:
                cursor = self._db.execute(
                    "INSERT OR IGNORE INTO results VALUES (?, ?, ?, ?)", (batch_id, line, ok, text)
                )
                if cursor.rowcount:
                    column = "completed" if ok else "failed"
                    self._db.execute(
                        f"UPDATE batches SET {column} = {column} + 1, stored = stored + ? WHERE id = ?",
                        (len(text.encode()) + 1, batch_id),
                    )
            self._quotas.check_results(self.owner_of(batch_id))

    def copy_results(self, batch_id: str, file_id: str, *, ok: bool, after: int) -> int | None:
        """Append a page of results after line ``after`` to a file. Return the last line's number; None: no results."""
        rows = self._db.execute(
            "SELECT line, text FROM results WHERE batch = ? AND ok = ? AND line > ? ORDER BY line LIMIT ?",
            (batch_id, ok, after, PAGE_LINES),
        )
        page, size, last = list[bytes](), 0, None
        while size < PAGE_BYTES and (row := rows.fetchone()):
            page.append(row["text"].encode() + b"\n")
            size, last = size + len(page[-1]), int(row["line"])
        if page:
            with open(self.path(file_id), "ab", opener=private) as file:
                file.writelines(page)
        return last

    def _insert_file(self, file_id: str, owner: str, purpose: str, filename: str, size: int) -> None:
        self._db.execute(
            "INSERT INTO files (id, owner, purpose, filename, bytes, created) VALUES (?, ?, ?, ?, ?, ?)",
            (file_id, owner, purpose, filename, size, int(self._clock())),
        )

    def _sweep(self) -> None:
        """Delete files without a row in the database (interrupted uploads and results), results that are in files, and
        batches kept long enough.

        The time that an older version's ended batches are kept begins now.
        """
        with self._db:
            self._db.execute(
                f"UPDATE batches SET ended = ? WHERE ended IS NULL AND status NOT IN ({ACTIVE_MARKS})",
                (int(self._clock()), *ACTIVE),
            )
            self._db.execute(
                f"DELETE FROM results WHERE batch NOT IN (SELECT id FROM batches WHERE status IN ({ACTIVE_MARKS}))",
                ACTIVE,
            )
        self.drop_ended()
        known = {row["id"] for row in self._db.execute("SELECT id FROM files")}
        for path in self._files.iterdir():
            if path.name not in known:
                with suppress(OSError):
                    path.unlink()
