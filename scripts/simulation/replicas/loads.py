"""Loads of several replicas: what one replica is given, as many times; and prompts that begin alike."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jaxgen.server.benchmark.requests import stagger
from scripts.simulation.load import ClosedLoop, OpenLoop, SimulatedRequest, normal_requests, open_loop

FIRST_SHARED_ID = 2**30
"""The token ids of shared prefixes begin here: those of all other tokens are numbers of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixedRequest(SimulatedRequest):
    """Its prompt begins with a system prompt, that of number ``prefix``, which has ``prefix_tokens``."""

    prefix: int
    prefix_tokens: int

    def prompt(self, number: int) -> tuple[int, ...]:
        own = self.prompt_tokens - self.prefix_tokens
        return (FIRST_SHARED_ID + self.prefix,) * self.prefix_tokens + (number,) * own


def zipf_requests(
    own_mean: float, output_mean: float, num: int, seed: int, *, prefixes: int, prefix_tokens: int
) -> list[PrefixedRequest]:
    """Return requests with FastGen's lengths behind one of ``prefixes`` system prompts: the k-th most popular begins
    1 / k times as many prompts as the first (Zipf's law)."""
    weights = 1.0 / np.arange(1, prefixes + 1)
    drawn = np.random.default_rng([seed, 5]).choice(prefixes, num, p=weights / weights.sum())
    return [
        PrefixedRequest(
            prompt_tokens=prefix_tokens + own.prompt_tokens,
            output_tokens=own.output_tokens,
            prefix=int(prefix),
            prefix_tokens=prefix_tokens,
        )
        for own, prefix in zip(normal_requests(own_mean, output_mean, num, seed), drawn, strict=True)
    ]


def repeated(requests: Sequence[SimulatedRequest], times: int, seed: int) -> list[SimulatedRequest]:
    """Return each of the requests so many times: in their own order once, then in orders drawn from the seed."""
    order, several = random.Random(seed), list(requests)
    for _ in range(times - 1):
        several += order.sample(requests, len(requests))
    return several


def scaled_closed_loop(requests: Sequence[SimulatedRequest], clients: int, replicas: int, seed: int) -> ClosedLoop:
    """Return what one replica is given ``replicas`` times: so often its clients, and each of its requests."""
    delays = [delay for delay in stagger(seed, clients) for _ in range(replicas)]
    return ClosedLoop(repeated(requests, replicas, seed), delays)


def scaled_open_loop(requests: Sequence[SimulatedRequest], rate: float, replicas: int, seed: int) -> OpenLoop:
    """Return what one replica is given ``replicas`` times: so often each of its requests, as much more often."""
    return open_loop(repeated(requests, replicas, seed), rate * replicas, seed)


def with_long_ones(requests: Sequence[SimulatedRequest], prompt: int, every: int) -> list[SimulatedRequest]:
    """Return the requests, of which each ``every``-th has a prompt of so many tokens."""
    return [
        request if number % every else replace(request, prompt_tokens=prompt) for number, request in enumerate(requests)
    ]
