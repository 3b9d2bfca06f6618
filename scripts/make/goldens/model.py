"""Build the seeded model of a variant, and see what it computes."""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
import transformers

from scripts.make.goldens.mxfp4 import dequantize, quantize
from scripts.make.goldens.router_gap import router_gap
from scripts.make.goldens.variant import Settings, Variant, merged

EXPERTS = ("experts.gate_up_proj", "experts.down_proj")
SCALES = ("layer_scalar", "router.scale", "per_expert_scale")
"""What multiplies layers, a router's input and experts' weights; the first is a buffer."""
UNUSED = ("vision_tower.", "multi_modal_projector.")
"""What text does not pass through."""


def build(variant: Variant, seed: int) -> Any:
    """Return the model with seeded noise as its parameters, rounded to what its files will hold."""
    model = create(variant, {})
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(values_of(model).items()):
            noise = scaled(variant, name, torch.randn(parameter.shape, generator=generator))
            parameter.copy_(stored(variant, name, noise + neutral(variant, name)))
    return model


def values_of(model: Any) -> dict[str, Any]:
    """Return by name what a checkpoint has: the parameters, and buffers such as the corrections of routers."""
    saved = model.state_dict()
    return dict(model.named_parameters()) | {name: one for name, one in model.named_buffers() if name in saved}


def create(variant: Variant, changes: Settings) -> Any:
    """Return the model with some settings changed. Eager is plainest: attention obeys windows, experts come in turn."""
    model = getattr(transformers, variant.architecture)
    config = model.config_class(**copy.deepcopy(merged(variant.settings, changes)))
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return model(config).eval()


def changed(variant: Variant, model: Any, changes: Settings) -> Any:
    """Return a model of other settings with the same parameters, as far as it has them."""
    other = create(variant, changes)
    other.load_state_dict(model.state_dict(), strict=False)
    return other


def scaled(variant: Variant, name: str, noise: Any) -> Any:
    """Return the noise of a parameter, large enough that it matters."""
    if name.endswith("sinks"):
        return noise * 2.0
    if is_norm(name) and not variant.norm_about_one:
        return noise  # strong enough that the tied head does not find the token that came in
    if noise.dim() == 1 or name.endswith("bias"):
        return noise * 0.3
    if name.endswith("embed_tokens.weight"):
        return noise * variant.embedding / noise.shape[1] ** 0.5
    inputs_first = variant.inputs_first and (noise.dim() == 3 or is_conv1d(name))
    return noise * 2.0 / noise.shape[-2 if inputs_first else -1] ** 0.5


def is_conv1d(name: str) -> bool:
    """Whether GPT-2's class keeps this matrix as [in, out]."""
    return any(part in name for part in (".c_attn.", ".c_proj.", ".c_fc."))


def is_norm(name: str) -> bool:
    """Whether a parameter is the weight of a norm."""
    return name.endswith("weight") and ("norm" in name or ".ln_" in name)


def neutral(variant: Variant, name: str) -> float:
    """The value of a parameter that leaves things as they are: 1 for most norms, else 0; small where a state decays."""
    if name.endswith("A_log"):
        return -3.0
    if name.endswith(SCALES):
        return 6.0 if name.endswith("router.scale") else 1.0  # so that a router's choices are clear
    return 1.0 if is_norm(name) and variant.norm_about_one else 0.0


def stored(variant: Variant, name: str, values: Any) -> Any:
    """The nearest values that the checkpoint can hold."""
    if variant.mxfp4 and name.endswith(EXPERTS):
        rows = values.transpose(1, 2).contiguous().numpy()
        return torch.from_numpy(dequantize(*quantize(rows))).transpose(1, 2)
    return values.to(getattr(torch, variant.dtype)).float()


@dataclass(frozen=True)
class Seen:
    """What a model computes for T tokens.

    Logits [T, V], inputs of the head [T, D], the least lead of a chosen expert over the best of the others, and whether
    a layer has an expert that no token chose.
    """

    logits: Any
    hidden: Any
    router_gap: float
    idle_expert: bool


def is_of_probabilities(module: Any) -> bool:
    """Whether a module is a router that tells probabilities in place of logits."""
    return type(module).__name__ == "Gemma4TextRouter"


def forward(model: Any, tokens: Any) -> Any:
    """Logits [T, V] of every position, computed in one piece without a cache."""
    with torch.no_grad():
        return model(torch.tensor(tokens, dtype=torch.long)[None], use_cache=False).logits[0].float().numpy()


def watch(model: Any, tokens: Any) -> Seen:
    """Return the logits of all positions, and what else there is to know on the way."""
    heads: list[Any] = []
    gaps, idle = [np.inf], [False]

    def at_router(router: Any, inputs: Any, outputs: Any) -> None:
        logits = outputs[0].reshape(-1, outputs[0].shape[-1])
        logits = logits.log() if is_of_probabilities(router) else logits
        gaps.append(router_gap(router, inputs, logits, outputs[2].shape[-1]))
        idle.append(len(outputs[2].unique()) < logits.shape[-1])

    hooks = [model.get_output_embeddings().register_forward_pre_hook(lambda _head, inputs: heads.append(inputs[0][0]))]
    hooks += [
        module.register_forward_hook(at_router)
        for module in model.modules()
        if type(module).__name__.lower().endswith("topkrouter") or is_of_probabilities(module)
    ]
    logits = forward(model, tokens)
    for hook in hooks:
        hook.remove()
    return Seen(logits, heads[0].float().numpy(), min(gaps), any(idle))
