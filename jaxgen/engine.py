"""The engine: owns parameters and cache; its loop is schedule -> pack -> step -> complete."""

import logging
import random
import time
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgen.compilation import num_compilations
from jaxgen.config import EngineConfig, ModelConfig
from jaxgen.kv_cache import init_cache
from jaxgen.models import Params, abstract_params, graph_of
from jaxgen.penalties import init_penalties
from jaxgen.request import (
    EngineStats,
    FinishReason,
    Request,
    RequestRefusedError,
    TokenEvent,
)
from jaxgen.row_params import MAX_MASKED_TOKENS
from jaxgen.scheduler import Scheduler, StepPlan
from jaxgen.sequence import Sequence
from jaxgen.step import Step, StepOutput, make_step
from jaxgen.step_batch import Packer
from jaxgen.step_events import EventMaker

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompiledStep:
    """The one program, and what XLA says of its memory, in bytes."""

    run: Step
    temporary_bytes: int
    aliased_bytes: int


def compile_step(model: ModelConfig, config: EngineConfig) -> CompiledStep:
    """Compile the step for this model and configuration; cache and penalties are donated, so updated in place."""
    cache = jax.eval_shape(lambda: init_cache(model, config.cache))
    penalties = jax.eval_shape(lambda: init_penalties(config.scheduler.max_num_seqs, model.vocab_size))
    empty = Packer(config, model.vocab_size).pack(StepPlan(()))
    batch = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, empty))
    step = jax.jit(make_step(graph_of(model), model.vocab_size), donate_argnums=(1, 2))
    compiled = step.lower(abstract_params(model), cache, penalties, batch).compile()
    memory: Any = compiled.memory_analysis()  # its type is jaxlib's own and not exported
    return CompiledStep(compiled, memory.temp_size_in_bytes, memory.alias_size_in_bytes)


class Engine:
    """Runs requests on one device; no clock but for statistics, no thread: whoever calls ``step`` drives it."""

    def __init__(
        self,
        model: ModelConfig,
        config: EngineConfig,
        params: Params,
        eos_token_ids: frozenset[int],
        *,
        compiled: CompiledStep | None = None,
    ):
        """Takes the parameters as they are (no copy) and compiles the step unless it is given."""
        self.model = model
        self.config = config
        self._params = params
        self._eos_token_ids = eos_token_ids
        self._compiled = compiled or compile_step(model, config)
        self._packer = Packer(config, model.vocab_size)
        self._scheduler = Scheduler(config.scheduler, config.cache)
        self._events = EventMaker()
        self._seeds = random.Random(config.seed)
        self._arrivals = count()
        self._answered: list[TokenEvent] = []
        self._stats = EngineStats(blocks_total=config.cache.num_blocks)
        self._reset_device_state()
        self._run(StepPlan(()))
        self._compilations_at_ready = num_compilations()

    def add(self, request: Request) -> None:
        """Accept a request; its events come from ``step``.

        Raises RequestRefusedError, naming field and limit, for one that can never run.
        """
        self._check(request)
        seed = request.params.seed
        sequence = Sequence(
            request,
            eos_token_ids=self._eos_token_ids,
            arrival=next(self._arrivals),
            seed=self._seeds.getrandbits(63) if seed is None else seed,
        )
        if request.params.max_tokens == 0 and request.params.prompt_logprobs is None:
            self._answered.append(TokenEvent(request.request_id, finish_reason=FinishReason.LENGTH))
            return
        self._scheduler.add(sequence)

    def abort(self, request_id: str) -> bool:
        """Drop a request and free what it holds; False if there is none. It gets no further event."""
        self._events.forget(request_id)
        return self._scheduler.abort(request_id)

    @property
    def has_work(self) -> bool:
        return bool(self._answered) or self._scheduler.has_work

    def step(self) -> list[TokenEvent]:
        """Run one step and return what happened. A step that raises ends the requests of its plan with ERROR."""
        answered, self._answered = self._answered, []
        if not self._scheduler.has_work:
            return answered
        started = time.perf_counter()
        plan = self._scheduler.schedule()
        try:
            output = self._run(plan)
            tokens = np.asarray(output.tokens)
            self._events.read(plan, output)
        except Exception as error:  # whatever a device raises: the engine must go on
            logger.exception("a step of %d tokens in %d chunks failed", plan.num_tokens, len(plan.chunks))
            events = self._fail(plan, error)
        else:
            sampled = [int(tokens[row]) for row, chunk in enumerate(plan.chunks) if chunk.samples]
            events = [self._events.make(outcome) for outcome in self._scheduler.complete(plan, sampled)]
        self._count(plan, time.perf_counter() - started)
        return answered + events

    def stats(self) -> EngineStats:
        """A snapshot for metrics."""
        return replace(
            self._stats,
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            blocks_free=self._scheduler.pool.num_free,
            preemptions=self._scheduler.preemptions,
            compilations_after_ready=num_compilations() - self._compilations_at_ready,
        )

    def _reset_device_state(self) -> None:
        self._cache = init_cache(self.model, self.config.cache)
        self._penalties = init_penalties(self.config.scheduler.max_num_seqs, self.model.vocab_size)

    def _run(self, plan: StepPlan) -> StepOutput:
        batch = self._packer.pack(plan)
        self._cache, self._penalties, output = self._compiled.run(self._params, self._cache, self._penalties, batch)
        return output

    def _fail(self, plan: StepPlan, error: Exception) -> list[TokenEvent]:
        outcomes = self._scheduler.fail(plan)
        # The failed step owned the cache; nothing in it can be trusted, or even be alive. Every running sequence was
        # part of the plan, so nobody misses it.
        self._reset_device_state()
        for outcome in outcomes:
            self._events.forget(outcome.sequence.request_id)
        message = f"the step that computed this request failed: {type(error).__name__}"
        return [TokenEvent(o.sequence.request_id, finish_reason=FinishReason.ERROR, error=message) for o in outcomes]

    def _check(self, request: Request) -> None:
        params, vocab = request.params, self.model.vocab_size
        if bad := [t for t in request.prompt if not 0 <= t < vocab]:
            raise RequestRefusedError(f"prompt has token id {bad[0]}, the vocabulary has {vocab}")
        for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            if bad := [t for t in ids if not 0 <= t < vocab]:
                raise RequestRefusedError(f"{name} has token id {bad[0]}, the vocabulary has {vocab}")
        ending = len(self._eos_token_ids | set(params.stop_token_ids))
        if ending > MAX_MASKED_TOKENS:
            raise RequestRefusedError(
                f"stop_token_ids and the model's EOS tokens are {ending} tokens, the limit is {MAX_MASKED_TOKENS}"
            )
        limit = self.config.max_logit_bias
        if len(params.logit_bias) > limit:
            raise RequestRefusedError(f"logit_bias has {len(params.logit_bias)} entries, the limit is {limit}")

    def _count(self, plan: StepPlan, seconds: float) -> None:
        s = self._stats
        computed_prompt = sum(
            min(c.end, c.sequence.num_prompt) - min(c.start, c.sequence.num_prompt) for c in plan.chunks
        )
        self._stats = replace(
            s,
            steps=s.steps + 1,
            step_seconds=s.step_seconds + seconds,
            prompt_tokens=s.prompt_tokens + computed_prompt,
            generation_tokens=s.generation_tokens + plan.num_samples,
            padded_tokens=s.padded_tokens + self.config.scheduler.token_budget - plan.num_tokens,
        )
