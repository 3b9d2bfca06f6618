"""Weights in different formats per layer, or per slice of a layer's outputs, in host memory. Host only, no jax.

Layers, or outputs, that a checkpoint has not quantised are numbers next to the codes of others.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from jaxgen.core.plain_weight import PlainFormat, PlainWeight
from jaxgen.core.quantization import GroupedWeight, Index, WeightFormat

Shape = tuple[int, ...]
DTypeName = Literal["float32", "bfloat16", "float16"]
PartFormat = WeightFormat | PlainFormat
PartWeight = GroupedWeight | PlainWeight


class Part(NamedTuple):
    """``outputs`` consecutive outputs of a matrix in one format."""

    form: PartFormat
    outputs: int


Kind = tuple[Part, ...]
"""How a layer's matrices are kept: the parts of their outputs, in order."""


@dataclass(frozen=True, slots=True)
class MixedFormat:
    """A weight [L, *experts, O, I] of a few kinds of layers. ``layers``: the number of each layer's kind in ``kinds``.

    Layers of one kind are a stack of their own, or one for each part.
    """

    kinds: tuple[Kind, ...]
    layers: tuple[int, ...]

    @classmethod
    def of_pieces(
        cls, pieces: Iterable[tuple[Index, WeightFormat | None]], plain: PlainFormat | None = None
    ) -> "AnyFormat | None":
        """Return the format of a weight of outputs in these formats, each with its place: ([layer, expert,] outputs).

        ``plain``: of outputs without a format, and of a layer whose experts differ in format. Returns None if there are
        only such, or if experts differ and ``plain`` is None.
        """
        layers: dict[Index, dict[int, Part]] = {}
        differ: set[Index] = set()
        for place, given in pieces:
            layer, outputs, form = place[:-1][:1], place[-1], plain if given is None else given
            assert isinstance(outputs, slice)
            assert form is not None
            part = Part(form, outputs.stop - outputs.start)
            if layers.setdefault(layer, {}).setdefault(outputs.start, part) != part:
                differ.add(layer)
        for layer in differ:
            if plain is None:
                return None
            layers[layer] = {start: Part(plain, part.outputs) for start, part in layers[layer].items()}
        if all(part.form == plain for parts in layers.values() for part in parts.values()):
            return None
        return cls.of_layers([tuple(parts.values()) for parts in layers.values()])

    @classmethod
    def of_layers(cls, layers: Sequence[Sequence[Part]]) -> "AnyFormat":
        """Return the format of layers with these parts; a WeightFormat where all parts have the same."""
        joined = [
            tuple(
                Part(form, sum(part.outputs for part in parts))
                for form, parts in groupby(layer, lambda part: part.form)
            )
            for layer in layers
        ]
        kinds = tuple(dict.fromkeys(joined))
        form = kinds[0][0].form
        if len(kinds) == len(kinds[0]) == 1 and isinstance(form, WeightFormat):
            return form
        return cls(kinds, tuple(map(kinds.index, joined)))

    @property
    def forms(self) -> tuple[WeightFormat, ...]:
        """The formats of all parts that are codes."""
        forms = (part.form for kind in self.kinds for part in kind)
        return tuple(dict.fromkeys(form for form in forms if isinstance(form, WeightFormat)))

    @property
    def plain_layers(self) -> list[int]:
        """The layers in which some outputs are numbers."""
        plain = [any(isinstance(part.form, PlainFormat) for part in kind) for kind in self.kinds]
        return [layer for layer, kind in enumerate(self.layers) if plain[kind]]

    @property
    def outputs(self) -> int:
        """Outputs of a layer's matrix."""
        return sum(part.outputs for part in self.kinds[0])

    def placed(self, *, integers: Sequence[int], floats: bool) -> "MixedFormat | None":
        """See ``WeightFormat.placed``; None if a part must be dequantized."""
        kinds: list[Kind] = []
        for kind in self.kinds:
            placed = [(part.form.placed(integers=integers, floats=floats), part.outputs) for part in kind]
            parts = [Part(form, outputs) for form, outputs in placed if form is not None]
            if len(parts) < len(kind):
                return None
            kinds.append(tuple(parts))
        return MixedFormat(tuple(kinds), self.layers)

    def in_dtype(self, dtype: DTypeName) -> "MixedFormat":
        """Return the format whose numbers have this dtype, that of the model."""
        plain = PlainFormat(dtype)
        kinds = (
            tuple(Part(plain, part.outputs) if isinstance(part.form, PlainFormat) else part for part in kind)
            for kind in self.kinds
        )
        return MixedFormat(tuple(kinds), self.layers)

    def at(self, place: Index) -> PartFormat:
        """Return the format of outputs of a layer, as ``place`` has them: (layer, ..., slice of outputs)."""
        layer, *_, outputs = place
        assert isinstance(layer, int)
        part, _ = _part_of(self.kinds[self.layers[layer]], outputs)
        return self.kinds[self.layers[layer]][part].form

    def shapes(self, shape: Shape) -> tuple[tuple[tuple[PartFormat, Shape], ...], ...]:
        """Return format and shape of each part of each kind, of a weight [L, *experts, O, I]."""
        _, *experts, _, inputs = shape
        return tuple(
            tuple((part.form, (self.layers.count(number), *experts, part.outputs, inputs)) for part in kind)
            for number, kind in enumerate(self.kinds)
        )

    def num_bytes(self, shape: Shape) -> int:
        """See ``WeightFormat.num_bytes``."""
        return sum(form.num_bytes(size) for kind in self.shapes(shape) for form, size in kind)

    def arrays(self, shape: Shape) -> dict[str, tuple[Shape, np.dtype[np.generic]]]:
        """See ``WeightFormat.arrays``; names begin with the numbers of kind and part, such as 0.1.codes."""
        return {
            f"{number}.{part}.{name}": shape_and_dtype
            for number, kind in enumerate(self.shapes(shape))
            for part, (form, size) in enumerate(kind)
            for name, shape_and_dtype in form.arrays(size).items()
        }


