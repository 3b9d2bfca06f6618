"""The program of the process that converts a GGUF file for the cache directory.

It says what it logs, and why it fails, as lines of JSON through a pipe.
"""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from jaxgen.core.errors import ConfigError
from jaxgen.core.quantization import Quantization
from jaxgen.weights.convert import convert
from jaxgen.weights.gguf_conversions import is_whole

logger = logging.getLogger(__name__)


def main(
    pipe: int, file: str, destination: str, checksums: str | None, quantization: Quantization, progress: bool
) -> None:
    """Convert ``file`` to ``destination``, unless another process has. ``checksums``: as for ``is_whole``."""
    with os.fdopen(pipe, "w", encoding="utf-8", buffering=1) as lines:
        logging.basicConfig(handlers=[_Lines(lines)], level=logging.WARNING, force=True)
        logging.getLogger("jaxgen").setLevel(logging.INFO)
        jax.config.update("jax_platforms", "cpu")  # weights only pass through memory
        kept = None if checksums is None else Path(checksums)
        try:
            _convert(file, Path(destination), kept, quantization, progress)
        except (ConfigError, OSError) as error:
            lines.write(json.dumps({"failed": str(error)}) + "\n")


def _convert(file: str, destination: Path, checksums: Path | None, quantization: Quantization, progress: bool) -> None:
    with _alone(destination.with_name(f".{destination.name}.lock")):
        if is_whole(destination, checksums):
            return
        shutil.rmtree(destination, ignore_errors=True)
        convert(file, destination, quantization=quantization, progress=progress)
        if not is_whole(destination, checksums):
            raise ConfigError(f"{destination} is not on the disk as it was written")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process has the context of this file open; the system lets go of it when a process ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("another process converts the same file: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Lines(logging.Handler):
    """Writes records as lines of JSON."""

    def __init__(self, lines: Any) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        text = json.dumps({"name": record.name, "level": record.levelno, "text": record.getMessage()})
        self._lines.write(text + "\n")
