"""scripts/gpu_check.py: other software at the same work; what it cannot do is not jaxgen's failure."""

from pathlib import Path
from typing import Any

import jax
import pytest

from scripts.device_check import serving
from scripts.device_check.cli import exit_status
from scripts.device_check.comparison import compared
from scripts.device_check.contiguous import gathered
from scripts.device_check.part import Part, UnavailableError
from scripts.device_check.report import Measurement, Report
from scripts.device_check.serving import _measurement
from scripts.device_check.shapes import TINY
from scripts.device_check.sizes import DRY, FULL, AttentionLoad, ServingLoad
from scripts.device_check.torch_attention import import_torch


def test_what_other_software_raises_is_unavailable(tmp_path: Path) -> None:
    @compared
    def unsupported() -> Measurement:
        raise RuntimeError("cuDNN does not support this")

    report = Report(tmp_path, "gpu", {})
    assert Part(report, 100.0).measure("cudnn", unsupported) is None
    assert report.rows[0].error == "unavailable: RuntimeError: cuDNN does not support this"
    assert exit_status(report) == 0


@pytest.mark.parametrize("rows", [((1, 70), (1, 33), (1, 64)), ((9, 70), (9, 9))], ids=["decodes", "prompts"])
def test_gathered_attention_is_that_of_the_blocks(rows: tuple[tuple[int, int], ...]) -> None:
    found = gathered(DRY, AttentionLoad("load", TINY, rows))
    assert found.bytes == 2 * 16 * 2 * (sum(context for _, context in rows) * 2 + sum(n for n, _ in rows) * 4)


def test_gathered_attention_that_differs_is_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    right = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda q, k, v, **options: right(q, v, k, **options))
    with pytest.raises(UnavailableError, match="differs from the reference"):
        gathered(DRY, AttentionLoad("load", TINY, ((1, 70), (1, 33))))


def test_every_load_can_be_gathered() -> None:
    """Rows with as many queries each."""
    for load in FULL.attention:
        assert len({length for length, _ in load.rows}) == 1


def test_without_pytorch_there_is_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr("scripts.device_check.torch_attention.import_module", absent)
    with pytest.raises(UnavailableError, match="no PyTorch: No module named 'torch'"):
        import_torch()


LOAD = ServingLoad("load", TINY, requests=2, prompt=10, answer=4)


def test_rates_by_hand() -> None:
    found = _measurement(LOAD, [4, 4], 2.0, {"kernels": "XLA"})
    assert found.detail["output_tokens_per_second"] == 4.0
    assert found.detail["tokens_per_second"] == 14.0
    assert found.detail["kernels"] == "XLA"


@pytest.mark.parametrize("tokens", [[4], [4, 3]])
def test_answers_that_are_missing_or_short_are_no_result(tokens: list[int]) -> None:
    with pytest.raises(RuntimeError, match="answers have"):
        serving._measurement(LOAD, tokens, 1.0, {})


def test_prompts_differ_and_can_be_made_again() -> None:
    first, second = LOAD.prompts(0), LOAD.prompts(1)
    assert [len(prompt) for prompt in first] == [10, 10]
    assert first == LOAD.prompts(0)
    assert len({tuple(prompt) for prompt in first + second}) == 4
