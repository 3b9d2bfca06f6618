"""Which kernels are proven for a GPU, in which shapes, and which are taken without a proof."""

from dataclasses import replace
from typing import Any

import jax
import pytest

from jaxgen.assembly import kernels, resolve
from jaxgen.assembly.kernels import served_shapes
from jaxgen.assembly.parameters import load_model
from jaxgen.assembly.resolve import resolve_on_device
from jaxgen.core.config import EngineOptions
from jaxgen.kernels.choice import REFERENCE_GPU
from jaxgen.kernels.proving import proof as kernel_proof
from jaxgen.sizing.token_budget import TokenBudget
from tests.support.engines import LLAMA
from tests.support.fake_gpu import H200


def test_a_program_that_holds_the_gpu_proves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """It takes XLA's kernels, and says why."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a proof beside an open device")

    jax.devices()
    monkeypatch.setattr(resolve, "find_gpu", lambda platforms: H200)
    monkeypatch.setattr(resolve, "device_info", lambda: H200.device)
    copies = replace(REFERENCE_GPU, name="those", gather_blocks=refuse)
    made = copies.compared_with(REFERENCE_GPU)
    monkeypatch.setattr(kernels, "made_for", lambda *_: made)
    monkeypatch.setattr("jaxgen.kernels.choice.made_for", lambda *_: made)
    monkeypatch.setattr(kernel_proof, "run_proof", refuse)
    for choice, name, reason in (("auto", "XLA", "this process has opened the GPU before"), ("unproven", "those", "")):
        resolved = resolve_on_device(kernels=choice, cache_dir=tmp_path)  # type: ignore[arg-type]
        chosen, _ = load_model(resolved, block_size=64, progress=False)
        assert (chosen.name, reason in chosen.reason) == (name, True)


def test_what_will_be_served() -> None:
    by_rule = TokenBudget(256, "the rule")

    def widths(
        options: EngineOptions, tuned: list[int] | None = None, *, wide: bool = False
    ) -> tuple[tuple[int, ...], int]:
        may_be = [TokenBudget(1024, "", 512) if wide else by_rule, by_rule]
        shapes = served_shapes(LLAMA, options, may_be, tuned, None)
        return shapes.token_budgets, shapes.max_num_seqs

    assert widths(EngineOptions()) == ((256, 64), 256)
    assert widths(EngineOptions(token_budget=1024)) == ((1024, 64), 256)
    assert widths(EngineOptions(token_budget=1024, single_shape=True)) == ((1024,), 256)
    assert widths(EngineOptions(max_num_seqs=64)) == ((256, 64), 64)
    assert widths(EngineOptions(), [16, 256, 64]) == ((256, 64, 16), 256)
    assert widths(EngineOptions(), wide=True) == ((1024, 256, 64), 512)
    assert widths(EngineOptions(token_budget=512), wide=True) == ((512, 64), 512)
