"""A file of the cache is read as it was written, or not at all: a damaged one goes, with one warning."""

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxgen.files import cache_files
from jaxgen.files.cache_files import find, keep, make_room, new_file
from tests.support.damaged_files import DAMAGES

THEN = "it is made again"
TEXTS = ("", "text", "lines\nof it\n", "naïve 😀", "\nSHA-256 of another\n", "a\r\nb")


@pytest.mark.parametrize("text", TEXTS)
def test_a_file_is_replaced_whole_and_read_as_it_was_written(tmp_path: Path, text: str) -> None:
    path = tmp_path / "verdict"
    for one in ("long" * 1000, text):
        keep(path, one)
        assert find(path, THEN) == one
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_goes_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "verdict"
    keep(path, "a text of some length, which is kept")
    path.write_bytes(damage(path.read_bytes()))
    assert find(path, THEN) is None
    assert [one.getMessage() for one in caplog.records] == [f"{path} is damaged: {THEN}"]
    assert find(path, THEN) is None
    assert len(caplog.records) == 1
    keep(path, "another")
    assert find(path, THEN) == "another"


def test_a_file_without_a_seal_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "verdict").write_text('{"outcome": "right"}')
    assert find(tmp_path / "verdict", THEN) is None


def test_what_cannot_be_read_or_written_costs_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "verdict"
    path.mkdir()
    assert find(path, THEN) is None
    keep(path, "text")
    keep(tmp_path / "nowhere" / "verdict", "text")
    first, second, third = [one.getMessage() for one in caplog.records]
    assert first == f"{path} cannot be read ([Errno 21] Is a directory: '{path}'): {THEN}"
    assert second.startswith(f"{path} cannot be written: ")
    assert third.startswith(f"{tmp_path}/nowhere/verdict cannot be written: ")
    assert list(tmp_path.iterdir()) == [path], "nothing is left beside it"


def test_writers_of_one_file_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two containers have processes of the same number: one writes whole while the other is not done."""
    path, flush, seen = tmp_path / "verdict", os.fsync, []

    def other_writer(number: int) -> None:
        flush(number)
        monkeypatch.setattr(os, "fsync", flush)
        keep(path, "the other's text")
        seen.append(find(path, THEN))

    monkeypatch.setattr(os, "fsync", other_writer)
    keep(path, "a longer text than that of the other")
    assert seen == ["the other's text"]
    assert find(path, THEN) == "a longer text than that of the other"
    assert [one.name for one in tmp_path.iterdir()] == ["verdict"]
    assert caplog.records == []


def left_part(folder: Path, size: int = 10, age: float = 0.0) -> Path:
    """A file as a process leaves it that is killed while it writes."""
    number, name = tempfile.mkstemp(dir=folder, prefix=".verdict.", suffix=cache_files._PART)
    with os.fdopen(number, "wb") as file:
        file.write(bytes(size))
    os.utime(name, (time.time() - age,) * 2)
    return Path(name)


def test_the_next_writer_removes_what_killed_ones_left(tmp_path: Path) -> None:
    left, day_old = left_part(tmp_path), 2 * 24 * 3600
    with new_file(tmp_path / "written"):
        (written,) = tmp_path.glob(".written.*")
        os.utime(written, (time.time() - day_old,) * 2)  # the disk is slow
        keep(tmp_path / "other", "text")
        assert written.exists()
        assert not left.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"other", "written"}


def test_one_that_is_taken_for_abandoned_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def other_process(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        cache_files._remove_abandoned(tmp_path)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", other_process)
    keep(tmp_path / "verdict", "text")
    assert find(tmp_path / "verdict", THEN) == "text"


def test_where_files_cannot_be_locked_they_go_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    new, old = left_part(tmp_path, age=3600), left_part(tmp_path, age=2 * 24 * 3600)
    keep(tmp_path / "other", "text")
    assert (new.exists(), old.exists()) == (True, False)
    assert find(tmp_path / "other", THEN) == "text"


def test_making_room_counts_what_others_are_writing_and_leaves_it(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "older", "oldest")):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1000 - age,) * 2)
    left_part(tmp_path, 1000)
    with new_file(tmp_path / "written") as file:
        file.write(bytes(10))
        file.flush()
        make_room(tmp_path, 5, 30)
        assert sorted(path.name.partition(".")[0] for path in tmp_path.iterdir()) == ["", "new"]
