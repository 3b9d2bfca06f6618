"""Orders of rows in which checkpoints store merged or rotated projections. Host only, no jax."""

import numpy as np

from jaxgen.core.decoder_config import DecoderConfig


def by_head(config: DecoderConfig) -> tuple[int, ...]:
    """Rows of query, key and value of each head in turn: (heads, 3, head_dim), to all queries, keys, values."""
    return _order(np.arange(3 * config.num_heads * config.head_dim).reshape(config.num_heads, 3, -1).swapaxes(0, 1))


def by_kv_head(config: DecoderConfig) -> tuple[int, ...]:
    """Map rows by KV head (its queries, its key, its value) to all queries, all keys, all values."""
    group = config.num_heads // config.num_kv_heads
    rows = np.arange(config.num_kv_heads * (group + 2) * config.head_dim)
    by_group = rows.reshape(config.num_kv_heads, group + 2, config.head_dim)
    return _order(by_group[:, :group], by_group[:, group], by_group[:, group + 1])


def gated_queries(config: DecoderConfig) -> tuple[int, ...]:
    """Map rows by head (its query, its gate) to all queries, all gates."""
    by_head = np.arange(2 * config.num_heads * config.head_dim).reshape(config.num_heads, 2, -1)
    return _order(by_head.swapaxes(0, 1))


def delta_by_key_head(config: DecoderConfig) -> tuple[int, ...]:
    """Map rows by key head (its query, its key, its heads' values, their gates) to all of each, one after another."""
    options = config.delta
    assert options is not None
    rows = np.arange(options.channels + options.values).reshape(options.key_heads, -1)
    key_dim, values = options.key_dim, options.values // options.key_heads
    cuts = np.cumsum([key_dim, key_dim, values])
    return _order(*np.split(rows, cuts, axis=1))


def gates_by_key_head(config: DecoderConfig) -> tuple[int, ...]:
    """Map rows by key head (b of its heads, a of them) to all b, all a."""
    options = config.delta
    assert options is not None
    rows = np.arange(2 * options.heads).reshape(options.key_heads, 2, -1)
    return _order(rows.swapaxes(0, 1))


def interleaved_queries(config: DecoderConfig) -> tuple[int, ...]:
    """Queries whose rotary pairs are neighbours, to pairs of halves."""
    return _halves(config, config.num_heads)


def interleaved_keys(config: DecoderConfig) -> tuple[int, ...]:
    """Keys whose rotary pairs are neighbours, to pairs of halves."""
    return _halves(config, config.num_kv_heads)


INTERLEAVED = {"self_attn.q_proj": interleaved_queries, "self_attn.k_proj": interleaved_keys}
"""For modules of these names: rotary pairs are neighbours in files."""


def _halves(config: DecoderConfig, heads: int) -> tuple[int, ...]:
    rotary = config.positions.ropes[0].rotary_dim or config.head_dim
    rows = np.arange(heads * config.head_dim).reshape(heads, config.head_dim)
    return _order(np.concatenate([rows[:, 0:rotary:2], rows[:, 1:rotary:2], rows[:, rotary:]], axis=1))


def _order(*parts: np.ndarray) -> tuple[int, ...]:
    return tuple(int(row) for part in parts for row in part.reshape(-1))
