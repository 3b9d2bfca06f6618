"""python -m scripts.measure.product: rows of small products, whose shares are as the times say."""

from functools import partial
from typing import Any

import numpy as np
import pytest

from jaxgen.core.moe_config import MoEConfig
from scripts.measure import product, rates
from tests.support.native import native


def test_a_row_compares_with_reading_and_with_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product of one layer with 64 x 128 weights takes 4 us in bfloat16 and 2 us in 4 bits; a turn reads 8 kB in
    1 us. So 16 kB of bfloat16 take twice the time in which they are read."""
    seconds = {"bf16": 4e-6, "int4/32": 2e-6, "read": 1e-6}

    def told(programs: dict[str, Any], rounds: int) -> dict[str, np.ndarray]:
        for program in programs.values():
            program()
        return {name: np.full(rounds, seconds[name]) for name in programs}

    class Reader:
        nbytes = 8192

        def __call__(self) -> None:
            pass

    monkeypatch.setattr(product, "MATRICES", {"small": (64, 128)})
    monkeypatch.setattr(product, "STACK_BYTES", 2 * 64 * 128)
    monkeypatch.setattr(product, "Reader", Reader)
    monkeypatch.setattr(product, "turns", told)
    rows = {row["format"]: row for row in product.by_format(native(), "small", ["bf16", "int4/32"], [1], 3)}
    assert (rows["bf16"]["us"], rows["bf16"]["gbps"], rows["bf16"]["read_gbps"]) == (4.0, 4.1, 8.2)
    assert rows["bf16"]["of_read"] == 2.0
    assert rows["int4/32"]["of_bf16_tokens"] == 2.0
    assert rows["int4/32"]["gbps"] < rows["bf16"]["gbps"]


@pytest.mark.full
def test_experts_are_compared_with_the_least_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "WIDTH", 64)
    monkeypatch.setattr(product, "EXPERTS", MoEConfig(experts=4, per_token=2, inner=32))
    monkeypatch.setattr(product, "bytes_per_second", lambda: 1e9)
    monkeypatch.setattr(product, "flops_per_second", lambda _: 1e9)
    monkeypatch.setattr(product, "_product_rate", lambda *_: 2e9)
    (row,) = product.of_experts(native(), "float32", [1], 1)
    assert row["experts_read"] == 2.0
    assert row["bytes_ms"] == round(1e3 * 2 * 3 * 64 * 32 * 4 / 1e9, 2)
    assert row["flops_ms"] == round(1e3 * 2 * 2 * 3 * 64 * 32 / 2e9, 2)
    assert row["native_ms"] >= 0


def test_programs_take_turns() -> None:
    calls: list[str] = []
    taken = rates.turns({name: partial(calls.append, name) for name in "ab"}, 2)
    assert calls == ["a", "b"] * 3
    assert [len(seconds) for seconds in taken.values()] == [2, 2], "the first does not count"
