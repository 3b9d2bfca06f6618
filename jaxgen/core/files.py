"""Write files of a cache. Host only, no jax."""

import logging
import os
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


def write_file(path: Path, text: str) -> None:
    """Write a file of the cache atomically, so that no reader sees a part of it. If that fails, log a warning."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)
        with suppress(OSError):
            partial.unlink()
