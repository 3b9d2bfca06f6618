"""Check bitwise repeatability: the same requests among others, in another order and chunks; run again; compiled again.

An identical second run must give the same bits, or the check fails. The other rows only report whether bits are equal.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import Any

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.request import Request, TokenEvent
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.engine.start.build import build_engine
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.model import Params, init_params
from jaxgen.runner.programs import compile_step
from scripts.gpu.result.report import Measurement, Run, State
from scripts.gpu.rows.bench import Bench
from scripts.gpu.rows.kernels import BLOCK_SIZE, kernels_for
from tests.support.engines import run as run_requests

Answer = list[tuple[Any, ...]]
"""Token, log-probabilities and prompt log-probabilities of each event. They are compared directly: NaN is unequal."""


class Subject:
    """One model, its parameters, its compiled step, and the requests whose answers are compared."""

    def __init__(self, model: DecoderConfig, budget: int, kernels: Kernels):
        rows = max(budget // 16, 4)
        self.model = model
        self.config = EngineConfig(CacheConfig(BLOCK_SIZE, budget), SchedulerConfig(budget, rows, 4 * budget), 0, 4)
        self.params: Params = init_params(model, seed=0)
        self.requests = [_request(i, budget, model.vocab_size) for i in range(rows)]
        self._compiled = compile_step(model, self.config, kernels)

    def answers(self, requests: list[Request]) -> dict[str, Answer]:
        """Return the answers of a new engine, with an empty cache, to all these requests at once."""
        engine = build_engine(self.model, self.config, self.params, frozenset(), compiled=self._compiled)
        return {name: [_bits(e) for e in events] for name, events in run_requests(engine, requests).items()}

    @cached_property
    def expected(self) -> dict[str, Answer]:
        """The reference answers, which all rows of a process share."""
        return self.answers(self.requests)


@lru_cache(maxsize=1)
def _known(model: DecoderConfig, budget: int, kernels: Kernels) -> Subject:
    """Return the subject that all rows of a process share."""
    return Subject(model, budget, kernels)


def _of(bench: Bench) -> Subject:
    return _known(bench.sizes.repeatability_model, bench.sizes.repeatability_budget, kernels_for(bench))


def reference(bench: Bench) -> Run:
    """Compute the reference answers; their digest is stored, so that another process can compare its own."""
    subject = _of(bench)
    return lambda: Measurement(
        detail={
            "requests": len(subject.expected),
            "budget": bench.sizes.repeatability_budget,
            "kernels": kernels_for(bench).name,
            "sha256": _digest(subject.expected),
        }
    )


def compiled_again(bench: Bench) -> Run:
    """Compare answers in a process without compilation cache, where XLA again chooses the fastest form of products.

    Raises RuntimeError where the reference did not run.
    """
    if bench.results["repeatability_reference"]["state"] != State.RAN:
        raise RuntimeError("there is no reference to compare with")
    subject = _of(bench)

    def run() -> Measurement:
        digest = _digest(subject.expected)
        equal = digest == bench.results["repeatability_reference"]["detail"]["sha256"]
        return Measurement(detail={"equal": equal, "compared": len(subject.expected), "sha256": digest})

    return run


def compare(bench: Bench, name: str) -> Run:
    """Compare the answers of a variant with the reference. Those of "run_to_run" must be equal."""
    subject = _of(bench)
    return lambda: _compared(name == "run_to_run", VARIANTS[name](subject), subject.expected)


def _run_to_run(subject: Subject) -> dict[str, Answer]:
    return subject.answers(subject.requests)


def _reversed(subject: Subject) -> dict[str, Answer]:
    return subject.answers(subject.requests[::-1])


def _alone(subject: Subject) -> dict[str, Answer]:
    """Answer a few of the requests, each alone."""
    sample = subject.requests[:: max(len(subject.requests) // 4, 1)]
    return {name: answer for one in sample for name, answer in subject.answers([one]).items()}


def _among_strangers(subject: Subject) -> dict[str, Answer]:
    strangers = [replace(one, request_id=f"stranger-{one.request_id}") for one in subject.requests]
    return subject.answers([one for pair in zip(strangers[::-1], subject.requests, strict=True) for one in pair])


VARIANTS: dict[str, Callable[[Subject], dict[str, Answer]]] = {
    "run_to_run": _run_to_run,
    "reversed": _reversed,
    "alone": _alone,
    "among_strangers": _among_strangers,
}


def _digest(answers: dict[str, Answer]) -> str:
    return sha256(repr(sorted(answers.items())).encode()).hexdigest()


def _request(i: int, budget: int, vocab_size: int) -> Request:
    """Make a request. Prompts have 3 tokens up to more than a budget; every other request samples, each with a seed."""
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


def _compared(required: bool, answers: dict[str, Answer], expected: dict[str, Answer]) -> Measurement:
    got = {name: answer for name, answer in answers.items() if name in expected}
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
