"""Say what safetensors files hold from their headers alone. Host only, no jax."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.model_files import member
from jaxgen.weights.files.safetensors import read_header, wrapping_of
from jaxgen.weights.files.weight_files import weight_files_of

_NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The weights that a directory stores: files, their bytes, and numbers in them by dtype, the most common first."""

    num_files: int
    num_bytes: int
    numbers: Mapping[str, int]


NOTHING_STORED = StoredWeights(0, 0, {})
"""Of a model whose weights are made, not read."""


def stored_weights(directory: Path) -> StoredWeights:
    """Return what the safetensors files of a Hugging Face directory hold.

    Raises ConfigError that names a file which is missing, cut off or damaged.
    """
    names = weight_files(directory)
    numbers: Counter[str] = Counter()
    for name in names:
        for tensor in read_header(member(directory, name)).values():
            numbers[_NAMES.get(tensor.dtype, tensor.dtype)] += prod(tensor.shape)
    size = sum(member(directory, name).stat().st_size for name in names)
    return StoredWeights(len(names), size, dict(numbers.most_common()))


def tensor_names(directory: Path) -> Collection[str]:
    """Return the names of a Hugging Face directory's tensors; none where it has no weights or they cannot be read."""
    try:
        files = weight_files_of(directory)
        names = files.listed or [name for file in files.names for name in read_header(member(directory, file))]
    except ConfigError:  # what loads the weights, if anything does, says what is wrong
        return ()
    cut = len(wrapping_of(names))
    return {name[cut:] for name in names}


def weight_files(directory: Path) -> list[str]:
    """Return the names of a Hugging Face directory's safetensors files. Raises ConfigError where it has none."""
    return weight_files_of(directory).names
