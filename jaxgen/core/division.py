"""Divide a model between devices by heads and by columns (Shoeybi et al., arXiv 1909.08053). Host only, no jax.

Each device has some heads of every layer, some of the inner numbers of its MLP, and all of the rest. That is a model by
itself, with fewer heads: ``Division.part`` describes it, and programs compute it. Only where a layer adds to its input
do the devices add what each has of the sum (jaxgen.models.rank_sum).
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.layer_kind import path_without_stack
from jaxgen.core.moe_config import MoEConfig

FLAG = "--tensor-parallel-size"
_ROWS, _COLUMNS = -2, -1
_PATH = re.compile(r"layers\.(attn|mlp|mlp\.experts|mlp\.shared)\.(qkv|out|gate_up|up|down)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class Share:
    """What one device has of a parameter: ``ranges`` of one ``axis``, one after another."""

    axis: int
    ranges: tuple[range, ...]

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the share of a parameter."""
        sizes = list(whole)
        sizes[self.axis] = sum(map(len, self.ranges))
        return tuple(sizes)

    def of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the share of a whole parameter."""
        parts = [array[_index(self.axis, slice(one.start, one.stop))] for one in self.ranges]
        return np.concatenate(parts, self.axis)

    def put(self, part: npt.NDArray[Any], value: npt.NDArray[Any], rows: slice) -> None:
        """Write what the share has of ``part`` into ``value``, which has the share of a layer, or of an expert.

        ``rows``: those of the whole parameter that the part is.
        """
        if self.axis == _COLUMNS and part.ndim > 1:
            value[_index(_ROWS, rows)] = self.of(part)
            return
        start = 0
        for one in self.ranges:
            first, last = max(one.start, rows.start), min(one.stop, rows.stop)
            if first < last:
                into = _index(self.axis, slice(start + first - one.start, start + last - one.start))
                value[into] = part[_index(self.axis, slice(first - rows.start, last - rows.start))]
            start += len(one)


def _index(axis: int, some: slice) -> Any:
    """Return the index of some numbers of an axis, which is counted from the last."""
    return (..., some, *[slice(None)] * (-1 - axis))


@dataclass(frozen=True)
class Division:
    """A model that ``ranks`` devices have a part of each. Raises ConfigError for one that they cannot."""

    whole: DecoderConfig
    ranks: int

    def __post_init__(self) -> None:
        whole, ranks = self.whole, self.ranks
        if reason := _not_divided(whole):
            raise ConfigError(f"{FLAG} {ranks}: models that have {reason} are not divided yet: use one device")
        for name, number in (
            ("num_attention_heads", whole.num_heads),
            ("num_key_value_heads", max(whole.num_kv_heads, ranks)),
            ("intermediate_size", whole.intermediate_size),
            ("width of an expert", 0 if whole.moe is None else whole.moe.inner),
            ("width of the shared expert", 0 if whole.moe is None else whole.moe.shared_inner or 0),
        ):
            if number % ranks:
                raise ConfigError(f"{FLAG} must divide the model's {name} ({number}), and {ranks} does not")
        if ranks % min(whole.num_kv_heads, ranks):
            raise ConfigError(
                f"{FLAG} must be a multiple of the model's num_key_value_heads ({whole.num_kv_heads}) or divide it, "
                f"and {ranks} does not"
            )

    @cached_property
    def part(self) -> DecoderConfig:
        """The model that each device has."""
        whole, ranks = self.whole, self.ranks
        return replace(
            whole,
            num_heads=whole.num_heads // ranks,
            num_kv_heads=max(whole.num_kv_heads // ranks, 1),
            intermediate_size=whole.intermediate_size // ranks,
            moe=None if whole.moe is None else _part_of_experts(whole.moe, ranks),
            num_devices=ranks,
        )

    def share(self, path: str, rank: int) -> Share | None:
        """Return what the device of a rank has of a parameter; None: all of it."""
        found = _PATH.fullmatch(path_without_stack(path))
        if found is None:
            return None
        module, name, kind = found.groups()
        if name in ("out", "down"):
            # A bias is added to the sum, which all devices have.
            return Share(_COLUMNS, self._inputs(module, rank)) if kind == "weight" else None
        rows = self._projections(rank) if name == "qkv" else self._inner(module, rank, 2 if name == "gate_up" else 1)
        return Share(_ROWS if kind == "weight" else -1, rows)

    def cut(self, path: str, value: npt.NDArray[Any], rank: int) -> npt.NDArray[Any]:
        """Return what the device of a rank has of a parameter."""
        share = self.share(path, rank)
        return value if share is None else share.of(value)

    def _inputs(self, module: str, rank: int) -> tuple[range, ...]:
        """Return the inputs of what ends attention or MLP."""
        return self._projections(rank)[:1] if module == "attn" else self._inner(module, rank, 1)

    def _projections(self, rank: int) -> tuple[range, ...]:
        """Return the rows of a device's queries, keys and values among those of all heads."""
        whole, part, width = self.whole, self.part, self.whole.head_dim
        queries = range(rank * part.num_heads * width, (rank + 1) * part.num_heads * width)
        # Where there are fewer KV heads than devices, neighbours have the same one.
        first = whole.num_heads + rank * whole.num_kv_heads // self.ranks
        keys = range(first * width, (first + part.num_kv_heads) * width)
        step = whole.num_kv_heads * width
        return queries, keys, range(keys.start + step, keys.stop + step)

    def _inner(self, module: str, rank: int, times: int) -> tuple[range, ...]:
        """Return a device's inner numbers of an MLP, ``times`` times one after another."""
        all_ = self.whole.intermediate_size
        if (moe := self.whole.moe) is not None and module != "mlp":
            all_ = moe.inner if module == "mlp.experts" else moe.shared_inner or 0
        size = all_ // self.ranks
        return tuple([range(turn * all_ + rank * size, turn * all_ + (rank + 1) * size) for turn in range(times)])


def _part_of_experts(moe: MoEConfig, ranks: int) -> MoEConfig:
    """Return the experts of one device: all of them, with some of the inner numbers of each."""
    return replace(moe, inner=moe.inner // ranks, shared_inner=moe.shared_inner and moe.shared_inner // ranks)


def _not_divided(config: DecoderConfig) -> str:
    """Return what of a model cannot be divided; empty: nothing."""
    attention = config.attention
    found = {
        "experts with biases": config.moe is not None and config.moe.expert_bias,
        "experts with norms": config.moe is not None and config.moe.norms,
        "states in place of keys and values": bool(config.states),
        "latent attention": config.latent is not None,
        "layers of several kinds": bool(config.layer_kinds),
        "quantized weights": bool(config.weight_formats),
        "embeddings for each layer": config.layer_embedding is not None,
        "attention sinks": attention.sinks,
        "gated attention": attention.output_gate,
        "norms over all heads": attention.qk_norm_rows,
        "norms with weights for each head": attention.qk_norm_heads,
    }
    return next((what for what, there in found.items() if there), "")
