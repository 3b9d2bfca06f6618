"""The metrics of parts that not every engine has: kinds of cache, snapshots, host memory, a KV tier, KV events."""

from collections.abc import Iterable

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from jaxgen.core.stats import (
    EngineStats,
    KindStats,
    KVEventStats,
    KVTierStats,
    OffloadStats,
    SnapshotStats,
    SpeculationStats,
)

LABEL = ["model_name"]


def blocks_by_kind(kinds: Iterable[KindStats], model: list[str]) -> Metric:
    """Return the gauge of the blocks of each kind of cache."""
    gauge = GaugeMetricFamily(
        "jaxgen_kv_cache_blocks_by_kind", "Blocks by kind of cache and state.", labels=[*LABEL, "kind", "state"]
    )
    for kind in kinds:
        used, empty = kind.blocks_total - kind.blocks_free, kind.blocks_free - kind.blocks_cached
        for state, count in {"used": used, "cached": kind.blocks_cached, "free": empty}.items():
            gauge.add_metric([*model, kind.name, state], count)
    return gauge


def gauges_of_parts(stats: EngineStats) -> dict[str, tuple[str, float]]:
    """Return texts and values of the gauges of all parts that the engine has, by name."""
    gauges = {} if stats.snapshots is None else snapshot_gauges(stats.snapshots)
    return gauges if stats.offload is None else gauges | offload_gauges(stats.offload)


def counters_of_parts(stats: EngineStats) -> dict[str, tuple[str, float]]:
    """Return texts and values of the counters of all parts that the engine has, by name."""
    counters = {} if stats.snapshots is None else snapshot_counters(stats.snapshots)
    if stats.speculation is not None:
        counters |= speculation_counters(stats.speculation)
    if stats.offload is not None:
        counters |= offload_counters(stats.offload)
    if stats.kv_tier is not None:
        counters |= kv_tier_counters(stats.kv_tier)
    if stats.kv_events is not None:
        counters |= kv_event_counters(stats.kv_events)
    return counters


def snapshot_gauges(stats: SnapshotStats) -> dict[str, tuple[str, float]]:
    """Return texts and values of the gauges of snapshots of states, by name."""
    return {
        "state_snapshots_max": ("Snapshots of states that the prefix cache can hold.", stats.total),
        "state_snapshots": ("Snapshots of states in the prefix cache.", stats.held),
    }


def snapshot_counters(stats: SnapshotStats) -> dict[str, tuple[str, float]]:
    """Return texts and values of the counters of snapshots of states, by name."""
    return {
        "state_snapshots_taken": ("Snapshots taken of states.", stats.taken),
        "state_snapshots_evicted": ("Snapshots given up for others.", stats.evicted),
        "state_recomputed": (
            "Tokens whose K and V were cached, computed again since no snapshot had the state.",
            stats.recomputed_tokens,
        ),
    }


def speculation_counters(stats: SpeculationStats) -> dict[str, tuple[str, float]]:
    """Return texts and values of the counters of drafts, by name."""
    return {
        "spec_decode_num_drafts": ("Times that drafts of a request were checked.", stats.drafts),
        "spec_decode_num_draft_tokens": ("Tokens drafted.", stats.draft_tokens),
        "spec_decode_num_accepted_tokens": ("Of these, tokens that were right.", stats.accepted_tokens),
    }


def accepted_by_position(stats: SpeculationStats, model: list[str]) -> Metric:
    """Return the counter of the right drafts by their place among those checked together."""
    counter = CounterMetricFamily(
        "jaxgen_spec_decode_num_accepted_tokens_per_pos", "Right drafts by position.", labels=[*LABEL, "position"]
    )
    for position, count in enumerate(stats.accepted_by_place):
        counter.add_metric([*model, str(position)], count)
    return counter


def offload_gauges(stats: OffloadStats) -> dict[str, tuple[str, float]]:
    """Return texts and values of the gauges of host memory, by name."""
    return {
        "offload_host_blocks_max": ("Blocks that host memory can hold.", stats.host_blocks_total),
        "offload_host_blocks": (
            "Blocks in host memory; a snapshot counts as the blocks that have its bytes.",
            stats.host_blocks,
        ),
        "offload_host_snapshots": ("Snapshots of states in host memory.", stats.host_snapshots),
    }


