"""Read the safetensors of a Hugging Face directory into the arrays of the parameter tree. Host only, no jax.

Files are memory-mapped and parameters are made one at a time, so that a caller who moves each to a device holds little
more than one copy of the weights. Unused tensors are refused, since they show that the configuration does not describe
the checkpoint, except two harmless kinds: saved rotary frequencies and the head of tied embeddings.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxgen.core.config import DType, ModelConfig
from jaxgen.core.errors import ConfigError
from jaxgen.terminal.progress import show_progress
from jaxgen.weights.files import CONFIG, member, read_json
from jaxgen.weights.names import Array, Parameter, Source, parameters

logger = logging.getLogger(__name__)

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD = "lm_head.weight"
NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
_FILE_DTYPES: dict[str, DType] = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_HARMLESS = re.compile(r"(.*\.)?rotary_emb\.inv_freq")
_FIRST = 4096
"""Numbers looked at before all: nearly every matrix has another than zero among them."""
_NAMED = 3


def read_parameters(directory: Path, config: ModelConfig, *, progress: bool = True) -> Iterator[tuple[str, Array]]:
    """Yield each parameter of the tree: its path and a host array of ``config.dtype``.

    All tensors are checked against the files' headers before the first is read. Raises ConfigError that names file and
    tensor when a tensor is missing, has another shape or dtype, or cannot be read.
    """
    table = parameters(config)
    with ExitStack() as files:
        tensors = _Tensors(directory, files)
        tensors.check(table)
        dtype = NUMPY_DTYPES[config.dtype]
        total = sum(int(np.prod(parameter.shape)) for parameter in table) * dtype.itemsize
        advance = files.enter_context(show_progress("loading weights", total, "B", bar=progress))
        for parameter in table:
            array = np.empty(parameter.shape, dtype)
            for source, place in parameter.pieces():
                array[place] = tensors.read(source, dtype)
                advance(array[place].nbytes)
            yield parameter.path, array
        tensors.warn_of_zeros()


class ZeroWeights:
    """Collects the names of matrices that are all zero."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def look(self, name: str, array: Array) -> None:
        """Take note of a matrix, or a stack of them, if it is all zero. Vectors may be: biases often are."""
        if array.ndim > 1 and array.size and not (np.any(array.reshape(-1)[:_FIRST]) or np.any(array)):
            self._names.append(name)

    def warn(self, directory: Path) -> None:
        """Log one warning of all that were found."""
        if self._names:
            more = f" and {len(self._names) - _NAMED} more" if len(self._names) > _NAMED else ""
            logger.warning("%s: all zero: %s%s", directory, ", ".join(self._names[:_NAMED]), more)


class _Tensors:
    """The tensors of all safetensors files of a directory. ``files`` closes the files."""

    def __init__(self, directory: Path, files: ExitStack) -> None:
        self._directory = directory
        self._handles: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}
        self._zeros = ZeroWeights()
        if member(directory, SINGLE).exists():
            self._open(SINGLE, files)
            self._file_of = dict.fromkeys(self._handles[SINGLE].keys(), SINGLE)
        elif member(directory, INDEX).exists():
            self._file_of = _weight_map(directory)
            for name in sorted(set(self._file_of.values())):
                self._open(name, files)
        else:
            raise _no_safetensors(directory)

    def _open(self, name: str, files: ExitStack) -> None:
        path = member(self._directory, name)
        try:
            self._handles[name] = files.enter_context(safe_open(path, framework="numpy"))
        except FileNotFoundError:
            raise ConfigError(f"{path} is missing, but {INDEX} names it: the download is incomplete") from None
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path} is no complete safetensors file: {error}") from error

    def _locate(self, name: str) -> str | None:
        """Return a tensor's name in this checkpoint: files saved from the bare decoder lack the prefix ``model.``."""
        bare = name.removeprefix("model.")
        return next((spelling for spelling in (name, bare) if spelling in self._file_of), None)

    def check(self, table: tuple[Parameter, ...]) -> None:
        """Raise ConfigError unless the checkpoint has exactly the table's tensors, with their shapes."""
        used = {self._check(source) for parameter in table for source, _ in parameter.pieces()}
        extra = sorted(name for name in self._file_of if name not in used and not _HARMLESS.fullmatch(name))
        if all(parameter.path != HEAD for parameter in table):
            extra = [name for name in extra if name != HEAD]
        if extra:
            more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
            raise ConfigError(
                f"{self._directory}: {CONFIG} describes a model without the tensors {', '.join(extra[:3])}{more}; "
                f"they belong to another architecture or option"
            )

    def _check(self, source: Source) -> str:
        name = self._locate(source.name)
        if name is None:
            hint = f" (or tie_word_embeddings in {CONFIG} should be true)" if source.name == HEAD else ""
            raise ConfigError(
                f"{self._directory}: the tensor {source.name} is missing from the safetensors files{hint}"
            )
        where = self._directory / self._file_of[name]
        try:
            header = self._handles[self._file_of[name]].get_slice(name)
        except SafetensorError as error:
            raise ConfigError(f"{where}: the tensor {name} is missing, but {INDEX} says it is there") from error
        shape, dtype = tuple(header.get_shape()), header.get_dtype()
        if shape != source.shape:
            raise ConfigError(f"{where}: {name} has shape {list(shape)}, but {CONFIG} means {list(source.shape)}")
        if dtype not in _FILE_DTYPES:
            raise ConfigError(f"{where}: {name} has dtype {dtype}; supported: {', '.join(_FILE_DTYPES)}")
        return name

    def read(self, source: Source, dtype: np.dtype[Any]) -> Array:
        """Read a tensor, and convert it to ``dtype``. Raises ConfigError when values do not fit in float16."""
        name = self._locate(source.name)
        assert name is not None
        tensor: Array = self._handles[self._file_of[name]].get_tensor(name)
        self._zeros.look(name, tensor)
        with np.errstate(over="ignore"):
            converted = tensor.astype(dtype, copy=False)
        if dtype == np.float16 and not np.isfinite(converted).all():
            where = self._directory / self._file_of[name]
            raise ConfigError(f"{where}: {name} has values that float16 cannot hold; use --dtype bfloat16 or float32")
        return converted

    def warn_of_zeros(self) -> None:
        """Log a warning if matrices that were read are all zero."""
        self._zeros.warn(self._directory)


def _weight_map(directory: Path) -> dict[str, str]:
    files = read_json(directory, INDEX).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise ConfigError(f"{directory / INDEX}: weight_map must be an object from tensor names to file names")
    return files


def _no_safetensors(directory: Path) -> ConfigError:
    found = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if found:
        return ConfigError(
            f"{directory} has its weights in {found[0]}, a pickle, which can run code when it is opened; "
            f"only safetensors files are read: save the model again with safetensors"
        )
    return ConfigError(f"{directory} has no weights: neither {SINGLE} nor {INDEX}")
