"""A store of files: what is written whole is read, by any process, and the files used longest ago make room."""

import os
import shutil
import stat
import time
from collections.abc import Buffer, Sequence
from pathlib import Path

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.offload.tiers.kv_tier.directory import FOLDER, DirectoryStore, check_directory

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
    monkeypatch.setattr(os, "utime", lambda path, **_: touched.append(path))
    store.get([key(n) for n in range(3)])
    assert touched == [store._path(key(n)) for n in (2, 1, 0)]


def test_a_removed_directory_is_made_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "tier", BIG)
    store.put(key(1), [b"x"])
    (tmp_path / "tier").rename(tmp_path / "gone")
    assert (store.count([key(1)]), store.get([key(1)])) == (0, [None])
    assert store.put(key(1), [b"y"])
    assert store.get([key(1)]) == [b"y"]


def test_a_directory_that_is_removed_again_and_again_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write, times = DirectoryStore(tmp_path / "tier", BIG), DirectoryStore._write, iter(range(3))

    def removed_before(store: DirectoryStore, path: Path, parts: Sequence[Buffer]) -> None:
        if next(times, None) is not None:
            shutil.rmtree(tmp_path / "tier", ignore_errors=True)
        write(store, path, parts)

    monkeypatch.setattr(DirectoryStore, "_write", removed_before)
    assert store.put(key(1), [b"x"])
    assert store.get([key(1)]) == [b"x"]
    assert next(times, None) is None


@pytest.mark.parametrize("kind", ["link", "loop", "pipe", "folder"])
def test_what_is_no_file_is_a_damaged_value(tmp_path: Path, kind: str) -> None:
    """Who may write there cannot have another file, a device without end or a pipe read."""
    store = DirectoryStore(tmp_path / "tier", BIG)
    store.put(key(1), [b"x"])
    path = store._path(key(1))
    path.unlink()
    if kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert store.get([key(1)]) == [b""]
    assert store.count([key(1)]) == 1
    assert not store.put(key(1), [b"y"])


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
    old, new = (store._path(key(1)).with_name(f"{digit * 16}.part") for digit in "ab")
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
    path = store._path(key(0)).with_name(f"{'c' * 16}.part")
    path.write_bytes(b"half")
    os.utime(path, (time.time() + 10**6,) * 2)
    store.put(key(10), [bytes(100)])
    assert store.get([key(n) for n in (0, 4, 5, 6, 10)]) == [bytes(100), bytes(100), None, None, bytes(100)]
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 1000 + len(b"half")


def test_what_is_not_its_own_is_never_removed(tmp_path: Path) -> None:
    """Old files of other names, folders of other names, and what links lead to."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "ab").mkdir(parents=True)
    tier = tmp_path / "tier"
    store = DirectoryStore(tier, 1000)
    store.put(key(0), [bytes(100)])
    own = tier / FOLDER
    others = [
        elsewhere / "ab" / ("0" * 30),
        own / "00" / "paper.part",
        own / "00" / "thesis.txt",
        own / "llama-weights" / "model.safetensors",
        own / "00" / "0123" / ("1" * 30),
        tier / "v1" / "ab" / ("2" * 30),
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(500))
        os.utime(path, (1000.0, 1000.0))
    (own / "cd").symlink_to(elsewhere / "ab")
    (own / "00" / ("3" * 30)).symlink_to(others[0])
    for n in range(1, 20):
        store.put(key(n), [bytes(100)])
    assert all(path.exists() for path in others)
    assert (own / "00" / ("3" * 30)).is_symlink()
    values = [path for path in files(own) if path.stat().st_size == 100]
    assert sum(path.stat().st_size for path in values) <= 1000


def names_of(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
    return directory


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["model.safetensors"], "has other things in it, as 'model.safetensors'"),
        ([FOLDER + "/ab/", "weights/"], "has other things in it, as 'weights'"),
        ([FOLDER + "/llama/"], f"{FOLDER} has other things in it, as 'llama'"),
        (["v1/weights/"], "v1 has other things in it, as 'weights'"),
        ([FOLDER + "/ab"], f"{FOLDER} has other things in it, as 'ab'"),
    ],
)
def test_a_directory_with_other_things_in_it_is_refused(tmp_path: Path, names: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_directory(names_of(tmp_path, *names), keyed=False)


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is a link"):
        check_directory(tmp_path, keyed=False)


def test_a_directory_of_its_own_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    check_directory(tmp_path / "none", keyed=False)
    check_directory(tmp_path, keyed=False)
    DirectoryStore(tmp_path, BIG).put(key(1), [b"x"])
    check_directory(names_of(tmp_path, "lost+found/", ".snapshot/"), keyed=False)
    assert not caplog.records
    check_directory(names_of(tmp_path, "v1/"), keyed=False)
    assert "is of an older version and is not used" in caplog.text


def test_who_may_write_it_is_warned_of_unless_values_are_authenticated(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o777)
    for keyed, lines in ((True, 0), (False, 1)):
        check_directory(tmp_path, keyed=keyed)
        assert len(caplog.records) == lines
    assert "can be written by others (mode 0777)" in caplog.text
    assert "set --kv-tier-key" in caplog.text
