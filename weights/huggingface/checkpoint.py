"""Read the safetensors of a Hugging Face directory into the arrays of the parameter tree. Host only, no jax.

Files are memory-mapped and parameters are made one at a time. So a caller who moves each to a device holds little more
than one copy of the weights. Unused tensors are refused, since they show that the configuration does not describe the
checkpoint. Harmless kinds are accepted: buffers (``no_weights``), a copy of tied embeddings as head, and biases of
zeros of quantised layers.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jaxgen.core.division import Share
from jaxgen.core.mixed_weight import AnyFormat, MixedFormat, empty_weight
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.plain_weight import PlainFormat
from jaxgen.core.quantization import Index, WeightFormat
from jaxgen.terminal.progress import show_progress
from jaxgen.weights.encodings.weight_formats import EMBEDDINGS, NUMPY_DTYPES, is_product
from jaxgen.weights.encodings.zero_weights import ZeroWeights
from jaxgen.weights.families.parameters import Parameter, Piece, Source, Value, parameters
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.checkpoint_tensors import CheckpointTensors

logger = logging.getLogger(__name__)

_SHOWN = 8
"""Layers that a line of the log names."""


class Tensors(Protocol):
    """What ``read_parameters`` reads from: CheckpointTensors or GgufTensors.

    ``Source`` has their names and shapes as Hugging Face's files have them.
    """

    def check(self, table: tuple[Parameter, ...]) -> None:
        """Raise ConfigError unless the checkpoint has exactly the table's tensors, with their shapes."""

    def read(self, parameter: Parameter, source: Source, dtype: np.dtype[Any], form: WeightFormat | None) -> Piece:
        """Read a source as its part of the parameter: in ``form`` if that is one, else in ``dtype``.

        Raises ConfigError also when values do not fit in float16.
        """


def read_parameters(
    files: ModelFiles, config: ModelConfig, *, tensors: Tensors | None = None, progress: bool = True
) -> Iterator[tuple[str, Value]]:
    """Yield each parameter of the tree: its path, and a host array of ``config.dtype``, or a weight in its format.

    Arguments and errors as of ``open_parameters``.
    """
    for path, read in open_parameters(files, config, tensors=tensors, progress=progress):
        yield path, read(None)


def open_parameters(
    files: ModelFiles, config: ModelConfig, *, tensors: Tensors | None = None, ranks: int = 1, progress: bool = True
) -> Iterator[tuple[str, Callable[[Share | None], Value]]]:
    """Yield the path of each parameter of the tree, and what reads a share of it, or all of it, each time it is called.

    A share is read as a part of each tensor, one tensor after another. ``ranks``: how often each will be read.
    ``tensors``: None: those of the safetensors files. All are checked against the files' headers before
    the first is read. Raises ConfigError that names file and tensor when a tensor is missing, has another shape or
    dtype, or cannot be read.
    """
    table, zeros = parameters(config), ZeroWeights()
    tensors = tensors or CheckpointTensors(files)
    tensors.check(table)
    if isinstance(tensors, CheckpointTensors):
        tensors.check_tied_head(table, absent=not config.generates)
        _log_changes(files.directory, config, tensors)
    dtypes = [NUMPY_DTYPES[parameter.dtype or config.dtype] for parameter in table]
    total = sum(prod(parameter.shape) * dtype.itemsize for parameter, dtype in zip(table, dtypes, strict=True))
    with show_progress("loading weights", total * ranks, "B", bar=progress) as advance:

        def read(parameter: Parameter, dtype: np.dtype[Any], share: Share | None) -> Value:
            form = config.weight_format(parameter.path)
            shape = parameter.shape if share is None else share.shape(parameter.shape)
            value: Any = np.empty(shape, dtype) if form is None else empty_weight(form, shape)
            for source, index in parameter.pieces():
                of_part = None if form is None else form.at(index)
                of_part = None if isinstance(of_part, PlainFormat) else of_part
                part: Any = tensors.read(parameter, source, dtype, of_part)
                zeros.look(source.name, part)
                if share is None:
                    value[index] = part
                else:
                    *of_layer, rows = index
                    assert isinstance(rows, slice), "a tensor is some rows of a layer"
                    share.put(part, value[tuple(of_layer)], rows)
                advance(prod(source.shape) * dtype.itemsize)
            return value

        for parameter, dtype in zip(table, dtypes, strict=True):
            yield parameter.path, partial(read, parameter, dtype)
    zeros.warn(files.directory)


def check_parameters(files: ModelFiles, config: ModelConfig) -> None:
    """Raise ConfigError unless the files have the tensors that ``config`` means: the headers alone are read."""
    CheckpointTensors(files).check(parameters(config))