@dataclass(frozen=True, slots=True)
class MixedWeight:
    """A parameter in a MixedFormat, in host memory. ``kinds``: by kind, the weight [layers, *experts, outputs, I] of
    each part."""

    format: MixedFormat
    kinds: tuple[tuple[PartWeight, ...], ...]

    @classmethod
    def empty(cls, form: MixedFormat, shape: Shape) -> Self:
        """Return a weight [L, *experts, O, I] whose arrays have no values yet."""
        return cls(form, tuple(tuple(empty_part(*part) for part in kind) for kind in form.shapes(shape)))

    @property
    def shape(self) -> Shape:
        """The shape of the weight, [L, *experts, O, I]."""
        _, *experts, _, inputs = self.kinds[0][0].shape
        return (len(self.format.layers), *experts, self.format.outputs, inputs)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for kind in self.kinds for part in kind)

    def arrays(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        """Yield all arrays by the names of ``MixedFormat.arrays``."""
        for number, kind in enumerate(self.kinds):
            for place, part in enumerate(kind):
                yield from ((f"{number}.{place}.{name}", array) for name, array in part.arrays())

    def as_placed(self, form: MixedFormat) -> "MixedWeight":
        """Return the same weight in the format that ``MixedFormat.placed`` has given."""

        def placed(part: Any, to: Part) -> PartWeight:
            result: PartWeight = part.as_placed(to.form)
            return result

        kinds = zip(self.kinds, form.kinds, strict=True)
        return MixedWeight(form, tuple(tuple(map(placed, kind, parts)) for kind, parts in kinds))

    def __setitem__(self, place: Index, part: Any) -> None:
        """Put outputs of a layer at their place: (layer, ..., slice of outputs)."""
        layer, *experts, outputs = place
        assert isinstance(layer, int)
        kind, index = place_of(self.format.layers, layer)
        number, inside = _part_of(self.format.kinds[kind], outputs)
        self.kinds[kind][number][index, *experts, inside] = part

    def dequantized(self, index: Index = ()) -> npt.NDArray[np.float32]:
        """Return the numbers [L, *experts, O, I], or those of one matrix of the stack."""
        if not index:
            return np.stack([self.dequantized((layer,)) for layer in range(len(self.format.layers))])
        layer, *experts = index
        assert isinstance(layer, int)
        kind, place = place_of(self.format.layers, layer)
        return np.concatenate([part.dequantized((place, *experts)) for part in self.kinds[kind]], axis=-2)


AnyFormat = WeightFormat | MixedFormat
AnyWeight = GroupedWeight | MixedWeight


def empty_weight(form: AnyFormat, shape: Shape) -> AnyWeight:
    """Return a weight [*stack, O, I] whose arrays have no values yet."""
    return MixedWeight.empty(form, shape) if isinstance(form, MixedFormat) else GroupedWeight.empty(form, shape)


def empty_part(form: PartFormat, shape: Shape) -> PartWeight:
    """Return a part of a weight whose arrays have no values yet."""
    return PlainWeight.empty(form, shape) if isinstance(form, PlainFormat) else GroupedWeight.empty(form, shape)


def place_of(layers: tuple[int, ...], layer: int) -> tuple[int, int]:
    """Return the kind of a layer, and its place among those of that kind. ``layers``: the kind of each."""
    return layers[layer], layers[:layer].count(layers[layer])


def _part_of(kind: Kind, outputs: Any) -> tuple[int, slice]:
    """Return the number of the part that has these outputs of a matrix, and where it has them."""
    start = 0
    for number, part in enumerate(kind):
        if outputs.start < start + part.outputs:
            assert outputs.stop <= start + part.outputs, "a source has one format"
            return number, slice(outputs.start - start, outputs.stop - start)
        start += part.outputs
    raise IndexError(outputs)
