"""Restores for the planner's tests: their arguments, costs from simulating the schedule, and two models."""

from dataclasses import dataclass
from itertools import accumulate

from hypothesis import strategies as st

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.cache_kind import RowShape
from jaxgen.core.host_dtype import HostDType
from jaxgen.offload.planning.restore_plan import ContextCost, Rates, RestorePlan, plan_restore
from jaxgen.scheduling.cost_model import StepSample
from jaxgen.scheduling.step_time import StepTimeEstimator


def cost_of(
    *, num_layers: int, hidden_size: int, num_kv_heads: int, head_dim: int, host: HostDType = "auto"
) -> ContextCost:
    """Of a model in bfloat16."""
    cache = CacheFormat(
        block_size=16,
        rows=(RowShape(num_kv_heads, head_dim),) * num_layers,
        hidden_size=hidden_size,
        dtype="bfloat16",
    )
    return ContextCost.of(cache, host)


MHA_7B = cost_of(num_layers=32, hidden_size=4096, num_kv_heads=32, head_dim=128)
LLAMA_3_8B = cost_of(num_layers=32, hidden_size=4096, num_kv_heads=8, head_dim=128)


def steps_of(seconds: float) -> StepTimeEstimator:
    """Steps that all take so long."""
    return StepTimeEstimator(64, [StepSample(64, 0, seconds)])


@dataclass(frozen=True)
class Case:
    """Arguments of plan_restore; the costs by way of Rates of 1 byte and 1 FLOP a second."""

    blocks: int
    block_size: int
    start: int
    cost: ContextCost
    rates: Rates
    free_tokens: int
    x_stored: bool
    price: float
    copy_blocks: int = 1
    """Of a copy of X."""

    def plan(self) -> RestorePlan:
        return plan_restore(
            self.blocks * self.block_size,
            start=self.start,
            block_size=self.block_size,
            cost=self.cost,
            rates=self.rates,
            free_tokens=self.free_tokens,
            x_stored=self.x_stored,
            price=self.price,
            copy_tokens=self.copy_blocks * self.block_size,
        )

    def recompute(self, blocks: int) -> float:
        """A sum over tokens, each at the middle of its position."""
        alpha, beta = self.rates.step_seconds / self.free_tokens, self.rates.seconds_per_position
        positions = range(self.start, self.start + blocks * self.block_size)
        return sum(alpha + beta * (position + 0.5) for position in positions)

    def copies(self) -> tuple[float, float, float]:
        """Seconds of a block: its KV, its X, its projection."""
        size, copy = self.block_size, self.rates.copy_seconds
        return size * self.cost.kv_bytes + copy, size * self.cost.x_bytes + copy, size * self.cost.projection_flops

    def seconds(self, first: int, project: int, *, price: float = 1.0) -> float:
        """Of blocks: the schedule of planner.py, simulated."""
        kv, x, work = self.copies()
        copies, blocks = project // self.copy_blocks, self.copy_blocks
        link = [blocks * x] * copies + [kv] * (self.blocks - first - project)
        arrivals = list(accumulate(link))[:copies]
        return max(device_ends(price * self.recompute(first), arrivals, blocks * work), sum(link))

    def all_plans(self) -> list[tuple[int, int]]:
        pays = self.x_stored and self.cost.x_bytes < self.cost.kv_bytes
        return [
            (first, project)
            for first in range(self.blocks + 1)
            for project in range(0, self.blocks - first + 1 if pays else 1, self.copy_blocks)
        ]


def device_ends(first: float, arrivals: list[float], work: float, then: float = 0.0) -> float:
    """When a device is done that works ``first`` seconds, then ``work`` on each arrival, then ``then`` seconds."""
    now = first
    for arrival in arrivals:
        now = max(now, arrival) + work
    return now + then


seconds = st.floats(1e-3, 10.0)


@st.composite
def cases(draw: st.DrawFn, *, x_stored: bool | None = None, beta: bool = True, most_copied: int = 1) -> Case:
    rates = Rates(
        link_bytes_per_second=1.0,
        flops_per_second=1.0,
        step_seconds=draw(st.floats(0.1, 100.0)),
        copy_seconds=draw(st.sampled_from([0.0, 0.0, 0.5, 3.0])),
        seconds_per_position=draw(st.sampled_from([0.0, 1e-3, 0.1, 3.0])) if beta else 0.0,
    )
    kv = draw(seconds)
    cost = ContextCost(kv, kv * draw(st.sampled_from([0.1, 0.375, 0.5, 0.9, 1.0, 2.0])), draw(seconds))
    stored = draw(st.booleans()) if x_stored is None else x_stored
    block_size, start = draw(st.sampled_from([1, 3, 4])), draw(st.sampled_from([0, 7, 100]))
    price = draw(st.sampled_from([1.0, 1.0, 1.5, 10.0]))
    blocks, free, copied = draw(st.integers(1, 10)), draw(st.integers(1, 20)), draw(st.integers(1, most_copied))
    return Case(blocks, block_size, start, cost, rates, free, stored, price, copied)
