"""Layers with a window in an array of their own: the same bits as in one array, from fewer blocks."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from jaxgen.cache.window_manager import blocks_for
from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.sequence import Sequence, WindowBlocks
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU, native
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.kv_cache import KVCache, init_cache
from jaxgen.models.model import Params, bind, graph_of
from jaxgen.models.placement import pack_params
from jaxgen.runner.packer import Packer
from jaxgen.runner.row_state import RowLoader, RowState, init_rows, load_row
from jaxgen.runner.step import begin
from jaxgen.runner.step_layout import StepLayout
from jaxgen.scheduling.scheduler import Scheduler
from pallas_kernels.gpu.attention.ragged_paged_attention import plan_attention, ragged_paged_attention
from pallas_kernels.gpu.rotate_write import rotate_write
from tests.support.engines import LLAMA, params_of, request
from tests.support.golden_runs import SMALL, load_golden
from tests.support.goldens import golden_answers
from tests.support.interpreted import INTERPRET, watched
from tests.support.native import native as library

WINDOW = 16
LIMITS = replace(SMALL, scheduler=SchedulerConfig(16, 1, 128))
"""For one sequence: its window has so few blocks that each is used several times, and is not the block of the same id
in the first kind."""


def apart(limits: EngineConfig) -> EngineConfig:
    """With the fewest blocks for layers with a window."""
    least = blocks_for(limits.scheduler.max_num_seqs, WINDOW, limits.cache.block_size, limits.scheduler)
    return replace(limits, cache=replace(limits.cache, windows=(WINDOW,), window_blocks=(least,)))


def spoilt(cache: KVCache, held: WindowBlocks) -> KVCache:
    """The cache with NaN in the blocks that a sequence does not have, or not any more."""
    (_, array), having = cache.arrays, set(held.ids(held.num_freed))
    return cache.with_array(array.at[jnp.asarray(sorted({*range(len(array))} - having))].set(jnp.nan), 1)


def logits(
    model: ModelConfig, limits: EngineConfig, params: Params, kernels: Kernels, known: list[int]
) -> npt.NDArray[np.float32]:
    """Logits of all tokens, computed in chunks, whose blocks reach the device as a runner's do."""
    graph, layout = graph_of(model), StepLayout(model, limits, limits.scheduler.token_budget)

    @partial(jax.jit, donate_argnums=(1, 2))
    def forward(params: Any, cache: KVCache, rows: RowState, words: Any) -> Any:
        bound = bind(graph, params)
        rows, batch = begin(rows, words, layout)
        hidden, cache = bound(batch, cache)
        return bound.logits(bound.head_products(hidden, batch.num_tokens)), cache, rows

    scheduler = Scheduler(limits.scheduler, limits.cache)
    sequence = Sequence(request("a", known, max_tokens=1), eos_token_ids=frozenset(), arrival=0, seed=0)
    scheduler.add(sequence)
    packer, loader, packed = (
        Packer(limits),
        RowLoader(limits, model.vocab_size),
        pack_params(model, dict(params), kernels),
    )
    rows, cache = init_rows(limits, model.vocab_size), init_cache(model, limits.cache, kernels)
    pieces = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        for held in sequence.blocks.windows:
            cache = spoilt(cache, held)
        if plan.admitted:
            rows = load_row(rows, jnp.asarray(loader.words(sequence)))
        out, cache, rows = forward(packed, cache, rows, jnp.asarray(packer.pack(plan)))
        pieces.append(np.asarray(out)[: plan.num_tokens])
        scheduler.complete(plan, [0] * plan.num_samples)
    return np.concatenate(pieces)


KERNELS = {"scanned": lambda: REFERENCE, "apart": lambda: REFERENCE_GPU, "native": lambda: native(library())}
NAMES = ("gemma2", "gemma3", "gpt_oss", "olmo3", "exaone4")


# Quick: the one that XLA compiles in another way for two kinds.
CASES = [
    pytest.param(
        name, kernels, marks=pytest.mark.shipped if (name, kernels) == ("gemma3", "scanned") else pytest.mark.full
    )
    for name in NAMES
    for kernels in KERNELS
]


@pytest.mark.parametrize(("name", "kernels"), CASES)
def test_two_kinds_give_the_bits_of_one(name: str, kernels: str) -> None:
    model, params = load_golden(name)
    assert [kind.window for kind in model.cache_kinds] == [None, WINDOW]
    answer = max(golden_answers(name), key=lambda answer: len(answer.prompt))
    known, chosen = [*answer.prompt, *answer.greedy[:-1]], KERNELS[kernels]()
    one, two = (logits(model, limits, params, chosen, known) for limits in (LIMITS, apart(LIMITS)))
    np.testing.assert_array_equal(one, two)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:invalid value encountered in matmul:RuntimeWarning")  # of NaN that is masked
def test_gpu_kernels_give_the_bits_of_one() -> None:
    """Interpreted; a plan of attention is made for each kind's array. Logits are near those of XLA's kernels."""
    options: dict[str, Any] = {"num_ctas": 4, "interpret": INTERPRET}
    kernels = replace(
        REFERENCE_GPU,
        ragged_paged_attention=partial(ragged_paged_attention, **options),
        plan_attention=partial(plan_attention, num_ctas=4, in_kernel=True, interpret=INTERPRET),
        rotate_write=partial(rotate_write, **options),
    )
    model = replace(LLAMA, head_dim=64, windows=(None, WINDOW), dtype="bfloat16")
    known = [int(token) for token in np.random.default_rng(0).integers(model.vocab_size, size=24)]
    whole = replace(LIMITS, cache=CacheConfig(16, 8))
    with watched():
        one, two = (logits(model, limits, params_of(model), kernels, known) for limits in (whole, apart(whole)))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, logits(model, whole, params_of(model), REFERENCE_GPU, known), atol=0.05)
