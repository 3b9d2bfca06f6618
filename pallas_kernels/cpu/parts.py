"""The parts of the native kernels, each a shared library. A model needs some of them."""

from dataclasses import dataclass

DTYPES = ("float32", "bfloat16")
"""What the kernels compute with; for others use the ``_ref`` twins."""


@dataclass(frozen=True)
class Unit:
    """A source file that a compiler takes with these definitions."""

    source: str
    definitions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """A library: its units, which compile at the same time, and the handlers that XLA calls in it."""

    units: tuple[Unit, ...]
    handlers: tuple[str, ...]


def _of_element(element: str, dtype: str) -> Part:
    units = Unit(f"{dtype}.cc"), Unit("handlers.cc", (f"-DKERNELS_ELEMENT={element}",))
    return Part(units, ("RaggedPagedAttention", "WriteKV", "PackedProduct", "PackedProductAdded"))


def _of_experts(element: str) -> Part:
    return Part((Unit("experts.cc", (f"-DKERNELS_ELEMENT={element}",)),), ("ExpertProduct",))


def _of_codes(bits: str, *compiled: str) -> Part:
    """Return the part that multiplies codes of these ``bits``.

    ``compiled``: the widths of each further unit: ``bits``, and 8, to which codes are widened for many rows.
    """
    units = (
        Unit("quantized.cc", (f"-DKERNELS_BITS={bits}",)),
        *(Unit("codes.cc", (f"-DKERNELS_BITS={some}",)) for some in compiled),
    )
    return Part(units, ("QuantizedProduct", "QuantizedProductAdded", "QuantizedExpertProduct"))


ELEMENTS = "elements"
"""The part of every model: norms, activations, rotary embedding and zeros, in float32 and bfloat16."""
GATED_DELTA = "gated-delta"
"""The part of models with gated delta nets, in float32 and bfloat16."""
DELTA_MULTIPLE = 16
"""Numbers of a vector, at most: a gated delta net's heads have a multiple of them as values, and spans as positions."""
CONVOLUTION = "convolution"
"""The part of models with short convolutions, in float32 and bfloat16."""
_EIGHT_BITS, _FEWER_BITS = "8-bits", "fewer-bits"
PARTS = {
    "bfloat16": _of_element("Bfloat16", "bfloat16"),
    "float32": _of_element("float", "float32"),
    _FEWER_BITS: _of_codes("2,4,5,6", "5,6,8", "2,4"),
    _EIGHT_BITS: _of_codes("8", "8"),
    "bfloat16-experts": _of_experts("Bfloat16"),
    "float32-experts": _of_experts("float"),
    GATED_DELTA: Part((Unit("gated_delta.cc"),), ("GatedDelta",)),
    ELEMENTS: Part((Unit("elements.cc"),), ("RmsNorm", "LayerNorm", "Activate", "Gated", "RotatedHeads", "Zeros")),
    CONVOLUTION: Part((Unit("short_convolution.cc"),), ("ShortConvolution",)),
}
"""The parts by name; the slowest to compile comes first."""
_BY_BITS = {2: _FEWER_BITS, 4: _FEWER_BITS, 5: _FEWER_BITS, 6: _FEWER_BITS, 8: _EIGHT_BITS}


def part_of_experts(dtype: str) -> str:
    """Return the part that multiplies with experts' weights of a dtype."""
    return f"{dtype}-experts"


def part_of_codes(bits: int) -> str:
    """Return the part that multiplies codes of ``bits`` bits; raises ValueError if there is none."""
    if bits not in _BY_BITS:
        *all_but_last, last = map(str, _BY_BITS)
        raise ValueError(f"codes have neither {', '.join(all_but_last)} nor {last} bits, but {bits}")
    return _BY_BITS[bits]
