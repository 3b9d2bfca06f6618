"""What a load sends: lengths, prompts and bodies, all drawn from one seed before the clock starts."""

import json
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import numpy as np

from jaxgen.text.tokenizer import Tokenizer

STD_SHARE = 0.3
FIRST_ID = 4
"""Ids below are special tokens in most vocabularies."""

_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea body information"
)
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A body ready to send, the prompt tokens it is meant to have, and the tokens that it asks for (None: unknown)."""

    body: bytes
    prompt_tokens: int
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Normal lengths with a standard deviation of ``std_share`` of the mean, rounded and clipped to 1..max. Tokens."""

    prompt_mean: float
    prompt_max: int
    output_mean: float
    output_max: int
    std_share: float = STD_SHARE

    def draw(self, rng: np.random.Generator, num: int) -> list[tuple[int, int]]:
        """(prompt, output) for each request; more requests from an equal generator begin with the same ones."""
        mean = np.array([self.prompt_mean, self.output_mean])
        drawn = mean * (1.0 + self.std_share * rng.standard_normal((num, 2)))
        clipped = np.clip(np.rint(drawn), 1, [self.prompt_max, self.output_max])
        return [(int(prompt), int(output)) for prompt, output in clipped]


class Prompts(Protocol):
    def make(self, number: int, length: int) -> str | list[int]:
        """The prompt of request ``number`` of the run: the shared prefix, then ``length`` tokens of its own."""
        ...


class IdPrompts:
    """Random token ids, ``FIRST_ID`` to ``vocab_size`` - 1; the first ``shared_prefix`` are those of every prompt."""

    def __init__(self, vocab_size: int, shared_prefix: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._prefix = self._ids(np.random.default_rng([seed, 0]), shared_prefix)

    def make(self, number: int, length: int) -> list[int]:
        return self._prefix + self._ids(np.random.default_rng([self._seed, 1, number]), length)

    def _ids(self, rng: np.random.Generator, length: int) -> list[int]:
        return rng.integers(FIRST_ID, self._vocab_size, length).tolist()


class TextPrompts:
    """FastGen's way: one passage of random words, request i taking its tokens from place i on (wrapping round), so that
    no two prompts begin alike. As text it may come to a few tokens more or fewer than meant; usage has the number."""

    def __init__(self, tokenizer: Tokenizer, shared_prefix: int, seed: int, passage_tokens: int) -> None:
        """``passage_tokens``: at least as many as requests, or prompts repeat."""
        self._tokenizer = tokenizer
        self._passage = self._words(np.random.default_rng([seed, 1]), passage_tokens)
        self._prefix = tokenizer.decode(self._words(np.random.default_rng([seed, 0]), shared_prefix))

    def make(self, number: int, length: int) -> str:
        tokens = (self._passage[(number + i) % len(self._passage)] for i in range(length))
        return self._prefix + self._tokenizer.decode(tokens)

    def _words(self, rng: np.random.Generator, length: int) -> list[int]:
        # A word is a token at least, but for the special tokens that the tokenizer puts around a text.
        text = " ".join(rng.choice(_WORDS, length + 1))
        tokens = [token for token in self._tokenizer.encode(text) if not self._tokenizer.is_special(token)]
        return tokens[:length]


class Planner:
    """Bodies of requests. Each has a prompt of its own, so that nothing but the shared prefix is in a prefix cache;
    request i of every load has the same lengths, so that loads compare."""

    def __init__(
        self, lengths: Lengths, prompts: Prompts, shared_prefix: int, fields: dict[str, Any], seed: int
    ) -> None:
        """``fields``: those of the body that all requests share."""
        self._lengths = lengths
        self._prompts = prompts
        self._shared_prefix = shared_prefix
        self._fields = fields
        self._seed = seed
        self._numbers = count()

    def requests(self, num: int) -> list[PlannedRequest]:
        lengths = self._lengths.draw(np.random.default_rng([self._seed, 2]), num)
        return [self._plan(next(self._numbers), prompt, output) for prompt, output in lengths]

    def _plan(self, number: int, prompt_length: int, max_tokens: int) -> PlannedRequest:
        prompt = self._prompts.make(number, prompt_length)
        body = json.dumps({**self._fields, "prompt": prompt, "max_tokens": max_tokens}).encode()
        return PlannedRequest(body, self._shared_prefix + prompt_length, max_tokens)


def stagger(seed: int, clients: int, seconds: float) -> list[float]:
    """FastGen's delays of a closed loop: uniform between 0 and clients * ``seconds``."""
    return np.random.default_rng([seed, 3]).uniform(0.0, clients * seconds, clients).tolist()


def poisson_arrivals(seed: int, rate: float, num: int) -> list[float]:
    """Times at which ``num`` requests arrive, ``rate`` a second on average, seconds from the start."""
    return np.cumsum(np.random.default_rng([seed, 4]).exponential(1.0 / rate, num)).tolist()


def request_fields(
    model: str, *, usage: str, ignore_eos: bool, temperature: float, top_p: float, service_tier: str | None = None
) -> dict[str, Any]:
    """What the bodies share. ``usage``: continuous, final or none. ``ignore_eos`` is sent only when true,
    ``continuous_usage_stats`` and ``service_tier`` only when asked for: not every server knows them."""
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
