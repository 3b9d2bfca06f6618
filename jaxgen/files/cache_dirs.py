"""The user's cache directory: files that jaxgen keeps between starts and can make again. Host only, no jax."""

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from jaxgen.core.errors import check_path
from jaxgen.files.private_folders import open_to_others

logger = logging.getLogger(__name__)

FOLDERS = {
    "compiled": "v1",
    "tokenizers": "v3",
    "tuning": "v2",
    "kernels": "v1",
    "proofs": "v3",
    "checksums": "v2",
    "converted": "v1",
    "packaged": "v1",
    "starts": "v3",
    "prepared": "v1",
    "traced": "v1",
    "templates": "v1",
}
"""The folders of CacheDirs, and the version of each. All but the compiled have a seal, see jaxgen.files.cache_files."""


@dataclass(frozen=True, slots=True)
class CacheDirs:
    """Existing folders of one cache directory; None: nothing is kept. When the format of a folder's files changes, so
    does the version in its path."""

    compiled: Path | None = None
    """Compiled programs, see jaxgen.runner.compilation_cache."""
    tokenizers: Path | None = None
    """Tokenizers that transformers made, see jaxgen.text.tokenizer_cache."""
    tuning: Path | None = None
    """Measured step times, see jaxgen.sizing.tuning_store."""
    kernels: Path | None = None
    """Native kernels compiled for this machine, see jaxgen.kernels.choice."""
    proofs: Path | None = None
    """Findings on kernels for GPUs, see jaxgen.kernels.proving.proof."""
    checksums: Path | None = None
    """Checksums of large weight files, see jaxgen.weights.files.checksums."""
    converted: Path | None = None
    """Conversions of GGUF files, see jaxgen.weights.gguf.conversions."""
    packaged: Path | None = None
    """Files of models that Python packages ship, see jaxgen.weights.packaged.files."""
    starts: Path | None = None
    """What an engine found out before its first request, see jaxgen.engine.start.findings."""
    prepared: Path | None = None
    """Weights as a CPU's programs read them, see jaxgen.models.prepared_params."""
    traced: Path | None = None
    """Names of the compiled programs of a CPU's steps, see jaxgen.runner.cached_programs."""
    templates: Path | None = None
    """What was found out of chat templates, see jaxgen.text.template_cache."""


def default_cache_dir() -> Path | None:
    """Return the platform's folder for a user's caches, or None for a user without a home directory."""
    import platformdirs  # here: python -m scripts.gpu runs where it is not installed

    try:
        return platformdirs.user_cache_path("jaxgen", appauthor=False)
    except RuntimeError:  # what Path.expanduser raises
        return None


def open_cache_dirs(root: Path | str | None = None) -> CacheDirs:
    """Return the folders in ``root`` (None: the default), and make the missing ones.

    Only the user may enter them: anyone who can write compiled programs decides what this process runs. A folder that
    others could write, itself or by a folder above it, is not used, and a warning says so. Where files cannot be
    written, one warning is logged and nothing is kept; everything works without. Raises ConfigError for a path that is
    not UTF-8.
    """
    root = default_cache_dir() if root is None else Path(root)
    if root is None:
        logger.warning("nothing is kept for a faster next start: this user has no home directory; name a --cache-dir")
        return CacheDirs()
    check_path("--cache-dir", root)
    usable: dict[str, Path] = {}
    refused: dict[str, None] = {}
    try:
        for name, version in FOLDERS.items():
            folder = root / name / version
            _make(folder)
            if (reason := open_to_others(folder)) is not None:
                refused[reason] = None
                continue
            with tempfile.TemporaryFile(dir=folder):
                pass
            usable[name] = folder
    except OSError as error:
        logger.warning("nothing is kept for a faster next start: --cache-dir %s cannot be written (%s)", root, error)
        return CacheDirs()
    for reason in refused:
        logger.warning(
            "--cache-dir %s is used for %s: %s, and who can write it decides what this server runs; make it this "
            "user's alone, or name another directory",
            root,
            f"{', '.join(usable)} only" if usable else "nothing",
            reason,
        )
    return CacheDirs(**usable)


def _make(folder: Path) -> None:
    """Make a folder and those above it, each open to this user alone. Raises OSError."""
    for place in (*reversed(folder.parents), folder):
        place.mkdir(mode=0o700, exist_ok=True)
