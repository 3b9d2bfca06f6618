"""The MLP of a layer: two products with an activation, gated or not."""

from flax import nnx
from jaxtyping import Array, Float

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import LayerKind
from jaxgen.models.linear import Linear, Shape
from jaxgen.models.residual import Residual
from jaxgen.models.walk import LayerContext


class MLP(nnx.Module):
    """down(activation(up(x))), or down(activation(gate(x)) * up(x)), where gate and up are one product."""

    def __init__(self, config: DecoderConfig, kind: LayerKind = "attention", *, rngs: nnx.Rngs, stack: Shape):
        options, width, inner = config.mlp, config.hidden_size, config.inner_of(kind)
        self.config = options
        if options.gated:
            self.gate_up = Linear(width, 2 * inner, bias=options.up_bias, dtype=config.dtype, rngs=rngs, stack=stack)
        else:
            self.up = Linear(width, inner, bias=options.up_bias, dtype=config.dtype, rngs=rngs, stack=stack)
        bias, divided = options.down_bias, config.num_devices > 1
        self.down = Linear(inner, width, bias=bias, dtype=config.dtype, rngs=rngs, stack=stack, divided=divided)

    def __call__(
        self, x: Float[Array, "T D"], at: LayerContext, residual: Float[Array, "T D"] | None, *, joins: bool = False
    ) -> Residual:
        """Return the result, rounded to the dtype of x and then added to ``residual``, if any.

        ``joins``: as of ``Linear.added``.
        """
        num_tokens, activation = at.num_tokens, self.config.activation
        if self.config.gated:
            inner = self.gate_up.gated(x, num_tokens, at.kernels, activation)
        else:
            up = self.up.in_float32(x, num_tokens)
            inner = at.kernels.activate(up, num_tokens, activation=activation, dtype=x.dtype)
        return self.down.added(inner, num_tokens, residual, joins=joins)
