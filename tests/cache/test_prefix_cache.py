import itertools
from hashlib import blake2b
from typing import Any

import pytest

from jaxgen.cache.prefix_cache import LEAST_COPIED, root_key
from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.request import FinishReason, Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.scheduler import Scheduler

EOS = 2
BLOCK = 4
ARRIVALS = itertools.count()


def new(*, token_budget: int = 64, max_num_seqs: int = 4, num_blocks: int = 32, enabled: bool = True) -> Scheduler:
    config = SchedulerConfig(token_budget, max_num_seqs, max_model_len=256, prefix_caching=enabled)
    return Scheduler(config, CacheConfig(BLOCK, num_blocks))


def add(
    scheduler: Scheduler, tokens: list[int], max_tokens: int = 4, salt: str | None = None, **params: Any
) -> Sequence:
    arrival = next(ARRIVALS)
    request = Request(f"r{arrival}", tuple(tokens), SamplingParams(max_tokens=max_tokens, **params), cache_salt=salt)
    sequence = Sequence(request, eos_token_ids=frozenset({EOS}), arrival=arrival, seed=0)
    scheduler.add(sequence)
    return sequence


def step(scheduler: Scheduler, *sampled: int) -> StepPlan:
    plan = scheduler.schedule()
    scheduler.complete(plan, list(sampled) or [50] * plan.num_samples)
    return plan


def run_dry(scheduler: Scheduler) -> None:
    while scheduler.has_work:
        assert step(scheduler).chunks
    assert scheduler.pool.num_free == scheduler.pool.num_blocks


def prompt(length: int, start: int = 100) -> list[int]:
    return list(range(start, start + length))


class TestKeys:
    def test_keys_are_the_documented_hash(self) -> None:
        scheduler = new()
        tokens = [1, 2, 3, 4, 2**31 - 1, 256, 0, 7, 9]
        sequence = add(scheduler, tokens, salt="tenant é")
        step(scheduler)
        key = blake2b("tenant é".encode(), digest_size=16, person=b"salt").digest()
        expected = []
        for at in (0, 4):
            packed = b"".join(token.to_bytes(4, "little") for token in tokens[at : at + 4])
            key = blake2b(key + packed, digest_size=16).digest()
            expected.append(key)
        assert sequence.blocks.keys == expected
        assert [scheduler.pool.find(key) for key in expected] == sequence.blocks.table[:2]

    def test_a_salt_that_spells_a_block_is_not_that_block(self) -> None:
        """Else a tenant who picks a salt could continue the chain of another."""
        spelled = "\x01\x00\x00\x00" * 5
        assert root_key(spelled) != blake2b(spelled.encode(), digest_size=16).digest()

    def test_an_empty_salt_is_refused(self) -> None:
        with pytest.raises(ValueError, match="cache_salt must not be empty"):
            Request("a", (1,), SamplingParams(), cache_salt="")


