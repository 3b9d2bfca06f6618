"""What this machine can do at most, and what part of it a server reached."""

import json
import subprocess
from typing import Any

from safetensors import safe_open

from scripts.peers.environment import TORCH, Environment
from scripts.peers.peer import ROOT, Site

ENVIRONMENT = Environment("torch", ((TORCH, "numpy"),))


def measure_limits(site: Site) -> dict[str, float]:
    """Rates of memory and of products in each dtype, and the sizes of the model that they are compared with."""
    ENVIRONMENT.make(site)
    command = [str(ENVIRONMENT.python(site)), "-m", "scripts.peers.limits_worker", str(site.threads)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rates: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**rates, **weights(site)}


def weights(site: Site) -> dict[str, float]:
    """``layer_weights``: in the products that every token takes. ``head_weights``: in those of sampled tokens only."""
    layers = head = 0
    with safe_open(site.checkpoint("bfloat16") / "model.safetensors", "numpy") as file:
        for name in file.keys():  # noqa: SIM118 (it is no dict)
            shape = file.get_slice(name).get_shape()
            if len(shape) == 2 and "embed_tokens" not in name:
                size = shape[0] * shape[1]
                layers, head = (layers, head + size) if "lm_head" in name else (layers + size, head)
    return {"layer_weights": layers, "head_weights": head}


def fractions(limits: dict[str, float], dtype: str, cell: dict[str, Any]) -> dict[str, float]:
    """``memory``: the least that has to be read, all weights once for as many tokens as there are clients, at the rate
    that was reached. ``products``: those with the weights. Both as parts of the machine's rates.

    Attention and the cache are not counted, so neither can come to 1.
    """
    bytes_each = 4 if dtype == "float32" else 2
    streams = [cell, cell["long"]] if "long" in cell else [cell]
    output, prompt = (sum(one[name] for one in streams) for name in ("output_tokens_per_s", "prompt_tokens_per_s"))
    steps = cell["output_tokens_per_s"] / cell["clients"]
    read = bytes_each * (limits["layer_weights"] + limits["head_weights"]) * steps
    flops = 2 * (limits["layer_weights"] * (prompt + output) + limits["head_weights"] * output)
    return {"memory": read / limits["memory_bytes_per_s"], "products": flops / limits[f"{dtype}_flops_per_s"]}
