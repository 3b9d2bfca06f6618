"""What the files of an architecture have in their own way. Host only, no jax."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxgen.weights.families.config_fields import JsonFields
from jaxgen.weights.gguf.descriptions import GgufDescription
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.names import IN_ORDER, Names, Orders
from jaxgen.weights.gguf.rope import rope_parameters

Describe = Callable[[GgufDescription], dict[str, Any]]
"""Returns the fields of config.json that no row can say."""
Rope = Callable[[GgufFile, JsonFields, int], dict[str, Any]]
"""Returns ``rope_parameters`` of config.json, given the size of a head."""
RMS, LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
ENDS = ("</s>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>")
GLM_ENDS = ("<|endoftext|>", "<|user|>", "<|observation|>")
OF_IMAGES = ("rope.dimension_sections", "n_deepstack_layers")
"""Positions of texts are the same in all sections, and layers add nothing to texts."""
AFTER_ATTENTION = {"layers.mlp_norm": (("post_attention_norm",),)}
"""The name of the norm before MLPs that several architectures have."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How the files of an architecture become a model of Hugging Face: a row of ARCHITECTURES.

    The configuration. ``model``: the value of ``architectures`` in config.json, ``model_type``: that field.
    ``spelled``: fields of config.json that the family calls otherwise, or has not (None). ``eps``: the metadata with
    the epsilon of norms. ``sizes``: further metadata, each the field of config.json that it is; they must be there.
    ``copied``: the same of metadata that may be absent. ``fixed``: fields that hold for every file. ``biases``: fields
    that say whether a module has a bias, with the module. ``rope``: reads the rotary embedding; None: there is none.
    ``ignored``: metadata that change nothing. ``describe``: gives what no row can say. ``without_attention``: whether
    some layers have no attention, which 0 heads of keys and values say. ``latent``: whether keys and values are made of
    a latent, so that their sizes may differ. ``by_layer``: metadata that may differ by layer, where the first layer
    stands for all, and ``describe`` reads the others.

    The tensors. ``renamed``, ``orders``: see ``parts_of``.

    The tokenizer. ``end_tokens``: control tokens that end an answer, besides the tokens that a file names.
    ``by_position``: whether the tokens of a SentencePiece vocabulary merge in the order of their ids, not of their
    scores. ``strips``: whether text loses the space after a special token.
    """

    model: str
    model_type: str
    spelled: Mapping[str, str | None] = field(default_factory=dict)
    eps: str = RMS
    sizes: Mapping[str, str] = field(default_factory=dict)
    copied: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    biases: Mapping[str, str] = field(default_factory=dict)
    rope: Rope | None = rope_parameters
    ignored: tuple[str, ...] = ()
    describe: Describe | None = None
    without_attention: bool = False
    latent: bool = False
    by_layer: tuple[str, ...] = ()
    renamed: Mapping[str, tuple[Names, ...]] = field(default_factory=dict)
    orders: Orders = IN_ORDER
    end_tokens: tuple[str, ...] = ENDS
    by_position: bool = False
    strips: bool = False