class TestLookUp:
    @pytest.mark.parametrize(
        ("length", "found"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12), (16, 12), (17, 12)]
    )
    def test_full_blocks_are_found_and_a_token_is_left(self, length: int, found: int) -> None:
        scheduler = new()
        first = add(scheduler, prompt(14), max_tokens=1)
        step(scheduler)
        blocks = scheduler.pool
        assert (first.finish_reason, blocks.num_cached, blocks.num_free) == (FinishReason.LENGTH, 3, 32)
        sequence = add(scheduler, prompt(length))
        (chunk,) = step(scheduler).chunks
        assert (chunk.start, chunk.end, sequence.blocks.num_cached) == (found, length, found)
        assert (scheduler.counters.prefix_queries, scheduler.counters.prefix_hits) == (14 + length, found)

    def test_the_first_block_that_differs_ends_the_chain(self) -> None:
        scheduler = new()
        add(scheduler, prompt(17), max_tokens=1)
        step(scheduler)
        tokens = prompt(17)
        tokens[6] += 1
        sequence = add(scheduler, tokens)
        step(scheduler)
        assert sequence.blocks.num_cached == 4

    def test_equal_blocks_behind_different_ones_are_not_found(self) -> None:
        scheduler = new()
        add(scheduler, prompt(17), max_tokens=1)
        step(scheduler)
        sequence = add(scheduler, [1, 2, 3, 4, *prompt(17)[4:]])
        step(scheduler)
        assert sequence.blocks.num_cached == 0

    @pytest.mark.parametrize(("first", "second"), [(None, "a"), ("a", None), ("a", "b")])
    def test_nothing_is_shared_between_salts(self, first: str | None, second: str | None) -> None:
        scheduler = new()
        for salt, found in [(first, 0), (second, 0), (first, 8), (second, 8)]:
            sequence = add(scheduler, prompt(10), salt=salt, max_tokens=1)
            step(scheduler)
            assert sequence.blocks.num_cached == found

    def test_generated_tokens_are_found(self) -> None:
        scheduler = new()
        first = add(scheduler, prompt(6), max_tokens=8)
        run_dry(scheduler)
        assert len(first.tokens) == 14  # the last of which was never computed
        sequence = add(scheduler, [*first.tokens, 60])
        step(scheduler)
        assert sequence.blocks.num_cached == 12

    def test_generated_tokens_are_found_in_overlap(self) -> None:
        """The plan that computes a block's last token is made before that token is known."""
        scheduler = new()
        first = add(scheduler, prompt(6), max_tokens=40)
        plan = scheduler.schedule()
        while len(first.tokens) < 8:
            following = scheduler.schedule()
            scheduler.complete(plan, [50])
            plan = following
        assert (plan.chunks[0].start, len(first.tokens)) == (7, 8)
        second = add(scheduler, [*first.tokens, 60])
        assert scheduler.schedule().admitted == (second,)
        assert (second.blocks.num_cached, second.blocks.table[:2]) == (8, first.blocks.table[:2])

    def test_requests_for_prompt_logprobs_compute_everything_but_tell(self) -> None:
        scheduler = new()
        for logprobs, found in [(0, 0), (0, 0), (None, 8)]:
            sequence = add(scheduler, prompt(10), max_tokens=1, prompt_logprobs=logprobs)
            step(scheduler)
            assert sequence.blocks.num_cached == found
        assert (scheduler.counters.prefix_queries, scheduler.counters.prefix_hits) == (10, 8)

    def test_switched_off_nothing_is_found_or_kept(self) -> None:
        scheduler = new(enabled=False)
        for _ in range(2):
            sequence = add(scheduler, prompt(10), max_tokens=6)
            run_dry(scheduler)
            assert sequence.blocks.num_cached == 0
        assert (scheduler.counters.prefix_queries, scheduler.counters.prefix_hits, scheduler.pool.num_cached) == (
            0,
            0,
            0,
        )


class TestSharing:
    def test_two_admitted_by_one_plan_share(self) -> None:
        scheduler = new()
        first, second = add(scheduler, prompt(10)), add(scheduler, prompt(9))
        plan = step(scheduler)
        assert [(chunk.sequence, chunk.start, chunk.end) for chunk in plan.chunks] == [(second, 8, 9), (first, 0, 10)]
        assert second.blocks.table[:2] == first.blocks.table[:2]
        assert second.blocks.table[2] != first.blocks.table[2]
        assert [scheduler.pool.num_owners(block) for block in first.blocks.table] == [2, 2, 1]
        run_dry(scheduler)

    def test_of_a_prompt_in_pieces_only_what_is_planned_is_found(self) -> None:
        scheduler = new(token_budget=11)
        first = add(scheduler, prompt(20))
        step(scheduler)
        second = add(scheduler, prompt(20))
        step(scheduler)
        assert (first.num_computed, second.blocks.num_cached) == (20, 16)

    def test_what_one_leaves_the_other_keeps(self) -> None:
        scheduler = new()
        first = add(scheduler, prompt(9), max_tokens=1)
        second = add(scheduler, prompt(9), max_tokens=9)
        shared = 2
        step(scheduler)
        assert first.finish_reason is FinishReason.LENGTH
        assert [scheduler.pool.num_owners(block) for block in second.blocks.table[:shared]] == [1, 1]
        assert scheduler.pool.num_cached == 0

    def test_the_same_computed_twice_is_kept_once(self) -> None:
        """Both grow a block of equal tokens; whoever comes first is known."""
        scheduler = new()
        first, second = add(scheduler, prompt(6), max_tokens=9), add(scheduler, prompt(6), max_tokens=9)
        for _ in range(5):
            step(scheduler)
        assert first.blocks.table[0] == second.blocks.table[0]
        assert first.blocks.table[1] != second.blocks.table[1]
        third = add(scheduler, first.tokens)
        step(scheduler)
        assert third.blocks.table[:2] == first.blocks.table[:2]
        run_dry(scheduler)

    def test_found_blocks_in_use_take_no_free_ones(self) -> None:
        scheduler = new(num_blocks=6)
        first = add(scheduler, prompt(17), max_tokens=4)
        step(scheduler)
        assert scheduler.pool.num_free == 1
        second = add(scheduler, prompt(17), max_tokens=4)
        step(scheduler)
        assert (first.status, second.status, second.blocks.num_cached) == ("running", "running", 16)
        run_dry(scheduler)

    def test_found_blocks_that_nobody_owns_take_free_ones(self) -> None:
        scheduler = new(num_blocks=8)
        add(scheduler, prompt(17), max_tokens=1)
        step(scheduler)
        runs = add(scheduler, prompt(13, start=500), max_tokens=4)  # 4 blocks, and may not grow
        step(scheduler)
        assert (len(runs.blocks.table), scheduler.pool.num_free) == (4, 4)
        late = add(scheduler, prompt(17), max_tokens=1)  # one new block, and the 4 that are cached
        step(scheduler)
        assert (late.status, late.blocks.num_cached) == ("waiting", 0)
        run_dry(scheduler)


