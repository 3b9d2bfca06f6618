"""Apply positions to a layer's attention: rotary angles, the scale of queries, and the window."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import log, pi

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.decoder_parts import QueryScale, RopeConfig
from jaxgen.core.layer_kind import LayerKind
from jaxgen.kernels.choice import Angles

AnglesOfKinds = tuple[Float[Array, "*kinds T 1 half"], Float[Array, "*kinds T 1 half"]]
"""Cosine and sine of each token's rotary angles, in each kind of rotary embedding if there are several."""
Window = int | Int[ArrayLike, ""] | None
"""A token attends to itself and the ``window - 1`` tokens before it; None, or NO_WINDOW: to all before it."""
NO_WINDOW = 2**30


@partial(jax.tree_util.register_dataclass, data_fields=["angles", "query_scale"], meta_fields=["kinds"])
@dataclass(frozen=True)
class Positional:
    """Rotary angles and the scale of queries of a batch's tokens, in all layers or, once ``of_layer`` took it, in one.

    ``kinds``: the kind of rotary embedding of each layer, which indexes the first axis of ``angles``; empty where all
    layers have one kind, and there is no such axis.
    """

    angles: AnglesOfKinds | None = None
    query_scale: Float[Array, "T 1 1"] | None = None
    kinds: tuple[int, ...] = field(default=(), metadata={"static": True})

    @classmethod
    def of(cls, config: DecoderConfig, positions: Int[Array, "T"], kind: LayerKind = "attention") -> "Positional":
        """Return what the layers of a kind make of these positions."""
        options = config.positions
        scale = None if options.query_scale is None else _query_scale(options.query_scale, positions)
        ropes, listed = config.ropes_of(kind), options.layer_ropes
        if not ropes:
            return cls(None, scale)
        angles = [rotary_angles(rope, config.heads_of(kind).head_dim, positions) for rope in ropes.values()]
        if not listed or len({listed[layer] for layer in config.layers_of_kind(kind)}) == 1:
            return cls(angles[0], scale)
        cos, sin = angles[0]
        angles.append((jnp.ones_like(cos), jnp.zeros_like(sin)))  # turns nothing
        places: dict[int | None, int] = {number: place for place, number in enumerate(ropes)}
        kinds = tuple(places.get(number, len(ropes)) for number in listed)
        return cls((jnp.stack([cos for cos, _ in angles]), jnp.stack([sin for _, sin in angles])), scale, kinds)

    def of_layer(self, layer: Int[ArrayLike, ""] | int) -> "Positional":
        """Return those of one layer."""
        if not self.kinds or self.angles is None:
            return self
        kind = jnp.asarray(self.kinds)[layer]
        cos, sin = self.angles
        return replace(self, angles=(cos[kind], sin[kind]), kinds=())


def window_of_layer(
    windows: Sequence[int | None], layer: Int[ArrayLike, ""] | int, body: Sequence[int] | None = None
) -> Window:
    """Return a layer's window: a number of the program if all layers of the same ``body`` have it, else an array.

    ``body``: the numbers of these layers; None: all layers.
    """
    of_body = set(windows if body is None else [windows[number] for number in body])
    if len(of_body) <= 1:
        return of_body.pop() if of_body else None
    return jnp.asarray([NO_WINDOW if window is None else window for window in windows], jnp.int32)[layer]


def _query_scale(config: QueryScale, positions: Int[Array, "T"]) -> Float[Array, "T 1 1"]:
    whole = (positions // config.original_max_position).astype(jnp.float32)
    return (1.0 + config.beta * jnp.log1p(whole))[:, None, None]


def inverse_frequencies(config: RopeConfig, head_dim: int) -> Float[Array, "half"]:
    """Return the angular frequency of each rotary pair, in radians per token, with the context extension applied."""
    dim = config.rotary_dim or head_dim
    frequencies = 1.0 / config.theta ** (jnp.arange(0, dim, 2, dtype=jnp.float32) / dim)
    if config.kind == "proportional":
        turning = jnp.arange(head_dim // 2) < dim // 2
        of_head = config.theta ** (jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
        return jnp.where(turning, 1.0 / of_head, 0.0) / config.factor
    if config.kind == "linear":
        return frequencies / config.factor
    if config.kind == "llama3":
        turns = config.original_max_position * frequencies / (2 * jnp.pi)
        keep = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
        keep = jnp.clip(keep, 0.0, 1.0)
        return frequencies * keep + frequencies / config.factor * (1.0 - keep)
    if config.kind == "yarn":
        return _yarn_frequencies(config, dim)
    if config.kind == "longrope":
        return frequencies / jnp.asarray(config.factors, jnp.float32)
    return frequencies


def _yarn_frequencies(config: RopeConfig, dim: int) -> Float[Array, "half"]:
    """Frequencies of dimensions between two are blended linearly (Peng et al., arXiv 2309.00071, section 3.2)."""

    def dimension(turns: float) -> float:
        """Return the dimension that turns ``turns`` times in the original context."""
        return dim * log(config.original_max_position / (turns * 2 * pi)) / (2 * log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0.0), min(high, dim - 1.0)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    plain = config.theta ** -(np.arange(0, dim, 2) / dim)
    return jnp.asarray(plain / config.factor * ramp + plain * (1.0 - ramp), jnp.float32)


def rotary_angles(config: RopeConfig, head_dim: int, positions: Int[Array, "T"]) -> Angles:
    """Return cosine and sine of each token's rotary angles, float32, times the attention factor."""
    angles = positions[:, None, None].astype(jnp.float32) * inverse_frequencies(config, head_dim)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    if config.attention_factor != 1.0:
        cos, sin = cos * config.attention_factor, sin * config.attention_factor
    return cos, sin
