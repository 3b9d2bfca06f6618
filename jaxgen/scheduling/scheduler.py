"""The scheduler: takes sequences, hands out step plans, and ends sequences. Host only, no jax, no thread, no clock."""

from collections import deque
from collections.abc import Callable, Container, Iterator
from functools import partial

from jaxgen.cache.block_log import BlockLog
from jaxgen.cache.cache_manager import KVCacheManager
from jaxgen.cache.host_tier import HostTier
from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.limits import check_context_length
from jaxgen.core.quote import Quote
from jaxgen.core.request import FinishReason
from jaxgen.core.sequence import Chunk, Restore, Sequence, SequenceStatus
from jaxgen.core.stats import SchedulerCounters, SpeculationStats
from jaxgen.core.step_plan import Outcome, StepPlan
from jaxgen.scheduling.admission import MAX_OVERTAKEN
from jaxgen.scheduling.background_hold import BackgroundHold
from jaxgen.scheduling.drafts import DraftPlanner
from jaxgen.scheduling.planner import StepPlanner
from jaxgen.scheduling.policy import Fifo


class Scheduler:
    """Queues, plans and ends sequences; ``StepPlanner`` has the rules of Dynamic SplitFuse.

    ``Admission`` says which sequence begins and what that leaves to others, ``RequestQueues`` keeps the order of
    service, and the policy makes it: ``Fifo``, or ``ServicePolicy``, which knows classes, priorities and tenants.

    Steps overlap: a plan is made while the one before it is in flight, that is, not completed. A sequence whose last
    token is planned gives row and blocks back at the next plan and is ENDING until that token arrives. The device runs
    steps in the order planned, so the next owner of a block writes it after it was read.

    The plan is not empty if a sequence runs or waits that is neither held nor waits for a KV tier. Every online
    sequence that decodes is in every plan, since max_num_seqs <= token_budget. Only sequences under a grammar may sit
    out; a plan is empty if all that could be computed do so. With a ``tier``, blocks found in host memory come from
    there while steps go on. A sequence that waits for them has no chunk. Steps never wait: ``restored`` says when
    blocks are there. Sequences that wait to begin may wait for blocks on their way from a KV tier, for a bounded time.

    The order of calls: ``schedule`` when one plan at most is in flight, ``complete`` with each plan in the order
    planned, or ``fail``, which drops the plans in flight; ``add`` and ``abort`` at any time. Plans without chunks are
    never in flight; completing one does nothing. Times are seconds by any one clock, for the policy.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheConfig,
        *,
        policy: Callable[[SchedulerConfig, KVCacheManager], Fifo] = Fifo,
        max_overtaken: int = MAX_OVERTAKEN,
        tier: HostTier | None = None,
        log: BlockLog | None = None,
        narrow: bool = False,
        copies_blocks: bool = False,
        drafts: DraftPlanner | None = None,
    ) -> None:
        """``log``: is told which contents blocks come to hold and give up. ``narrow``: steps of which no chunk is
        longer than a token are cheaper than others. ``copies_blocks``: the device can copy a block. ``drafts``: adds
        drafts to plans; each plan must then be completed before the next is made."""
        self._config = config
        self._block_size = cache.block_size
        self._most_prompt_tokens: int | None = None
        self._last_arrival: int | None = None
        self._tier = tier
        self._drafts = drafts
        self._hold = BackgroundHold()
        self.counters = counters = SchedulerCounters()
        self._make_kv_cache = partial(KVCacheManager, config, cache, tier, log, counters, copies_blocks=copies_blocks)
        self._make_policy = partial(policy, config)
        self._make_planner = partial(StepPlanner, config, max_overtaken=max_overtaken, narrow=narrow, counters=counters)
        self._begin_empty()

    def _begin_empty(self) -> None:
        """Make all that follows from the sequences that live: owners of rows and blocks, queues, plans in flight."""
        self._kv_cache = self._make_kv_cache()
        self.pool, self._restorer = self._kv_cache.pool, self._kv_cache.restorer
        self.pools = (self.pool, *[window.pool for window in self._kv_cache.windows])
        """The blocks of each kind of cache."""
        self.policy = self._make_policy(self._kv_cache)
        self._queues = self.policy.queues
        self._planner = self._make_planner(self._kv_cache, self.policy)
        self._live: dict[str, Sequence] = {}
        self._in_flight: deque[StepPlan] = deque()
        self.num_online = 0
        """Sequences that live and are not of the background."""

    @property
    def num_running(self) -> int:
        return len(self._queues.running)

    @property
    def num_waiting(self) -> int:
        return len(self._queues.waiting)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of the online sequences that wait."""
        return self._queues.waiting_tokens

    @property
    def num_ending(self) -> int:
        return len(self._live) - self.num_running - self.num_waiting

    @property
    def preemptions(self) -> int:
        """How often a sequence lost its row and blocks before its end."""
        return self.counters.preemptions

    @property
    def num_snapshots(self) -> int:
        """Snapshots of states that are in use."""
        states = self._kv_cache.states
        return 0 if states is None else states.num_held

    @property
    def speculation(self) -> SpeculationStats | None:
        """Return the drafts so far; None: there are none."""
        return None if self._drafts is None else self._drafts.stats

    @property
    def has_work(self) -> bool:
        """Whether any sequence has not ended; all that is left may be in flight."""
        return bool(self._live)

    def held_for(self, now: float) -> float:
        """Return for how many seconds all sequences are background sequences that are held back; 0: they are not."""
        return 0.0 if self.num_online else self._hold.seconds_left(now)

    def limit_prompts(self, tokens: int | None) -> None:
        """Limit the prompt tokens of each step from now on; None: as many as the policy says.

        Raises ValueError below 1: no prompt would ever be computed.
        """
        if tokens is not None and tokens < 1:
            raise ValueError(f"tokens must be 1 or more, or None for no limit, not {tokens}")
        self._most_prompt_tokens = tokens

    def add(self, sequence: Sequence, now: float = 0.0) -> None:
        """Add a new sequence, younger than all before it.

        Raises RequestRefusedError if it is too long for the model or the cache, and WouldBeLateError if it would miss
        its class's targets. Raises ValueError if a living sequence has its request_id, or if its arrival is not above
        the arrival of every sequence added before. After another error it may live all the same: call ``fail`` then.
        """
        self._check_length(sequence)
        if sequence.request_id in self._live:
            raise ValueError(f"request_id {sequence.request_id!r} is in use")
        if self._last_arrival is not None and sequence.arrival <= self._last_arrival:
            raise ValueError(f"arrival must be above {self._last_arrival}, not {sequence.arrival}")
        self.policy.place(sequence, now, self._in_flight)
        self._last_arrival = sequence.arrival
        before = self.num_waiting
        self._queue(sequence)
        if self._restorer is not None:  # an error here may be in what other sequences wait for: only ``fail`` mends it
            self._restorer.expect(sequence, before)

    def living(self, request_id: str) -> Sequence | None:
        """Return the living sequence of this request; None if none lives."""
        return self._live.get(request_id)

    def lives(self, sequence: Sequence) -> bool:
        """Whether this sequence was added and has not ended."""
        return self._live.get(sequence.request_id) is sequence

    def quote(self, sequence: Sequence, now: float = 0.0) -> Quote:
        """Predict the latencies of a new sequence as if it were added now; it is not, and nothing else changes.

        Raises RequestRefusedError and WouldBeLateError as ``add`` does, and ValueError where the policy knows nothing.
        """
        self._check_length(sequence)
        return self.policy.quote(sequence, now, self._in_flight)

    def schedule(self, now: float = 0.0) -> StepPlan:
        """Plans the next step and counts it as computed; empty when there is nothing that can be computed. May preempt.

        Raises RuntimeError when two plans are in flight, or one where plans have drafts.
        """
        if len(self._in_flight) > (self._drafts is None):
            count = "two plans are" if self._drafts is None else "a plan is"
            raise RuntimeError(f"{count} in flight: complete the older one before the next is made")
        if self.num_online and self._config.background_tokens == 0:
            self._hold.extend(now)
        self.policy.begin_step(now)
        chunks, admitted = self._planner.plan(
            hold_background=self._hold.seconds_left(now) > 0.0, most_prompt_tokens=self._most_prompt_tokens
        )
        self.policy.charge(chunks)
        if self._drafts is not None:
            chunks = self._drafts.extend(chunks, self.policy)
        short = [chunk for chunk in chunks if chunk.length == 1]
        long = [chunk for chunk in chunks if chunk.length > 1] if len(short) < len(chunks) else []  # most steps
        state_loads, snapshots = self._kv_cache.end_plan()  # evicts snapshots, which may be saved
        saves = () if self._tier is None else self._tier.take_saves()
        state_saves = () if self._tier is None else self._tier.take_state_saves()
        restores = () if self._restorer is None else self._restorer.take_begun()
        plan = StepPlan(
            (*short, *long),
            tuple(admitted),
            relocated=tuple([sequence for sequence in self._planner.relocated if sequence.row is not None]),
            saves=saves,
            state_saves=state_saves,
            copies=self._kv_cache.take_copies(),
            state_loads=state_loads,
            snapshots=snapshots,
            restores=restores,
            idle=self._planner.idle(chunks),
            preempted=tuple(self._planner.preempted),
        )
        if plan.chunks:
            self._in_flight.append(plan)
        return plan

    def complete(self, plan: StepPlan, sampled: list[int]) -> list[Outcome]:
        """Takes a step's result: the plan's samples, in its order.

        Drafts count as tokens as long as they are what was sampled at their places. Returns an outcome for each token
        that a sequence got, and for its end. One that had ended before gets none. Raises ValueError if the number of
        tokens is wrong, RuntimeError if the plan is not the oldest in flight.
        """
        if len(sampled) != plan.num_samples:
            raise ValueError(f"the plan samples {plan.num_samples} tokens, got {len(sampled)}")
        if not plan.chunks:
            return []
        if not self._in_flight or self._in_flight[0] is not plan:
            raise RuntimeError("stale plan: plans are completed once, in the order planned")
        self._in_flight.popleft()
        outcomes: list[Outcome] = []
        first = 0
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence.finish_reason is None:
                if chunk.drafts:
                    outcomes += self._checked(chunk, sampled[first : first + chunk.num_samples], first)
                elif chunk.samples:
                    self._kv_cache.take_token(sequence, sampled[first])
                    outcomes.append(self._outcome(sequence, first, sampled[first]))
                elif chunk.end == sequence.max_length:  # with max_tokens 0 the last piece of a prompt is the end
                    outcomes.append(self._outcome(sequence, first, None))
            first += chunk.num_samples
        return outcomes

    def _checked(self, chunk: Chunk, sampled: list[int], first: int) -> Iterator[Outcome]:
        """Take what a step sampled for a chunk with drafts up to the first wrong one, or up to the sequence's end.

        ``first``: the index of the first sample.
        """
        assert self._drafts is not None, "it made them"
        sequence, accepted = chunk.sequence, chunk.num_accepted(sampled)
        self._kv_cache.accept(chunk, accepted)
        self._drafts.checked(chunk, accepted)
        for index, token in enumerate(sampled[: accepted + 1], first):
            if sequence.finish_reason is None:
                self._kv_cache.take_token(sequence, token)
                yield self._outcome(sequence, index, token)

    def _outcome(self, sequence: Sequence, index: int, token: int | None) -> Outcome:
        """Return the outcome of a token, or of the last step of a sequence without any, which may end here."""
        reason = sequence.stop_reason()
        if reason is not None:
            self._end(sequence, reason)
        return Outcome(sequence, index, token, reason)

    def force(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Append a token to a living sequence, which may have no other next; return why it ends there, if it does.

        The token is computed with the one before it if a step has room. None of its tokens may be pending.
        """
        assert sequence.num_pending == 0, "what may come next is known once the last token is"
        self._kv_cache.take_token(sequence, token, forced=True)
        self._queues.mark_changed(sequence)
        reason = sequence.stop_reason()
        if reason is not None:
            self._end(sequence, reason)
        return reason

    def restored(self, restore: Restore, *, whole: bool) -> None:
        """Note that a plan's restore is in the cache; if not ``whole``, it is not, and its tokens are computed."""
        if not restore.is_under_way:  # it lost its blocks meanwhile
            return
        self._kv_cache.end_restore(restore, whole=whole)
        if whole or restore.can_compute:
            self._queues.mark_changed(restore.sequence)
        else:  # it begins again with what there is without the state
            self._queues.put_back(restore.sequence)
            self._kv_cache.release(restore.sequence, SequenceStatus.WAITING)

    def abort(self, request_id: str) -> Sequence | None:
        """Ends a living sequence, wherever it stands, and returns it. None if none such lives."""
        sequence = self._live.get(request_id)
        if sequence is not None:
            self._end(sequence, FinishReason.ABORT)
        return sequence

    def fail(self, keep: Container[Sequence] | None = None) -> list[Sequence]:
        """Recover from an error, of the device or in any call: end every sequence that needs what is lost, with ERROR.

        Returns the ended sequences, oldest first. A sequence continues if it waits with no token pending and is in
        ``keep`` (None: all). Plans in flight can no longer be completed, and nothing cached is found again. Rows,
        blocks and queues are built again from the sequences that continue, in whatever state the error left them. The
        policy forgets what it has learnt.
        """
        before, ended = self._live, []
        self.pool.forget()
        self._begin_empty()
        for sequence in before.values():
            waits = sequence.status is SequenceStatus.WAITING and not (sequence.num_pending or sequence.blocks.num_held)
            if waits and (keep is None or sequence in keep):
                self._kv_cache.stop_waiting(sequence)
                self._queue(sequence)
                continue
            self._kv_cache.clear(sequence, SequenceStatus.FINISHED)
            sequence.finish_reason = FinishReason.ERROR
            ended.append(sequence)
        return ended

    def check_idle(self) -> None:
        """Raise RuntimeError if no sequence lives and yet rows, blocks or places in queues are taken: call ``fail``."""
        queues = self._queues
        queued = len(queues.running) + len(queues.waiting) + queues.waiting_tokens + self.num_online
        if not self._live and (queued or not self._kv_cache.is_all_free):
            self.counters.leaks += 1
            raise RuntimeError("an idle scheduler holds rows, blocks or places in queues of sequences that have ended")

    def _queue(self, sequence: Sequence) -> None:
        """Put a sequence that has its place into the waiting queue."""
        self._live[sequence.request_id] = sequence
        self.policy.join(sequence)
        self.num_online += not sequence.request.background

    def _check_length(self, sequence: Sequence) -> None:
        prompt, max_tokens = sequence.num_prompt, sequence.params.max_tokens
        check_context_length(prompt, max_tokens, self._config.max_model_len)
        blocks = self._kv_cache.blocks_for(sequence.max_cached)
        if blocks > self.pool.num_blocks:
            raise RequestRefusedError(
                f"prompt ({prompt} tokens) + max_tokens ({max_tokens}) takes {blocks} cache blocks of "
                f"{self._block_size} tokens, the cache (--num-blocks) has {self.pool.num_blocks}: lower max_tokens, or "
                "shorten the prompt",
                "max_tokens",
            )

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            self._queues.leave(sequence, self._queues.running)
        elif sequence.status is SequenceStatus.WAITING:
            self._queues.leave(sequence, self._queues.waiting)
        del self._live[sequence.request_id]
        self.policy.leave(sequence, reason)
        self.num_online -= not sequence.request.background
        self._kv_cache.release(sequence, SequenceStatus.FINISHED)
        sequence.finish_reason = reason
        if self._drafts is not None:
            self._drafts.ended(sequence)
