"""Keep conversions of GGUF files in the cache directory: each is made once, by a process of its own. Host only, no jax.

A conversion is a converted directory, whose manifest has the SHA-256 of each of its files. Its name has the SHA-256 of
the GGUF file. So a changed file is converted again, and a moved file is not.
"""

import json
import logging
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.core.identity import DIGITS, digest_of
from jaxgen.core.quantization import STORED_AS, Quantization
from jaxgen.files.cache_dirs import CacheDirs
from jaxgen.terminal.extras import need
from jaxgen.weights.converted.manifest import is_converted, read_manifest, verify
from jaxgen.weights.files.checksums import file_checksums
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.gguf.file import parts_of_file
from jaxgen.weights.packaged.models import packaged_as

logger = logging.getLogger(__name__)

FORMAT = 2
"""Version of the content of a conversion; a change of it converts all files again."""
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from jaxgen.weights.convert.gguf_process import main; main({pipe}, *{arguments!r})"
)
_LONGEST_NAME = 80
_MOST_NAME_BYTES = 255 - len(".-.replaced") - DIGITS
"""A name in a file system has 255 bytes, with what is put around it while a conversion is written."""


def kept_conversion(
    file: Path, caches: CacheDirs, *, quantization: Quantization = "none", progress: bool = True
) -> Path:
    """Return the converted directory of a GGUF file, or of one in parts of which it is the first.

    ``quantization``: what its matrices are rounded to; there is a conversion for each.
    Where there is none that is whole, it is made, and shows its progress; servers that need it at the same time wait
    for the first. Raises ConfigError for a file that cannot be converted, and where nothing can be kept.
    """
    need("gguf", f"serving {file.name}")
    if caches.converted is None:
        raise ConfigError(
            f"{file} is converted before it is served, and there is no cache directory to keep that in: name one with "
            f"--cache-dir, or convert it: jaxgen convert-weights {file} DIRECTORY"
        )
    stored_as = STORED_AS.get(quantization, quantization)
    digest = conversion_digest(file, caches.checksums, stored_as, progress)
    directory = caches.converted / f"{_short_name(file)}-{digest}"
    if not is_whole(directory, caches.checksums):
        logger.info("%s is converted once, to %s, which later starts take", file, directory)
        _convert_aside(file, directory, digest, caches.checksums, stored_as, progress)
    return directory


def conversion_digest(file: Path, checksums: Path | None, quantization: Quantization, progress: bool) -> str:
    """Return the digest of all that decides the content of a conversion. ``checksums``: as for ``is_whole``."""
    parts = [part.resolve() for part in parts_of_file(file)]
    sums = [file_checksums(part.parent, [part.name], checksums, progress=progress)[part.name] for part in parts]
    known = packaged_as(file)
    added = {} if known is None else {"packaged": asdict(known)}
    return digest_of({"format": FORMAT, "sha256": sums, "quantization": quantization, **added})


def _short_name(file: Path) -> str:
    """Return the beginning of a file's name, of characters that every file system takes, and not too many."""
    name = re.sub(r"[^\w.-]", "_", file.stem)[:_LONGEST_NAME]
    return name.encode()[:_MOST_NAME_BYTES].decode(errors="ignore")


def is_whole(directory: Path, checksums: Path | None) -> bool:
    """Whether a conversion is there and undamaged; a warning names one that is not, which is made again.

    ``checksums``: the folder in which those of large files are kept that have not changed since.
    """
    if not is_converted(directory):
        return False
    try:
        files = ModelFiles(directory)
        manifest = read_manifest(files)
        verify(files, manifest, checksums=False)
        sums = file_checksums(directory, manifest.files, checksums)
    except (ConfigError, OSError) as error:
        logger.warning("%s is damaged: it is converted again (%s)", directory, error)
        return False
    damaged = sorted(name for name, record in manifest.files.items() if sums[name] != record.sha256)
    if damaged:
        logger.warning("%s is damaged: it is converted again", directory / damaged[0])
    return not damaged


def _convert_aside(
    file: Path, directory: Path, digest: str, checksums: Path | None, quantization: Quantization, progress: bool
) -> None:
    """Convert in a process of its own: this one may not open its device yet, and its memory is the model's later."""
    folder = None if checksums is None else str(checksums)
    arguments = str(file.absolute()), str(directory), digest, folder, quantization, progress
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as lines:
        try:
            program = _PROGRAM.format(path=sys.path, pipe=writing, arguments=arguments)
            process = subprocess.Popen(
                [sys.executable, "-c", program], stdin=subprocess.DEVNULL, stdout=sys.stderr, pass_fds=(writing,)
            )
        finally:
            os.close(writing)
        try:
            output = [_tell(line) for line in lines]
            status = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
    failures = [reason for reason in output if reason is not None]
    if failures:
        raise ConfigError(failures[-1])
    if status:
        why = f"its process was ended by signal {-status}" if status < 0 else "standard error has the reason"
        raise ConfigError(f"{file} was not converted: {why}")


def _tell(line: str) -> str | None:
    """Log a record of the converting process; return what it says of its failure."""
    record: dict[str, Any] = json.loads(line)
    if "failed" in record:
        return str(record["failed"])
    logging.getLogger(record["name"]).log(record["level"], "%s", record["text"])
    return None
