"""Define encodings of weights: the tensors of a checkpoint that stand for a matrix. Host only, no jax."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from jaxgen.core.quantization import GroupedWeight, WeightFormat
from jaxgen.weights.files.safetensors import Array, SafetensorsFiles, Tensor

ORDER = "order"
"""The part that says of which group each input is, where inputs have an order."""
PLAIN_DTYPES = ("F32", "BF16", "F16")
"""Of weights without an encoding."""
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RawWeight:
    """A weight as it is stored, which CheckpointTensors gives to its encoding.

    It has its tensors by part, its shape, and the format that it is kept in, if any.
    """

    tensors: Mapping[str, Array]
    shape: Shape
    form: WeightFormat | None

    @property
    def kept_form(self) -> WeightFormat:
        """The format in which it is kept."""
        assert self.form is not None
        return self.form


class Encoding(Protocol):
    """A way to store weights as other tensors than themselves; CheckpointTensors calls it for each weight.

    ``title``: what people call it, with the bits: int4 (AWQ). ``unread``: names of tensors that may be there too and
    change nothing here. Methods raise ValueError that says what is wrong with the tensors.
    """

    @property
    def title(self) -> str: ...

    @property
    def unread(self) -> re.Pattern[str] | None: ...

    def parts(self, name: str, files: SafetensorsFiles) -> dict[str, str] | None:
        """Return the names of the tensors that the weight ``name`` is made of, by part; None: it is not stored so.

        They need not all be there: of one that is missing, the caller says so.
        """

    def kept_as(self, headers: Mapping[str, Tensor], shape: Shape) -> WeightFormat | None:
        """Return the format in which a weight of this shape, [*experts, out, in], is kept; None: it is dequantised.

        Its inputs have an order if the checkpoint's configuration says so: what is in the tensors, the caller sees.
        """

    def read(self, raw: "RawWeight") -> Array | GroupedWeight:
        """Return the weight in its shape and in the format that it is kept in, except for the order."""


def stem(name: str) -> str:
    """Return the name of the module that has this weight."""
    return name.removesuffix(".weight")


def matrix(shape: Shape) -> tuple[int, int]:
    """Return outputs and inputs. Raises ValueError for what is not a matrix."""
    if len(shape) != 2:
        raise ValueError(f"is not a matrix, but {list(shape)} in one tensor, which is supported in MXFP4 only")
    return shape[0], shape[1]


def first(shape: Shape, axis: int = 0) -> int:
    """Return the size along an axis, or 0 if there is none."""
    return shape[axis] if len(shape) > axis else 0


def expect(part: str, found: Tensor, dtypes: tuple[str, ...], *shapes: Shape) -> None:
    """Raise ValueError unless a tensor has one of the dtypes and one of the shapes."""
    if found.dtype not in dtypes or found.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in dict.fromkeys(shapes))
        raise ValueError(
            f"has {part} of dtype {found.dtype} and shape {list(found.shape)}; they must be "
            f"{' or '.join(dtypes)} and {wanted}"
        )
