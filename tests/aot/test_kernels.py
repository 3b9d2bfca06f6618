"""Every Pallas kernel compiles for the GPU, with no spills that matter, within its shared memory, and in place."""

import logging

import jax
import pytest

from tests.aot.cases import CASES, Case
from tests.aot.target import WARPGROUP, MosaicKernel, Target, compile_for

logger = logging.getLogger(__name__)

MAX_SHARED_MEMORY = {8: 101_376, 9: 232_448, 10: 232_448, 12: 101_376}
"""Of a thread block, by compute capability: 8.0 has more than 8.9."""
MAX_TEMPORARIES = 96 * 2**20
"""Of attention: pieces that are to be combined, at most one for each row and each 512 tokens of the cache."""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiles(case: Case, target: Target) -> None:
    compiled = compile_for(target, case.function, case.args, donate=(0,) if case.in_place else ())
    logger.info("%s: %s, %d bytes of temporaries", case, compiled.kernels, compiled.temporaries)
    assert compiled.num_mosaic, "no Pallas kernel in it"
    if jax.__version__.startswith("0.11"):  # later ones say nothing of a kernel that was compiled before
        assert compiled.kernels
    for kernel in compiled.kernels:
        assert bool(kernel.reallocated) == (kernel.threads > WARPGROUP and "write_kv" not in kernel.name), kernel
        assert max(kernel.spill_stores, kernel.spill_loads) <= case.most_spilled
        assert kernel.register_trouble is None, kernel
        assert kernel.shared_memory <= MAX_SHARED_MEMORY[target.major]
        assert not kernel.misaligned, kernel
    cache_bytes = case.cache.size * case.cache.dtype.itemsize
    assert compiled.aliased == (cache_bytes if case.in_place else 0)
    assert not compiled.copies(case.cache)
    assert not compiled.fused_mosaic
    assert compiled.temporaries < max(cache_bytes / 32, MAX_TEMPORARIES)


@pytest.mark.parametrize(
    ("threads", "registers", "reallocated", "trouble"),
    [
        (384, 168, (("dec", 32), ("inc", 240)), "65536 registers wanted of a thread block's 64512"),
        (384, 168, (("dec", 40), ("inc", 232)), None),
        (256, 240, (("dec", 40), ("inc", 232)), "launched with 240 registers"),
        (384, 168, (("inc", 232),), "not one number for each"),
        (512, 128, (("dec", 24), ("dec", 56), ("inc", 216)), None),
        (512, 128, (("dec", 24), ("dec", 72), ("inc", 216)), "67584 registers wanted of a thread block's 65536"),
        (128, 255, (), None),
    ],
)
def test_what_registers_would_be_waited_for(
    target: Target, threads: int, registers: int, reallocated: tuple[tuple[str, int], ...], trouble: str | None
) -> None:
    found = MosaicKernel("any", threads, registers, reallocated, 0, 0, 0).register_trouble
    assert found is None if trouble is None else trouble in str(found)
