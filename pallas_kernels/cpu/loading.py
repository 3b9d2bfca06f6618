"""Compile the native kernels for this machine once, prove each library in a process of its own, and load them."""

import hashlib
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from pallas_kernels.cpu.build import Recipe, UnavailableError, run
from pallas_kernels.cpu.library import Library
from pallas_kernels.cpu.parts import PARTS

logger = logging.getLogger(__name__)

PROOF_SECONDS = 300
SEAL_BYTES = hashlib.sha256().digest_size
_BUILDING = ".building-"
_ABANDONED_SECONDS = 24 * 3600.0
"""Age after which a library that is being made has no process any more that makes it."""
_PROVE = "import sys; sys.path[:] = sys.argv[3:]; from pallas_kernels.cpu.proof import prove; prove(*sys.argv[1:3])"

Watch = Callable[[int], AbstractContextManager[Callable[[int], object]]]
"""Takes the number of steps in which libraries are made, and gives a context whose value is called with those done."""


def load(
    directory: Path,
    *,
    parts: Collection[str] = tuple(PARTS),
    compiler: str | None = None,
    threads: int = 1,
    watch: Watch = lambda _: nullcontext(int),
) -> Library:
    """Return the kernels of these parts for this machine, kept in ``directory``: the first call takes seconds, others
    milliseconds.

    Each part is a library of its own (``pallas_kernels.cpu.parts``). A library gets its name in the directory only once
    a process of its own has computed every kernel with it and found the results right. Its SHA-256 is at its end. A
    file with another one is damaged, and is made again.
    ``compiler``: a command; by default the first of ``build.COMPILERS``. ``threads``: that compile and prove. ``watch``
    shows how far libraries are that are being made. Raises UnavailableError with the reason if there are none: no
    compiler, a failed build, a crash or a wrong number in a proof, or a directory that others can write.
    """
    recipe = Recipe.find(compiler)
    paths = {name: directory / f"kernels-{name}-{recipe.digest_of(name)}.so" for name in PARTS if name in parts}
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_shared(directory)
        if missing := {name: path for name, path in paths.items() if not _is_whole(path)}:
            logger.info("compiling the native kernels for this machine, which takes seconds, once")
            with watch(sum(len(PARTS[name].units) + 1 for name in missing)) as advance:
                _make(recipe, missing, advance, threads)
        files = {name: (path, recipe.digest_of(name)) for name, path in paths.items()}
        return Library.open(files, recipe.compiler)
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


def _make(recipe: Recipe, paths: Mapping[str, Path], advance: Callable[[int], object], threads: int) -> None:
    """Make the libraries of parts, of which one is proven while others compile.

    Two processes may do this at once: each works on files of its own, and the renaming is atomic.
    """
    directory = next(iter(paths.values())).parent
    _remove_abandoned(directory)
    with tempfile.TemporaryDirectory(dir=directory, prefix=_BUILDING) as work, _pool(threads) as pool:

        def compile_part(name: str) -> list[Future[Path]]:
            return [pool.submit(compile_unit, name, number) for number in range(len(PARTS[name].units))]

        def compile_unit(name: str, number: int) -> Path:
            target = Path(work, f"{name}-{number}.o")
            recipe.compile(PARTS[name].units[number], target)
            advance(1)
            return target

        def prove(name: str, objects: list[Path]) -> None:
            built = Path(work, paths[name].name)
            recipe.link(objects, built)
            if Recipe.find(recipe.command[0]).digest != recipe.digest:  # else a library has the name of other sources
                raise UnavailableError("the sources of the native kernels changed while they were compiled")
            _seal(built)
            run([sys.executable, "-c", _PROVE, str(built), name, *sys.path], seconds=PROOF_SECONDS)
            built.replace(paths[name])
            advance(1)

        compiled = {name: compile_part(name) for name in paths}
        proven = [
            pool.submit(prove, name, [future.result() for future in futures]) for name, futures in compiled.items()
        ]
        for future in proven:
            future.result()


@contextmanager
def _pool(threads: int) -> Iterator[Executor]:
    """Threads that begin nothing new once the context has ended."""
    pool = ThreadPoolExecutor(max_workers=threads)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


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
