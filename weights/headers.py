"""Read what safetensors files hold from their headers alone. Host only, no jax.

A file begins with the length of its header, 8 bytes in little endian, and the header: JSON with the dtype, the shape
and the place of each tensor. https://huggingface.co/docs/safetensors/index#format
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.weights.files import member
from jaxgen.weights.hf_checkpoint import INDEX, SINGLE, no_safetensors, weight_map

LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""The bound of safetensors itself."""
_NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a file: its dtype as safetensors names it, its shape, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Stored:
    """The weights that a directory stores: files, their bytes, and numbers in them by dtype, the most common first."""

    num_files: int
    num_bytes: int
    numbers: Mapping[str, int]


def stored_weights(directory: Path) -> Stored:
    """Return what the safetensors files of a Hugging Face directory hold.

    Raises ConfigError that names a file which is missing, cut off or damaged.
    """
    names = _weight_files(directory)
    numbers: Counter[str] = Counter()
    for name in names:
        for tensor in read_header(member(directory, name)).values():
            numbers[_NAMES.get(tensor.dtype, tensor.dtype)] += prod(tensor.shape)
    size = sum(member(directory, name).stat().st_size for name in names)
    return Stored(len(names), size, dict(numbers.most_common()))


def read_header(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name. Raises ConfigError unless the file ends where they end."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, _MOST_HEADER_BYTES):
                raise _damaged(path, f"a header of {length} bytes does not fit in its {size}")
            header = json.loads(file.read(length))
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing, but {INDEX} names it: the download is incomplete") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ConfigError:  # which is a ValueError
        raise
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not valid JSON: {error}") from error
    try:
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        tensors = {name: _tensor(entry) for name, entry in entries.items()}
        end = LENGTH_BYTES + length + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"its header has an entry that is none: {error!r}") from error
    if end != size:
        raise _damaged(path, f"it has {size} bytes, and its header means {end}")
    return tensors


def _weight_files(directory: Path) -> list[str]:
    if member(directory, SINGLE).exists():
        return [SINGLE]
    if member(directory, INDEX).exists():
        return sorted(set(weight_map(directory).values()))
    raise no_safetensors(directory)


def _tensor(entry: Any) -> Tensor:
    shape, (begin, end) = entry["shape"], entry["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, begin, end)):
        raise ValueError(entry)
    return Tensor(str(entry["dtype"]), tuple(shape), end - begin)


def _damaged(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{path} is no complete safetensors file: {reason}")
