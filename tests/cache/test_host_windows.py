"""Blocks of windows in host memory: which come back, and what is computed before. The device checks what they hold."""

import pytest

from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from tests.support.scheduler_world import Device, Host, small_tier
from tests.support.small_scheduler import ARRIVALS, EOS, new_scheduler, shown

PROMPT, OTHER = (*range(10, 26), 30), (*range(50, 74), 30)
"""Four blocks and a token, and six. After four blocks a token attends to five others, in the last two of them."""


class World:
    """A scheduler with a kind of cache with a window, for one sequence, and with host memory behind both kinds."""

    def __init__(self, *, num_blocks: int = 32, most_computed: int = 0) -> None:
        self.tier = small_tier(100, 4, 8, most_computed, 0, window_places=(2,))
        self.device = Device(4, (6,))
        self.host = Host(self.tier, self.device)
        self.scheduler = new_scheduler(
            max_num_seqs=1, num_blocks=num_blocks, prefix_caching=True, windows=(6,), tier=self.tier
        )

    def ask(self, prompt: tuple[int, ...]) -> Sequence:
        arrival = next(ARRIVALS)
        request = Request(f"r{arrival}", prompt, SamplingParams(max_tokens=1))
        sequence = Sequence(request, eos_token_ids=frozenset({EOS}), arrival=arrival, seed=0)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> StepPlan:
        """Copies to the host come at once."""
        plan = self.scheduler.schedule()
        self.host.start(plan)
        while self.host.saves:
            self.host.land_save(whole=True)
        self.scheduler.complete(plan, self.device.run(plan))
        return plan

    def land(self, *, whole: bool = True) -> None:
        restore = self.host.land_restore(whole=whole)
        self.scheduler.restored(restore, whole=whole)

    def serve(self, *prompts: tuple[int, ...]) -> None:
        for prompt in prompts:
            self.ask(prompt)
            while self.scheduler.has_work or self.tier.has_saves:
                self.step()
                if self.host.restores:
                    self.land()


@pytest.mark.parametrize("num_blocks", [32, 7], ids=["windows alone", "all"])
def test_the_last_blocks_of_a_window_come_back_before_anything_is_computed(num_blocks: int) -> None:
    """Of few blocks the other prompt takes also those of the layers that keep the whole context."""
    world = World(num_blocks=num_blocks)
    world.serve(PROMPT, OTHER)
    again = world.ask(PROMPT)
    plan = world.step()
    (restore,) = plan.restores
    (window,) = restore.windows
    assert (window.kind, len(window.blocks), restore.end, shown(plan)) == (1, 2, 16, [])
    assert restore.blocks == again.blocks.ids(restore.start // 4, 4)
    assert (len(restore.blocks) > 0) is (num_blocks == 7)
    assert again.blocks.windows[0].ids(2) == window.blocks
    assert shown(world.step()) == []
    world.land()
    assert shown(world.step()) == [(again.request_id, 16, 1)]
    assert world.tier.counters.restores == 1
    world.serve(PROMPT)
    assert world.tier.counters.restores == 1, "the device has them again"


@pytest.mark.parametrize("num_blocks", [32, 7])
def test_where_the_copy_fails_less_comes_back_and_then_nothing(num_blocks: int) -> None:
    world = World(num_blocks=num_blocks)
    world.serve(PROMPT, OTHER)
    again = world.ask(PROMPT)
    for end in (16, 8):
        plan = world.step()
        assert ([restore.end for restore in plan.restores], shown(plan)) == ([end], [])
        world.land(whole=False)
    plan = world.step()
    assert (shown(plan), plan.restores) == ([(again.request_id, 0, 8)], ())
    assert world.tier.counters.failed_restores == 2


def test_what_is_computed_sooner_does_not_come() -> None:
    """Four blocks here."""
    world = World(most_computed=4)
    world.serve(PROMPT, OTHER)
    again = world.ask(PROMPT)
    plan = world.step()
    assert (shown(plan), plan.restores) == ([(again.request_id, 0, 8)], ())


def test_an_abort_gives_back_blocks_that_are_on_their_way() -> None:
    world = World()
    world.serve(PROMPT, OTHER)
    again = world.ask(PROMPT)
    world.step()
    world.scheduler.abort(again.request_id)
    assert all(pool.num_free == pool.num_blocks for pool in world.scheduler.pools)
    world.land()
    world.serve(PROMPT)
