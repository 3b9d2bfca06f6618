"""A store of files: what is written whole is read, by any process, and the files used longest ago make room."""

import os
import stat
import time
from pathlib import Path

import pytest

from jaxgen.offload.kv_tier.directory import DirectoryStore

BIG = 10**9


def key(n: int) -> bytes:
    return n.to_bytes(16)


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def age(store: DirectoryStore, n: int, seconds: float) -> None:
    path = store._path(key(n))
    os.utime(path, (seconds, seconds))


def test_only_the_user_may_read(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "tier", BIG)
    store.put(key(1), [b"secret"])
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "tier", *(tmp_path / "tier").rglob("*")]}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_the_files_used_longest_ago_make_room(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, 1000)
    for n in range(9):
        store.put(key(n), [bytes(100)])
        age(store, n, 1000.0 + n)
    store.get([key(0)])  # used now
    store.put(key(1), [bytes(100)])  # used now, since it is there
    for n in (9, 10):
        store.put(key(n), [bytes(100)])
    assert store.get([key(n) for n in (0, 1, 2, 3, 4)]) == [bytes(100), bytes(100), None, None, bytes(100)]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 1000


def test_of_blocks_read_together_the_last_makes_room_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path, BIG)
    touched: list[Path] = []
    for n in range(3):
        store.put(key(n), [b"x"])
    monkeypatch.setattr(os, "utime", touched.append)
    store.get([key(n) for n in range(3)])
    assert touched == [store._path(key(n)) for n in (2, 1, 0)]


def test_a_removed_directory_is_made_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "tier", BIG)
    store.put(key(1), [b"x"])
    (tmp_path / "tier").rename(tmp_path / "gone")
    assert (store.count([key(1)]), store.get([key(1)])) == (0, [None])
    assert store.put(key(1), [b"y"])
    assert store.get([key(1)]) == [b"y"]


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path, BIG)
    store.put(key(1), [b"x"])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            store.put(key(2), [b"x"])
    assert files(tmp_path) == [store._path(key(1))]


def test_temporary_files_that_a_killed_writer_left_are_removed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, BIG)
    store.put(key(1), [b"x"])
    old, new = (store._path(key(1)).with_name(f"{name}.part") for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1000.0, 1000.0))
    DirectoryStore(tmp_path, BIG).put(key(2), [b"x"])
    assert (old.exists(), new.exists()) == (False, True)


def test_after_the_clock_was_set_back_files_are_found_and_make_room(tmp_path: Path) -> None:
    """Files of before seem to be used in the future: they go last, and the size holds."""
    store = DirectoryStore(tmp_path, 1000)
    for n in range(10):
        store.put(key(n), [bytes(100)])
        if n < 5:
            age(store, n, time.time() + 10**6)
        else:
            age(store, n, 1000.0 + n)
    path = store._path(key(0)).with_name("later.part")
    path.write_bytes(b"half")
    os.utime(path, (time.time() + 10**6,) * 2)
    store.put(key(10), [bytes(100)])
    assert store.get([key(n) for n in (0, 4, 5, 6, 10)]) == [bytes(100), bytes(100), None, None, bytes(100)]
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 1000 + len(b"half")
