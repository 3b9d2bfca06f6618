"""Bitwise repeatability: the same requests in other company, order and chunks; run again; compiled again.

A run that is repeated as it was must give the same bits, or the check fails. The other rows say what holds here.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

from jaxgen.config import CacheConfig, EngineConfig, LlamaConfig, SchedulerConfig
from jaxgen.engine import Engine
from jaxgen.kernels import Kernels
from jaxgen.models import Params, init_params
from jaxgen.programs import CompiledStep, compile_step
from jaxgen.request import Request, TokenEvent
from jaxgen.sampling_params import SamplingParams
from scripts.device_check.kernels import BLOCK_SIZE, kernels_for
from scripts.device_check.part import Part, Shared
from scripts.device_check.report import Measurement
from scripts.device_check.sizes import Sizes
from tests.engines import run as run_requests

Answer = list[tuple[Any, ...]]
"""Token, log-probabilities and prompt log-probabilities of each event: compared as they are, so a NaN is unequal."""


class Subject:
    """One model, its parameters, its compiled step, and the requests whose answers are compared."""

    def __init__(self, model: LlamaConfig, budget: int, kernels: Kernels):
        rows = max(budget // 16, 4)
        self.model = model
        self.config = EngineConfig(CacheConfig(BLOCK_SIZE, budget), SchedulerConfig(budget, rows, 4 * budget), 0, 4)
        self.params: Params = init_params(model, seed=0)
        self.requests = [_request(i, budget, model.vocab_size) for i in range(rows)]
        self._kernels = kernels
        self.compiled = self.compile()

    def compile(self) -> CompiledStep:
        return compile_step(self.model, self.config, self._kernels)

    def answers(self, requests: list[Request], compiled: CompiledStep | None = None) -> dict[str, Answer]:
        """Answers of a new engine, with an empty cache, to all these requests at once."""
        engine = Engine(self.model, self.config, self.params, frozenset(), compiled=compiled or self.compiled)
        return {name: [_bits(e) for e in events] for name, events in run_requests(engine, requests).items()}


def run(part: Part, sizes: Sizes, _: Shared) -> None:
    made: list[tuple[Subject, dict[str, Answer]]] = []

    def together() -> Measurement:
        kernels = kernels_for(sizes, sizes.repeatability_model)
        subject = Subject(sizes.repeatability_model, sizes.repeatability_budget, kernels)
        answers = subject.answers(subject.requests)
        made.append((subject, answers))
        # So that runs in different processes can be compared.
        digest = sha256(repr(sorted(answers.items())).encode()).hexdigest()
        detail = {
            "requests": len(answers),
            "budget": sizes.repeatability_budget,
            "kernels": kernels.name,
            "sha256": digest,
        }
        return Measurement(detail=detail)

    part.measure("repeatability_reference", together)
    if not made:
        return
    subject, expected = made[0]
    strangers = [replace(one, request_id=f"stranger-{one.request_id}") for one in subject.requests]
    some = subject.requests[:: max(len(subject.requests) // 4, 1)]
    variants: dict[str, Callable[[], dict[str, Answer]]] = {
        "run_to_run": lambda: subject.answers(subject.requests),
        "reversed": lambda: subject.answers(subject.requests[::-1]),
        "alone": lambda: {name: answer for one in some for name, answer in subject.answers([one]).items()},
        "among_strangers": lambda: subject.answers(
            [one for pair in zip(strangers[::-1], subject.requests, strict=True) for one in pair]
        ),
        "compiled_again": lambda: subject.answers(subject.requests, subject.compile()),
    }
    for name, answers in variants.items():
        part.measure(f"repeatability_{name}", partial(_compare, name == "run_to_run", answers, expected))


def _request(i: int, budget: int, vocab_size: int) -> Request:
    """Prompts of 3 tokens up to more than a budget; every other request draws, with a seed of its own."""
    length = 3 + i * budget * 5 // 4 // max(budget // 16, 4)
    prompt = tuple((i * 7919 + j * j * 31 + j) % vocab_size for j in range(length))
    temperature = 0.0 if i % 2 else 1.0
    params = SamplingParams(
        max_tokens=16, temperature=temperature, seed=i, ignore_eos=True, logprobs=3, prompt_logprobs=1
    )
    return Request(f"r{i}", prompt, params)


def _bits(event: TokenEvent) -> tuple[Any, ...]:
    if event.error is not None:
        raise RuntimeError(event.error)
    return event.token, event.logprobs, event.prompt_logprobs


def _compare(required: bool, answers: Callable[[], dict[str, Answer]], expected: dict[str, Answer]) -> Measurement:
    got = {name: answer for name, answer in answers().items() if name in expected}
    other_tokens = [n for n, answer in got.items() if [e[0] for e in answer] != [e[0] for e in expected[n]]]
    other_bits = [name for name, answer in got.items() if answer != expected[name]]
    detail = {
        "equal": not other_bits,
        "compared": len(got),
        "other_tokens": len(other_tokens),
        "other_logprob_bits": len(other_bits),
    }
    failure = f"{len(other_bits)} of {len(got)} requests differ when run again" if required and other_bits else None
    return Measurement(detail=detail, failure=failure)
