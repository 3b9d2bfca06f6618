"""Results of batches: counted while they are stored, bounded, kept once, and their room given back."""

import asyncio
from pathlib import Path

import pytest

from jaxgen.server.batches.answers import MOST_RESULT_BYTES
from jaxgen.server.batches.store import Store
from jaxgen.server.config import ServerConfig
from jaxgen.server.errors import ApiError
from jaxgen.server.limits import Batches
from tests.support.batch_client import line
from tests.support.scripted_batches import HELD, add_batch, codes, trial


def test_results_of_a_running_batch_count_and_end_it_at_the_quota(tmp_path: Path) -> None:
    config = ServerConfig(batches=Batches(max_stored_bytes=20_000, max_batch_lines_in_flight=1))

    async def main() -> None:
        async with trial(tmp_path, config) as made:
            made.endpoint.reply = {"text": "x" * 5000}
            store, lines = made.store, [line(str(i), **(HELD if i == 2 else {})) for i in range(9)]
            batch_id, _ = add_batch(store, lines)
            other = add_batch(store, [line("a")], owner="p")[0]
            await made.begin(batch_id, 2)
            with pytest.raises(ApiError, match=r"batches of 1[0-9]{4} bytes") as refusal:
                await store.do(store.check_quota, "o", 10_000)
            assert (refusal.value.status, refusal.value.code) == (403, "quota_exceeded")
            made.endpoint.released.set()
            batch, done, failed = await made.end(batch_id)
            assert (batch["status"], codes(batch)) == ("failed", ["quota_exceeded"])
            assert ([one["custom_id"] for one in done], failed) == (["0", "1", "2"], [])
            assert batch["request_counts"] == {"total": 9, "completed": 3, "failed": 0}
            made.runner.submit(other)
            assert (await made.end(other))[0]["status"] == "completed"
            store.delete_file("o", batch["output_file_id"])
            store.check_quota("o", 15_000)

    asyncio.run(main())


def test_a_batch_without_room_for_its_other_lines_is_cancelled_all_the_same(tmp_path: Path) -> None:
    config = ServerConfig(batches=Batches(max_stored_bytes=4000, max_batch_lines_in_flight=1))

    async def main() -> None:
        async with trial(tmp_path, config) as made:
            batch_id, _ = add_batch(made.store, [line("a", **HELD), *(line(str(i)) for i in range(15))])
            await made.begin(batch_id, 0)
            while not made.endpoint.asked:
                await asyncio.sleep(0)
            await made.cancel(batch_id)
            batch, *_ = await made.end(batch_id)
            assert (batch["status"], codes(batch)) == ("cancelled", ["quota_exceeded"])

    asyncio.run(main())


def test_one_result_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_RESULT_BYTES < 10**9, "SQLite's own bound"
    monkeypatch.setattr("jaxgen.server.batches.answers.MOST_RESULT_BYTES", 300)

    async def main() -> None:
        async with trial(tmp_path) as made:
            made.endpoint.reply = {"text": "x" * 300}
            batch_id, _ = add_batch(made.store, [line("a")])
            made.runner.submit(batch_id)
            _, _, (failed,) = await made.end(batch_id)
            assert failed["response"]["body"]["error"]["code"] == "result_too_long"

    asyncio.run(main())


def test_results_are_kept_once_and_their_room_is_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with trial(tmp_path) as made:
            database = tmp_path / "batches.sqlite"
            made.endpoint.reply = {"text": "x" * 100_000}
            batch_id, _ = add_batch(made.store, [line(str(i)) for i in range(40)])
            made.runner.submit(batch_id)
            batch, done, _ = await made.end(batch_id)
            assert (batch["status"], len(done)) == ("completed", 40)
            assert database.stat().st_size < 100_000, "results had 4,000,000"
            assert (tmp_path / "batches.sqlite-wal").stat().st_size == 0

    asyncio.run(main())


def test_the_sums_are_those_of_the_rows(tmp_path: Path) -> None:
    """Also after a start, and of results that a killed server had copied and not deleted."""
    store = Store(tmp_path, Batches())

    def kept(store: Store) -> dict[str, int]:
        return {row["owner"]: row["bytes"] for row in store._db.execute("SELECT * FROM kept") if row["bytes"]}

    batch_id, file_id = add_batch(store, [line("a")])
    other, _ = add_batch(store, [line("a")], owner="p")
    size = store.path(file_id).stat().st_size
    fields = store._db.execute("SELECT bytes FROM batches").fetchone()["bytes"]
    store.add_results(batch_id, [(0, True, "0123456789"), (0, True, "again")])
    assert kept(store) == {"o": size + fields + 11, "p": size + fields}
    store.close()
    store = Store(tmp_path, Batches())
    assert kept(store) == {"o": size + fields + 11, "p": size + fields}
    store.finish(batch_id, "completed", {}, {})
    store.close()
    store = Store(tmp_path, Batches())
    assert store._db.execute("SELECT count(*) FROM results").fetchone()[0] == 0
    for owner, name in (("o", batch_id), ("p", other)):
        if owner == "p":
            store.finish(name, "failed", {}, {})
        store.delete_batch(owner, name)
        for file in store.files(owner, purpose=None, after=None, limit=9, newest_first=True)["data"]:
            store.delete_file(owner, file["id"])
    assert kept(store) == {}
    store.close()
