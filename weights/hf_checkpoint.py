"""Read the safetensors of a Hugging Face directory into the arrays of the parameter tree. Host only, no jax.

Files are memory-mapped and parameters are made one at a time. So a caller who moves each to a device holds little more
than one copy of the weights. Unused tensors are refused, since they show that the configuration does not describe the
checkpoint. Harmless kinds are accepted: buffers (``no_weights``), a copy of tied embeddings as head, and biases of
zeros of quantised layers.
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from jaxgen.core.config import DType, ModelConfig
from jaxgen.core.mixed_weight import AnyFormat, MixedFormat, empty_weight
from jaxgen.core.quantization import GroupedWeight, WeightFormat
from jaxgen.terminal.progress import show_progress
from jaxgen.weights.checkpoint_tensors import CheckpointTensors
from jaxgen.weights.names import Parameter, Piece, Source, Value, parameters
from jaxgen.weights.weight_formats import EMBEDDINGS, PRODUCTS

logger = logging.getLogger(__name__)

NUMPY_DTYPES: dict[DType, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
_FIRST = 4096
"""Numbers looked at before all: nearly every matrix has another than zero among them."""
_NAMED = 3


class Tensors(Protocol):
    """The tensors of a checkpoint; ``Source`` has their names and shapes as Hugging Face's files have them."""

    def check(self, table: tuple[Parameter, ...]) -> None:
        """Raise ConfigError unless the checkpoint has exactly the table's tensors, with their shapes."""

    def read(self, parameter: Parameter, source: Source, dtype: np.dtype[Any], form: WeightFormat | None) -> Piece:
        """Read a source as its part of the parameter: in ``form`` if that is one, else in ``dtype``.

        Raises ConfigError also when values do not fit in float16.
        """


def read_parameters(
    directory: Path, config: ModelConfig, *, tensors: Tensors | None = None, progress: bool = True
) -> Iterator[tuple[str, Value]]:
    """Yield each parameter of the tree: its path, and a host array of ``config.dtype``, or a weight in its format.

    ``tensors``: None: those of the directory's safetensors files. All are checked against the files' headers before
    the first is read. Raises ConfigError that names file and tensor when a tensor is missing, has another shape or
    dtype, or cannot be read.
    """
    table, zeros = parameters(config), ZeroWeights()
    tensors = tensors or CheckpointTensors(directory)
    tensors.check(table)
    if isinstance(tensors, CheckpointTensors):
        tensors.check_tied_head(table, absent=not config.generates)
        _log_changes(directory, config, tensors)
    dtypes = [NUMPY_DTYPES[parameter.dtype or config.dtype] for parameter in table]
    total = sum(prod(one.shape) * dtype.itemsize for one, dtype in zip(table, dtypes, strict=True))
    with show_progress("loading weights", total, "B", bar=progress) as advance:
        for parameter, dtype in zip(table, dtypes, strict=True):
            form = config.weight_format(parameter.path)
            value: Any = np.empty(parameter.shape, dtype) if form is None else empty_weight(form, parameter.shape)
            for source, place in parameter.pieces():
                part = tensors.read(parameter, source, dtype, None if form is None else form.at(place))
                zeros.look(source.name, part)
                value[place] = part
                advance(prod(source.shape) * dtype.itemsize)
            yield parameter.path, value
    zeros.warn(directory)


def check_parameters(directory: Path, config: ModelConfig) -> None:
    """Raise ConfigError unless the files have the tensors that ``config`` means: the headers alone are read."""
    CheckpointTensors(directory).check(parameters(config))


def stored_formats(directory: Path, config: ModelConfig) -> dict[str, AnyFormat]:
    """Return the formats of the parameters that stay quantized as they are stored, by path. Raises ConfigError.

    Only headers are read, and the orders of inputs if the checkpoint has them.
    """
    tensors = CheckpointTensors(directory)
    found = {parameter.path: _kept(parameter, tensors)[0] for parameter in parameters(config)}
    return {path: form for path, form in found.items() if form is not None}


def _kept(parameter: Parameter, tensors: CheckpointTensors) -> tuple[AnyFormat | None, str]:
    """Return the format in which a parameter with an encoding can be kept as it is stored, and why it may not be."""
    where = [(source, tensors.find(source)) for source, _ in parameter.pieces()]
    titles = sorted({found.encoding.title for _, found in where if found.encoding is not None})
    if not titles:
        return None, ""
    forms = [tensors.stored_format(source, found) for source, found in where]
    stored = [form for form in forms if form is not None]
    if len(stored) < len(forms):
        return None, "not all of it is quantized in the file"
    if parameter.path not in (*PRODUCTS, *EMBEDDINGS):
        return None, "it is always computed in full"
    for form in stored:
        if not form.is_computed:
            return None, f"its groups of {form.group} inputs are not computed"
    places = [place for _, place in parameter.pieces()]
    whole = MixedFormat.of_pieces(zip(places, stored, strict=True))
    if whole is None or len({form.floats for form in whole.forms}) > 1:
        return None, "its parts are stored in formats that no product takes together"
    if isinstance(whole, WeightFormat) and whole.ordered:
        return _with_order(parameter, tensors, whole)
    if any(form.ordered for form in whole.forms):
        return None, "its parts have inputs in orders, and are stored in several formats"
    return whole, f"stored in {' and '.join(titles)}"


def _with_order(
    parameter: Parameter, tensors: CheckpointTensors, form: WeightFormat
) -> tuple[WeightFormat | None, str]:
    """Return the format, with an order if any matrix has one; none if parts of a matrix have different orders."""
    inputs = parameter.shape[-1]
    in_turn = np.arange(inputs, dtype=np.int32) // (form.group or inputs)
    of_matrix: dict[str, bytes] = {}
    for matrix, index in tensors.input_groups(parameter):
        groups = (in_turn if index is None else index.astype(np.int32)).tobytes()
        if of_matrix.setdefault(matrix, groups) != groups:
            return None, "its parts have inputs in different orders"
    ordered = set(of_matrix.values()) != {in_turn.tobytes()}
    if ordered and parameter.num_experts is not None:
        return None, "its experts have inputs in orders of their own"
    return replace(form, ordered=ordered), ""


def _log_changes(directory: Path, config: ModelConfig, tensors: CheckpointTensors) -> None:
    """Say which weights take more memory than in the files, and that scales of activations are left out."""
    paths: dict[str, list[str]] = {}
    for parameter in parameters(config):
        if config.weight_format(parameter.path) is None and (reason := _kept(parameter, tensors)[1]):
            paths.setdefault(reason, []).append(parameter.path)
    for reason, named in paths.items():
        logger.info("%s: dequantised to %s: %s (%s)", directory, config.dtype, ", ".join(named), reason)
    if tensors.has_activation_scales():
        logger.info(
            "%s: its scales of activations are not used: products take activations as they are, or round them by token",
            directory,
        )


class ZeroWeights:
    """Collects the names of matrices that are all zero."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def look(self, name: str, value: Piece) -> None:
        """Take note of a matrix, or a stack of them, if it is all zero. Vectors may be: biases often are."""
        array = value.scales if isinstance(value, GroupedWeight) else value
        if array.ndim > 1 and array.size and not (np.any(array.reshape(-1)[:_FIRST]) or np.any(array)):
            self._names.append(name)

    def warn(self, directory: Path) -> None:
        """Log one warning of all that were found."""
        if self._names:
            more = f" and {len(self._names) - _NAMED} more" if len(self._names) > _NAMED else ""
            logger.warning("%s: all zero: %s%s", directory, ", ".join(self._names[:_NAMED]), more)
