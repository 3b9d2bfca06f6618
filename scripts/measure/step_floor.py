"""What a step of a model must move and multiply at least, and how long this machine takes for that."""

from dataclasses import dataclass
from math import prod

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import path_without_stack
from jaxgen.core.model_config import ITEMSIZE
from jaxgen.weights.families.parameters import parameters

EXPERTS, EMBED, HEAD = "layers.mlp.experts.", "embed.weight", "lm_head.weight"


@dataclass(frozen=True)
class Floor:
    """Bytes that are read and FLOPs of one step."""

    num_bytes: float
    flops: float


def step_floor(model: DecoderConfig, *, rows: int, context: int, chunk: int) -> Floor:
    """Return the floor of ``rows`` decodes at a context and a prompt's ``chunk`` tokens, without small parts.

    Each weight is read once, those of experts if one of the tokens is expected to choose them; K and V of each context,
    and the state of each sequence, are read once; the head multiplies one token of each sequence. Windows are not
    counted, nor is the arithmetic of layers without attention between their products.
    """
    tokens, samples = rows + chunk, rows + (chunk > 0)
    moe = model.moe
    share = 1.0 if moe is None else moe.per_token / moe.experts
    num_bytes = flops = 0.0
    for parameter in parameters(model):
        size = prod(parameter.shape)
        itemsize = ITEMSIZE[parameter.dtype or model.dtype]
        is_head = parameter.path == (EMBED if model.head.tied else HEAD)
        if path_without_stack(parameter.path).startswith(EXPERTS):
            num_bytes += size * itemsize * (1.0 - (1.0 - share) ** tokens)
            flops += 2.0 * size * tokens * share
        elif is_head or parameter.path != EMBED:
            num_bytes += size * itemsize
            flops += 2.0 * size * (samples if is_head else tokens)
    pairs = rows * context + chunk * (chunk + 1) / 2
    flops += 4.0 * (model.num_layers - len(model.state_layers)) * model.num_heads * model.head_dim * pairs
    num_bytes += rows * (context * CacheFormat.of(model, 1).kv_bytes + model.state_bytes)
    return Floor(num_bytes, flops)
