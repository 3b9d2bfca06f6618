"""Open a GGUF file, or one in several parts, and dequantise its tensors, with the gguf package. Host only, no jax.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgen.core.errors import ConfigError, one_line
from jaxgen.core.model_config import DType
from jaxgen.core.quantization import Index
from jaxgen.files.text_files import check_not_pointer
from jaxgen.terminal.extras import need
from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.files.file_names import GGUF_MAGIC, gguf_parts
from jaxgen.weights.files.safetensors import Array
from jaxgen.weights.gguf.header import LongArray, check_header

_AT_ONCE = 2**22
"""Numbers of a tensor that are dequantised at a time, in float32 with some copies."""
_DTYPES: dict[str, DType] = {"F32": "float32", "F16": "float16"}
NUMBERS = ("F32", "F16", "BF16", "F64")
"""Types that are not quantised."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a GgufFile.

    ``shape`` as [out, in], ``kind`` the gguf package's type, ``data`` its blocks, not yet read.

    ``part``: the file that has it.
    """

    part: Path
    shape: tuple[int, ...]
    kind: Any
    data: Array

    def at(self, index: Index) -> "StoredTensor":
        """Return some of the tensor: an expert, or some rows, of whose numbers none is in two blocks."""
        shape = np.broadcast_to(np.empty(()), self.shape)[index].shape
        return replace(self, shape=shape, data=self.data[index])

    def dequantised(self, dtype: npt.DTypeLike) -> Array:
        """Return the values in ``dtype``, rounded once from float32; one too large for float16 is infinite."""
        from gguf.quants import dequantize

        values = np.empty(self.shape, dtype)
        rows, blocks = (array.reshape(-1, array.shape[-1]) for array in (values, self.data))
        step = max(1, _AT_ONCE // rows.shape[-1])
        with np.errstate(over="ignore", invalid="ignore"):  # of damaged files, of which numpy tells on standard error
            for start in range(0, len(rows), step):
                rows[start : start + step] = dequantize(blocks[start : start + step], self.kind)
        return values

    def can_be_dequantised(self) -> bool:
        """Whether the gguf package knows how; it is asked with a block of zeros."""
        from gguf import GGML_QUANT_SIZES
        from gguf.quants import dequantize

        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[self.kind][1]), np.uint8), self.kind)
        except NotImplementedError:
            return False
        return True


class GgufFile:
    """The metadata and tensors of a GGUF file, which ``model.opened`` reads by it.

    ``path``: the file, or the first of several ``parts``.

    ``fields`` has the metadata, except long arrays. Raises ConfigError that names a file which is missing, damaged, cut
    off or of another kind.
    """

    def __init__(self, path: Path) -> None:
        need("gguf", f"reading {path.name}")
        parts = parts_of_file(path)
        readers = [_reader(part) for part in parts]
        self.path = path
        self.parts = parts
        self._first = readers[0].fields
        self._long = readers[0].long
        self.fields = JsonFields({name: self._value(name) for name in self._first if name not in self._long}, str(path))
        if self.fields.count("split.count", 1) not in (0, 1, len(parts)):
            number, count = self.fields.count("split.no", 0) + 1, self.fields.data["split.count"]
            raise ConfigError(
                f"{path} is part {number} of {count}, but its name does not say so; the parts of a model are named "
                f"NAME-00001-of-{count:05}.gguf, and so on, in one directory"
            )
        self.tensors: dict[str, StoredTensor] = {}
        for part, reader in zip(parts, readers, strict=True):
            for tensor in reader.tensors:
                if tensor.name in self.tensors:
                    raise ConfigError(f"{part}: the tensor {tensor.name} is in {self.tensors[tensor.name].part} too")
                shape = tuple(int(size) for size in reversed(tensor.shape))
                self.tensors[tensor.name] = StoredTensor(part, shape, tensor.tensor_type, tensor.data)

    def array(self, name: str) -> list[Any] | None:
        """Return an array of the metadata, of any length, or None if there is none."""
        if name not in self._first:
            return None
        value = self._value(name)
        if not isinstance(value, list):
            raise self.fields.error(name, f"must be an array, not {value!r:.80}")
        return value

    def dtype(self) -> DType:
        """Return the dtype of most numbers; bfloat16 where they are quantised."""
        numbers: dict[str, int] = {}
        for tensor in self.tensors.values():
            numbers[tensor.kind.name] = numbers.get(tensor.kind.name, 0) + int(np.prod(tensor.shape))
        return _DTYPES.get(max(numbers, key=lambda kind: numbers[kind], default=""), "bfloat16")

    def _value(self, name: str) -> Any:
        field = self._first[name]
        try:
            if name in self._long:
                return self._long[name].read(self.path)
            value = field.contents()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{self.path}: {name} is not UTF-8: {error}") from error
        return shortest(value) if field.types[0].name == "FLOAT32" else value


def shortest(value: float) -> float:
    """Return the number with the fewest digits that is ``value`` in float32: what was written before it was rounded."""
    return float(str(np.float32(value)))


def parts_of_file(path: Path) -> Sequence[Path]:
    """Return the files of a model, of which ``path`` is the first. Raises ConfigError for another, or one missing."""
    parts = [path.with_name(name) for name in gguf_parts(path.name)]
    if path != parts[0]:
        number = parts.index(path) + 1
        raise ConfigError(
            f"{path} is part {number} of {len(parts)}: name the first, {parts[0].name}, which finds the others"
        )
    for part in parts:
        if not part.is_file():
            raise ConfigError(f"{part} is missing: the model is in {len(parts)} parts, which must be in one directory")
        check_not_pointer(part)
    return parts


def _reader(path: Path) -> Any:
    """Return gguf's reader of one file, which has mapped it into memory. ``long``: arrays that it left out, by name."""
    from gguf import GGUFReader, GGUFValueType

    class Reader(GGUFReader):  # type: ignore[misc]  # gguf has no types
        def __init__(self, long: dict[int, LongArray]) -> None:
            self._starts = long
            super().__init__(path)
            # a field starts with its name, then come 4 bytes of type: its value starts behind the parts of these
            self.long = {
                name: long[start]
                for name, field in self.fields.items()
                if (start := field.offset + sum(int(part.nbytes) for part in field.parts[:3])) in long
            }

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
            if (skipped := self._starts.get(orig_offs)) is not None:
                return skipped.size, [], [], [GGUFValueType.ARRAY]
            result: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return result

    try:
        with path.open("rb") as file:
            start = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if start != GGUF_MAGIC:
        raise ConfigError(f"{path} is not a GGUF file: it begins with {start!r}, not with {GGUF_MAGIC!r}")
    try:
        reader = Reader(check_header(path))
    # what the package raises for lengths that lead out of the file, and for types it does not know
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        reason = one_line(str(error) or type(error).__name__)
        raise ConfigError(
            f"{path} cannot be read, it is cut off, damaged, or has a type not known: {reason}"
        ) from error
    if reader.byte_order != "I":
        raise ConfigError(f"{path} is written for machines of another byte order, which is not supported")
    return reader
