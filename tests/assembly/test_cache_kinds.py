"""An engine of a model with windows, from its files: what is planned is what it has, and answers are transformers'."""

from pathlib import Path
from typing import Any

import jax

from jaxgen.assembly.build import build_to_fit
from jaxgen.assembly.resolve import resolve_on_device
from jaxgen.assembly.text_settings import own_text_settings
from jaxgen.core.config import EngineOptions
from jaxgen.tools.plan import plan_model
from tests.support.engines import request, run, tokens
from tests.support.goldens import GOLDENS, golden_answers

OPTIONS = EngineOptions(block_size=8, num_blocks=96, max_num_seqs=4, token_budget=16, single_shape=True)
"""Blocks for six of the longest sequences, and a budget that cuts every long prompt."""


def test_windows_free_blocks_in_an_engine_that_is_planned_and_built(tmp_path: Path) -> None:
    model: dict[str, Any] = {"dtype": "float32", "kernels": "xla", "cache_dir": tmp_path}
    planned = plan_model(str(GOLDENS / "gemma3"), options=OPTIONS, **model).plan
    resolved = resolve_on_device(str(GOLDENS / "gemma3"), options=OPTIONS, **model)
    texts = own_text_settings(resolved.directory)
    engine = build_to_fit(resolved, resolved.configure(OPTIONS), OPTIONS, texts, ends=False, progress=False)
    assert engine.config == planned.config
    runner: Any = engine.runner
    arrays = [array.nbytes for array in runner.cache.arrays]
    assert [part.num_bytes for part in planned.kinds] == arrays
    assert sum(arrays) == planned.allocation.cache == sum(array.nbytes for array in jax.tree.leaves(runner.cache))
    answers = golden_answers("gemma3")
    for turn in ("first", "with cached prefixes"):
        todo = [request(f"{turn} {i}", one.prompt, max_tokens=24, temperature=0.0) for i, one in enumerate(answers)]
        events = run(engine, todo)
        assert [tokens(events[one.request_id]) for one in todo] == [one.greedy for one in answers]
    stats = engine.stats()
    full, windows = stats.kinds
    assert (full.name, full.blocks_total, stats.blocks_total) == ("full", 96, 96)
    assert (windows.name, windows.blocks_total) == ("window 16", planned.kinds[1].num_blocks)
    assert windows.blocks_total < 96
    assert (full.blocks_free, windows.blocks_free) == (96, windows.blocks_total), "an idle engine owns nothing"
    assert stats.prefix_hits > 0
