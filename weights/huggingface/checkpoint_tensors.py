"""Find the tensors of a Hugging Face directory that a parameter is made of, and read them. Host only, no jax.

A weight is a tensor of its name, or is stored as others by one of the encodings that the configuration names.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxgen.core.errors import ConfigError
from jaxgen.core.quantization import GroupedWeight, Index, WeightFormat
from jaxgen.weights.encodings.encoding import ORDER, PLAIN_DTYPES, Encoding, RawWeight
from jaxgen.weights.encodings.methods import encodings_of
from jaxgen.weights.encodings.quantize import dequantized, quantized
from jaxgen.weights.families.parameters import EMBEDDING, HEAD, Array, Parameter, Piece, Source, Stacked, bare_name
from jaxgen.weights.files.file_names import CONFIG
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.no_weights import NOT_FLOATS, is_no_weight, next_layers, part_left_out

_BIAS = ".bias"
_ACTIVATION_SCALES = (".input_scale", ".input_global_scale", ".activation_scale")
_PIECE = 1024
"""Rows that are compared at a time."""


@dataclass(frozen=True, slots=True)
class WeightLocation:
    """A weight in the files: its name there, its encoding, if it has one, and the names of its tensors by part.

    ``stacked``: how the tensor of that name has it, if this is one for all experts.
    """

    name: str
    encoding: Encoding | None
    parts: dict[str, str]
    stacked: Stacked | None = None


class CheckpointTensors:
    """The tensors of a Hugging Face directory, as the weights that ``read_parameters`` asks for.

    All errors are ConfigError that names file and tensor.
    """

    def __init__(self, files: ModelFiles) -> None:
        self._directory = files.directory
        self._files = files.safetensors
        self._encodings = encodings_of(files)

    def check(self, table: tuple[Parameter, ...]) -> None:
        """Raise ConfigError unless the checkpoint has exactly the table's tensors, with their shapes."""
        used: set[str] = set()
        for parameter in table:
            for source, _ in parameter.pieces():
                location = self.find(source)
                self.stored_format(source, location)
                used.update(location.parts.values())
        unread = [encoding.unread for encoding in self._encodings if encoding.unread is not None]
        extra = sorted(
            name
            for name in self._files
            if name not in used and not self._is_no_weight(name) and not any(names.fullmatch(name) for names in unread)
        )
        unused = tuple(
            f"{spelling}."
            for parameter in table
            for name in parameter.unused
            for layer in range(parameter.num_layers or 0)
            for spelling in _spellings(name.format(layer=parameter.number(layer)))
        )
        extra = [name for name in extra if not name.startswith(unused)]
        tied = self._tied_head(table)
        further = next_layers(self._files)
        extra = [name for name in extra if name != tied and not self._is_zero_bias(name)]
        extra = [name for name in extra if not name.startswith(further)]
        if extra:
            more = f" and {len(extra) - 3} more" if len(extra) > 3 else ""
            raise ConfigError(
                f"{self._directory}: {CONFIG} describes a model without the tensors {', '.join(extra[:3])}{more}; "
                f"they belong to another architecture or option"
            )

    def parts_left_out(self) -> list[str]:
        """Return the names of the model's parts that are not served, such as what reads images."""
        return sorted({part for name in self._files if (part := part_left_out(name)) is not None})

    def has_activation_scales(self) -> bool:
        """Whether the files have scales with which activations were to be rounded."""
        return any(name.endswith(_ACTIVATION_SCALES) for name in self._files)

    def check_tied_head(self, table: tuple[Parameter, ...], *, absent: bool) -> None:
        """Raise ConfigError if there is a head although the embeddings are used as one, and it is another matrix.

        It is compared as far as the first difference; equal ones are read whole. ``absent``: the model has no head.
        """
        head = self._tied_head(table)
        if head is None:
            return
        embeddings = next(parameter for parameter in table if parameter.path == EMBEDDING)
        embedding = self.find(next(source for source, _ in embeddings.pieces()))
        if embedding.encoding is None and self._are_equal(head, embedding.name):
            return
        if absent:
            raise ConfigError(
                f"{self._files.file_of(head)}: there is a head, {head}, but architectures in {CONFIG} name a model "
                "without one, which gives embeddings alone: name the architecture with a head, such as "
                "Qwen3ForCausalLM, or remove the tensor"
            )
        raise ConfigError(
            f"{self._files.file_of(head)}: {head} differs from {embedding.name}, but tie_word_embeddings in {CONFIG} "
            "says that they are the same: set it to false to use this head, or remove the tensor"
        )

    def _tied_head(self, table: tuple[Parameter, ...]) -> str | None:
        """Return the name of the head's tensor if there is one and no parameter is made of it."""
        if any(parameter.path == HEAD for parameter in table):
            return None
        return next((name for name in (HEAD, f"language_model.{HEAD}") if name in self._files), None)

    def _are_equal(self, first: str, second: str) -> bool:
        if self._files.header(first).shape != self._files.header(second).shape:
            return False
        pairs = zip(_pieces(self._files.read(first)), _pieces(self._files.read(second)), strict=True)
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    def _is_no_weight(self, name: str) -> bool:
        return is_no_weight(name) or self._files.header(name).dtype in NOT_FLOATS

    def _is_zero_bias(self, name: str) -> bool:
        """Whether this is a bias of zeros, which old tools write for a quantised weight without a bias."""
        if not name.endswith(_BIAS) or self._encoded(f"{name.removesuffix(_BIAS)}.weight") is None:
            return False
        return not self._files.read(name).any()

    def find(self, source: Source) -> WeightLocation:
        """Return where a source is.

        Files saved from the bare decoder lack the prefix (``model.``), those of models of more than text have another.
        """
        name = source.name
        for spelling in _spellings(name):
            if (location := self._encoded(spelling)) is not None:
                return location
            if spelling in self._files:
                return WeightLocation(spelling, None, {"weight": spelling})
        for spelling in () if source.stacked is None else _spellings(source.stacked.name):
            if (location := self._encoded(spelling)) is not None:
                return replace(location, stacked=source.stacked)
            if spelling in self._files:
                return WeightLocation(spelling, None, {"weight": spelling}, source.stacked)
        hint = (
            f" (or tie_word_embeddings in {CONFIG} should be true, or architectures name a model without a head, such "
            "as Qwen3Model, which gives embeddings alone)"
        )
        raise ConfigError(
            f"{self._directory}: the tensor {name} is missing from the safetensors files{hint if name == HEAD else ''}"
        )

    def _encoded(self, name: str) -> WeightLocation | None:
        for encoding in self._encodings:
            if (parts := encoding.parts(name, self._files)) is not None:
                return WeightLocation(name, encoding, parts)
        return None

    def stored_format(self, source: Source, location: WeightLocation) -> WeightFormat | None:
        """Check the headers of a weight's tensors; return the format that its encoding keeps it in, if one does."""
        headers = {part: self._files.header(name) for part, name in location.parts.items()}
        try:
            if location.stacked is not None:
                headers = {
                    part: replace(
                        header,
                        shape=self._of_expert(source, location, np.broadcast_to(np.empty(()), header.shape)).shape,
                    )
                    for part, header in headers.items()
                }
            if location.encoding is not None:
                return location.encoding.kept_as(headers, source.encoded_shape)
        except ValueError as error:
            raise self._error(location, str(error)) from error
        header = headers["weight"]
        if header.shape != source.shape:
            raise self._error(location, f"has shape {list(header.shape)}, but {CONFIG} means {list(source.shape)}")
        if header.dtype not in PLAIN_DTYPES:
            raise self._error(location, f"has dtype {header.dtype}; supported: {', '.join(PLAIN_DTYPES)}")
        return None

    def _of_expert(self, source: Source, location: WeightLocation, array: Array) -> Array:
        """Return what a source has of a tensor for all experts: of its numbers, or of the scales of their blocks.

        Raises ValueError for one of another shape.
        """
        stacked, shape = location.stacked, self._files.header(location.name).shape
        assert stacked is not None
        if shape not in (stacked.shape, stacked.other_shape):
            wanted = f"{list(stacked.shape)} or {list(stacked.other_shape)}"
            raise ValueError(f"has shape {list(shape)}, but {CONFIG} means {wanted}")
        if array.ndim != len(shape) or len(array) != shape[0]:
            raise ValueError(f"has scales of shape {list(array.shape)}, which are not of blocks of each expert")
        return stacked.part(array, source.expert, source.shape[0], turned=shape != stacked.shape)

    def input_groups(self, parameter: Parameter) -> Iterator[tuple[Index, Array | None]]:
        """Yield each source's index in the parameter, and the group of each of its inputs, if its encoding says it."""
        for source, index in parameter.pieces():
            order = self.find(source).parts.get(ORDER)
            yield index, None if order is None else self._files.read(order)

    def read(self, parameter: Parameter, source: Source, dtype: np.dtype[Any], form: WeightFormat | None) -> Piece:
        """Read a source as its part of the parameter: in ``form`` if that is one, else in ``dtype``.

        What is stored in another format is rounded to it, or dequantised. Raises ConfigError also when values do not
        fit in float16.
        """
        location = self.find(source)
        tensors = {part: self._files.read(name) for part, name in location.parts.items()}
        if location.stacked is not None:
            tensors = {part: self._of_expert(source, location, tensor) for part, tensor in tensors.items()}
        if location.encoding is None:
            return self._rounded(parameter, source.to_parameter(tensors["weight"]), location, dtype, form)
        try:
            value = location.encoding.read(
                RawWeight(tensors, source.encoded_shape, self.stored_format(source, location))
            )
        except ValueError as error:
            raise self._error(location, str(error)) from error
        if isinstance(value, GroupedWeight):
            if form is not None and replace(value.format, ordered=form.ordered) == form:
                if value.order is not None and not form.ordered:
                    raise self._error(
                        location,
                        "has its inputs in another order, but quantization_config does not say so (desc_act, actorder)",
                    )
                return source.ordered_weight(value.in_order() if form.ordered else value)
            value = dequantized(value, dtype)
        return self._rounded(parameter, source.ordered(value), location, dtype, form)

    def _rounded(
        self,
        parameter: Parameter,
        array: Array,
        location: WeightLocation,
        dtype: np.dtype[Any],
        form: WeightFormat | None,
    ) -> Piece:
        converted = parameter.converted(array, dtype)
        if dtype == np.float16 and not np.isfinite(converted).all():
            raise self._error(location, "has values that float16 cannot hold; use --dtype bfloat16 or float32")
        return converted if form is None else quantized(converted, form, f"{self._directory}: {location.name}")

    def _error(self, location: WeightLocation, reason: str) -> ConfigError:
        encoded = "" if location.encoding is None else f" in {location.encoding.title}"
        return ConfigError(
            f"{self._files.file_of(next(iter(location.parts.values())))}: {location.name}{encoded} {reason}"
        )


def _spellings(name: str) -> Iterator[str]:
    """Yield what files may call a tensor: itself, also in models of more than text, and of the bare decoder."""
    inner = name.removeprefix("model.")
    yield from (name, f"language_model.{name}", f"model.language_model.{inner}", f"model.text_model.{inner}")
    yield bare_name(name)


def _pieces(matrix: Array) -> Iterator[Array]:
    return (matrix[first : first + _PIECE] for first in range(0, len(matrix), _PIECE))
