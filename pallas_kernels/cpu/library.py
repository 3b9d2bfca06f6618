"""The native kernels of shared libraries, as functions on arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Num

from pallas_kernels.activations import ACTIVATIONS, GATED, check_activation
from pallas_kernels.cpu.handlers import check_dtypes, open_parts
from pallas_kernels.cpu.parts import DTYPES as DTYPES  # next to the code that computes with them
from pallas_kernels.cpu.parts import ELEMENTS, part_of_codes, part_of_experts
from pallas_kernels.cpu.state_kernels import StateKernels
from pallas_kernels.kv_codes import has_codes
from pallas_kernels.quantized_product import GroupedCodes, quantized_expert_product_ref, quantized_product_ref
from pallas_kernels.rotary import Angles

_NO_WINDOW = 2**31 - 1
"""Tokens in a window that no context is longer than."""


_libraries: dict["Library", "Library"] = {}
"""Each that was opened: its kernels equal those of itself alone, and programs of equal kernels are equal."""


@dataclass(frozen=True)
class Library(StateKernels):
    """The kernels of some parts, each with the signature of its ``_ref`` twin; layers with a state have theirs from
    StateKernels."""

    def ragged_paged_attention(
        self,
        q: Float[Array, "T H D"],
        cache: Num[Array, "N L P K B W"],
        layer: Int[Array, ""],
        block_tables: Int[Array, "R M"],
        query_starts: Int[Array, "R1"],
        context_lens: Int[Array, "R"],
        num_rows: Int[Array, ""],
        num_decodes: Int[Array, ""],
        *,
        scale: float,
        window: int | Int[Array, ""] | None = None,
        soft_cap: float | None = None,
        sinks: Float[Array, "H"] | None = None,
        value_dim: int | None = None,
    ) -> Float[Array, "T H V"]:
        """Compute ``ragged_paged_attention_ref`` in float32 or bfloat16.

        Raises ValueError for other dtypes, and for a window or a cap that is not positive. A traced window that is not
        positive ends the program's run.

        A query token's bits depend on its own q, its context, its head's sink, ``scale``, ``window`` and ``soft_cap``
        alone. They do not depend on the rest of the batch, its chunk, any shape, the blocks, or the threads.
        Cache slots past a context are not read. Tokens past ``query_starts[num_rows]`` cost nothing.
        Products are summed in float32; in bfloat16 softmax weights are rounded to bfloat16, as the twin does.
        """
        del num_decodes  # a decode is a chunk of one
        check_dtypes(q, *([] if has_codes(cache.dtype) else [cache]))
        if soft_cap is not None and not soft_cap > 0:
            raise ValueError(f"soft_cap is {soft_cap}, must be positive")
        out = jax.ShapeDtypeStruct((*q.shape[:2], value_dim or q.shape[2]), q.dtype)
        call = jax.ffi.ffi_call(self._target(q.dtype.name, "RaggedPagedAttention"), out)
        return call(
            *(q, cache, layer, block_tables, query_starts, context_lens, num_rows, _window(window)),
            *([] if sinks is None else [sinks.astype(jnp.float32)]),
            scale=np.float32(scale),
            soft_cap=np.float32(0 if soft_cap is None else soft_cap),
        )

    def write_kv(
        self,
        cache: Num[Array, "N L P K B W"],
        layer: Int[Array, ""],
        k: Float[Array, "T K D"],
        v: Float[Array, "T K D"] | None,
        slots: Int[Array, "T"],
    ) -> Num[Array, "N L P K B W"]:
        """Compute ``write_kv_ref``, in place where the cache is donated or a loop's carry; raises ValueError for
        dtypes."""
        v = k if v is None else v  # of a cache of one part they are not read
        if not has_codes(cache.dtype):
            k, v = k.astype(cache.dtype), v.astype(cache.dtype)
        check_dtypes(k, v)
        call = jax.ffi.ffi_call(
            self._target(k.dtype.name, "WriteKV"),
            jax.ShapeDtypeStruct(cache.shape, cache.dtype),
            input_output_aliases={0: 0},
        )
        return call(cache, layer, k, v, slots)

    def packed_product(
        self,
        x: Float[Array, "T I"],
        packed: Float[Array, "L P U N E"],
        layer: Int[Array, ""],
        num_tokens: Int[Array, ""],
        residual: Float[Array, "T O"] | None = None,
        *,
        out_features: int,
        dtype: DTypeLike = jnp.float32,
    ) -> Float[Array, "T O"]:
        """Compute ``packed_product_ref``, in float32 or bfloat16; raises ValueError for other dtypes, and where
        the residual's is not the result's.

        A row's bits depend on that row and the weight alone: each output is one chain of float32 additions over the
        inputs in order. Rows from ``num_tokens`` on cost nothing.
        """
        out = jax.ShapeDtypeStruct((x.shape[0], out_features), jnp.dtype(dtype))
        check_dtypes(x, packed, *([] if out.dtype == jnp.float32 else [out]))
        check_dtypes(out, *([] if residual is None else [residual]))
        x = _in_units(x, packed)
        if residual is None:
            return jax.ffi.ffi_call(self._target(x.dtype.name, "PackedProduct"), out)(x, packed, layer, num_tokens)
        return jax.ffi.ffi_call(self._target(x.dtype.name, "PackedProductAdded"), out)(
            x, packed, layer, num_tokens, residual
        )

    def expert_product(
        self,
        x: Float[Array, "S I"],
        packed: Float[Array, "L E P U N J"],
        layer: Int[Array, ""],
        starts: Int[Array, "E1"],
        *,
        out_features: int,
        dtype: DTypeLike = jnp.float32,
    ) -> Float[Array, "S O"]:
        """Compute ``packed_expert_product_ref``, in float32 or bfloat16; raises ValueError for other dtypes.

        A row's bits are those of ``packed_product`` with its expert's weight. Each panel of an expert's weight is read
        once for up to 96 rows; experts without rows and rows from ``starts[-1]`` on cost nothing.
        """
        out = jax.ShapeDtypeStruct((x.shape[0], out_features), jnp.dtype(dtype))
        check_dtypes(x, packed, *([] if out.dtype == jnp.float32 else [out]))
        return jax.ffi.ffi_call(self._target(part_of_experts(x.dtype.name), "ExpertProduct"), out)(
            _in_units(x, packed), packed, layer, starts
        )

    def quantized_product(
        self,
        x: Float[Array, "T I"],
        weight: GroupedCodes,
        layer: Int[Array, ""],
        num_tokens: Int[Array, ""],
        residual: Float[Array, "T O"] | None = None,
        *,
        bits: int,
        group: int,
        out_features: int,
        dtype: DTypeLike = jnp.float32,
        exact_inputs: bool = False,
    ) -> Float[Array, "T O"]:
        """Compute ``quantized_product_ref``, of x in float32 or bfloat16 to one of them; raises ValueError for
        other dtypes, and where the residual's is not the result's. With ``exact_inputs`` it is the twin.

        A row's bits depend on that row and the weight alone, as ``packed_product``'s; a value that is not finite makes
        its own row NaN. Rows from ``num_tokens`` on cost nothing.
        """
        if exact_inputs:
            return quantized_product_ref(
                *(x, weight, layer, num_tokens, residual),
                bits=bits,
                group=group,
                out_features=out_features,
                dtype=dtype,
                exact_inputs=True,
            )
        out = jax.ShapeDtypeStruct((x.shape[0], out_features), jnp.dtype(dtype))
        check_dtypes(x)
        check_dtypes(out, *([] if residual is None else [residual]))
        handler = "QuantizedProduct" if residual is None else "QuantizedProductAdded"
        call = jax.ffi.ffi_call(self._target(part_of_codes(bits), handler), out)
        added = [] if residual is None else [residual]
        return call(x, *_operands(weight), layer, num_tokens, *added, bits=bits, group=group)

    def quantized_expert_product(
        self,
        x: Float[Array, "S I"],
        weight: GroupedCodes,
        layer: Int[Array, ""],
        starts: Int[Array, "E1"],
        *,
        bits: int,
        group: int,
        out_features: int,
        dtype: DTypeLike = jnp.float32,
        exact_inputs: bool = False,
    ) -> Float[Array, "S O"]:
        """Compute ``quantized_expert_product_ref``, with the types and the twin of ``quantized_product``.

        A row's bits are those of ``quantized_product`` with its expert's weight. Experts without rows and rows from
        ``starts[-1]`` on cost nothing.
        """
        if exact_inputs:
            return quantized_expert_product_ref(
                *(x, weight, layer, starts),
                bits=bits,
                group=group,
                out_features=out_features,
                dtype=dtype,
                exact_inputs=True,
            )
        out = jax.ShapeDtypeStruct((x.shape[0], out_features), jnp.dtype(dtype))
        for array in (x, out):
            check_dtypes(array)
        call = jax.ffi.ffi_call(self._target(part_of_codes(bits), "QuantizedExpertProduct"), out)
        return call(x, *_operands(weight), layer, starts, bits=bits, group=group)

    def rms_norm(
        self, x: Float[Array, "T D"], weight: Float[Array, "D"], num_tokens: Int[Array, ""], *, eps: float
    ) -> Float[Array, "T D"]:
        """Compute ``rms_norm_ref``, in float32 or bfloat16; raises ValueError for other dtypes. Rows from
        ``num_tokens`` on cost nothing."""
        check_dtypes(x, *([] if weight.dtype == jnp.float32 else [weight]))
        call = jax.ffi.ffi_call(self._target(ELEMENTS, "RmsNorm"), jax.ShapeDtypeStruct(x.shape, x.dtype))
        return call(x, weight, num_tokens, eps=np.float32(eps))

    def layer_norm(
        self,
        x: Float[Array, "T D"],
        weight: Float[Array, "D"] | None,
        bias: Float[Array, "D"] | None,
        num_tokens: Int[Array, ""],
        *,
        eps: float,
    ) -> Float[Array, "T D"]:
        """Compute ``layer_norm_ref``, in float32 or bfloat16, with a weight that has the dtype of x or float32; raises
        ValueError for other dtypes. Rows from ``num_tokens`` on cost nothing."""
        weight = jnp.ones(x.shape[1:], x.dtype) if weight is None else weight
        bias = jnp.zeros(x.shape[1:], x.dtype) if bias is None else bias
        check_dtypes(x, bias, *([] if weight.dtype == jnp.float32 else [weight]))
        bias = bias.astype(weight.dtype)
        call = jax.ffi.ffi_call(self._target(ELEMENTS, "LayerNorm"), jax.ShapeDtypeStruct(x.shape, x.dtype))
        return call(x, weight, bias, num_tokens, eps=np.float32(eps))

    def activate(
        self, x: Float[Array, "T F"], num_tokens: Int[Array, ""], *, activation: str, dtype: DTypeLike
    ) -> Float[Array, "T F"]:
        """Compute ``activate_ref``, to float32 or bfloat16; raises ValueError for other dtypes. Rows from
        ``num_tokens`` on cost nothing."""
        check_activation(activation, ACTIVATIONS)
        return self._activate("Activate", x, num_tokens, x.shape[1], activation, dtype)

    def gated(
        self, gate_up: Float[Array, "T FF"], num_tokens: Int[Array, ""], *, activation: str, dtype: DTypeLike
    ) -> Float[Array, "T F"]:
        """Compute ``gated_ref``, to float32 or bfloat16; raises ValueError for other dtypes. Rows from ``num_tokens``
        on cost nothing."""
        check_activation(activation, GATED)
        return self._activate("Gated", gate_up, num_tokens, gate_up.shape[1] // 2, activation, dtype)

    def _activate(
        self, handler: str, x: Array, num_tokens: Array, width: int, activation: str, dtype: DTypeLike
    ) -> jax.Array:
        out = jax.ShapeDtypeStruct((x.shape[0], width), jnp.dtype(dtype))
        check_dtypes(out)
        return jax.ffi.ffi_call(self._target(ELEMENTS, handler), out)(x, num_tokens, activation=activation)

    def rotated_heads(
        self,
        x: Float[Array, "T N"],
        angles: Angles | None,
        num_tokens: Int[Array, ""],
        *,
        first: int,
        heads: int,
        head_dim: int,
    ) -> Float[Array, "T H D"]:
        """Compute ``rotated_heads_ref``, in float32 or bfloat16; raises ValueError for other dtypes. Rows from
        ``num_tokens`` on cost nothing."""
        check_dtypes(x)
        T = len(x)
        cos, sin = (jnp.zeros((T, 0)),) * 2 if angles is None else (part.reshape(T, -1) for part in angles)
        out = jax.ShapeDtypeStruct((T, heads, head_dim), x.dtype)
        return jax.ffi.ffi_call(self._target(ELEMENTS, "RotatedHeads"), out)(x, cos, sin, num_tokens, first=first)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        """Return zeros like ``jnp.zeros``, without writing: a page of the array takes memory from the first write to it
        on."""
        return jax.ffi.ffi_call(self._target(ELEMENTS, "Zeros"), jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)))()

    @classmethod
    def open(cls, files: Mapping[str, tuple[Path, str]], compiler: str = "") -> "Library":
        """Load parts into this process. ``files``: by part, its shared library and its digest."""
        library = cls(*open_parts(files), compiler)
        return _libraries.setdefault(library, library)


def _in_units(x: Float[Array, "T I"], packed: Float[Array, "*stack P U N E"]) -> Float[Array, "T J"]:
    """x with as many inputs as the packed weight has, the last of them zeros."""
    *_, U, _, E = packed.shape
    return jnp.pad(x, ((0, 0), (0, U * E - x.shape[1])))


def _operands(weight: GroupedCodes) -> list[Array]:
    """All parts; one that the weight does not have is empty."""
    return [jnp.zeros(0, jnp.uint8) if part is None else part for part in weight]


def _window(window: int | Array | None) -> Array:
    """The operand: how many tokens a query sees."""
    if window is None:
        return jnp.int32(_NO_WINDOW)
    if isinstance(window, int):
        if window < 1:
            raise ValueError(f"window is {window}, must be positive")
        return jnp.int32(min(window, _NO_WINDOW))
    return window.astype(jnp.int32)
