"""A file of the cache is read as it was written, or not at all: a damaged one goes, with one warning."""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxgen.core import kept_files
from jaxgen.core.kept_files import find, keep, make_room
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


def test_what_killed_writers_left_goes_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    for age in (3600, 2 * 24 * 3600):
        number, name = tempfile.mkstemp(dir=tmp_path, prefix=".verdict.", suffix=kept_files._PART)
        os.close(number)
        os.utime(name, (time.time() - age,) * 2)
        names.append(Path(name))
    keep(tmp_path / "other", "text")
    assert [name.exists() for name in names] == [True, False]


def test_making_room_leaves_what_others_are_writing(tmp_path: Path) -> None:
    for name in ("old", ".new.part"):
        (tmp_path / name).write_bytes(bytes(10))
    make_room(tmp_path, 5, 8)
    assert [path.name for path in tmp_path.iterdir()] == [".new.part"]
