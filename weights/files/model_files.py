"""An opened model directory, through which all rooms read its files. Host only, no jax."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.members import member, read_json, read_json_list
from jaxgen.weights.files.safetensors import SafetensorsFiles, Tensor, read_header, wrapping_of
from jaxgen.weights.files.weight_files import WeightFiles, weight_files_of

_DTYPE_NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """The weights that a directory stores: files, their bytes, and numbers in them by dtype, the most common first."""

    num_files: int
    num_bytes: int
    numbers: Mapping[str, int]


NOTHING_STORED = StoredWeights(0, 0, {})
"""Of a model whose weights are made, not read."""


class ModelFiles:
    """A model directory, opened: each JSON file, and each header of safetensors, is read once.

    A function that is given a directory opens it, and hands it to the readers that it calls. Nothing is read before it
    is asked for. Raises ConfigError that names a file which is missing, damaged, or leads out of the directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._objects: dict[str, dict[str, Any]] = {}

    def path(self, name: str) -> Path:
        """Return the path of a file, which need not exist."""
        return member(self.directory, name)

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a file, which readers share and do not change."""
        if name not in self._objects:
            self._objects[name] = read_json(self.directory, name)
        return self._objects[name]

    def read_json_list(self, name: str) -> list[Any]:
        """Return the JSON array in a file."""
        return read_json_list(self.directory, name)

    @cached_property
    def weight_files(self) -> WeightFiles:
        """The safetensors files of the model. Raises ConfigError where there are none."""
        return weight_files_of(self.directory)

    @cached_property
    def safetensors(self) -> SafetensorsFiles:
        """The tensors of the safetensors files, which are all there and whole."""
        return SafetensorsFiles(self.directory, self.weight_files, self._headers)

    @cached_property
    def _headers(self) -> dict[str, dict[str, Tensor]]:
        """The header of each safetensors file."""
        return {name: read_header(self.path(name)) for name in self.weight_files.names}

    def stored_weights(self) -> StoredWeights:
        """Return what the safetensors files hold, by their headers."""
        numbers: Counter[str] = Counter()
        for tensors in self._headers.values():
            for tensor in tensors.values():
                numbers[_DTYPE_NAMES.get(tensor.dtype, tensor.dtype)] += prod(tensor.shape)
        size = sum(self.path(name).stat().st_size for name in self.weight_files.names)
        return StoredWeights(len(self.weight_files.names), size, dict(numbers.most_common()))

    def tensor_names(self) -> Collection[str]:
        """Return the names of the safetensors files' tensors; none where there are no files or they cannot be read."""
        try:
            names = self.weight_files.listed or [name for tensors in self._headers.values() for name in tensors]
        except ConfigError:  # what loads the weights, if anything does, says what is wrong
            return ()
        cut = len(wrapping_of(names))
        return {name[cut:] for name in names}
