"""Texts for a real model, and what an engine answers to them with its log-probabilities."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from jaxgen import LLM
from jaxgen.core.request import Request, TokenEvent, TokenLogprobs
from jaxgen.core.sampling_params import SamplingParams
from tests.support.paths import ROOT

NAME = "smollm2-135m"
LONG_TEXT = ROOT / "tests" / "real" / "text.md"
LONG = 2000
"""Tokens of the long prompt, which begins the text."""
ANSWER = 16
"""Tokens of each greedy answer."""
PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "def fibonacci(n):\n",
    "import numpy as np\n\nx = np.",
    "The three states of matter are",
    "Once upon a time, in a small village by the sea,",
    "Q: What is 12 + 7?\nA:",
    "The quick brown fox",
    "Dear Sir or Madam,\n\nI am writing to",
    "SELECT name, age FROM users WHERE",
    "Photosynthesis is the process by which",
    "1, 2, 3, 4, 5, 6,",
    '{"name": "Alice", "age":',
    "In 1969, Neil Armstrong",
    "To make a cup of tea, first",
    "La capitale de l'Italie est",
    "<html>\n<head>\n<title>",
    "Shakespeare wrote the play",
    "The opposite of hot is",
    "# Shopping list\n\n- apples\n- ",
)
GREEDY = SamplingParams(max_tokens=ANSWER, temperature=0.0, ignore_eos=True, logprobs=4)
_ids = count()


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of a prompt. ``prompt``: log-probabilities of its tokens but the first, where they were asked for."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    prompt: tuple[TokenLogprobs, ...] = ()
    cached: int = 0


def encoded(llm: LLM, text: str) -> tuple[int, ...]:
    return tuple(llm.engine.tokenizer.encode(text))


def long_prompt(llm: LLM, start: int = 0) -> tuple[int, ...]:
    """Tokens of the text. ``start``: those that are left out at its beginning, and put at the end."""
    tokens = encoded(llm, LONG_TEXT.read_text(encoding="utf-8"))
    assert len(tokens) >= LONG
    return (tokens[start:] + tokens[:start])[:LONG]


def answer_all(llm: LLM, prompts: Sequence[tuple[int, ...]], params: SamplingParams = GREEDY) -> list[Answered]:
    """All prompts at once."""

    async def run() -> list[Answered]:
        return await asyncio.gather(*(_answer(llm, prompt, params) for prompt in prompts))

    return asyncio.run(run())


async def _answer(llm: LLM, prompt: tuple[int, ...], params: SamplingParams) -> Answered:
    async with aclosing(llm.engine.generate(Request(f"real-{next(_ids)}", prompt, params))) as events:
        came: list[TokenEvent] = [event async for event in events]
    assert came[-1].error is None, came[-1].error
    return Answered(
        tuple(event.token for event in came if event.token is not None),
        tuple(event.logprobs for event in came if event.logprobs is not None),
        tuple(one for event in came for one in event.prompt_logprobs or () if one is not None),
        max(event.cached_tokens or 0 for event in came),
    )


def scores_of(llm: LLM, tokens: tuple[int, ...], first: int) -> npt.NDArray[np.float64]:
    """Return what the engine says are the log-probabilities of ``tokens[first:]``."""
    (answered,) = answer_all(llm, [tokens], SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0))
    return np.array([one.logprob for one in answered.prompt[first - 1 :]])