def stored_formats(files: ModelFiles, config: ModelConfig) -> dict[str, AnyFormat]:
    """Return the formats of the parameters that stay quantized as they are stored, by path. Raises ConfigError.

    Only headers are read, and the orders of inputs if the checkpoint has them.
    """
    tensors, plain = CheckpointTensors(files), PlainFormat(config.dtype)
    formats = {parameter.path: _stored_format(parameter, tensors, plain)[0] for parameter in parameters(config)}
    return {path: form for path, form in formats.items() if form is not None}


def _stored_format(
    parameter: Parameter, tensors: CheckpointTensors, plain: PlainFormat
) -> tuple[AnyFormat | None, str]:
    """Return the format in which a parameter with an encoding can be kept as it is stored, and why it may not be.

    Layers, or outputs, that cannot be kept are numbers in ``plain``, if others can.
    """
    where = [(source, tensors.find(source)) for source, _ in parameter.pieces()]
    titles = sorted({location.encoding.title for _, location in where if location.encoding is not None})
    if not titles:
        return None, ""
    stored = [tensors.stored_format(source, location) for source, location in where]
    if not is_product(parameter.path) and parameter.path not in EMBEDDINGS:
        return None, "it is always computed in full"
    reason = "not all of it is quantized in the file"
    if uncomputed := [form.group for form in stored if form is not None and not form.is_computed]:
        reason = f"its groups of {uncomputed[0]} inputs are not computed"
    forms = [form if form is not None and form.is_computed else None for form in stored]
    if any(form is not None and form.ordered for form in forms):
        forms, reason = _with_orders(parameter, tensors, forms)
    whole = MixedFormat.of_pieces(
        ((index, form) for (_, index), form in zip(parameter.pieces(), forms, strict=True)), plain
    )
    if whole is None and any(form is not None for form in forms):
        reason = "its experts are stored in formats that no product takes together"
    if whole is not None and len({form.floats for form in whole.forms}) > 1:
        return None, "its parts are stored in formats that no product takes together"
    return whole, reason if whole is None else f"stored in {' and '.join(titles)}"


def _with_orders(
    parameter: Parameter, tensors: CheckpointTensors, forms: list[WeightFormat | None]
) -> tuple[list[WeightFormat | None], str]:
    """Return the formats, with an order if any matrix has one; none for layers whose parts have different orders."""
    inputs = parameter.shape[-1]
    of_matrix: dict[Index, bytes] = {}
    differ: set[Index] = set()
    ordered = False
    for (index, of_inputs), form in zip(tensors.input_groups(parameter), forms, strict=True):
        if form is None:
            continue
        in_turn = np.arange(inputs, dtype=np.int32) // (form.group or inputs)
        groups = in_turn if of_inputs is None else of_inputs.astype(np.int32)
        ordered = ordered or groups.tobytes() != in_turn.tobytes()
        if of_matrix.setdefault(index[:-1], groups.tobytes()) != groups.tobytes():
            differ.add(index[:1])
    if ordered and parameter.num_experts is not None:
        return [None] * len(forms), "its experts have inputs in orders of their own"
    indices = [index for _, index in parameter.pieces()]
    return [
        None if form is None or index[:1] in differ else replace(form, ordered=ordered)
        for index, form in zip(indices, forms, strict=True)
    ], "its parts have inputs in different orders"


def _log_changes(directory: Path, config: ModelConfig, tensors: CheckpointTensors) -> None:
    """Say which weights take more memory than in the files, and that scales of activations are left out."""
    paths: dict[str, list[str]] = {}
    for parameter in parameters(config):
        form = config.weight_format(parameter.path)
        if form is None and (reason := _stored_format(parameter, tensors, PlainFormat(config.dtype))[1]):
            paths.setdefault(reason, []).append(parameter.path)
        if isinstance(form, MixedFormat) and (layers := form.plain_layers):
            shown = ", ".join(map(str, layers[:_SHOWN])) + (" and others" if len(layers) > _SHOWN else "")
            logger.info("%s: %s is %s in layers %s", directory, parameter.path, config.dtype, shown)
    for reason, named in paths.items():
        logger.info("%s: dequantised to %s: %s (%s)", directory, config.dtype, ", ".join(named), reason)
    if parts := tensors.parts_left_out():
        logger.info("%s: not loaded, because text does not need it: %s", directory, ", ".join(parts))
    if tensors.has_activation_scales():
        logger.info(
            "%s: its scales of activations are not used: products take activations as they are, or round them by token",
            directory,
        )
