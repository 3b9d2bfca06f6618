"""Compile the native kernels for this machine once, prove them in a process of their own, and load them."""

import logging
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pallas_kernels.cpu.build import UNITS, Recipe, UnavailableError, run
from pallas_kernels.cpu.library import Library

logger = logging.getLogger(__name__)

PROOF_SECONDS = 300
_PROVE = "import sys; sys.path[:] = sys.argv[2:]; from pallas_kernels.cpu.proof import prove; prove(sys.argv[1])"

Watch = Callable[[int], AbstractContextManager[Callable[[int], object]]]
"""Takes the number of steps in which a library is made, and gives a context whose value is called with those done."""


def load(directory: Path, *, compiler: str | None = None, watch: Watch = lambda _: nullcontext(int)) -> Library:
    """The kernels for this machine, kept in ``directory``: the first call takes seconds, later ones milliseconds.

    A library gets its name in the directory only once a process of its own has computed every kernel with it and found
    the results right, so an existing file is a proven one. ``compiler``: a command; by default the first of
    ``build.COMPILERS``. ``watch`` shows how far a library is that is being made. Raises UnavailableError where there
    are none, with the reason: no compiler, a failed build, a crash or a wrong number in the proof, a directory that
    others can write.
    """
    recipe = Recipe.find(compiler)
    path = directory / f"kernels-{recipe.digest}.so"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_shared(directory)
        if not path.exists():
            logger.info("compiling the native kernels for this machine, which takes some ten seconds, once")
            with watch(len(UNITS) + 1) as advance:
                _make(recipe, path, advance)
        return Library.open(path, recipe.digest, recipe.compiler)
    except OSError as error:
        raise UnavailableError(str(error)) from error


def _make(recipe: Recipe, path: Path, advance: Callable[[int], object]) -> None:
    """Two processes may do this at once: each works on files of its own, and the renaming is atomic."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".building-") as work:
        built = Path(work, path.name)
        recipe.compile(built, lambda: advance(1))
        run([sys.executable, "-c", _PROVE, str(built), *sys.path], seconds=PROOF_SECONDS)
        advance(1)
        built.replace(path)


def _refuse_shared(directory: Path) -> None:
    """Loading a library runs it, so nobody else may have put it there."""
    status = directory.stat()
    if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnavailableError(f"{directory} can be written by others")
