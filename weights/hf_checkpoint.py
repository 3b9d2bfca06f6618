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
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from jaxgen.core.config import DType, ModelConfig
from jaxgen.core.errors import ConfigError
from jaxgen.terminal.progress import show_progress
from jaxgen.weights import mxfp4
from jaxgen.weights.files import CONFIG, member, read_json
from jaxgen.weights.names import Array, Parameter, Source, parameters, unread_tensors

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
_HARMLESS = re.compile(r"(.*\.)?rotary_emb\.inv_freq|mtp\..*")
_NOT_TEXT = re.compile(
    r"(model\.)?(vision_tower|vision_model|visual|multi_modal_projector|audio_tower|embed_vision)\..*"
)
_FIRST = 4096
"""Numbers looked at before all: nearly every matrix has another than zero among them."""
_NAMED = 3


class Tensors(Protocol):
    """The tensors of a checkpoint; ``Source`` has their names and shapes as Hugging Face's files have them."""

    def check(self, table: tuple[Parameter, ...], unread: re.Pattern[str] | None) -> None:
        """Raise ConfigError unless the checkpoint has exactly the table's tensors, with their shapes.

        ``unread``: names of others that the family's checkpoints may have.
        """

    def read(self, parameter: Parameter, source: Source, dtype: np.dtype[Any]) -> Array:
        """Read a tensor as its part of the parameter, in ``dtype``.

        Raises ConfigError when values do not fit in float16.
        """

    def warn_of_zeros(self) -> None:
        """Log a warning if matrices that were read are all zero."""


def read_parameters(
    directory: Path, config: ModelConfig, *, tensors: Tensors | None = None, progress: bool = True
) -> Iterator[tuple[str, Array]]:
    """Yield each parameter of the tree: its path and a host array of ``config.dtype``.

    ``tensors``: None: those of the directory's safetensors files. All are checked against the files' headers before
    the first is read. Raises ConfigError that names file and tensor when a tensor is missing, has another shape or
    dtype, or cannot be read.
    """
    table = parameters(config)
    with ExitStack() as files:
        tensors = tensors or _SafeTensors(directory, files)
        tensors.check(table, unread_tensors(config))
        dtypes = [NUMPY_DTYPES[parameter.dtype or config.dtype] for parameter in table]
        sizes = [int(np.prod(parameter.shape)) for parameter in table]
        total = sum(size * dtype.itemsize for size, dtype in zip(sizes, dtypes, strict=True))
        advance = files.enter_context(show_progress("loading weights", total, "B", bar=progress))
        for parameter, dtype in zip(table, dtypes, strict=True):
            array = np.empty(parameter.shape, dtype)
            for source, place in parameter.pieces():
                array[place] = tensors.read(parameter, source, array.dtype)
                advance(array[place].nbytes)
            yield parameter.path, array
        tensors.warn_of_zeros()


def check_parameters(directory: Path, config: ModelConfig) -> None:
    """Raise ConfigError unless the files have the tensors that ``config`` means: the headers alone are read."""
    with ExitStack() as files:
        _SafeTensors(directory, files).check(parameters(config), unread_tensors(config))


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


