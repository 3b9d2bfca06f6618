"""Time attention of the same loads by PyTorch's scaled_dot_product_attention on contiguous keys and values, in a
process in which JAX does not preallocate the device's memory."""

import time
from functools import partial
from importlib import import_module
from statistics import median
from typing import Any

from scripts.gpu.result.report import Measurement
from scripts.gpu.rows.bench import Bench, UnavailableError
from scripts.gpu.rows.comparison import compared
from scripts.gpu.rows.work import AttentionLoad

CALLS = 4


def import_torch() -> Any:
    """Import PyTorch. Raises UnavailableError if it is not installed."""
    try:
        return import_module("torch")
    except ImportError as error:
        raise UnavailableError(f"no PyTorch: {error}") from error


@compared
def sdpa(bench: Bench, load: AttentionLoad) -> Measurement:
    """Time PyTorch's attention without a mask: its causal mask is for whole prompts, not for chunks of them."""
    torch = import_torch()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, (length, context) = load.model, load.rows[0]
    shape = partial(torch.randn, device=device, dtype=getattr(torch, model.dtype))
    q = shape(len(load.rows), model.num_heads, length, model.head_dim)
    k, v = (shape(len(load.rows), model.num_kv_heads, context, model.head_dim) for _ in range(2))
    attend = partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, enable_gqa=True)
    seconds = []
    with torch.inference_mode():
        for _ in range(bench.sizes.repeats + 1):
            started = time.perf_counter()
            for _ in range(CALLS):
                attend()
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append((time.perf_counter() - started) / CALLS)
    detail = {"best_seconds": min(seconds), "masked": False, "torch": torch.__version__, "on": device}
    moved, flops = load.cost()
    return Measurement(seconds=median(seconds[1:]), bytes=moved, flops=flops, detail=detail)
