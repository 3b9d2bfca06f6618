"""Snapshots of states in host memory: which go there, and how sequences begin at them. The state machine checks what
they hold."""

from collections.abc import Iterator

from jaxgen.cache.host_tier import is_state_key, state_key
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Restore, Sequence
from jaxgen.core.step_plan import StateCopy, StepPlan
from jaxgen.offload.tiers.host_store import HostBlock
from jaxgen.offload.tiers.offload_tier import OffloadTier
from jaxgen.scheduling.scheduler import Scheduler
from tests.support.scheduler_world import small_tier
from tests.support.small_scheduler import ARRIVALS, EOS, TOKEN, new_scheduler, shown

PROMPT = (*range(10, 18), 30)
"""Two blocks and a token."""


class World:
    """A scheduler with host memory, to which all copies come at once; from it they come when a test says so."""

    def __init__(self, num_snapshots: int = 1, *, num_blocks: int = 32, most_computed: int = 0) -> None:
        self.tier: OffloadTier = small_tier(40, 4, 8, most_computed, 0, state_places=2)
        self.scheduler: Scheduler = new_scheduler(
            token_budget=32, num_blocks=num_blocks, prefix_caching=True, num_snapshots=num_snapshots, tier=self.tier
        )

    def ask(self, prompt: tuple[int, ...], max_tokens: int = 1) -> Sequence:
        arrival = next(ARRIVALS)
        request = Request(f"r{arrival}", prompt, SamplingParams(max_tokens=max_tokens))
        sequence = Sequence(request, eos_token_ids=frozenset({EOS}), arrival=arrival, seed=0)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        for save in (*plan.saves, *plan.state_saves):
            self.tier.saved(save.key, HostBlock("content"))
        self.scheduler.complete(plan, [TOKEN] * plan.num_samples)
        return plan

    def land(self, restore: Restore, *, whole: bool = True) -> None:
        self.tier.release(restore, whole=whole)
        self.scheduler.restored(restore, whole=whole)

    def served(self, prompt: tuple[int, ...], max_tokens: int = 1) -> int:
        """Serve a request alone, and return how many of its tokens were computed."""
        self.ask(prompt, max_tokens)
        return sum([plan.num_tokens for plan in self.plans()])

    def plans(self) -> Iterator[StepPlan]:
        """Make plans until all has ended and is saved."""
        while self.scheduler.has_work or self.tier.has_saves:
            plan = self.step()
            for restore in plan.restores:
                self.land(restore)
            yield plan

    @property
    def states(self) -> list[bytes]:
        return [key for key in self.tier.store._pieces if is_state_key(key)]


def test_what_others_begin_with_goes_to_the_host_and_the_last_of_each_answer() -> None:
    world = World(num_snapshots=12)
    sequence = world.ask(PROMPT, max_tokens=20)
    list(world.plans())
    keys = sequence.blocks.keys
    assert world.states == [state_key(keys[6]), state_key(keys[1])]
    assert world.tier.counters.host_snapshots == 2
    assert world.tier.store.num_filled == 7 + 2 * 2, "blocks, and the places of two snapshots"


def test_an_evicted_snapshot_comes_back_alone_where_the_device_has_the_blocks() -> None:
    world = World()
    assert world.served(PROMPT) == 9
    assert world.served(tuple(range(50, 59))) == 9, "it takes the only place"
    again = world.ask(PROMPT)
    plan = world.step()
    assert (shown(plan), plan.state_loads) == ([], ())
    (restore,) = plan.restores
    assert (restore.blocks, restore.start, restore.end, restore.can_compute) == ((), 8, 8, False)
    assert restore.state is not None
    assert (restore.state.snapshot, restore.state.key) == (0, state_key(again.blocks.keys[1]))
    assert shown(world.step()) == []
    states = world.scheduler._kv_cache.states
    assert states is not None
    assert not states.holds(again, 2), "it is on its way"
    world.land(restore)
    plan = world.step()
    assert (shown(plan), plan.state_loads) == ([(again.request_id, 8, 1)], (StateCopy(0, 0),))
    assert world.tier.counters.restored_snapshots == 1
    assert world.served(PROMPT) == 1, "the device has it again"


