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


def tiled_channels(config: DecoderConfig) -> tuple[int, ...]:
    """Map all queries and keys, then values as ``tiled_values`` has them, to the same with values by key head."""
    options = config.delta
    assert options is not None
    first = options.channels - options.values
    return _order(np.arange(first), first + np.asarray(tiled_values(config)))


def tiled_values(config: DecoderConfig) -> tuple[int, ...]:
    """Map numbers of the first value head of each key head, then of the second, and so on, to those by key head."""
    options = config.delta
    assert options is not None
    return _untiled(config, options.value_dim)


def tiled_heads(config: DecoderConfig) -> tuple[int, ...]:
    """Map one number of each value head likewise."""
    return _untiled(config, 1)


def _untiled(config: DecoderConfig, size: int) -> tuple[int, ...]:
    options = config.delta
    assert options is not None
    return _order(np.arange(options.heads * size).reshape(-1, options.key_heads, size).swapaxes(0, 1))


def interleaved_queries(config: DecoderConfig) -> tuple[int, ...]:
    """Queries whose rotary pairs are neighbours, to pairs of halves."""
    return _halves(config, config.num_heads)


def interleaved_keys(config: DecoderConfig) -> tuple[int, ...]:
    """Keys whose rotary pairs are neighbours, to pairs of halves."""
    return _halves(config, config.num_kv_heads)


def latent_queries(config: DecoderConfig) -> tuple[int, ...]:
    """Queries by head (plain numbers, rotary pairs that are neighbours), to pairs of halves before the plain ones."""
    options = config.latent
    assert options is not None
    rows = np.arange(config.num_heads * options.query).reshape(config.num_heads, options.query)
    plain, pairs = np.split(rows, [options.plain], axis=1)
    return _order(np.concatenate([pairs[:, ::2], pairs[:, 1::2], plain], axis=1))


def latent_row(config: DecoderConfig) -> tuple[int, ...]:
    """A latent and rotary pairs that are neighbours, to pairs of halves behind the latent."""
    options = config.latent
    assert options is not None
    latent, pairs = np.split(np.arange(options.row), [options.rank])
    return _order(latent, pairs[::2], pairs[1::2])


INTERLEAVED = {"self_attn.q_proj": interleaved_queries, "self_attn.k_proj": interleaved_keys}
"""For modules of these names: rotary pairs are neighbours in files."""


def _halves(config: DecoderConfig, heads: int) -> tuple[int, ...]:
    rotary = config.positions.ropes[0].rotary_dim or config.head_dim
    rows = np.arange(heads * config.head_dim).reshape(heads, config.head_dim)
    return _order(np.concatenate([rows[:, 0:rotary:2], rows[:, 1:rotary:2], rows[:, rotary:]], axis=1))


def _order(*parts: np.ndarray) -> tuple[int, ...]:
    return tuple(int(row) for part in parts for row in part.reshape(-1))
