"""Schedulers that SplitFuse was measured against: prompts are computed whole, in steps of their own."""

from collections import deque

from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.sequence import Chunk, Sequence
from jaxgen.core.step_plan import Outcome, StepPlan


class WholePrompts:
    """Steps of whole prompts come first, ``max_batched_tokens`` in all or one longer prompt; decodes wait meanwhile.

    - With ``joining`` waiting prompts begin whenever there is room (prompt-first: vLLM of November 2023, Orca's
      iteration-level batching without prompts next to decodes).
    - Without, they begin together when all those before have ended (static batching), ``max_num_seqs`` at most.

    A sequence is admitted with room in the cache for all tokens that it will have, so none is ever preempted. Nothing
    is charged for padding, and no plan is made before the one before it is complete.
    """

    runs_ahead = False

    def __init__(self, *, max_num_seqs: int, max_batched_tokens: int, cache_tokens: int, joining: bool) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self._free_tokens = self._cache_tokens = cache_tokens
        self._joining = joining
        self._waiting: deque[Sequence] = deque()
        self._admitted: deque[Sequence] = deque()
        """Their prompts come next."""
        self._running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._admitted or self._running)

    def add(self, sequence: Sequence, now: float) -> None:
        """Raises RequestRefusedError for a sequence that the cache can never hold."""
        del now
        if sequence.max_length > self._cache_tokens:
            raise RequestRefusedError(f"{sequence.max_length} tokens, the cache has {self._cache_tokens}")
        self._waiting.append(sequence)

    def schedule(self, now: float) -> StepPlan:
        del now
        if self._joining or not (self._admitted or self._running):
            self._admit()
        prompts = self._next_prompts()
        chunks = [Chunk(s, s.num_computed, s.num_uncomputed) for s in prompts or self._running]
        for chunk in chunks:
            chunk.sequence.num_computed = chunk.end
            chunk.sequence.num_pending += chunk.samples
        self._running += prompts
        return StepPlan(tuple(chunks), tuple(prompts))

    def complete(self, plan: StepPlan, sampled: list[int]) -> list[Outcome]:
        outcomes = []
        for index, (chunk, token) in enumerate(zip(plan.chunks, sampled, strict=True)):
            sequence = chunk.sequence
            sequence.num_pending -= 1
            sequence.tokens.append(token)
            sequence.finish_reason = sequence.stop_reason()
            if sequence.finish_reason is not None:
                self._running.remove(sequence)
                self._free_tokens += sequence.max_length
            outcomes.append(Outcome(sequence, index, token, sequence.finish_reason))
        return outcomes

    def _admit(self) -> None:
        while (
            self._waiting
            and len(self._running) + len(self._admitted) < self._max_num_seqs
            and self._waiting[0].max_length <= self._free_tokens
        ):
            sequence = self._waiting.popleft()
            self._free_tokens -= sequence.max_length
            self._admitted.append(sequence)

    def _next_prompts(self) -> list[Sequence]:
        prompts: list[Sequence] = []
        budget = self._max_batched_tokens
        while self._admitted and (not prompts or self._admitted[0].num_prompt <= budget):
            prompts.append(self._admitted.popleft())
            budget -= prompts[-1].num_prompt
        return prompts
