"""Divide the memory of a KV cache between the layers that keep the whole context and those with a window. Host only.

Layers of one window have a pool of blocks of their own, whose blocks are freed behind the window.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from math import ceil
from typing import Self

from jaxgen.cache.cache_format import CacheFormat, kind_blocks
from jaxgen.cache.window_manager import blocks_for, blocks_of_chunks, blocks_of_window
from jaxgen.core.cache_kind import CacheKind
from jaxgen.core.config import EngineConfig, EngineOptions, SchedulerConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.model_config import ModelConfig
from jaxgen.kv_events.config import FLAG as KV_EVENTS_FLAG
from jaxgen.kv_events.config import parse_kv_events
from jaxgen.sizing.allocation import ROW_STATES_AT_ONCE, table_bytes

CACHED_SHARE = 1 / 8
"""Share of the memory without the least pools that goes to further blocks of windows, for prefixes to be found again.

A prefix is found only if the blocks of its last window are still there as well."""
EXPECTED_SHARE = 1 / 8
"""Share of the longest context that a sequence is expected to have, where the two are weighed."""


def one_kind_flag(options: EngineOptions) -> str | None:
    """Return the flag of a feature that needs every block of all layers; None: no such feature is on."""
    if options.kv_offload_inputs:
        return "--kv-offload-inputs"
    return None if parse_kv_events(options.kv_events_config) is None else KV_EVENTS_FLAG


def check_rows(options: EngineOptions, model: ModelConfig) -> None:
    """Raise ConfigError for a feature that keeps blocks of one shape, if the model's layers keep rows of several."""
    flag = "--kv-residency host" if options.kv_residency == "host" else one_kind_flag(options)
    if flag is None or not model.has_several_rows:
        return
    rows = " and ".join(f"{kind.row.heads} of {kind.row.width} numbers" for kind in model.cache_kinds)
    raise ConfigError(
        f"{flag} is for models whose layers have keys and values of one shape, and layers of this one have heads of "
        f"several ({rows}): drop the flag"
    )


def freeing_kinds(options: EngineOptions, model: ModelConfig) -> tuple[CacheKind, ...]:
    """Return the kinds of cache whose blocks can be freed behind a window."""
    return () if one_kind_flag(options) is not None else model.cache_kinds[1:]


def why_whole(options: EngineOptions, model: ModelConfig, config: EngineConfig) -> str:
    """Return why layers with a window keep the whole context; empty: they do not, or there are no such layers."""
    cache, scheduler = config.cache, config.scheduler
    if len(model.cache_kinds) == 1 or cache.window_blocks:
        return ""
    flag = one_kind_flag(options)
    if flag is not None:
        return f"{flag} needs it"
    if cache.num_slots >= scheduler.max_num_seqs * scheduler.max_model_len:
        return "there is room for all sequences"
    return "other sizes would hold fewer sequences"


