"""The database of files and batches: make its tables, and turn rows into the API's objects."""

import json
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from jaxgen.server.batches.disk import is_full, private
from jaxgen.server.errors import ApiError

logger = logging.getLogger(__name__)

ACTIVE = ("validating", "in_progress", "finalizing", "cancelling")
"""The states of batches that have not ended."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE, owner TEXT, purpose TEXT, filename TEXT, bytes INTEGER, created INTEGER
);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE, owner TEXT, status TEXT, input TEXT, fields TEXT,
    total INTEGER DEFAULT 0, completed INTEGER DEFAULT 0, failed INTEGER DEFAULT 0, bytes INTEGER, ended INTEGER,
    stored INTEGER
);
CREATE TABLE IF NOT EXISTS results (
    batch TEXT, line INTEGER, ok INTEGER, text TEXT, PRIMARY KEY (batch, line)
) WITHOUT ROWID;
"""

_ADDED = {
    "bytes": "UPDATE batches SET bytes = length(CAST(fields AS BLOB))",
    "ended": "",
    "stored": "UPDATE batches SET stored = "
    "(SELECT ifnull(sum(length(CAST(text AS BLOB)) + 1), 0) FROM results WHERE batch = id)",
}
"""Columns of batches that older databases lack, and what fills them. ``stored``: bytes of a batch's results, until they
are in files."""

_INDEXES = """
CREATE INDEX IF NOT EXISTS files_of_owner ON files (owner, bytes);
CREATE INDEX IF NOT EXISTS batches_of_owner ON batches (owner, status, bytes);
CREATE INDEX IF NOT EXISTS batches_by_end ON batches (ended);
"""

_KEPT = """
CREATE TEMP TABLE kept (owner TEXT PRIMARY KEY, bytes INTEGER) WITHOUT ROWID;
INSERT INTO kept SELECT owner, sum(bytes) FROM (
    SELECT owner, bytes FROM files UNION ALL SELECT owner, bytes + stored FROM batches
) GROUP BY owner;
CREATE TEMP TRIGGER file_added AFTER INSERT ON files BEGIN
    INSERT INTO kept VALUES (new.owner, new.bytes) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TEMP TRIGGER file_deleted AFTER DELETE ON files BEGIN
    UPDATE kept SET bytes = bytes - old.bytes WHERE owner = old.owner;
END;
CREATE TEMP TRIGGER batch_added AFTER INSERT ON batches BEGIN
    INSERT INTO kept VALUES (new.owner, new.bytes) ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TEMP TRIGGER batch_changed AFTER UPDATE OF bytes, stored ON batches BEGIN
    UPDATE kept SET bytes = bytes + new.bytes + new.stored - old.bytes - old.stored WHERE owner = old.owner;
END;
CREATE TEMP TRIGGER batch_deleted AFTER DELETE ON batches BEGIN
    UPDATE kept SET bytes = bytes - old.bytes - old.stored WHERE owner = old.owner;
END;
"""
"""The bytes that each owner has, of files, batches and results: summed at the start, and kept up to date."""

_INCREMENTAL = 2
_GIVEN_BACK_PAGES = 2048
"""Pages that are given back at a time, 8 MiB."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the database, or make it; its rows have columns by name. Raises sqlite3.Error and OSError."""
    with open(path, "ab", opener=private):  # SQLite gives the files next to it the same mode
        pass
    db = sqlite3.connect(path, check_same_thread=False)
    db.row_factory = sqlite3.Row
    _let_shrink(db, path)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.executescript(_SCHEMA)
    present = {row["name"] for row in db.execute("PRAGMA table_info(batches)")}
    for name, filled in _ADDED.items():
        if name not in present:
            db.executescript(f"BEGIN; ALTER TABLE batches ADD COLUMN {name} INTEGER; {filled}; COMMIT")
    db.executescript(_INDEXES)
    db.execute("PRAGMA temp_store=MEMORY")
    db.executescript(_KEPT)
    return db


def _let_shrink(db: sqlite3.Connection, path: Path) -> None:
    """Let a database give room back. One of an older version is copied for it, once, if the disk has room."""
    (mode,) = db.execute("PRAGMA auto_vacuum").fetchone()
    if mode == _INCREMENTAL:
        return
    db.execute("PRAGMA auto_vacuum=INCREMENTAL")
    try:
        db.execute("VACUUM")
    except sqlite3.OperationalError as error:
        if not is_full(error):
            raise
        logger.warning("%s keeps the room of past results: the disk has no room for a copy of it", path)


def give_back(db: sqlite3.Connection) -> bool:
    """Give some of the database's free room back to the disk. Return whether there is more to give."""
    (before,) = db.execute("PRAGMA freelist_count").fetchone()
    db.execute(f"PRAGMA incremental_vacuum({_GIVEN_BACK_PAGES})").fetchall()  # each row read is a page given back
    (after,) = db.execute("PRAGMA freelist_count").fetchone()
    if 0 < after < before:
        return True
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return False


def new_id(kind: str) -> str:
    return f"{kind}-{uuid4().hex}" if kind == "file" else f"{kind}_{uuid4().hex}"


def list_page(
    db: sqlite3.Connection,
    table: str,
    owner: str,
    as_json: Callable[[sqlite3.Row], dict[str, Any]],
    *,
    where: str = "",
    values: tuple[Any, ...] = (),
    after: str | None,
    limit: int,
    newest_first: bool,
) -> dict[str, Any]:
    """Return a page of an owner's rows: at most ``limit``, after the id ``after``.

    ``where``: a further condition, with ``values``. Raises ApiError 400 for an unknown ``after``.
    """
    if after is not None:
        row = db.execute(f"SELECT number FROM {table} WHERE id = ? AND owner = ?", (after, owner)).fetchone()
        if row is None:
            raise ApiError(
                400, f"after: {after[:100]!r} is not an id of this list: send the last id of a page.", param="after"
            )
        where += f" AND number {'<' if newest_first else '>'} ?"
        values = (*values, row["number"])
    order = "DESC" if newest_first else "ASC"
    query = f"SELECT * FROM {table} WHERE owner = ? {where} ORDER BY number {order} LIMIT ?"
    rows = db.execute(query, (owner, *values, limit + 1)).fetchall()
    data = [as_json(row) for row in rows[:limit]]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": len(rows) > limit}


def file_json(row: sqlite3.Row) -> dict[str, Any]:
    return {
        "id": row["id"],
        "object": "file",
        "bytes": row["bytes"],
        "created_at": row["created"],
        "filename": row["filename"],
        "purpose": row["purpose"],
        "status": "processed",
    }


_BATCH_FIELDS = (
    "endpoint",
    "metadata",
    "errors",
    "output_file_id",
    "error_file_id",
    "created_at",
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


def batch_json(row: sqlite3.Row) -> dict[str, Any]:
    fields = json.loads(row["fields"])
    return {
        "id": row["id"],
        "object": "batch",
        "input_file_id": row["input"],
        "completion_window": "24h",
        "status": row["status"],
        **{name: fields.get(name) for name in _BATCH_FIELDS},
        "request_counts": {name: row[name] for name in ("total", "completed", "failed")},
    }