def test_one_that_was_never_saved_before_is_saved_when_it_is_evicted() -> None:
    world = World()
    first = world.ask(PROMPT, max_tokens=3)
    world.step()  # it still runs
    world.ask(tuple(range(50, 59)))
    plan = world.step()
    assert [save.key for save in plan.state_saves] == [state_key(first.blocks.keys[1])]
    assert [copy.snapshot for copy in plan.snapshots] == [plan.state_saves[0].block], "after the save"
    assert world.tier.counters.lost_snapshots == 0


def test_a_place_to_which_a_snapshot_comes_is_not_given_to_another() -> None:
    world = World()
    world.served(PROMPT)
    world.served(tuple(range(50, 59)))
    world.ask(PROMPT)
    (restore,) = world.step().restores
    world.ask(tuple(range(70, 79)))
    assert world.step().snapshots == ()
    world.land(restore)
    assert world.step().state_loads == (StateCopy(0, 0),)


def test_who_lacks_the_state_begins_again_if_the_copy_fails_and_computes_then() -> None:
    world = World()
    world.served(PROMPT)
    world.served(tuple(range(50, 59)))
    again = world.ask(PROMPT)
    (restore,) = world.step().restores
    world.land(restore, whole=False)
    assert (again.row, again.num_computed, world.scheduler.num_waiting) == (None, 0, 1)
    assert (world.tier.counters.failed_restores, world.scheduler.preemptions) == (1, 0)
    plan = world.step()
    assert (shown(plan), plan.restores) == ([(again.request_id, 0, 8)], ())


def test_who_has_the_state_but_not_the_blocks_before_it_computes_them_if_the_copy_fails() -> None:
    world = World(num_blocks=8, num_snapshots=2)
    prompt = (*range(10, 26), 30)
    world.served(prompt)
    world.served(tuple(range(50, 71)))  # evicts the last blocks of the first, and not its last snapshot
    again = world.ask(prompt)
    (restore,) = world.step().restores
    assert (len(restore.blocks), restore.state, restore.can_compute) == (2, None, False)
    world.land(restore, whole=False)
    plan = world.step()
    assert (shown(plan), plan.restores) == ([(again.request_id, 0, 8)], ())


def test_blocks_and_state_come_together_behind_blocks_of_the_device() -> None:
    world = World(num_blocks=8)
    prompt = (*range(10, 26), 30)
    world.served(prompt)
    world.served(tuple(range(50, 71)))  # evicts the last blocks of the first
    world.ask(prompt)
    plan = world.step()
    (restore,) = plan.restores
    assert (restore.start, restore.end, restore.can_compute) == (8, 16, False)
    assert (len(restore.blocks), restore.state is not None) == (2, True)
    world.land(restore)
    assert [(start, length) for _, start, length in shown(world.step())] == [(16, 1)]


def test_what_is_computed_sooner_does_not_come() -> None:
    """Two blocks here."""
    world = World(most_computed=2)
    world.served(PROMPT)
    world.served(tuple(range(50, 59)))
    assert world.served(PROMPT) == 9
    assert world.tier.counters.restores == 0


def test_a_chat_computes_less_than_a_block_again_with_one_place_for_two_chats() -> None:
    for with_host, expected in ((True, [0, 3, 2, 1, 0]), (False, [0, 15, 26, 37, 48])):
        world, again = World(), list[int]()
        if not with_host:
            world.tier.close()
        chats = [tuple(range(10, 20)), tuple(range(30, 40))]
        for turn in range(5):
            for number, prompt in enumerate(chats):
                sequence = world.ask(prompt, max_tokens=6)
                computed = sum([plan.num_tokens for plan in world.plans()])
                if number == 0:
                    again.append(computed - (6 if turn else 10) - 5)  # of an answer of six, the last is never computed
                chats[number] = (*sequence.tokens, 90, 91, 92, 93, 94)
        assert again == expected
