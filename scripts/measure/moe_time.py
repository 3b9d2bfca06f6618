"""Measure a mixture-of-experts block with native CPU kernels and XLA's, compared with the least time of its work.

One program walks some layers, so that weights come from memory as they do in a step. The kernels take turns; the
smallest time of each is printed, per layer. Ideal: the weights of the experts that were chosen, read once at the rate
of reading memory, or the FLOPs of the tokens' experts at the best rate of a large product, whichever takes longer.

    .venv/bin/python -m scripts.measure.moe_time
    .venv/bin/python -m scripts.measure.moe_time --dtypes bfloat16 --tokens 1,64 --rounds 30
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxgen.core.moe_config import MoEConfig
from jaxgen.kernels.choice import REFERENCE, native
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.batch import BlockTokens
from jaxgen.models.layer_stack import fold_layers
from jaxgen.models.linear import Matrix
from jaxgen.models.moe import MoE, route
from jaxgen.models.placement import place_matrix
from jaxgen.models.positions import Positional
from jaxgen.models.walk import LayerContext
from pallas_kernels.cpu.library import DTYPES, Library
from pallas_kernels.cpu.loading import load
from pallas_kernels.packed_product import pack
from scripts.measure.kernel_time import bytes_per_second, fastest, flops_per_second

LAYERS, WIDTH = 4, 1024
CONFIG = MoEConfig(experts=32, per_token=4, inner=512)
TOKENS = "1,8,64,256"

Params = dict[tuple[Any, ...], Any]


def draw(dtype: str) -> tuple[Any, Params]:
    """Return the layers' module without values, and random parameters by path: (value, whether it is a matrix)."""
    graph, state = nnx.split(nnx.eval_shape(lambda: MoE(CONFIG, WIDTH, dtype=dtype, rngs=nnx.Rngs(0), stack=(LAYERS,))))
    params = {}
    for number, (path, leaf) in enumerate(nnx.to_flat_state(state)):
        shape = leaf.get_raw_value().shape
        value = jax.random.normal(jax.random.key(number), shape, dtype) * shape[-1] ** -0.5
        params[path] = value.astype(dtype), isinstance(leaf, Matrix)
    return graph, params


def layers_of(graph: Any, kernels: Kernels) -> Callable[..., Any]:
    """Return a program (params, x) -> what all layers make of x, added to it."""

    @jax.jit
    def program(params: Params, x: jax.Array) -> Any:
        flat: Any = {path: nnx.Param(value) for path, value in params.items()}
        layers = nnx.merge(graph, nnx.from_flat_state(flat))
        nowhere, num_tokens = jnp.arange(len(x)), jnp.int32(len(x))
        at = LayerContext(BlockTokens(nowhere, nowhere, num_tokens), Positional(), jnp.int32(0), None, kernels)

        def visit(layer: Any, _index: Any, _window: Any, total: jax.Array) -> Any:
            return layer(x, at, total)

        return fold_layers(layers, LAYERS, visit, x)

    return program


def experts_read(params: Params, x: jax.Array) -> float:
    """Return the mean number of experts that the tokens choose in a layer."""
    used = []
    for router in params["router", "weight"][0]:
        logits = jnp.matmul(x, router.T, preferred_element_type=jnp.float32)
        used.append(np.count_nonzero(np.diff(route(CONFIG, logits, jnp.int32(len(x))).starts)))
    return float(np.mean(used))


def product_rate(library: Library, dtype: str) -> float:
    """Return FLOPs per second of the native product of 512 rows with a matrix that no cache holds."""
    rows, inputs, outputs = 512, 1024, 16384
    packed = pack(jnp.ones((1, outputs, inputs), dtype))
    program = jax.jit(partial(library.packed_product, out_features=outputs))
    arguments = jnp.ones((rows, inputs), dtype), packed, jnp.int32(0), jnp.int32(rows)
    return 2 * rows * inputs * outputs / fastest({"": program}, {"": arguments}, 5)[""]


def measure(library: Library, dtype: str, tokens: list[int], rounds: int) -> None:
    """Print one line of JSON for each number of tokens."""
    bandwidth, rate = bytes_per_second(), max(flops_per_second(dtype), product_rate(library, dtype))
    print(f"# limits with {dtype}: {bandwidth / 1e9:.1f} GB/s, {rate / 1e9:.0f} GFLOP/s", flush=True)
    graph, params = draw(dtype)
    sets = {"native": native(library), "xla": REFERENCE}
    placed = {
        name: {
            path: place_matrix(value, kernels) if is_matrix else value for path, (value, is_matrix) in params.items()
        }
        for name, kernels in sets.items()
    }
    programs = {name: layers_of(graph, kernels) for name, kernels in sets.items()}
    of_expert = 3 * WIDTH * CONFIG.inner
    for T in tokens:
        x = jax.random.normal(jax.random.key(100), (T, WIDTH), dtype)
        seconds = fastest(programs, {name: (placed[name], x) for name in sets}, rounds)
        used = experts_read(params, x)
        by_bytes = used * of_expert * jnp.dtype(dtype).itemsize / bandwidth
        by_flops = 2 * T * CONFIG.per_token * of_expert / rate
        ours, xla = (seconds[name] / LAYERS for name in sets)
        row = {
            "dtype": dtype,
            "tokens": T,
            "experts_read": round(used, 1),
            "native_ms": round(1e3 * ours, 2),
            "xla_ms": round(1e3 * xla, 2),
            "bytes_ms": round(1e3 * by_bytes, 2),
            "flops_ms": round(1e3 * by_flops, 2),
            "of_ideal": round(max(by_bytes, by_flops) / ours, 2),
        }
        print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--tokens", default=TOKENS)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    with TemporaryDirectory() as directory:
        library = load(Path(directory))
    for dtype in args.dtypes.split(","):
        measure(library, dtype, [int(T) for T in args.tokens.split(",")], args.rounds)


if __name__ == "__main__":
    main()
