"""Read the counters of engine and metrics, and tell what happened between two readings."""

from dataclasses import dataclass
from time import time
from typing import Any

from jaxgen.client import EngineClient
from jaxgen.core.stats import EngineStats, KindStats, OffloadStats
from jaxgen.server.metrics.histogram import Histogram, quantile
from jaxgen.server.metrics.metrics import Metrics


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """All counters at one time, Unix seconds. ``first_token``, ``inter_token``: counts of the histograms' buckets."""

    time: float
    stats: EngineStats
    first_token: tuple[int, ...]
    inter_token: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Quantiles:
    p50: float
    p95: float
    count: int

    def as_json(self) -> dict[str, float]:
        return {"p50": round(self.p50, 6), "p95": round(self.p95, 6), "count": self.count}


class Meter:
    """Reads the counters of one app."""

    def __init__(self, engine: EngineClient, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics

    def read(self) -> CounterSnapshot:
        metrics = self._metrics
        return CounterSnapshot(time(), self._engine.stats(), metrics.first_token.counts(), metrics.inter_token.counts())

    def first_token(self, before: CounterSnapshot, after: CounterSnapshot) -> Quantiles | None:
        """Return the times to first tokens between two readings; None where there was none."""
        return _quantiles(self._metrics.first_token, before.first_token, after.first_token)

    def inter_token(self, before: CounterSnapshot, after: CounterSnapshot) -> Quantiles | None:
        """Return the times between tokens between two readings; None where there was none."""
        return _quantiles(self._metrics.inter_token, before.inter_token, after.inter_token)


def _quantiles(histogram: Histogram, before: tuple[int, ...], after: tuple[int, ...]) -> Quantiles | None:
    counts = [late - early for early, late in zip(before, after, strict=True)]
    total = sum(counts)
    if not total:
        return None
    return Quantiles(quantile(histogram.bounds, counts, 0.5), quantile(histogram.bounds, counts, 0.95), total)


def grown(before: Any, after: Any, name: str) -> Any:
    """Return by how much a counter has grown. One that begins again, with another engine, has grown from 0."""
    early, late = getattr(before, name), getattr(after, name)
    return late if late < early else late - early


NO_OFFLOAD = OffloadStats()


def blocks(stats: EngineStats) -> dict[str, int]:
    """Return the blocks by state, which are apart: free ones have no content."""
    offload = stats.offload or NO_OFFLOAD
    return {
        **_by_state(stats),
        "host": offload.host_blocks,
        "host_total": offload.host_blocks_total,
    }


def kinds(stats: EngineStats) -> list[dict[str, Any]] | None:
    """Return the blocks of each kind of cache by state; None if there is one kind."""
    return [{"name": kind.name, **_by_state(kind)} for kind in stats.kinds] or None


def snapshots(stats: EngineStats) -> dict[str, int] | None:
    """Return the snapshots of states; None if the model has no states."""
    return None if stats.snapshots is None else {"total": stats.snapshots.total, "held": stats.snapshots.held}


def _by_state(stats: EngineStats | KindStats) -> dict[str, int]:
    return {
        "total": stats.blocks_total,
        "free": stats.blocks_free - stats.blocks_cached,
        "cached": stats.blocks_cached,
        "used": stats.blocks_total - stats.blocks_free,
    }


def per_second(before: CounterSnapshot, after: CounterSnapshot) -> dict[str, float]:
    """Return the tokens of prompts and the generated ones, each second."""
    seconds = max(after.time - before.time, 1e-3)
    return {
        "prompt": round(grown(before.stats, after.stats, "prompt_tokens") / seconds, 1),
        "generated": round(grown(before.stats, after.stats, "generation_tokens") / seconds, 1),
    }


def links(before: CounterSnapshot, after: CounterSnapshot) -> dict[str, float] | None:
    """Return what the links to and from host memory carried; None where nothing is offloaded."""
    if after.stats.offload is None:
        return None
    early, late = before.stats.offload or NO_OFFLOAD, after.stats.offload
    seconds = max(after.time - before.time, 1e-3)

    def busy(name: str) -> float:
        return round(min(1.0, grown(early, late, name) / seconds), 4)

    return {
        "to_device_bytes_per_second": round(grown(early, late, "restored_bytes") / seconds),
        "to_host_bytes_per_second": round(grown(early, late, "saved_bytes") / seconds),
        "to_device_busy": busy("restore_link_seconds"),
        "to_host_busy": busy("save_link_seconds"),
    }