class TestBeginnings:
    @pytest.mark.parametrize(("rest", "kept"), [(1, 0), (2, 1), (3, 1)])
    def test_a_block_that_nobody_would_copy_is_not_kept(self, rest: int, kept: int) -> None:
        scheduler = Scheduler(SchedulerConfig(64, 4, max_model_len=256), CacheConfig(BLOCK, 32), copies_blocks=True)
        add(scheduler, prompt(BLOCK + rest), max_tokens=1)
        run_dry(scheduler)
        assert scheduler.pool.num_cached == 1 + kept
        assert (rest < LEAST_COPIED) is (kept == 0)

    def test_a_block_that_is_copied_from_stays_longest(self) -> None:
        scheduler = Scheduler(SchedulerConfig(64, 4, max_model_len=256), CacheConfig(BLOCK, 8), copies_blocks=True)
        for start in (100, 200):
            add(scheduler, prompt(7, start), max_tokens=1)
            step(scheduler)
        add(scheduler, [*prompt(3), *prompt(2, 300)], max_tokens=1)
        (copy,) = step(scheduler).copies
        order = list(scheduler.pool._cached)
        assert order.index(copy.source) == 3, "behind the three that nobody has used since"


class TestEviction:
    def test_what_was_used_last_stays_longest(self) -> None:
        scheduler = new(num_blocks=8)
        for start in (100, 200):
            add(scheduler, prompt(9, start), max_tokens=1)
            step(scheduler)
        add(scheduler, prompt(9, 100), max_tokens=1)
        step(scheduler)
        assert scheduler.pool.num_cached == 4
        add(scheduler, prompt(24, 300), max_tokens=1)  # 6 blocks: 4 free, then those of 200
        step(scheduler)
        for start, found in [(100, 8), (200, 0)]:
            sequence = add(scheduler, prompt(9, start), max_tokens=1)
            step(scheduler)
            assert sequence.blocks.num_cached == found

    def test_a_chain_loses_its_end_first(self) -> None:
        scheduler = new(num_blocks=4)
        add(scheduler, prompt(13), max_tokens=1)
        step(scheduler)
        assert (scheduler.pool.num_cached, scheduler.pool.num_free) == (3, 4)
        add(scheduler, prompt(5, 500), max_tokens=1)  # one free block, one evicted
        step(scheduler)
        sequence = add(scheduler, prompt(13), max_tokens=1)
        step(scheduler)
        assert sequence.blocks.num_cached == 8

    def test_admission_does_not_evict_what_it_found(self) -> None:
        scheduler = new(num_blocks=4)
        add(scheduler, prompt(12), max_tokens=1)
        step(scheduler)
        add(scheduler, prompt(4, 500), max_tokens=1)
        step(scheduler)
        assert (scheduler.pool.num_cached, scheduler.pool.num_free) == (4, 4)
        sequence = add(scheduler, prompt(14), max_tokens=1)
        step(scheduler)
        assert sequence.blocks.num_cached == 12


def test_a_lost_device_forgets_what_was_cached() -> None:
    scheduler = new()
    add(scheduler, prompt(9), max_tokens=1)
    step(scheduler)
    running = add(scheduler, prompt(9, 200))
    scheduler.schedule()
    assert scheduler.fail() == [running]
    assert (scheduler.pool.num_cached, scheduler.pool.num_free) == (0, 32)
    for start in (100, 200):
        sequence = add(scheduler, prompt(9, start))
        step(scheduler)
        assert sequence.blocks.num_cached == 0


def test_the_preempted_finds_its_own_blocks_and_reports_what_it_found_at_first() -> None:
    scheduler = new(num_blocks=8)
    old = add(scheduler, prompt(4), max_tokens=20)
    young = add(scheduler, prompt(9, 200), max_tokens=20)
    while scheduler.preemptions == 0:
        step(scheduler)
    assert young.status == "waiting"
    scheduler.abort(old.request_id)
    known = len(young.tokens)
    (chunk,) = step(scheduler).chunks
    assert (chunk.sequence, chunk.end) == (young, known)
    assert chunk.start >= 8
    assert (young.blocks.num_cached, scheduler.counters.prefix_hits) == (0, chunk.start)
    run_dry(scheduler)
