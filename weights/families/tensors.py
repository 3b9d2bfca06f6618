"""How the parameters of a tree are made of the tensors of a checkpoint. Host only, no jax.

A parameter is its sources concatenated along rows and, when it is stacked, this for every layer (and every expert). The
conversion in both directions, and every shape, follow from the table of a model's parameters.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgen.core.mixed_weight import AnyWeight
from jaxgen.core.model_config import DType
from jaxgen.core.quantization import GroupedWeight, Index
from jaxgen.weights.files.safetensors import Array

Piece = Array | GroupedWeight
"""A source, as its part of a parameter."""
Value = Array | AnyWeight
"""A parameter in host memory."""
Place = Callable[[str, Value], Any]
"""A function that puts a parameter, given its dotted path and its value, where programs read it."""


@dataclass(frozen=True)
class Stacked:
    """Where a source of an expert is in files that have a tensor for all experts of a layer.

    ``shape``: [experts, rows, width], or with the last two in the other order. The source is the rows of one expert
    from ``row`` on.
    """

    name: str
    shape: tuple[int, int, int]
    row: int = 0

    @property
    def other_shape(self) -> tuple[int, int, int]:
        """The shape of files that have matrices as [in, out]."""
        return (self.shape[0], self.shape[2], self.shape[1])

    def part(self, array: Array, expert: int, rows: int, *, turned: bool) -> Array:
        """Return a view of an expert's part, of ``rows`` rows, of a tensor for all experts or of its blocks' scales.

        ``turned``: matrices are [in, out]. Raises ValueError for blocks of which a part has rows of another source.
        """
        whole = array[expert].T if turned else array[expert]
        of_rows = len(whole) / self.shape[1]
        ends = self.row * of_rows, (self.row + rows) * of_rows
        if not all(end.is_integer() for end in ends):
            raise ValueError("has blocks of scales in which gates and other rows are mixed")
        return whole[slice(*map(int, ends))]


@dataclass(frozen=True)
class HeadRows:
    """What a source has of a tensor with rows of all heads, one head after another: [heads, count, width].

    ``rows``: of a head in the file, of which the source has ``count`` from ``first`` on. ``turned``: the source has
    these matrices transposed.
    """

    heads: int
    rows: int
    first: int
    count: int
    turned: bool = False

    def part(self, array: Array) -> Array:
        """Return a view of the source's part of the whole tensor."""
        of_heads = array.reshape(self.heads, self.rows, -1)[:, self.first : self.first + self.count]
        return of_heads.swapaxes(1, 2) if self.turned else of_heads

    def shape(self, width: int) -> tuple[int, int, int]:
        """Return the shape of a part, given the width of the file's rows."""
        return (self.heads, width, self.count) if self.turned else (self.heads, self.count, width)


@dataclass(frozen=True)
class Source:
    """A tensor of the checkpoint, and how it is brought into the layout of its parameter. DecoderNames makes them.

    ``name`` has ``{layer}`` in place of a layer's number, and ``{expert}`` in place of an expert's, where there is a
    tensor for each. ``shape``: in the file. ``transposed``: the file has matrices as [in, out]. ``is_filter``: the file
    has filters as [channels, 1, taps], and the parameter is [taps, channels]. ``rows``: the file's row (an output of
    the product) for each row of the parameter; None: they are in the same order. ``stacked``: where files may have it
    instead, ``expert`` being its number there. ``of_heads``: the tensor has rows of several parameters, by head.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool = False
    rows: tuple[int, ...] | None = None
    is_bias: bool = False
    """Whether rows are numbers, not vectors."""
    is_filter: bool = False
    is_row: bool = False
    """Whether the file has a vector as a matrix of one row."""
    stacked: Stacked | None = None
    expert: int = 0
    of_heads: HeadRows | None = None

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """The shape in the parameter."""
        if self.is_filter:
            return (self.shape[2], self.shape[0])
        if self.is_row:
            return self.shape[1:]
        if self.of_heads is not None:
            return self.of_heads.shape(self.shape[1])
        return (*self.shape[:-2], self.shape[-1], self.shape[-2]) if self.transposed else self.shape

    @property
    def encoded_shape(self) -> tuple[int, ...]:
        """The shape of what an encoding gives: as in the parameter, except for rows of several parameters."""
        return self.parameter_shape if self.of_heads is None else self.shape

    def to_parameter(self, array: Array) -> Array:
        """Return the file's tensor as it is in the parameter."""
        if self.is_filter:
            return array[:, 0].T
        if self.is_row:
            return array[0]
        return self.ordered(array.swapaxes(-1, -2) if self.transposed else array)

    def ordered(self, array: Array) -> Array:
        """Return [*experts, out, in], or a bias, with its rows as they are in the parameter."""
        if self.of_heads is not None:
            return self.of_heads.part(array)
        return array if self.rows is None else np.take(array, self._order, axis=self._axis)

    def ordered_weight(self, weight: GroupedWeight) -> GroupedWeight:
        """Return a weight with its rows as they are in the parameter."""
        return weight if self.rows is None else weight.take(self._order)

    def to_file(self, array: Array) -> Array:
        """Return a part of the parameter as the tensor of a file: the inverse of ``to_parameter``."""
        if self.is_filter:
            return array.T[:, None]
        if self.is_row:
            return array[None]
        if self.rows is not None:
            array = np.take(array, np.argsort(self._order), axis=self._axis)
        return array.swapaxes(-1, -2) if self.transposed else array

    @cached_property
    def _order(self) -> npt.NDArray[np.intp]:
        return np.asarray(self.rows, np.intp)

    @property
    def _axis(self) -> int:
        return -1 if self.is_bias else -2 if len(self.shape) > 1 else -1


