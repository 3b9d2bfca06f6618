"""Files have the name by which they were read only while they do not change."""

from pathlib import Path

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.files.digested_files import DigestedFiles


def test_files_that_changed_or_went_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("one")
    files = DigestedFiles.of("the file", path.read_text)
    files.check()
    path.write_text("two")
    with pytest.raises(ConfigError, match=r"^the file changed while being read: start again once all of it is .*$"):
        files.check()
    path.unlink()
    with pytest.raises(ConfigError, match=r"^the file changed while being read: .* \(.*No such file"):
        files.check()
    path.write_text("one")
    files.check()
