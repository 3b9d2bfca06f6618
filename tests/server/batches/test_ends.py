"""Every batch ends and gives its places back, whatever becomes of its input; over a store without an engine."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from jaxgen.server.config import ServerConfig
from jaxgen.server.limits import Batches, Limits
from tests.support.batch_client import jsonl, line
from tests.support.scripted_batches import HELD, add_batch, codes, trial


@pytest.mark.parametrize("when", ["running", "cancelled", "expired"])
def test_a_batch_without_its_input_ends_with_the_results_so_far(tmp_path: Path, when: str) -> None:
    now = [1e9]

    async def main() -> None:
        async with trial(tmp_path, now=lambda: now[0]) as first:
            batch_id, file_id = add_batch(first.store, [line("a"), line("b"), line("c", **HELD)])
            await first.begin(batch_id, 2)
            first.runner._tasks[batch_id].cancel()  # the server ends
            await asyncio.gather(first.runner._tasks[batch_id], return_exceptions=True)
            first.store.path(file_id).unlink()
            if when == "cancelled":
                await first.store.do(first.store.move, batch_id, ("in_progress",), "cancelling")
        now[0] += 10 if when != "expired" else 1e6
        async with trial(tmp_path, now=lambda: now[0]) as second:
            second.runner.submit(batch_id)
            batch, done, failed = await second.end(batch_id)
            assert batch["status"] == ("failed" if when == "running" else when)
            assert codes(batch) == ["input_file_missing"]
            assert ([one["custom_id"] for one in done], failed) == (["a", "b"], [])
            second.store.delete_file("o", file_id)
            second.store.delete_batch("o", batch_id)

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["cancelled", "expired"])
def test_a_disk_that_reads_nothing_keeps_no_batch_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """It is tried again until then."""
    now, tries = [1e9], list[int]()
    monkeypatch.setattr("jaxgen.server.batches.runner.RETRY_SECONDS", 0.0)

    def read_page(*_: Any, **__: Any) -> None:
        tries.append(1)
        raise OSError(5, "Input/output error")

    async def main() -> None:
        async with trial(tmp_path, now=lambda: now[0]) as made:
            batch_id, _ = add_batch(made.store, [line("a"), line("b", **HELD)])
            made.store.move(batch_id, ("validating",), "in_progress", total=2)
            monkeypatch.setattr(made.store, "read_page", read_page)
            made.runner.submit(batch_id)
            while len(tries) < 3:
                await asyncio.sleep(0)
            if ending == "cancelled":
                await made.cancel(batch_id)
            now[0] += 1e6 if ending == "expired" else 0
            batch, _, _ = await made.end(batch_id)
            assert (batch["status"], codes(batch)) == (ending, ["input_file_unreadable"])

    asyncio.run(main())


def test_a_line_that_was_valid_is_answered_whatever_the_limit_is_now(tmp_path: Path) -> None:
    long = [line("a"), line("b", prompt="x" * 3000)]

    async def main() -> None:
        async with trial(tmp_path, ServerConfig(limits=Limits(max_body_bytes=2000))) as made:
            batch_id, _ = add_batch(made.store, long)
            made.store.move(batch_id, ("validating",), "in_progress", total=2)
            made.runner.submit(batch_id)
            batch, done, failed = await made.end(batch_id)
            assert (batch["status"], len(done), failed) == ("completed", 2, [])
            batch_id, _ = add_batch(made.store, long)
            made.runner.submit(batch_id)
            batch, *_ = await made.end(batch_id)
            assert (batch["status"], codes(batch)) == ("failed", ["line_too_long"])

    asyncio.run(main())


@pytest.mark.parametrize("ending", ["completed", "cancelled"])
def test_a_line_that_is_valid_no_more_has_an_error_as_its_result(tmp_path: Path, ending: str) -> None:
    async def main() -> None:
        async with trial(tmp_path, ServerConfig(batches=Batches(max_batch_lines_in_flight=1))) as made:
            lines = [line("a"), line("b"), *([line("c", **HELD), line("d")] if ending == "cancelled" else [])]
            batch_id, file_id = add_batch(made.store, lines)
            made.store.move(batch_id, ("validating",), "in_progress", total=len(lines))
            spoilt = jsonl(*lines).replace(b'"b"', b"b" * 3).replace(b'"d"', b"d" * 3)
            made.store.path(file_id).write_bytes(spoilt)
            if ending == "completed":
                made.runner.submit(batch_id)
            else:
                await made.begin(batch_id, 1)
                await made.cancel(batch_id)
            batch, done, failed = await made.end(batch_id)
            assert (batch["status"], [one["custom_id"] for one in done]) == (ending, ["a"])
            assert [one["custom_id"] for one in failed] == [None] if ending == "completed" else [None, "c", None]
            assert failed[0]["response"]["status_code"] == 400

    asyncio.run(main())


@pytest.mark.parametrize("reply", [{"number": float("nan")}, {"text": object()}])
def test_an_answer_that_cannot_be_written_is_an_error_of_its_line(tmp_path: Path, reply: dict[str, Any]) -> None:
    async def main() -> None:
        async with trial(tmp_path) as made:
            made.endpoint.reply = reply
            batch_id, _ = add_batch(made.store, [line("a")])
            made.runner.submit(batch_id)
            batch, done, failed = await made.end(batch_id)
            assert (batch["status"], done) == ("completed", [])
            assert failed[0]["response"]["status_code"] == 500

    asyncio.run(main())


def test_an_unknown_error_ends_the_batch_with_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with trial(tmp_path, ServerConfig(batches=Batches(max_batch_lines_in_flight=1))) as made:
            batch_id, _ = add_batch(made.store, [line("a"), line("b")])
            add = made.store.add_results

            def add_results(batch_id: str, results: Any) -> None:
                if results[0][0] == 1:
                    raise RuntimeError("a defect")
                add(batch_id, results)

            monkeypatch.setattr(made.store, "add_results", add_results)
            made.runner.submit(batch_id)
            batch, done, _ = await made.end(batch_id)
            assert (batch["status"], codes(batch), len(done)) == ("failed", ["internal_error"], 1)

    asyncio.run(main())
