"""Time the first token of a context that left the device: copied back from pinned host memory, computed again,
or as planned."""

from statistics import median

from jaxgen.cache.cache_format import CacheFormat
from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.bench import Bench
from scripts.gpu.rows.kernels import BLOCK_SIZE, kernels_for
from scripts.offload.restore import POLICIES, build
from scripts.offload.restore import Measurement as Context


def whole(bench: Bench) -> Run:
    """Time one context of ``restored_tokens`` tokens by each policy. ``seconds`` are those of the copy."""
    model, tokens = bench.sizes.steps.model, bench.sizes.restored_tokens
    kernels = kernels_for(bench)
    params = bench.shared.params_of(model, kernels)
    engine = build(model, kernels, tokens, bench.sizes.served_budget, params=params)

    def run() -> Measurement:
        context = Context(engine, tokens)
        seconds = {way: median(context.restore(way)[0] for _ in range(bench.sizes.restores)) for way in POLICIES}
        detail = {
            "kernels": kernels.name,
            "tokens": tokens,
            "first_computed_seconds": context.computed_seconds,
            **{f"{way}_seconds": found for way, found in seconds.items()},
        }
        moved = -(-tokens // BLOCK_SIZE) * CacheFormat.of(model, BLOCK_SIZE).block_bytes
        return Measurement(seconds=seconds["transfer"], bytes=moved, detail=detail)

    return run
