"""Verify that a request's tokens, log-probabilities and embedding have the same bits in all circumstances.

Random requests are first computed one by one, with an otherwise idle engine and nothing cached: that is the reference.
Then the same requests are computed in other circumstances, and all events are compared bit by bit.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jaxgen.core.model_info import Pooling
from jaxgen.core.request import FinishReason, Request, TokenEvent, TokenLogprobs
from jaxgen.core.sampling_params import MAX_LOGPROBS, SamplingParams
from jaxgen.engine.engine import Engine

ANSWER_TOKENS = 24
"""Tokens of a short answer; long answers have two blocks more."""
_SHARED_PREFIXES = 3
"""Number of common prefixes; a third of the prompts begin with one of them."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first event of a request, or the first number of an embedding, that differs from the reference."""

    request_id: str
    index: int
    expected: str
    actual: str


@dataclass(slots=True)
class Scenario:
    """One circumstance: the number of answers compared, their differences, and how often its events happened."""

    name: str
    compared: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    happened: dict[str, int] = field(default_factory=dict)

    @property
    def covered(self) -> bool:
        """Whether answers were compared and all of its events happened."""
        return self.compared > 0 and all(self.happened.values())

    @property
    def passed(self) -> bool:
        return self.covered and not self.mismatches

    def compare(self, name: str, expected: Sequence[str], actual: Sequence[str]) -> None:
        self.compared += 1
        length = max(len(expected), len(actual))
        for index in range(length):
            pair = [tokens[index] if index < len(tokens) else "nothing" for tokens in (expected, actual)]
            if pair[0] != pair[1]:
                self.mismatches.append(Mismatch(name, index, *pair))
                return


