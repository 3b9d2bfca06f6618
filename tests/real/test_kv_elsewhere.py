"""A long context of a real model that was in host memory, or stays there, gives the same bits."""

from collections.abc import Iterator
from typing import Any

import pytest

from jaxgen import LLM
from tests.real.conftest import MOST
from tests.support.real_model import LONG, NAME, Answered, answer_all, encoded, long_prompt

BLOCK = 64
ROOM = -(-MOST // BLOCK) + 2
"""Blocks for one long context, and no second."""


@pytest.fixture(scope="module")
def expected(served: LLM) -> list[Answered]:
    return [answer for one in contexts(served) for answer in answer_all(served, [one])]


def contexts(llm: LLM) -> Iterator[tuple[int, ...]]:
    """A long prompt, another, and the first again."""
    yield from (long_prompt(llm), long_prompt(llm, LONG // 3), long_prompt(llm))


def test_a_context_comes_back_from_host_memory(expected: list[Answered]) -> None:
    options: dict[str, Any] = {"block_size": BLOCK, "num_blocks": ROOM, "single_shape": True}
    with LLM(NAME, max_model_len=MOST, kv_offloading_size=1.0, kv_offload_policy="transfer", **options) as llm:
        found = [answer for one in contexts(llm) for answer in answer_all(llm, [one])]
    assert found[2].cached > LONG - 2 * BLOCK, "it was computed again"
    assert [(one.tokens, one.logprobs) for one in found] == [(one.tokens, one.logprobs) for one in expected]


def test_a_cache_that_stays_in_host_memory(served: LLM, expected: list[Answered]) -> None:
    options: dict[str, Any] = {"kv_residency": "host", "kv_offload_policy": "transfer"}
    short = encoded(served, "The three states of matter are")
    with LLM(NAME, max_model_len=MOST, kv_offloading_size=1.0, **options) as llm:
        found = answer_all(llm, [long_prompt(llm), short])
    wanted = [expected[0], *answer_all(served, [short])]
    assert [(one.tokens, one.logprobs) for one in found] == [(one.tokens, one.logprobs) for one in wanted]
