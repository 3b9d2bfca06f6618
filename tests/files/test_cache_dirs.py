"""Where nothing can be kept, one warning says so and everything works."""

from pathlib import Path

import platformdirs
import pytest

from jaxgen.files import cache_dirs
from jaxgen.files.cache_dirs import CacheDirs, open_cache_dirs

find_default = cache_dirs.default_cache_dir
"""The function itself, which the whole run replaces."""


def test_a_user_without_a_home_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A container may run as a number that has no name there."""

    def no_home(*_: object, **__: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(platformdirs, "user_cache_path", no_home)
    monkeypatch.setattr(cache_dirs, "default_cache_dir", find_default)
    assert open_cache_dirs() == CacheDirs()
    (said,) = [one.getMessage() for one in caplog.records]
    assert "no home directory; name a --cache-dir" in said
    assert open_cache_dirs(tmp_path / "cache").kernels is not None
