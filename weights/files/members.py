"""Open single files of a directory safely, and read JSON. Host only, no jax.

Other rooms read a model's files, but chat templates, through ``ModelFiles``. ``outline`` makes directories, and calls
``member`` for paths.
"""

import json
from pathlib import Path, PurePosixPath
from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.files.text_files import read_text

_LONGEST = 2**26
"""Longest JSON file that is read, bytes; tokenizers and indices of the largest models have half."""


def member(directory: Path, name: str) -> Path:
    """Return the path of the file ``name`` in a checkpoint directory; the file need not exist.

    Raises ConfigError unless ``name`` is relative without ``..`` and links stay within the directory. In a snapshot of
    the hub's cache links may lead to the repository's ``blobs``, where the cache keeps the contents.
    """
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
        raise ConfigError(f"{directory}: the file name {name!r} leads out of the directory; it must be a plain name")
    path = directory / name
    root = directory.resolve()
    target = path.resolve()
    inside = target.is_relative_to(root)
    if not inside and root.parent.name == "snapshots":
        inside = target.is_relative_to(root.parent.parent / "blobs")
    if not inside:
        raise ConfigError(f"{path} is a link out of the directory, to {target}; copy the file into the directory")
    return path


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """Read the JSON object in a file of the directory. Raises ConfigError when it is missing or not an object."""
    data = _read(directory, name)
    if not isinstance(data, dict):
        raise ConfigError(f"{directory / name} must hold a JSON object, not {type(data).__name__}")
    return data


def read_json_list(directory: Path, name: str) -> list[Any]:
    """Read the JSON array in a file of the directory. Raises ConfigError when it is missing or not an array."""
    data = _read(directory, name)
    if not isinstance(data, list):
        raise ConfigError(f"{directory / name} must hold a JSON array, not {type(data).__name__}")
    return data


def _read(directory: Path, name: str) -> Any:
    path = member(directory, name)
    try:
        if (size := path.stat().st_size) > _LONGEST:
            raise ConfigError(f"{path} has {size} bytes; such a file has {_LONGEST} at most")
        return json.loads(read_text(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ConfigError:  # which is a ValueError
        raise
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
