"""Bound what each owner keeps in the store: files, batches, and the bytes of both."""

import sqlite3

from jaxgen.server.batches.tables import ACTIVE
from jaxgen.server.config import ServerConfig
from jaxgen.server.errors import ApiError

ACTIVE_MARKS = ", ".join("?" * len(ACTIVE))
"""Of a query with the states ``ACTIVE`` as values."""


class Quotas:
    """The quotas of owners. Their methods run in the store's thread, and raise ApiError 403 over a quota."""

    def __init__(self, db: sqlite3.Connection, config: ServerConfig) -> None:
        self._db = db
        self._config = config

    def check_file(self, owner: str, size: int) -> None:
        """Check a further file of ``size`` bytes."""
        count, stored = self._sums("files", owner)
        _, of_batches = self._sums("batches", owner)
        most, most_bytes = self._config.max_files, self._config.max_stored_bytes
        if count >= most or stored + of_batches + size > most_bytes:
            raise _exceeded(
                f"You have {count} files of {stored} bytes here, and batches of {of_batches} bytes; the limits are "
                f"{most} files and {most_bytes} bytes: delete some."
            )

    def check_batch(self, owner: str, size: int) -> None:
        """Check a further batch, of which ``size`` bytes are kept beside its files."""
        (active,) = self._db.execute(
            f"SELECT count(*) FROM batches WHERE owner = ? AND status IN ({ACTIVE_MARKS})", (owner, *ACTIVE)
        ).fetchone()
        if active >= self._config.max_batches:
            raise _exceeded(
                f"You have {active} batches that have not ended, and the limit is {self._config.max_batches}."
            )
        count, of_batches = self._sums("batches", owner)
        _, stored = self._sums("files", owner)
        most, most_bytes = self._config.max_stored_batches, self._config.max_stored_bytes
        if count >= most or stored + of_batches + size > most_bytes:
            raise _exceeded(
                f"You have {count} batches of {of_batches} bytes here, and files of {stored} bytes; the limits are "
                f"{most} batches and {most_bytes} bytes: delete some that have ended."
            )

    def _sums(self, table: str, owner: str) -> tuple[int, int]:
        """Return the rows of an owner and their bytes."""
        query = f"SELECT count(*), ifnull(sum(bytes), 0) FROM {table} WHERE owner = ?"
        count, stored = self._db.execute(query, (owner,)).fetchone()
        return int(count), int(stored)


def _exceeded(message: str) -> ApiError:
    return ApiError(403, message, code="quota_exceeded")
