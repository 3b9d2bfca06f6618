"""Tell tensors of checkpoints that no family computes with: buffers, and what training left. Host only, no jax."""

import re
from collections.abc import Iterable

NOT_FLOATS = ("BOOL", "I64")
"""Dtypes of positions, masks and counts. No encoding stores numbers of a weight so."""
_ROTATIONS = r"(.*\.)?(rotary\w*|rope|\w*inv_freq|(cos|sin|freqs)(_?cis|_?cache|_?cached|_?cos|_?sin)?)(\..*)?"
"""Frequencies, cosines and sines, which follow from config.json: rotary_emb.inv_freq, rotary_emb.cos_cached."""
_MASKS = r"(.*\.)?((self_?)?att(n|ention)\.(bias|masked_bias)|\w*(causal|attn|attention)_mask|masked_bias|tril)"
"""Which tokens attend to which: the biases of products belong to their own modules, so attn.bias is a mask."""
_PLACES = r"(.*\.)?(position_ids|token_type_ids|cache_position|num_batches_tracked|version|_float_tensor)"
_SCALES = r".*\.([qkv]|kv|qkv|prob)((_proj\.|_)output)?_(scale|zero_point)"
"""Of a quantised KV cache, and of attention in FP8: here the cache's scales are those of its own values."""
_OBSERVERS = r".*\.((input|output|softmax|[qkv]_bmm)_quantizer\._amax|activation_post_process\..*)"
_STATES = r"(.*\.)?_extra_state"
"""What modules of TransformerEngine keep next to their weights."""
_OTHER_HEADS = r"((pretrained_)?model\.)?(?P<part>mtp\w*|v_head|value_head)\..*"
"""Of tokens further on, and of the value that reinforcement learning estimates."""
_NAMES = re.compile(
    "|".join((_ROTATIONS, _MASKS, _PLACES, _SCALES, _OBSERVERS, _STATES, _OTHER_HEADS)),
    re.IGNORECASE,
)
_NOT_TEXT = re.compile(
    r"(model\.)?"
    r"(?P<part>vision_tower|vision_model|visual|multi_modal_projector|connector|mlp1|audio_tower|embed_vision|embed_audio)"
    r"\..*"
    r"|(model\.)?image_newline"
)


_NEXT = re.compile(r"(.*\.layers\.\d+\.)eh_proj\.weight")
"""The matrix of a layer that predicts a token further on, by which such a layer is known."""


def next_layers(names: Iterable[str]) -> tuple[str, ...]:
    """Return how the names of tensors begin of layers that predict tokens further on, behind those of the model."""
    return tuple([found[1] for name in names if (found := _NEXT.fullmatch(name))])


def is_no_weight(name: str) -> bool:
    """Whether a tensor of this name may be left out where no parameter is made of it."""
    return any(pattern.fullmatch(name) is not None for pattern in (_NAMES, _NOT_TEXT))


def part_left_out(name: str) -> str | None:
    """Return the part of a model that is not served and has a tensor of this name; None: there is none."""
    found = _NAMES.fullmatch(name) or _NOT_TEXT.fullmatch(name)
    return None if found is None else found.group("part")