class Verifier:
    """Computes the same requests in one circumstance after another, on an engine that has no other requests."""

    def __init__(self, engine: Engine, *, requests: int, seed: int, progress: Callable[[str], None] = lambda _: None):
        """``progress`` gets the name of each scenario when it begins."""
        self._engine = engine
        self._random = random.Random(seed)
        self._progress = progress
        self._runs = 0
        self._requests = _make_requests(engine, requests, self._random)
        self._reference: dict[str, list[TokenEvent]] = {}

    def verify(self) -> list[Scenario]:
        """Make the reference, then run all scenarios in order and return them."""
        self._progress("each alone: the reference")
        for request in self._requests:
            self._reference[request.request_id] = self._alone(request, self._new_salt())
        scenarios = [self.again, self.cached, self.together, self.filled_at_random, self.among_strangers]
        scenarios += [self.continued, self.as_prompt, self.embedded]
        if self._engine.stats().offload is not None:
            scenarios.append(self.restored)
        if self._engine.stats().narrow_steps:
            scenarios.append(self.in_wide_steps)  # the last: the engine has no narrow program afterwards
        return [scenario() for scenario in scenarios]

    def again(self) -> Scenario:
        """Compute each request alone again, with nothing cached."""
        scenario = self._begin("alone again")
        for request in self._requests:
            self._compare(scenario, request, self._alone(request, self._new_salt()))
        return scenario

    def cached(self) -> Scenario:
        """Compute each request alone, twice: the second time its prompt is cached."""
        scenario = self._begin("with a cached prefix")
        before = self._engine.stats().prefix_hits
        for request in self._requests:
            salt = self._new_salt()
            self._alone(request, salt)
            self._compare(scenario, request, self._alone(request, salt))
        scenario.happened["cached tokens"] = self._engine.stats().prefix_hits - before
        return scenario

    def together(self) -> Scenario:
        """Compute all requests at once in another order, with nothing cached, and with too few blocks for all."""
        scenario = self._begin("all at once")
        todo = [replace(request, cache_salt=self._new_salt()) for request in self._requests]
        self._random.shuffle(todo)
        before = self._engine.stats().preemptions
        self._compare_all(scenario, [(0, request) for request in todo])
        scenario.happened["preemptions"] = self._engine.stats().preemptions - before
        return scenario

    def filled_at_random(self) -> Scenario:
        """Compute all requests at once, with as many tokens of prompts in each step as chance says."""
        scenario = self._begin("in steps filled at random")
        todo = [replace(request, cache_salt=self._new_salt()) for request in self._requests]
        self._compare_all(scenario, [(0, request) for request in todo], fill=True)
        return scenario

    def among_strangers(self) -> Scenario:
        """Let requests arrive one after another, among other requests of which some are aborted."""
        scenario = self._begin("among strangers, some of them aborted")
        salt = self._new_salt()
        strangers = _make_requests(self._engine, len(self._requests), self._random, prefix="stranger")
        todo = [replace(request, cache_salt=salt) for request in (*self._requests, *strangers)]
        arrivals = [(self._random.randrange(2 * len(todo)), request) for request in todo]
        aborts = {request.request_id: self._random.randrange(4, 20) for request in strangers[::2]}
        self._compare_all(scenario, arrivals, aborts)
        scenario.happened["aborts"] = len(aborts)
        return scenario

    def continued(self) -> Scenario:
        """Give each request a part of its answer, and append one to its prompt: the rest must be the same."""
        scenario = self._begin("an answer continued")
        for request in self._requests:
            params, reference = request.params, self._reference[request.request_id]
            known = self._random.randrange(1, params.max_tokens)
            begun = replace(request, answer=tuple(_tokens(reference)[:known]))
            scenario.compare(
                request.request_id, _texts(reference[known:]), _texts(self._alone(begun, self._new_salt()))
            )
            if params.presence_penalty or params.frequency_penalty:
                continue  # these count the tokens of the answer, which is shorter now
            longer = replace(
                request,
                prompt=(*request.prompt, *_tokens(reference)[:known]),
                params=replace(params, max_tokens=params.max_tokens - known),
            )
            actual = self._alone(longer, salt=self._new_salt())
            scenario.compare(request.request_id, _texts(reference[known:]), _texts(actual))
        return scenario

    def as_prompt(self) -> Scenario:
        """Compute the log-probabilities of each answer's tokens as those of a prompt."""
        scenario = self._begin("an answer scored as a prompt")
        for request in self._requests:
            reference = self._reference[request.request_id]
            whole = (*request.prompt, *_tokens(reference))
            params = SamplingParams(max_tokens=0, prompt_logprobs=MAX_LOGPROBS)
            (event,) = self._run([(0, Request(request.request_id, whole, params))])[request.request_id]
            scored = (event.prompt_logprobs or ())[len(request.prompt) :]
            expected = [_logprobs_text(event.logprobs) for event in reference]
            scenario.compare(request.request_id, expected, [_logprobs_text(actual) for actual in scored])
        return scenario

    def embedded(self) -> Scenario:
        """Compute the mean of each prompt's hidden states alone, and then among all requests."""
        scenario = self._begin("embedded, all at once")
        nothing = SamplingParams(max_tokens=0)
        wanted = [
            Request(f"embed-{request.request_id}", request.prompt, nothing, pooling=Pooling.MEAN)
            for request in self._requests
        ]
        alone = [self._run([(0, request)])[request.request_id] for request in wanted]
        todo = [*wanted, *self._requests]
        self._random.shuffle(todo)
        actual = self._run([(0, request) for request in todo])
        for request, reference in zip(wanted, alone, strict=True):
            scenario.compare(request.request_id, _numbers(reference), _numbers(actual[request.request_id]))
        scenario.happened["prompts cut in chunks"] = self._num_cut()
        return scenario

    def restored(self) -> Scenario:
        """Compute each request alone, twice, with the others between, so that its prompt moves to host memory.

        If the cache is streamed the prompt is in host memory in any case. Of a model with states nothing may come back:
        the device must still have the snapshot that the restored blocks end at.
        """
        scenario, salt = self._begin("restored from host memory"), self._new_salt()
        for request in self._requests:
            self._alone(request, salt)
        before = self._restored_tokens()
        for request in self._requests:
            self._compare(scenario, request, self._alone(request, salt))
        if self._engine.stats().snapshots is None:
            scenario.happened["restored tokens"] = self._restored_tokens() - before
        return scenario

    def in_wide_steps(self) -> Scenario:
        """Compute each request alone by the wide program, where the narrow one has computed its decodes."""
        scenario = self._begin("in wide steps alone")
        scenario.happened["narrow steps before"] = self._engine.stats().narrow_steps
        self._engine.runner.disable_narrow()
        for request in self._requests:
            self._compare(scenario, request, self._alone(request, self._new_salt()))
        return scenario

    def _restored_tokens(self) -> int:
        offload = self._engine.stats().offload
        return 0 if offload is None else offload.restored_tokens + offload.projected_tokens

    def _begin(self, name: str) -> Scenario:
        self._progress(name)
        return Scenario(name)

    def _new_salt(self) -> str:
        self._runs += 1
        return f"run {self._runs}"

    def _compare(self, scenario: Scenario, request: Request, actual: Sequence[TokenEvent]) -> None:
        scenario.compare(request.request_id, _texts(self._reference[request.request_id]), _texts(actual))

    def _compare_all(
        self,
        scenario: Scenario,
        arrivals: Iterable[tuple[int, Request]],
        aborts: dict[str, int] | None = None,
        *,
        fill: bool = False,
    ) -> None:
        actual = self._run(arrivals, aborts, fill=fill)
        for request in self._requests:
            self._compare(scenario, request, actual[request.request_id])
        scenario.happened["prompts cut in chunks"] = self._num_cut()

    def _num_cut(self) -> int:
        budget = self._engine.config.scheduler.token_budget
        return sum(len(request.prompt) > budget for request in self._requests)

    def _alone(self, request: Request, salt: str) -> list[TokenEvent]:
        return self._run([(0, replace(request, cache_salt=salt))])[request.request_id]

    def _run(
        self, arrivals: Iterable[tuple[int, Request]], aborts: dict[str, int] | None = None, *, fill: bool = False
    ) -> dict[str, list[TokenEvent]]:
        """Run requests and return their events. ``arrivals``: (step, request). ``aborts``: number of events before.
        ``fill``: whether chance says how full steps are."""
        waiting = sorted(arrivals, key=lambda arrival: arrival[0], reverse=True)
        events: dict[str, list[TokenEvent]] = defaultdict(list)
        step = 0
        while waiting or self._engine.has_work:
            while waiting and waiting[-1][0] <= step:
                self._engine.add(waiting.pop()[1])
            if fill:
                most = self._engine.config.scheduler.token_budget
                self._engine.scheduler.limit_prompts(self._random.randint(1, most))
            for event in self._engine.step():
                if event.finish_reason is FinishReason.ERROR:
                    raise RuntimeError(event.error)
                events[event.request_id].append(event)
            for name, length in (aborts or {}).items():
                if len(events[name]) == length:
                    self._engine.abort(name)
            step += 1
        self._engine.scheduler.limit_prompts(None)
        return events