def kinds_title(options: EngineOptions, model: ModelConfig, config: EngineConfig) -> str:
    """Return what each kind of cache holds, for the log; empty: the model has one kind."""
    if len(model.cache_kinds) == 1:
        return ""
    if reason := why_whole(options, model, config):
        return f"layers with a window keep the whole context: {reason}"
    parts = kind_blocks(model, config.cache)
    return ", ".join(
        f"{each.kind.name}: {each.num_blocks:,} blocks in {len(each.kind.layers)} layers" for each in parts
    )


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """Bytes and blocks of a cache whose windows free blocks.

    ``full``: bytes of a block of the layers that keep the whole context; ``windows``: of a block of each window's.
    ``least``: blocks of each window's pool for one sequence of any length. ``expected``: blocks that a sequence of the
    expected length has of the whole context, and of each window. ``chunks``: what long chunks need of each pool.
    ``tables``: bytes of the rows' block tables of windows. ``cached``: share of the memory that goes to further blocks
    of windows. ``alike``: whether all layers can keep the whole context in blocks of one kind.
    """

    full: int
    windows: tuple[int, ...]
    least: tuple[int, ...]
    expected: tuple[float, tuple[int, ...]]
    longest: tuple[float, tuple[int, ...]]
    chunks: int
    rows: int
    tables: int
    cached: float
    alike: bool

    @classmethod
    def of(cls, options: EngineOptions, model: ModelConfig, scheduler: SchedulerConfig, block_size: int) -> Self | None:
        """Return the sizes of a model's cache; None: all layers keep the whole context."""
        kinds, whole = freeing_kinds(options, model), CacheFormat.of(model, block_size)
        if not kinds:
            return None
        windows = [kind.window or 0 for kind in kinds]

        def of_sequence(tokens: int) -> tuple[float, tuple[int, ...]]:
            return tokens / block_size, tuple([blocks_of_window(window, block_size, tokens) for window in windows])

        return cls(
            whole.of_kind(model.cache_kinds[0]).block_bytes,
            tuple([whole.of_kind(kind).block_bytes for kind in kinds]),
            tuple([blocks_for(1, window, block_size, scheduler) for window in windows]),
            of_sequence(max(block_size, int(EXPECTED_SHARE * scheduler.max_model_len))),
            of_sequence(scheduler.max_model_len),
            blocks_of_chunks(block_size, scheduler),
            scheduler.max_num_seqs,
            ROW_STATES_AT_ONCE * len(kinds) * table_bytes(scheduler, block_size),
            CACHED_SHARE if scheduler.prefix_caching else 0.0,
            not model.has_several_rows,
        )

    def pools(self, sequences: int) -> tuple[int, ...]:
        """Return the blocks of each window for as many sequences of the expected length."""
        of_each = zip(self.least, self.expected[1], strict=True)
        return tuple([max(least, sequences * each + self.chunks) for least, each in of_each])

    def most_blocks(self, room: int) -> int:
        """Return the most blocks that keep the whole context in ``room`` bytes, with the least pools of windows."""
        return max(0, room - self._pool_bytes(0)) // self.full

    def blocks(self, room: int) -> int:
        """Return the blocks that keep the whole context if most sequences of the expected length run at once.

        The others of ``room`` bytes are for windows.
        """
        most = bisect_left(range(1, self.rows + 1), True, key=lambda n: n * self.expected[0] > self._beside(n, room))
        return self._beside(most, room)

    def room_for(self, num_blocks: int) -> int:
        """Return the bytes of a cache with the given blocks that keep the whole context, and its share for prefixes."""
        return self._pool_bytes(self._sequences(num_blocks)) + int(num_blocks * self.full / (1 - self.cached))

    def window_blocks(self, num_blocks: int, room: int) -> tuple[int, ...]:
        """Return the blocks of each window in ``room`` bytes, with ``num_blocks`` that keep the whole context.

        Empty: each of them would have no fewer, so that all layers keep the whole context, if they can.
        """
        left = room - num_blocks * self.full
        fitting = bisect_right(range(1, self._sequences(num_blocks) + 1), left, key=self._pool_bytes)
        pools = self.pools(fitting)
        if self.alike and num_blocks <= min(pools):
            return ()
        spare = max(0, left - self._pool_bytes(fitting)) if self.cached else 0
        more = spare // sum(self.windows)
        return tuple([max(number, min(number + more, num_blocks)) for number in pools])

    def holds_more(self, num_blocks: int, pools: tuple[int, ...], whole: int) -> bool:
        """Whether more of the longest sequences run at once, and no fewer expected ones, than with ``whole`` blocks.

        ``num_blocks``: blocks that keep the whole context; ``pools``: blocks of each window.
        """
        if not pools:
            return False

        def at_once(sequence: tuple[float, tuple[int, ...]]) -> tuple[float, float]:
            beside = [(pool - self.chunks) / each for pool, each in zip(pools, sequence[1], strict=True)]
            return min(self.rows, num_blocks / sequence[0], *beside), min(self.rows, whole / sequence[0])

        (more, before), (expected, expected_before) = at_once(self.longest), at_once(self.expected)
        return more > before and expected >= expected_before

    def _sequences(self, num_blocks: int) -> int:
        """Return how many sequences of the expected length run at once in the blocks that keep the whole context."""
        return min(self.rows, ceil(num_blocks / self.expected[0]))

    def _pool_bytes(self, sequences: int) -> int:
        """Return the bytes of ``pools`` and of what else does not depend on the number of blocks."""
        return self.tables + sum(
            number * size for number, size in zip(self.pools(sequences), self.windows, strict=True)
        )

    def _beside(self, sequences: int, room: int) -> int:
        """Return the blocks that keep the whole context next to the ``pools`` of as many sequences."""
        return int((1 - self.cached) * max(0, room - self._pool_bytes(sequences))) // self.full
