"""The native kernels of layers with a state, as functions on arrays."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.cpu.handlers import Handlers, check_dtypes
from pallas_kernels.cpu.parts import CONVOLUTION, GATED_DELTA
from pallas_kernels.gated_delta import DeltaState


class StateKernels(Handlers):
    """The kernels of layers with a state, each with the signature of its ``_ref`` twin."""

    def gated_delta(
        self,
        x: Float[Array, "T N"],
        a: Float[Array, "T H"],
        b: Float[Array, "T H"],
        a_log: Float[Array, "H"],
        dt_bias: Float[Array, "H"],
        state: DeltaState,
        layer: Int[Array, ""],
        query_starts: Int[Array, "R1"],
        context_lens: Int[Array, "R"],
        rows: Int[Array, "R"],
        num_rows: Int[Array, ""],
    ) -> tuple[Float[Array, "T H Dv"], DeltaState]:
        """Compute ``gated_delta_ref``, of x in float32 or bfloat16, in place where the state is donated or a loop's
        carry.

        Raises ValueError for other dtypes. Values and spans must fill vectors of 16 numbers. A token's bits depend on
        its sequence up to it and the layer's weights alone.
        """
        check_dtypes(x)
        _, _, H, _, Dv = state.starts.shape
        results = [jax.ShapeDtypeStruct((len(x), H, Dv), x.dtype)]
        results += [jax.ShapeDtypeStruct(part.shape, part.dtype) for part in state]
        call = jax.ffi.ffi_call(
            self._target(GATED_DELTA, "GatedDelta"),
            results,
            input_output_aliases={5 + part: 1 + part for part in range(len(state))},
        )
        a, b, a_log, dt_bias = (array.astype(jnp.float32) for array in (a, b, a_log, dt_bias))
        out, *after = call(x, a, b, a_log, dt_bias, *state, layer, query_starts, context_lens, rows, num_rows)
        return out, DeltaState(*after)

    def short_convolution(
        self,
        projected: Float[Array, "T N"],
        taps: Float[Array, "K D"],
        bias: Float[Array, "D"] | None,
        states: Float[Array, "S L M D"],
        layer: Int[Array, ""],
        query_starts: Int[Array, "R1"],
        context_lens: Int[Array, "R"],
        rows: Int[Array, "R"],
        num_rows: Int[Array, ""],
    ) -> tuple[Float[Array, "T D"], Float[Array, "S L M D"]]:
        """Compute ``short_convolution_ref``, in float32 or bfloat16; raises ValueError for other dtypes.

        States are updated in place where they are donated or a loop's carry. Tokens of no chunk cost nothing.
        """
        bias = jnp.zeros(0, projected.dtype) if bias is None else bias
        check_dtypes(projected, taps, bias, states)
        call = jax.ffi.ffi_call(
            self._target(CONVOLUTION, "ShortConvolution"),
            (
                jax.ShapeDtypeStruct((len(projected), taps.shape[1]), projected.dtype),
                jax.ShapeDtypeStruct(states.shape, states.dtype),
            ),
            input_output_aliases={3: 1},
        )
        out, states = call(projected, taps, bias, states, layer, query_starts, context_lens, rows, num_rows)
        return out, states
