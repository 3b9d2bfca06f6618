"""The sampling rule as docs/sampling.md has it, run as it is printed there, against the step's."""

import re
from typing import Any

import numpy as np
import pytest

from jaxgen.core.sampling_params import choice_seed
from tests.sampling.test_rule import threefry
from tests.support.draws import draw, params
from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "sampling.md"


@pytest.fixture(scope="module")
def rule() -> dict[str, Any]:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63 - 1, choice_seed(7, 3)])
def test_random_words(rule: dict[str, Any], seed: int) -> None:
    key = np.array([[seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF]], np.uint32)
    for position in (0, 1, 2**20):
        high, low = threefry(key, np.array([[0, position]], np.uint32))[0]
        assert rule["random_word"](seed, position) == int(high) << 32 | int(low)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.6, "top_p": 0.8},
        {"top_k": 5},
        {"top_k": 50, "top_p": 0.5, "min_p": 0.02},
        {"min_p": 0.1, "temperature": 1.7},
        {"top_p": 0.0},
    ],
)
def test_tokens(rule: dict[str, Any], settings: dict[str, Any]) -> None:
    """All but those whose draw falls within rounding of the border between two tokens."""
    rows = 128
    x = 3 * np.random.default_rng(0).standard_normal((rows, 301)).astype(np.float32)
    x[0, :5] = np.inf, np.nan, -np.inf, 2.0, 2.0
    positions = np.arange(rows) * 7
    found = draw(x, params(rows, 301, **{"temperature": 1.0, "seed": (0, 11)} | settings), positions)
    with np.errstate(over="ignore"):
        expected = [rule["choose"](row, int(at), 11, **settings) for row, at in zip(x, positions, strict=True)]
    assert sum(token != other for token, other in zip(found, expected, strict=True)) <= 1
