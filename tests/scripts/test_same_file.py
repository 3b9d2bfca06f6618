"""Times of prompts and decodes from what a server's completions cost, and the table of files."""

from typing import Any, cast

import pytest

from scripts.measure.same_file import DECODES, PROMPT, lines, round_of
from scripts.peers.process import RunningServer


class Priced:
    """A server whose tokens have a price."""

    def __init__(self, prompt: float, decode: float) -> None:
        self._prompt, self._decode, self._spent = prompt, decode, 1.0

    def cpu_seconds(self) -> float:
        return self._spent

    def complete(self, fields: dict[str, Any], timeout: float) -> None:
        del timeout
        self._spent += len(fields["prompt"]) * self._prompt + (fields["max_tokens"] - 1) * self._decode


def test_decodes_cost_what_a_longer_completion_does_beyond_its_prompt() -> None:
    servers = {"jaxgen": Priced(0.001, 0.02), "llama.cpp": Priced(0.002, 0.01)}
    for seed in (0, 1):
        found = round_of(cast("dict[str, RunningServer]", servers), seed)
        assert found["jaxgen"] == pytest.approx((1.0, 20.0))
        assert found["llama.cpp"] == pytest.approx((2.0, 10.0))
    assert PROMPT > DECODES > 0


def test_a_line_has_medians_and_ratios_of_rounds() -> None:
    ours, theirs = [[1.0, 10.0], [2.0, 10.0], [4.0, 20.0]], [[2.0, 10.0], [2.0, 5.0], [2.0, 10.0]]
    row = {"shape": "a", "type": "Q8_0", "ms": {"jaxgen": ours, "llama.cpp": theirs}, "prompts": 16}
    (line,) = lines([row | {"first_tokens_equal": 5}])
    cells = ["a", "Q8_0", "2.00, 2.00: 1.00 (0.50 to 2.00)", "10.00, 10.00: 0.50 (0.50 to 1.00)", "5 of 16"]
    assert line == cells
