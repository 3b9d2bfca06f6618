"""What this machine can do at most, and what part of it a server reached."""

import json
import subprocess
from typing import Any

from safetensors import safe_open

from scripts.peers.environment import TORCH, Environment
from scripts.peers.peer import Site
from scripts.peers.shapes import FORMATS, ROOT

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
    with safe_open(site.checkpoint("bfloat16") / "model.safetensors", "numpy") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 (it is not a dict)
    sizes = {name: shape[0] * shape[1] for name, shape in shapes.items() if len(shape) == 2}
    embedding = sizes.pop("model.embed_tokens.weight")
    head = sizes.pop("lm_head.weight", embedding)  # of tied ones there is none
    return {"layer_weights": sum(sizes.values()), "head_weights": head}


def fractions(limits: dict[str, float], name: str, cell: dict[str, Any]) -> dict[str, float]:
    """``memory``: the least that has to be read, all weights once for as many tokens as there are clients, at the rate
    that was reached, of a closed loop. ``products``: those with the weights. Both as parts of the machine's rates.

    ``name``: of the format. Attention, the cache and scales of weights are not counted, so neither can come to 1, but
    for products of integers, which are compared with the rate in bfloat16.
    """
    bytes_each = FORMATS[name].bits / 8
    streams = [cell, cell["long"]] if "long" in cell else [cell]
    output, prompt = (sum(one[name] for one in streams) for name in ("output_tokens_per_s", "prompt_tokens_per_s"))
    numbers = limits["layer_weights"] + limits["head_weights"]
    flops = 2 * (limits["layer_weights"] * (prompt + output) + limits["head_weights"] * output)
    result = {"products": flops / limits[f"{FORMATS[name].dtype}_flops_per_s"]}
    if cell["clients"]:
        steps = cell["output_tokens_per_s"] / cell["clients"]
        result["memory"] = bytes_each * numbers * steps / limits["memory_bytes_per_s"]
    return result
