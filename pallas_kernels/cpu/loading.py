"""Compile the native kernels for this machine once, prove them in a process of their own, and load them."""

import hashlib
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from pallas_kernels.cpu.build import UNITS, Recipe, UnavailableError, run
from pallas_kernels.cpu.library import Library

logger = logging.getLogger(__name__)

PROOF_SECONDS = 300
SEAL_BYTES = hashlib.sha256().digest_size
_BUILDING = ".building-"
_ABANDONED_SECONDS = 24 * 3600.0
"""Age after which a library that is being made has no process any more that makes it."""
_PROVE = "import sys; sys.path[:] = sys.argv[2:]; from pallas_kernels.cpu.proof import prove; prove(sys.argv[1])"

Watch = Callable[[int], AbstractContextManager[Callable[[int], object]]]
"""Takes the number of steps in which a library is made, and gives a context whose value is called with those done."""


def load(
    directory: Path, *, compiler: str | None = None, threads: int = 1, watch: Watch = lambda _: nullcontext(int)
) -> Library:
    """Return the kernels for this machine, kept in ``directory``: the first call takes seconds, others milliseconds.

    A library gets its name in the directory only once a process of its own has computed every kernel with it and found
    the results right. Its SHA-256 is at its end. A file with another one is damaged, and is made again.
    ``compiler``: a command; by default the first of ``build.COMPILERS``. ``threads``: that compile. ``watch`` shows how
    far a library is that is being made. Raises UnavailableError with the reason if there are none: no compiler, a
    failed build, a crash or a wrong number in the proof, or a directory that others can write.
    """
    recipe = Recipe.find(compiler)
    path = directory / f"kernels-{recipe.digest}.so"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_shared(directory)
        if not _is_whole(path):
            logger.info("compiling the native kernels for this machine, which takes some ten seconds, once")
            with watch(len(UNITS) + 1) as advance:
                _make(recipe, path, advance, threads)
        return Library.open(path, recipe.digest, recipe.compiler)
    except OSError as error:
        raise UnavailableError(str(error)) from error


def _is_whole(path: Path) -> bool:
    """Whether there is a library with its seal; warn of one without. Loading one that was cut short is a SIGBUS."""
    if not path.exists():
        return False
    data = path.read_bytes()
    if hashlib.sha256(data[:-SEAL_BYTES]).digest() == data[-SEAL_BYTES:]:
        return True
    logger.warning("%s is damaged: the native kernels are compiled again", path)
    return False


def _seal(path: Path) -> None:
    """Append the SHA-256 of a library to its file, where the loader looks at nothing, and flush it to the disk."""
    with path.open("ab") as file:
        file.write(hashlib.sha256(path.read_bytes()).digest())
        file.flush()
        os.fsync(file.fileno())


def _make(recipe: Recipe, path: Path, advance: Callable[[int], object], threads: int) -> None:
    """Two processes may do this at once: each works on files of its own, and the renaming is atomic."""
    _remove_abandoned(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_BUILDING) as work:
        built = Path(work, path.name)
        recipe.compile(built, lambda: advance(1), threads=threads)
        _seal(built)
        run([sys.executable, "-c", _PROVE, str(built), *sys.path], seconds=PROOF_SECONDS)
        advance(1)
        built.replace(path)


def _remove_abandoned(directory: Path) -> None:
    """Remove what processes left that were killed while they made a library."""
    for work in directory.glob(f"{_BUILDING}*"):
        with suppress(OSError):
            if time.time() - work.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(work)


def _refuse_shared(directory: Path) -> None:
    """Loading a library runs it, so nobody else may have put it there."""
    status = directory.stat()
    if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnavailableError(f"{directory} can be written by others")
