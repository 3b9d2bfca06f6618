"""Kinds of cache: which layers of a model share a pool of blocks, and how far back they look. Host only, no jax."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowShape:
    """The shape of what a layer keeps of a token: keys and values of ``heads`` KV heads of ``width`` numbers each.

    ``parts``: 1 where the values are numbers of the keys, so that the cache has one array of both.
    """

    heads: int
    width: int
    parts: int = 2

    @property
    def numbers(self) -> int:
        """Numbers of a token in a layer."""
        return self.parts * self.heads * self.width


@dataclass(frozen=True, slots=True)
class CacheKind:
    """Layers whose K and V are in one array and whose blocks come from one pool.

    ``row``: the shape of what each of them keeps of a token. ``window``: tokens that a token of these layers attends
    to, with itself, so that blocks behind it can be freed; None: all blocks are kept.
    """

    layers: tuple[int, ...]
    row: RowShape
    window: int | None = None

    @property
    def name(self) -> str:
        """The name for plans, metrics and errors."""
        return kind_name(self.window)

    def held_blocks(self, num_tokens: int, block_size: int) -> int:
        """Return the most blocks that a sequence of ``num_tokens`` has while it decodes.

        The tokens of a window lie in one block more than they fill, if they begin within a block.
        """
        blocks = -(-num_tokens // block_size)
        return blocks if self.window is None else min(blocks, 1 + -(-(self.window - 1) // block_size))


def kind_name(window: int | None) -> str:
    """Return the name of the kind of cache with this window."""
    return "full" if window is None else f"window {window}"


def kinds_of(
    windows: Sequence[int | None], rows: Sequence[RowShape], without: Collection[int] = ()
) -> tuple[CacheKind, ...]:
    """Return the kinds of layers with these windows (empty: none has one) and ``rows``, which are alike in a window.

    The first kind keeps all blocks: its layers have no window, or the widest one if all have one. Each further window
    makes a kind, the widest first. ``without``: layers that have no K and V.
    """
    of_layers = {layer: windows[layer] if windows else None for layer in range(len(rows)) if layer not in without}
    order = sorted(set(of_layers.values()), key=lambda window: float("inf") if window is None else window, reverse=True)
    layers = [tuple([layer for layer, window in of_layers.items() if window == of_kind]) for of_kind in order]
    return tuple(CacheKind(at, rows[at[0]], None if index == 0 else order[index]) for index, at in enumerate(layers))


def one_kind(rows: Sequence[RowShape], without: Collection[int] = ()) -> tuple[CacheKind, ...]:
    """Return the kind of all layers but those ``without`` K and V, where no block is freed. Their rows are alike."""
    layers = tuple([layer for layer in range(len(rows)) if layer not in without])
    return (CacheKind(layers, rows[layers[0]]),)
