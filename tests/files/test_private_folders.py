"""Folders that other users could write are not believed."""

from pathlib import Path

import pytest

from jaxgen.files import private_folders
from jaxgen.files.cache_dirs import FOLDERS, CacheDirs, open_cache_dirs
from jaxgen.files.private_folders import open_to_others


def test_a_folder_of_ones_own_is_private(tmp_path: Path) -> None:
    """Also under /tmp, which all may write, but in which only owners rename."""
    folder = tmp_path / "mine"
    folder.mkdir(mode=0o700)
    assert open_to_others(folder) is None
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert open_to_others(link) is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_not(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    assert f"{folder} can be written by others (mode {mode:04o})" == open_to_others(folder)


def test_nor_one_below_it_but_where_only_owners_rename_or_for_ones_own_group(tmp_path: Path) -> None:
    shared, folder = tmp_path / "shared", tmp_path / "shared" / "mine"
    folder.mkdir(mode=0o700, parents=True)
    for mode, private in ((0o777, False), (0o1777, True), (0o770, True), (0o755, True)):
        shared.chmod(mode)
        assert (open_to_others(folder) is None) is private, oct(mode)


def test_a_cache_directory_of_another_user_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(private_folders, "trusted_users", lambda: {owner + 1})
    assert open_cache_dirs(tmp_path) == CacheDirs()
    (said, *_) = [record.getMessage() for record in caplog.records]
    assert f"--cache-dir {tmp_path} is used for nothing: " in said
    assert f" belongs to the user {owner}" in said


def test_one_shared_folder_of_the_cache_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    all_of_them = {name: tmp_path / name / version for name, version in FOLDERS.items()}
    assert open_cache_dirs(tmp_path) == CacheDirs(**all_of_them)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")} == {0o700}
    (tmp_path / "tokenizers" / FOLDERS["tokenizers"]).chmod(0o777)
    found = open_cache_dirs(tmp_path)
    assert (found.tokenizers, found.compiled) == (None, tmp_path / "compiled" / FOLDERS["compiled"])
    (said,) = [record.getMessage() for record in caplog.records]
    others = ", ".join(name for name in FOLDERS if name != "tokenizers")
    assert f"is used for {others} only: " in said
    assert f"tokenizers/{FOLDERS['tokenizers']} can be written by others" in said
