"""The digest of a compiled program has XLA's choices of kernels in it, and not where sources lie."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgen.assembly.digest import program_digest
from jaxgen.models.packed_weight import plain_product
from pallas_kernels.gpu import write_kv
from tests.aot import cases
from tests.aot.target import Target, compile_for

T, I, O = 256, 4096, 4096  # noqa: E741
CHOICES: dict[str, dict[str, Any]] = {
    "as without a device": {},
    "whole sums": {"xla_gpu_experimental_force_split_k": "1"},
    "sums in four parts": {"xla_gpu_experimental_force_split_k": "4"},
    "cuBLAS": {"xla_gpu_enable_triton_gemm": False},
}
"""What autotuning chooses among, chosen by options."""

pytestmark = pytest.mark.only(cases.HOPPER)


def test_a_digest_has_the_choice_of_a_product(target: Target) -> None:
    def multiply(x: jax.Array, weight: jax.Array) -> jax.Array:
        return plain_product(x, weight).astype(x.dtype)

    shapes = [jax.ShapeDtypeStruct((size, I), jnp.bfloat16) for size in (T, O)]
    texts = [compile_for(target, multiply, shapes, read=False, options=one).hlo for one in CHOICES.values()]
    assert len({program_digest(text) for text in texts}) == len(CHOICES)
    *triton, cublas = texts
    for text in triton:
        tiles = '"output_tiles":[{"sizes":["'
        assert tiles in text
        assert program_digest(text.replace(tiles, f"{tiles}1")) != program_digest(text)
    assert '"selected_algorithm"' in cublas
    chosen = cublas.replace('"selected_algorithm":"', '"selected_algorithm":"1')
    assert program_digest(chosen) != program_digest(cublas)


def test_a_digest_does_not_have_the_folder_of_a_pallas_kernel(target: Target, tmp_path: Path) -> None:
    kv = jax.ShapeDtypeStruct((16, 8, 128), jnp.bfloat16)
    cache = jax.ShapeDtypeStruct((8, 1, 2, 8, 64, 128), jnp.bfloat16)
    arguments = (cache, jax.ShapeDtypeStruct((), jnp.int32), kv, kv, jax.ShapeDtypeStruct((16,), jnp.int32))
    texts = []
    for kernel in (write_kv.write_kv, _copied(tmp_path)):

        def write(*given: jax.Array, kernel: Callable[..., jax.Array] = kernel) -> jax.Array:
            return kernel(*given, num_ctas=132)

        texts.append(compile_for(target, write, arguments, (0,), read=False).hlo)
    assert (str(tmp_path) in texts[0], str(tmp_path) in texts[1]) == (False, True)
    assert program_digest(texts[0]) == program_digest(texts[1])


def _copied(folder: Path) -> Callable[..., jax.Array]:
    """Return the kernel of a copy of its file."""
    path = folder / "write_kv.py"
    path.write_text(Path(write_kv.__file__).read_text())
    spec = importlib.util.spec_from_file_location("pallas_kernels.gpu.write_kv_elsewhere", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., jax.Array] = module.write_kv
    return found
