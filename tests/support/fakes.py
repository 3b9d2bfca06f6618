"""An engine without a model: its tokens and log-probabilities can be worked out by hand, and it fails when told to."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import islice

from jaxgen.client import EngineStatus
from jaxgen.core.model_info import EmbeddingFormat, ModelInfo, Pooling
from jaxgen.core.quote import Quote
from jaxgen.core.request import FinishReason, Latency, Request, TokenEvent, TokenLogprobs
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.stats import EngineStats
from jaxgen.text.tokenizer import Tokenizer

MODEL = "fake/model-1"

Reply = Callable[[Request], Iterable[int]]
StepTimeModel = Callable[[Request, int], Awaitable[None]]


async def _at_once(request: Request, index: int) -> None:
    await asyncio.sleep(0)


def says(tokens: Sequence[int]) -> Reply:
    """The same answer to everybody."""
    return lambda request: tokens


def given_seed(request: Request) -> int:
    """0 for a seed of more than 32 bits, as a server draws for requests without one."""
    seed = request.params.seed or 0
    return seed if abs(seed) < 2**32 else 0


def counts_up(request: Request) -> Iterable[int]:
    """(last prompt token + seed + 1) and so on, within the ids 2 to 257: the bytes of a byte-level tokenizer.

    A seed that its caller did not give counts for nothing.
    """
    start = request.prompt[-1] + given_seed(request)
    return ((start + i) % 256 + 2 for i in range(10**9))


def fake_latency(index: int) -> Latency:
    """What the engine says of a request's time with its event ``index``."""
    return Latency(
        queue_seconds=0.25,
        prompt_seconds=0.5,
        decode_seconds=index / 8,
        prompt_chunks=2,
        steps=index + 2,
        padding_share=0.75,
        preemptions=1,
    )


def fake_logprobs(token: int, count: int) -> TokenLogprobs:
    """-(token mod 7 + 1) / 8 and rank token + 1 for the token itself; its alternatives are the ids after it, -1/8,
    -2/8, ..."""
    top = tuple((token + 1 + i, -(i + 1) / 8) for i in range(count))
    return TokenLogprobs(token, -(token % 7 + 1) / 8, top, token + 1)


def fake_embedding(prompt: Sequence[int]) -> tuple[float, ...]:
    """Its length, sum, first token and, below zero, its last."""
    return (float(len(prompt)), float(sum(prompt)), float(prompt[0]), -float(prompt[-1]))


@dataclass
class FakeEngine:
    """An EngineClient. ``reply`` gives a request's tokens, then only EOS come; ``pace`` is awaited before each event,
    and may raise.

    ``requests`` are all that came; ``open`` the ids of those unfinished; ``aborted`` those closed before their end.
    """

    tokenizer: Tokenizer
    reply: Reply = counts_up
    pace: StepTimeModel = _at_once
    eos: int = 1
    cached: int = 0
    """Prompt tokens that it says were cached."""
    model: ModelInfo = field(
        default_factory=lambda: ModelInfo(
            MODEL, max_model_len=128, vocab_size=400, embedding=EmbeddingFormat(4, Pooling.LAST)
        )
    )
    state: EngineStatus = field(default_factory=lambda: EngineStatus("ready"))
    numbers: EngineStats = field(default_factory=EngineStats)
    digest: str = "0123456789abcdef"
    digest_parts: dict[str, str] = field(default_factory=lambda: {"weights": "none"})
    late: Exception | None = None
    """What its quotes raise."""
    asked: list[Request] = field(default_factory=list)
    """Requests that quotes were asked for."""
    requests: list[Request] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)
    idle: threading.Event = field(default_factory=threading.Event)

    def status(self) -> EngineStatus:
        return self.state

    def stats(self) -> EngineStats:
        return self.numbers

    async def follow(self, request: Request, take: Callable[[TokenEvent], bool]) -> None:
        async with aclosing(self.generate(request)) as events:
            async for event in events:
                if not take(event):
                    return

    async def quote(self, request: Request) -> Quote:
        """Half a second for each token of the prompt that is not cached, and a quarter between tokens."""
        self.asked.append(request)
        if self.late is not None:
            raise self.late
        first = (len(request.prompt) - self.cached) / 2
        return Quote(cached_tokens=self.cached, first_token=first, inter_token=0.25, longest_step=0.5, spread=2.0)

    async def generate(self, request: Request) -> AsyncGenerator[TokenEvent, None]:
        self.requests.append(request)
        self.open.add(request.request_id)
        self.idle.clear()
        ended = False
        try:
            for index, event in enumerate(_events(request, self.reply(request), self.eos)):
                await self.pace(request, index)
                ended = event.finish_reason is not None
                latency = fake_latency(index) if ended or index == 0 or request.latency else None
                yield replace(event, cached_tokens=None if index else self.cached, latency=latency)
        finally:
            self.open.discard(request.request_id)
            if not ended:
                self.aborted.append(request.request_id)
            if not self.open:
                self.idle.set()


def _events(request: Request, reply: Iterable[int], eos: int) -> Iterable[TokenEvent]:
    """The reply as an engine would give it: up to max_tokens, EOS or a stop token."""
    params, name = request.params, request.request_id
    prompt = _prompt_logprobs(request)
    if params.max_tokens == 0:
        embedding = None if request.pooling is None else fake_embedding(request.prompt)
        yield TokenEvent(name, prompt_logprobs=prompt, finish_reason=FinishReason.LENGTH, embedding=embedding)
        return
    tokens = list(islice(reply, params.max_tokens))
    tokens += [eos] * (params.max_tokens - len(tokens))
    for i, token in enumerate(tokens):
        reason = FinishReason.LENGTH if i + 1 == params.max_tokens else None
        if _stops(token, params, eos) and i >= params.min_tokens:
            reason = FinishReason.STOP
        logprobs = None if params.logprobs is None else fake_logprobs(token, params.logprobs)
        first = prompt if i == len(request.answer) else None
        if i >= len(request.answer):
            yield TokenEvent(name, token, logprobs, prompt_logprobs=first, finish_reason=reason)
        if reason is not None:
            return


def _stops(token: int, params: SamplingParams, eos: int) -> bool:
    return token in params.stop_token_ids or (token == eos and not params.ignore_eos)


def _prompt_logprobs(request: Request) -> tuple[TokenLogprobs | None, ...] | None:
    count = request.params.prompt_logprobs
    if count is None:
        return None
    return (None, *(fake_logprobs(token, count) for token in request.prompt[1:]))
