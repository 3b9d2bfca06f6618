"""Bound what each owner keeps in the store: files, batches, and the bytes of both."""

import sqlite3

from jaxgen.server.batches.tables import ACTIVE
from jaxgen.server.errors import ApiError
from jaxgen.server.limits import Batches

ACTIVE_MARKS = ", ".join("?" * len(ACTIVE))
"""Of a query with the states ``ACTIVE`` as values."""


_SUMS = {
    "files": "SELECT count(*), ifnull(sum(bytes), 0) FROM files WHERE owner = ?",
    "batches": "SELECT count(*), ifnull(sum(bytes + stored), 0) FROM batches WHERE owner = ?",
}


class Quotas:
    """The quotas of owners. Their methods run in the store's thread, and raise ApiError 403 over a quota."""

    def __init__(self, db: sqlite3.Connection, limits: Batches) -> None:
        self._db = db
        self._limits = limits

    def check_file(self, owner: str, size: int) -> None:
        """Check a further file of ``size`` bytes."""
        self._check(owner, size, "files", self._limits.max_files)

    def check_results(self, owner: str) -> None:
        """Check what is kept with the results of running batches."""
        stored, most = self._stored(owner), self._limits.max_stored_bytes
        if stored > most:
            raise _exceeded(
                f"Your files, batches and the results of running batches would be {stored} bytes here; the limit is "
                f"{most}. Delete files that you need no more, and run the rest of the lines as a new batch."
            )

    def check_batch(self, owner: str, size: int) -> None:
        """Check a further batch, of which ``size`` bytes are kept in addition to its files."""
        (active,) = self._db.execute(
            f"SELECT count(*) FROM batches WHERE owner = ? AND status IN ({ACTIVE_MARKS})", (owner, *ACTIVE)
        ).fetchone()
        if active >= self._limits.max_batches:
            raise _exceeded(
                f"You have {active} batches that have not ended, and the limit is {self._limits.max_batches}: "
                "wait for one to end, or cancel one."
            )
        self._check(owner, size, "batches", self._limits.max_stored_batches)

    def _check(self, owner: str, size: int, table: str, most: int) -> None:
        """Check one more row of ``size`` bytes in a table that may have ``most``."""
        most_bytes = self._limits.max_stored_bytes
        (count,) = self._db.execute(f"SELECT count(*) FROM {table} WHERE owner = ?", (owner,)).fetchone()
        if count >= most or self._stored(owner) + size > most_bytes:
            sums = {name: self._sums(query, owner) for name, query in _SUMS.items()}
            description = " and ".join(f"{count} {name} of {stored} bytes" for name, (count, stored) in sums.items())
            raise _exceeded(
                f"You have {description} here; the limits are {most} {table} and {most_bytes} bytes: delete some."
            )

    def _stored(self, owner: str) -> int:
        """Return the bytes of an owner's files and batches, with the results of running ones."""
        row = self._db.execute("SELECT bytes FROM kept WHERE owner = ?", (owner,)).fetchone()
        return 0 if row is None else int(row["bytes"])

    def _sums(self, query: str, owner: str) -> tuple[int, int]:
        """Return the rows of an owner and their bytes."""
        count, stored = self._db.execute(query, (owner,)).fetchone()
        return int(count), int(stored)


def _exceeded(message: str) -> ApiError:
    return ApiError(403, message, code="quota_exceeded")