@dataclass(frozen=True)
class Parameter:
    """A parameter of the tree: ``sources`` concatenated along their rows, stacked over layers and experts, if any.

    ``plus``: added to all values, in float32 (norms that are stored as what is added to 1). ``dtype``: None: that of
    the model. ``numbers``: those of the stack's layers in the model, where the model has other layers too. ``unused``:
    modules of these layers that files may have, of which nothing is made.
    """

    path: str
    sources: tuple[Source, ...]
    num_layers: int | None = None
    num_experts: int | None = None
    plus: float = 0.0
    dtype: DType | None = None
    numbers: tuple[int, ...] = ()
    unused: tuple[str, ...] = ()

    def number(self, layer: int) -> int:
        """Return the number in the model of a layer of the stack."""
        return self.numbers[layer] if self.numbers else layer

    @property
    def shape(self) -> tuple[int, ...]:
        rows = sum(source.parameter_shape[self._rows_axis] for source in self.sources)
        stack = tuple(size for size in (self.num_layers, self.num_experts) if size is not None)
        return (*stack, rows, *self.sources[0].parameter_shape[self._rows_axis + 1 :])

    @property
    def _rows_axis(self) -> int:
        """The axis of a source that has its rows: the second if the first has all experts."""
        return 0 if self.num_experts is None or "{expert}" in self.sources[0].name else 1

    def named(self, source: Source, layer: int, expert: int) -> Source:
        """Return the source with its name for that layer and expert."""
        stacked = source.stacked and replace(source.stacked, name=source.stacked.name.format(layer=layer))
        name = source.name.format(layer=layer, expert=expert)
        return replace(source, name=name, stacked=stacked, expert=expert)

    def pieces(self) -> Iterator[tuple[Source, Index]]:
        """Yield every tensor of the parameter, with its index in the parameter."""
        by_expert = self.num_experts is not None and self._rows_axis == 0
        for layer in range(self.num_layers or 1):
            for expert in range(self.num_experts or 1) if by_expert else (0,):
                start = 0
                for source in self.sources:
                    rows = slice(start, start := start + source.parameter_shape[self._rows_axis])
                    of_layer: Index = () if self.num_layers is None else (layer,)
                    of_expert: Index = () if self.num_experts is None else ((expert if by_expert else slice(None)),)
                    yield self.named(source, self.number(layer), expert), (*of_layer, *of_expert, rows)

    def converted(self, array: Array, dtype: npt.DTypeLike) -> Array:
        """Return a source, in the parameter's layout, as its part of the parameter, in ``dtype``."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.plus:
                array = array.astype(np.float32) + np.float32(self.plus)
            return array.astype(dtype, copy=False)

    def saved(self, source: Source, part: Array) -> Array:
        """Return a part of the parameter as the tensor of a file, of which loading makes this part."""
        return source.to_file(part.astype(np.float32) - np.float32(self.plus) if self.plus else part)


def to_checkpoint(params: Mapping[str, Array], table: tuple[Parameter, ...]) -> dict[str, Array]:
    """Return the tree's arrays as the tensors of a Hugging Face checkpoint, by name; views where the layout allows."""
    result: dict[str, Array] = {}
    for parameter in table:
        for source, index in parameter.pieces():
            part = params[parameter.path][index]
            if source.of_heads is None:
                result[source.name] = parameter.saved(source, part)
            else:
                whole = result.setdefault(source.name, np.empty(source.shape, part.dtype))
                source.of_heads.part(whole)[...] = part
    return result
