"""Whether peers compute the same model: greedy answers to the same prompts, one after another."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxgen.server.benchmark.requests import FIRST_ID
from scripts.peers.load import VOCAB_SIZE
from scripts.peers.peer import PeerError
from scripts.peers.process import RunningServer

NUM_PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 16, 64, 8


def answers(
    read: Callable[[dict[str, Any]], list[int]], server: RunningServer, timeout: float = 120.0
) -> list[list[int]]:
    """The tokens after each of ``NUM_PROMPTS`` prompts, which ``read`` takes out of a completion.

    ``timeout``: seconds of each. Raises OSError, or PeerError when their number is not the one asked for.
    """
    prompts = np.random.default_rng(8).integers(FIRST_ID, VOCAB_SIZE, (NUM_PROMPTS, PROMPT_TOKENS)).tolist()
    result = []
    for prompt in prompts:
        fields = {"prompt": prompt, "max_tokens": ANSWER_TOKENS, "return_token_ids": True}
        answer = server.complete(fields, timeout)
        tokens = read(answer)
        if len(tokens) != ANSWER_TOKENS:
            raise PeerError(f"an answer of {len(tokens)} tokens instead of {ANSWER_TOKENS}: {str(answer)[:300]}")
        result.append(tokens)
    return result


def agree(ours: list[list[int]], theirs: list[list[int]]) -> tuple[int, int]:
    """In how many prompts the first tokens agree, and in how many all do."""
    pairs = list(zip(ours, theirs, strict=True))
    return sum(a[0] == b[0] for a, b in pairs), sum(a == b for a, b in pairs)
