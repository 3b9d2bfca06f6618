"""Read the tensors of a GGUF file as the parts of parameters. Host only, no jax."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.mixed_weight import AnyFormat, MixedFormat
from jaxgen.core.plain_weight import PlainFormat
from jaxgen.core.quantization import WeightFormat
from jaxgen.weights.encodings.quantize import quantized
from jaxgen.weights.encodings.weight_formats import EMBEDDINGS, is_product
from jaxgen.weights.families.tensors import Parameter, Piece, Source
from jaxgen.weights.files.safetensors import Array
from jaxgen.weights.gguf import rope
from jaxgen.weights.gguf.architecture import Architecture
from jaxgen.weights.gguf.codes import codes_of, kept_form
from jaxgen.weights.gguf.configuration import drafting_layers, own_fields
from jaxgen.weights.gguf.file import NUMBERS, GgufFile, StoredTensor
from jaxgen.weights.gguf.names import UNREAD, key_of, parts_of
from jaxgen.weights.packaged.models import packaged_as

logger = logging.getLogger(__name__)

_NAMED = 3
_OF_OLD_MIXTURES = ": each expert has a tensor of its own, as in files of before April 2024: use a newer file"


class GgufTensors:
    """The tensors of a GGUF file, which ``huggingface.checkpoint.read_parameters`` takes in place of its own.

    ``model.opened`` makes it. One tensor at a time is dequantised.
    """

    def __init__(self, file: GgufFile, architecture: Architecture, config: DecoderConfig) -> None:
        self._file = file
        self._plain = PlainFormat(config.dtype)
        self._num_layers = config.num_layers
        self._num_drafting = drafting_layers(own_fields(file, architecture))
        self._parts = parts_of(config, file.tensors.keys(), architecture.renamed, architecture.orders)

    def check(self, table: tuple[Parameter, ...]) -> None:
        """Raise ConfigError unless the file has exactly the table's tensors, with their shapes, of known types."""
        parts = [self._parts[key_of(source)] for parameter in table for source, _ in parameter.pieces()]
        wanted = {name: shape for part in parts for name, shape in zip(part.names, part.shapes, strict=True)}
        for name, shape in wanted.items():
            self._check(name, shape)
        drafting = tuple([f"blk.{layer}." for layer in range(self._num_layers, self._num_layers + self._num_drafting)])
        if drafting:
            logger.info("%s: its last %d layers draft tokens, and are left out", self._file.path, len(drafting))
        others = self._file.tensors.keys() - wanted.keys() - set(rope.TENSORS)
        unread = tuple(
            [
                f"blk.{layer}.{one}"
                for parameter in table
                if parameter.unused
                for layer in parameter.numbers
                for one in UNREAD
            ]
        )
        extra = sorted(name for name in others if not name.startswith((*drafting, *unread)))
        if extra:
            more = f" and {len(extra) - _NAMED} more" if len(extra) > _NAMED else ""
            raise ConfigError(
                f"{self._file.path}: its metadata describe a model without the tensors {', '.join(extra[:_NAMED])}"
                f"{more}; they belong to another architecture or option"
            )

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        stored = self._file.tensors.get(name)
        if stored is None:
            hint = _OF_OLD_MIXTURES if name.replace("_exps.", ".0.") in self._file.tensors else ""
            raise ConfigError(f"{self._file.path}: the tensor {name} is missing{hint}")
        # files of 2024 have vectors for matrices of one row; those of ERNIE have a matrix for a vector
        if shape not in (stored.shape, (1, *stored.shape)) and stored.shape != (1, *shape):
            given, wanted = list(stored.shape), list(shape)
            raise ConfigError(f"{stored.part}: {name} has shape {given}, but the metadata mean {wanted}")
        if not stored.can_be_dequantised():
            raise ConfigError(f"{stored.part}: {name} is of type {stored.kind.name}, which cannot be dequantised")

    def kept_formats(self, table: tuple[Parameter, ...]) -> dict[str, AnyFormat]:
        """Return the formats of the parameters that are kept as codes, with the numbers that they have in the file.

        The log names the parameters that are dequantised although their types are types of codes.
        Raises ConfigError for a tensor that is missing.
        """
        result: dict[str, AnyFormat] = {}
        known = packaged_as(self._file.path)
        if known is not None and known.dequantised:
            return result
        for parameter in table:
            if not is_product(parameter.path) and parameter.path not in EMBEDDINGS:
                continue
            parts = [self._parts[key_of(source)] for source, _ in parameter.pieces()]
            for part in parts:
                for name, shape in zip(part.names, part.shapes, strict=True):
                    self._check(name, shape)
            tensors = [tensor for source, _ in parameter.pieces() for tensor in self._stored(source)]
            form = self._kept_format(parameter)
            kinds = sorted({tensor.kind.name for tensor in tensors})
            if form is not None:
                result[parameter.path] = form
            if (form is None or self._is_partly_dequantised(parameter)) and any(kind not in NUMBERS for kind in kinds):
                which = "dequantised" if form is None else "dequantised in some layers"
                logger.info("%s: %s: %s (%s)", self._file.path, which, parameter.path, ", ".join(kinds))
        return result

    def _kept_format(self, parameter: Parameter) -> AnyFormat | None:
        """Return the format that a parameter has in the file, with numbers where tensors have no format that is
        computed; None: no tensor has one."""
        pieces = ((index, self._form(source)) for source, index in parameter.pieces())
        return MixedFormat.of_pieces(pieces, self._plain)

    def _form(self, source: Source) -> WeightFormat | None:
        """Return the format in which a source's codes are kept, with their inputs in the file's order."""
        form = kept_form(self._stored(source))
        return form if form is None or self._parts[key_of(source)].inputs is None else replace(form, ordered=True)

    def _is_partly_dequantised(self, parameter: Parameter) -> bool:
        """Whether a tensor of codes has a type that is not computed."""
        return any(
            kept_form(tensors) is None and any(tensor.kind.name not in NUMBERS for tensor in tensors)
            for tensors in (self._stored(source) for source, _ in parameter.pieces())
        )

    def read(self, parameter: Parameter, source: Source, dtype: np.dtype[Any], form: WeightFormat | None) -> Piece:
        """Return a tensor as its part of the parameter: in ``form`` if that is one, else in ``dtype``.

        A format that ``kept_formats`` has found has the file's codes; to others numbers are rounded. What ``parameter``
        adds to weights of norms is in the file's numbers already. Raises ConfigError for values beyond float16.
        """
        del parameter
        part = self._parts[key_of(source)]
        tensors = self._stored(source)
        where = f"{tensors[0].part}: {' and '.join(part.names)}"
        shape = source.parameter_shape if part.of_heads is None else source.shape
        here = replace(source, shape=shape, transposed=False, is_filter=False, rows=part.order, of_heads=part.of_heads)
        if form is not None and form == self._form(source):
            try:
                weight = codes_of(tensors, replace(form, ordered=False))
            except ValueError as error:
                raise ConfigError(f"{where} {error}") from error
            if weight is not None:
                order = None if part.inputs is None else np.argsort(part.inputs).astype(np.int32)
                return here.ordered_weight(replace(weight, format=form, order=order))
        values = [tensor.dequantised(np.float32 if part.made else dtype) for tensor in tensors]
        if dtype == np.float16 and not all(np.isfinite(array).all() for array in values):
            raise ConfigError(f"{where} has values that float16 cannot hold; use --dtype bfloat16 or float32")
        whole = values[0] if len(values) == 1 else np.concatenate(values, axis=-1 if source.is_bias else -2)
        if part.made is not None:
            whole = _made(whole, part.made, where).astype(dtype)
        if part.inputs is not None:
            whole = np.take(whole, part.inputs, axis=-1)
        if source.is_filter:
            return (whole if part.order is None else whole[list(part.order)]).T
        ordered = here.ordered(whole.reshape(here.shape))
        return ordered if form is None else quantized(ordered, form, where)

    def _stored(self, source: Source) -> list[StoredTensor]:
        """Return the tensors, or parts of them, whose rows are those of a source."""
        part = self._parts[key_of(source)]
        return [self._file.tensors[name].at(part.index) for name in part.names]


def _made(values: Array, make: Callable[[Array], Array], where: str) -> Array:
    """Return the numbers of a parameter that are made of a file's. Raises ConfigError if some cannot be."""
    made = make(values)
    if not np.isfinite(made).all():
        raise ConfigError(f"{where} has numbers of which no parameter is made, such as {values[~np.isfinite(made)][0]}")
    return made
