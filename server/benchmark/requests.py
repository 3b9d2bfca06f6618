"""Make the requests of a load: lengths, prompts and bodies, all drawn from one seed before the clock starts."""

import json
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np

from jaxgen.text.tokenizer import Tokenizer

STD_SHARE = 0.3
STAGGER_SECONDS = 0.01
"""FastGen's clients begin within this many seconds times their number."""
FIRST_ID = 4
"""Lowest token id of prompts: lower ids are special tokens in most vocabularies."""

_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A body ready to send, its planned number of prompt tokens, and its max_tokens (None: unknown)."""

    body: bytes
    prompt_tokens: int
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """FastGen's lengths in tokens: normally distributed, rounded and clipped to 1..max.

    ``std_share``: deviation / mean.
    """

    prompt_mean: float
    prompt_max: int
    output_mean: float
    output_max: int
    std_share: float = STD_SHARE

    @classmethod
    def about(cls, prompt_mean: float, output_mean: float, std_share: float = STD_SHARE) -> "Lengths":
        """Return lengths with these means, of which none is more than ``default_max`` of its mean."""
        return cls(
            prompt_mean=prompt_mean,
            prompt_max=default_max(prompt_mean),
            output_mean=output_mean,
            output_max=default_max(output_mean),
            std_share=std_share,
        )

    def draw(self, seed: int, num: int) -> list[tuple[int, int]]:
        """Draw (prompt, output) for each request; equal seeds give equal first lengths for every ``num``."""
        mean = np.array([self.prompt_mean, self.output_mean])
        drawn = mean * (1.0 + self.std_share * np.random.default_rng([seed, 2]).standard_normal((num, 2)))
        clipped = np.clip(np.rint(drawn), 1, [self.prompt_max, self.output_max])
        return [(int(prompt), int(output)) for prompt, output in clipped]


def default_max(mean: float) -> int:
    """Return the greatest length of a load by default: twice the mean."""
    return round(2 * mean)


class Prompts(Protocol):
    def make(self, number: int, length: int) -> str | list[int]:
        """Return the prompt of request ``number`` of the run: the shared prefix, then ``length`` tokens of its own."""
        ...


class IdPrompts:
    """Random token ids, ``FIRST_ID`` to ``vocab_size`` - 1; all prompts share their first ``shared_prefix`` ids."""

    def __init__(self, vocab_size: int, shared_prefix: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._prefix = self._ids(np.random.default_rng([seed, 0]), shared_prefix)

    def make(self, number: int, length: int) -> list[int]:
        return self._prefix + self._ids(np.random.default_rng([self._seed, 1, number]), length)

    def _ids(self, rng: np.random.Generator, length: int) -> list[int]:
        return rng.integers(FIRST_ID, self._vocab_size, length).tolist()


class TextPrompts:
    """FastGen's prompts: one passage of random words, from which request i takes tokens from place i on (cyclically).

    So no two prompts begin alike. The text may have a few tokens more or fewer than planned; usage has the number.
    """

    def __init__(self, tokenizer: Tokenizer, shared_prefix: int, seed: int, passage_tokens: int) -> None:
        """``passage_tokens``: at least the number of requests, or prompts repeat."""
        self._tokenizer = tokenizer
        self._passage = self._words(np.random.default_rng([seed, 1]), passage_tokens)
        self._prefix = tokenizer.decode(self._words(np.random.default_rng([seed, 0]), shared_prefix))

    def make(self, number: int, length: int) -> str:
        tokens = (self._passage[(number + i) % len(self._passage)] for i in range(length))
        return self._prefix + self._tokenizer.decode(tokens)

    def _words(self, rng: np.random.Generator, length: int) -> list[int]:
        # A word is at least one token, plus the special tokens that the tokenizer puts around a text.
        text = " ".join(rng.choice(_WORDS, length + 1))
        tokens = [token for token in self._tokenizer.encode(text) if not self._tokenizer.is_special(token)]
        return tokens[:length]


class Planner:
    """Makes the bodies of requests. Every prompt is different, so that only the shared prefix is in a prefix cache.

    Request i of every load has the same lengths, so that loads are comparable.
    """

    def __init__(
        self, lengths: Lengths, prompts: Prompts, shared_prefix: int, fields: dict[str, Any], seed: int
    ) -> None:
        """``fields``: fields of the body that all requests share."""
        self._lengths = lengths
        self._prompts = prompts
        self._shared_prefix = shared_prefix
        self._fields = fields
        self._seed = seed
        self._numbers = count()

    def requests(self, num: int) -> list[PlannedRequest]:
        lengths = self._lengths.draw(self._seed, num)
        return [self._plan(next(self._numbers), prompt, output) for prompt, output in lengths]

    def _plan(self, number: int, prompt_length: int, max_tokens: int) -> PlannedRequest:
        prompt = self._prompts.make(number, prompt_length)
        body = json.dumps({**self._fields, "prompt": prompt, "max_tokens": max_tokens}).encode()
        return PlannedRequest(body, self._shared_prefix + prompt_length, max_tokens)


def stagger(seed: int, clients: int, seconds: float = STAGGER_SECONDS) -> list[float]:
    """Draw FastGen's delays of a closed loop: uniform between 0 and clients * ``seconds``."""
    return np.random.default_rng([seed, 3]).uniform(0.0, clients * seconds, clients).tolist()


def poisson_arrivals(seed: int, rate: float, num: int) -> list[float]:
    """Draw the arrival times of ``num`` requests, ``rate`` per second on average, in seconds from the start."""
    return np.cumsum(np.random.default_rng([seed, 4]).exponential(1.0 / rate, num)).tolist()


def request_fields(
    model: str, *, usage: str, ignore_eos: bool, temperature: float, top_p: float, service_tier: str | None = None
) -> dict[str, Any]:
    """Return the fields that all bodies share. ``usage``: continuous, final or none.

    ``ignore_eos``, ``continuous_usage_stats`` and ``service_tier`` are sent only when set: not every server knows them.
    """
    fields: dict[str, Any] = {"model": model, "stream": True, "temperature": temperature, "top_p": top_p}
    if usage != "none":
        fields["stream_options"] = {"include_usage": True}
    if usage == "continuous":
        fields["stream_options"]["continuous_usage_stats"] = True
    if ignore_eos:
        fields["ignore_eos"] = True
    if service_tier is not None:
        fields["service_tier"] = service_tier
    return fields
