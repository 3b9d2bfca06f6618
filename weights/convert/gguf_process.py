"""The program of the process that converts a GGUF file for the cache directory.

It says what it logs, and why it fails, as lines of JSON through a pipe.
"""

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax

from jaxgen.core.errors import ConfigError
from jaxgen.core.quantization import Quantization
from jaxgen.files.digested_files import DigestedFiles
from jaxgen.weights.convert.command import convert
from jaxgen.weights.files.atomic import PARTIAL, REPLACED
from jaxgen.weights.gguf.conversions import conversion_digest, is_whole

logger = logging.getLogger(__name__)


def main(
    pipe: int,
    file: str,
    destination: str,
    digest: str,
    checksums: str | None,
    quantization: Quantization,
    progress: bool,
) -> None:
    """Convert ``file`` to ``destination``, unless another process has.

    ``digest``: what ``conversion_digest`` must return. ``checksums``: as for ``is_whole``.
    """
    with os.fdopen(pipe, "w", encoding="utf-8", buffering=1) as lines:
        logging.basicConfig(handlers=[_Lines(lines)], level=logging.WARNING, force=True)
        logging.getLogger("jaxgen").setLevel(logging.INFO)
        jax.config.update("jax_platforms", "cpu")  # weights only pass through memory
        folder = None if checksums is None else Path(checksums)
        try:
            _convert(file, Path(destination), digest, folder, quantization, progress)
        except (ConfigError, OSError) as error:
            lines.write(json.dumps({"failed": str(error)}) + "\n")


def _convert(
    file: str, destination: Path, digest: str, checksums: Path | None, quantization: Quantization, progress: bool
) -> None:
    take = partial(conversion_digest, Path(file), checksums, quantization, progress)
    with _alone(_lock_of(destination)):
        if is_whole(destination, checksums):
            return
        _remove_abandoned(destination.parent)
        shutil.rmtree(destination, ignore_errors=True)
        confirm = DigestedFiles(file, digest, take).check
        convert(file, destination, quantization=quantization, confirm=confirm, progress=progress)
        if not is_whole(destination, checksums):
            raise ConfigError(f"{destination} is not on the disk as it was written")


def _lock_of(destination: Path) -> Path:
    """Return the file that the process which makes a conversion has locked."""
    return destination.with_name(f".{destination.name}.lock")


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes left that were killed while they converted: files to which no lock belongs."""
    for left in folder.glob(".*"):
        if left.suffix not in (PARTIAL, REPLACED):
            continue
        destination = left.with_name(left.stem[1:])
        with suppress(OSError), _lock_of(destination).open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)


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