def offload_counters(stats: OffloadStats) -> dict[str, tuple[str, float]]:
    """Return texts and values of the counters of host memory, by name."""
    return {
        "offload_saved_blocks": ("Blocks copied to host memory.", stats.saved_blocks),
        "offload_lost_blocks": ("Blocks evicted before they could be copied to host memory.", stats.lost_blocks),
        "offload_saved_snapshots": ("Snapshots of states copied to host memory.", stats.saved_snapshots),
        "offload_lost_snapshots": ("Snapshots evicted before they could be copied.", stats.lost_snapshots),
        "offload_restored_snapshots": ("Snapshots copied back.", stats.restored_snapshots),
        "offload_host_evictions": ("Blocks and snapshots that host memory gave up for others.", stats.host_evictions),
        "offload_host_hits": ("Tokens found in host memory, not on the device.", stats.host_hit_tokens),
        "offload_planned_restore": ("Of these, to be copied back as K and V.", stats.planned_restore_tokens),
        "offload_planned_project": ("Of these, to be projected from layer inputs.", stats.planned_project_tokens),
        "offload_planned_recompute": ("Of these, to be computed again.", stats.planned_recompute_tokens),
        "offload_restored": ("Tokens copied back as K and V.", stats.restored_tokens),
        "offload_projected": ("Tokens copied back as layer inputs and projected.", stats.projected_tokens),
        "offload_restores": ("Requests for which blocks were copied back, or steps that streamed.", stats.restores),
        "offload_recomputes": ("Requests that found blocks and computed all of them.", stats.recomputes),
        "offload_failed_restores": ("Copies back that failed; what they held was computed.", stats.failed_restores),
        "offload_failed_saves": ("Blocks whose copy to host memory failed.", stats.failed_saves),
        "offload_predicted_seconds": (
            "Planned for the copies back that ended well, or for streamed steps.",
            stats.predicted_seconds,
        ),
        "offload_restore_seconds": ("What these took.", stats.restore_seconds),
        "offload_saved_bytes": ("Copied to host memory.", stats.saved_bytes),
        "offload_save_link_seconds": ("That the link to host memory was busy.", stats.save_link_seconds),
        "offload_restored_bytes": ("Copied from host memory.", stats.restored_bytes),
        "offload_restored_input_bytes": ("Of these, layer inputs.", stats.restored_input_bytes),
        "offload_restore_link_seconds": ("That the link from host memory was busy.", stats.restore_link_seconds),
        "offload_idle_seconds": ("That a device that streams its cache waited for copies.", stats.idle_seconds),
    }


def kv_event_counters(stats: KVEventStats) -> dict[str, tuple[str, float]]:
    """Return texts and values of the counters of KV events, by name."""
    return {
        "kv_event_batches": ("Batches of events of KV blocks.", stats.batches),
        "kv_event_dropped_batches": ("Of these, not sent, as too many waited.", stats.dropped_batches),
    }


def kv_tier_counters(stats: KVTierStats) -> dict[str, tuple[str, float]]:
    """Return texts and values of the counters of a KV tier, by name."""
    return {
        "kv_tier_hits": ("Blocks looked up in the KV tier and found.", stats.hit_blocks),
        "kv_tier_misses": ("Blocks looked up in the KV tier and not found.", stats.missed_blocks),
        "kv_tier_read_blocks": ("Blocks read from the KV tier.", stats.read_blocks),
        "kv_tier_read_bytes": ("Read from the KV tier.", stats.read_bytes),
        "kv_tier_read_seconds": ("What these reads took.", stats.read_seconds),
        "kv_tier_written_blocks": ("Blocks written to the KV tier.", stats.written_blocks),
        "kv_tier_written_bytes": ("Written to the KV tier.", stats.written_bytes),
        "kv_tier_dropped_writes": ("Blocks not written, as too many waited or it failed.", stats.dropped_writes),
        "kv_tier_errors": ("Calls of the KV tier that failed.", stats.errors),
        "kv_tier_damaged_blocks": ("Blocks read that were not what was written.", stats.damaged_blocks),
        "kv_tier_timeouts": ("Requests that stopped waiting for blocks and computed them.", stats.timeouts),
        "kv_tier_compared_blocks": ("Blocks computed again and compared with the KV tier's.", stats.compared_blocks),
        "kv_tier_differing_blocks": ("Of these, blocks with other bits.", stats.differing_blocks),
    }