class _SafeTensors:
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
            self._file_of = weight_map(directory)
            for name in sorted(set(self._file_of.values())):
                self._open(name, files)
        else:
            raise no_safetensors(directory)

    def _open(self, name: str, files: ExitStack) -> None:
        path = member(self._directory, name)
        try:
            self._handles[name] = files.enter_context(safe_open(path, framework="numpy"))
        except FileNotFoundError:
            raise ConfigError(f"{path} is missing, but {INDEX} names it: the download is incomplete") from None
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path} is no complete safetensors file: {error}") from error

    def _locate(self, name: str) -> str | None:
        """Return a tensor's name in this checkpoint.

        Files saved from the bare decoder lack the prefix (``model.``), those of models of more than text have another.
        """
        bare = name.partition(".")[2]
        spellings = (name, f"language_model.{name}", f"model.language_model.{name.removeprefix('model.')}", bare)
        return next((spelling for spelling in spellings if self._parts(spelling)[0] in self._file_of), None)

    def _parts(self, name: str) -> tuple[str, ...]:
        """Return the names of the file's tensors that a tensor is made of: itself, or blocks and scales of MXFP4."""
        if name not in self._file_of and f"{name}{mxfp4.BLOCKS}" in self._file_of:
            return (f"{name}{mxfp4.BLOCKS}", f"{name}{mxfp4.SCALES}")
        return (name,)

    def check(self, table: tuple[Parameter, ...], unread: re.Pattern[str] | None) -> None:
        used = {name for parameter in table for source, _ in parameter.pieces() for name in self._check(source)}
        known = [_HARMLESS, _NOT_TEXT, *([] if unread is None else [unread])]
        extra = sorted(
            name for name in self._file_of if name not in used and not any(one.fullmatch(name) for one in known)
        )
        if all(parameter.path != HEAD for parameter in table):
            extra = [name for name in extra if name.removeprefix("language_model.") != HEAD]
        if extra:
            more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
            raise ConfigError(
                f"{self._directory}: {CONFIG} describes a model without the tensors {', '.join(extra[:3])}{more}; "
                f"they belong to another architecture or option"
            )

    def _check(self, source: Source) -> tuple[str, ...]:
        """Check a tensor's shape and dtype; return the names of the file's tensors that it is made of."""
        name = self._locate(source.name)
        if name is None:
            hint = f" (or tie_word_embeddings in {CONFIG} should be true)" if source.name == HEAD else ""
            raise ConfigError(
                f"{self._directory}: the tensor {source.name} is missing from the safetensors files{hint}"
            )
        parts = self._parts(name)
        (shape, dtype), *others = map(self._header, parts)
        where = self._directory / self._file_of[parts[0]]
        if others:
            found = mxfp4.weight_shape(shape, others[0][0])
            if found is None or (dtype, others[0][1]) != ("U8", "U8"):
                raise ConfigError(f"{where}: {' and '.join(parts)} are not blocks and scales of MXFP4, which are U8")
            shape, dtype = found, "BF16"
        if shape != source.shape:
            raise ConfigError(f"{where}: {name} has shape {list(shape)}, but {CONFIG} means {list(source.shape)}")
        if dtype not in _FILE_DTYPES:
            raise ConfigError(f"{where}: {name} has dtype {dtype}; supported: {', '.join(_FILE_DTYPES)}")
        return parts

    def _header(self, name: str) -> tuple[tuple[int, ...], str]:
        """Return shape and dtype of one of the file's tensors."""
        if name not in self._file_of:
            raise ConfigError(f"{self._directory}: the tensor {name} is missing from the safetensors files")
        try:
            header = self._handles[self._file_of[name]].get_slice(name)
        except SafetensorError as error:
            where = self._directory / self._file_of[name]
            raise ConfigError(f"{where}: the tensor {name} is missing, but {INDEX} says it is there") from error
        return tuple(header.get_shape()), header.get_dtype()

    def read(self, parameter: Parameter, source: Source, dtype: np.dtype[Any]) -> Array:
        name = self._locate(source.name)
        assert name is not None
        parts = self._parts(name)
        tensors = [self._handles[self._file_of[part]].get_tensor(part) for part in parts]
        tensor: Array = tensors[0] if len(parts) == 1 else mxfp4.dequantized(*tensors)
        self._zeros.look(name, tensor)
        converted = parameter.loaded(source, tensor, dtype)
        if dtype == np.float16 and not np.isfinite(converted).all():
            where = self._directory / self._file_of[parts[0]]
            raise ConfigError(f"{where}: {name} has values that float16 cannot hold; use --dtype bfloat16 or float32")
        return converted

    def warn_of_zeros(self) -> None:
        self._zeros.warn(self._directory)


def weight_map(directory: Path) -> dict[str, str]:
    """Return the file of each tensor, by the index of a checkpoint in several files. Raises ConfigError."""
    files = read_json(directory, INDEX).get("weight_map")
    if not isinstance(files, dict) or not files or not all(isinstance(name, str) for name in files.values()):
        raise ConfigError(f"{directory / INDEX}: weight_map must be an object from tensor names to file names")
    return files


def no_safetensors(directory: Path) -> ConfigError:
    """Return the error for a directory without safetensors files."""
    found = sorted(path.name for pattern in _PICKLES for path in directory.glob(pattern))
    if found:
        return ConfigError(
            f"{directory} has its weights in {found[0]}, a pickle, which can run code when it is opened; "
            f"only safetensors files are read: save the model again with safetensors"
        )
    return ConfigError(f"{directory} has no weights: neither {SINGLE} nor {INDEX}")