def _make_requests(engine: Engine, count: int, chance: random.Random, prefix: str = "request") -> list[Request]:
    """Return requests with prompts of one token up to the longest that fits, and all ways of sampling.

    Some prompts have common prefixes.
    """
    vocabulary = range(engine.model.vocab_size)
    block_size, max_model_len = engine.config.cache.block_size, engine.config.scheduler.max_model_len
    longest = max_model_len - ANSWER_TOKENS
    shared = [chance.choices(vocabulary, k=longest // 2) for _ in range(_SHARED_PREFIXES)]
    ways = _ways(chance, engine.model.vocab_size)
    requests = []
    for i in range(count):
        length = max(1, longest * (i % 8 + 1) // 8 - chance.randrange(longest // 8 + 1))
        answer = ANSWER_TOKENS
        if i % 2:  # grows by more than the one block that admission keeps free for it
            length = min(length, block_size)
            answer = min(answer + 2 * block_size, max_model_len - length)
        prompt = chance.choices(vocabulary, k=length)
        if i % 3 == 0:
            prompt[: longest // 2] = chance.choice(shared)[: len(prompt)]
        params = SamplingParams(max_tokens=answer, ignore_eos=True, logprobs=MAX_LOGPROBS, **ways[i % len(ways)])
        requests.append(Request(f"{prefix}-{i}", tuple(prompt), params))
    return requests


def _ways(chance: random.Random, vocab_size: int) -> list[dict[str, Any]]:
    seed = chance.getrandbits(60)
    bias = {chance.randrange(vocab_size): chance.uniform(-5, 5) for _ in range(4)}
    return [
        {"temperature": 0.0},
        {"seed": seed},
        {"seed": seed + 1, "temperature": 0.7, "top_p": 0.9},
        {"seed": seed + 2, "top_k": 40, "min_p": 0.02},
        {"seed": seed + 3, "presence_penalty": 0.8, "frequency_penalty": 0.4},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"seed": seed + 4, "logit_bias": bias},
    ]


def _tokens(events: Sequence[TokenEvent]) -> list[int]:
    return [event.token for event in events if event.token is not None]


def _texts(events: Sequence[TokenEvent]) -> list[str]:
    """Return each event as text, so that equal texts mean equal bits."""
    return [f"{event.token} {_logprobs_text(event.logprobs)} {event.finish_reason}" for event in events]


def _numbers(events: Sequence[TokenEvent]) -> list[str]:
    """Return the numbers of the embedding as texts, so that equal texts mean equal bits."""
    return [number.hex() for event in events for number in event.embedding or ()]


def _logprobs_text(logprobs: TokenLogprobs | None) -> str:
    if logprobs is None:
        return "none"
    alternatives = " ".join(f"{token}:{value.hex()}" for token, value in logprobs.top)
    return f"{logprobs.token}:{logprobs.logprob.hex()} [{alternatives}]"
