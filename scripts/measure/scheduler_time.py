"""Host time of steps by policy, and of adds and quotes by how many wait: 64 rows decode.

    .venv/bin/python -m scripts.measure.scheduler_time

Steps: planning one and completing the one before, while prompts come between. The policies are measured in turn,
several times, and the first also with each of ``--windows`` as a further kind of cache; each line is the median of one
run, in microseconds. Adds and quotes: of requests of 2,000 tokens,
with and without targets, that share 1,000 first tokens or none; medians in microseconds of CPU time. No model runs
and no jax is loaded.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial

from jaxgen.cache.window_manager import blocks_for
from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.service_class import ServiceClass
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.service.policy import ServicePolicy
from jaxgen.scheduling.step_time import FixedStepTimes, StepTimeModel

ROWS, BUDGET, PROMPT, ANSWER = 64, 256, 100, 400
WARM_UP = 200
"""Steps that are not counted."""


def microseconds(policy: type[Fifo], steps: int, windows: tuple[int, ...] = ()) -> float:
    """Return the median time of a step's ``schedule`` and the ``complete`` of the one before it."""
    config = SchedulerConfig(BUDGET, ROWS, 4096, prefix_caching=False)
    window_blocks = tuple(blocks_for(config.max_num_seqs, window, 16, config) for window in windows)
    cache = CacheConfig(block_size=16, num_blocks=ROWS * 64, window_blocks=window_blocks, windows=windows)
    scheduler = Scheduler(config, cache, policy=policy)
    numbers = itertools.count()

    def add() -> None:
        number = next(numbers)
        params = SamplingParams(max_tokens=ANSWER, ignore_eos=True)
        request = Request(f"r{number}", tuple(range(PROMPT)), params)
        scheduler.add(Sequence(request, eos_token_ids=frozenset(), arrival=number, seed=0), time.monotonic())

    for _ in range(ROWS):
        add()
    times, before = [], StepPlan(())
    for step in range(WARM_UP + steps):
        if step * ROWS % ANSWER < ROWS:  # as many come as end
            add()
        began = time.perf_counter()
        plan = scheduler.schedule(time.monotonic())
        scheduler.complete(before, [7] * before.num_samples)
        before = plan
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times[WARM_UP:])


class Arrivals:
    """Requests that come to a scheduler whose rows all decode."""

    def __init__(self, *, targets: bool, shared: int) -> None:
        self._service = ServiceClass(first_token_seconds=1e6 if targets else None)
        self._shared = range(shared)
        self._numbers = itertools.count(1)
        policy = partial(ServicePolicy, step_times=FixedStepTimes(StepTimeModel(BUDGET, LinearCost(5e-3, 1e-5, 1e-9))))
        self.scheduler = Scheduler(SchedulerConfig(BUDGET, ROWS, 4096), CacheConfig(64, ROWS * 64), policy=policy)
        for _ in range(ROWS):
            self.scheduler.add(self.sequence(50, 2000))
        for _ in range(ROWS):
            plan = self.scheduler.schedule()
            self.scheduler.complete(plan, [7] * plan.num_samples)

    def sequence(self, prompt: int = 2000, answer: int = 500) -> Sequence:
        """Return a new sequence; no two have more in common than what is shared."""
        number = next(self._numbers)
        tokens = (*self._shared, *range(number << 12, (number << 12) + prompt))[:prompt]
        request = Request(f"r{number}", tokens, SamplingParams(max_tokens=answer), service=self._service)
        return Sequence(request, eos_token_ids=frozenset(), arrival=number, seed=0)

    def microseconds(self, waiting: int, calls: int) -> tuple[float, float]:
        """Return the median times of an add and of a quote once ``waiting`` wait."""
        while self.scheduler.num_waiting < waiting:
            self.scheduler.add(self.sequence(), 1.0)
        asked = [self.sequence() for _ in range(calls)]
        quotes = [_timed(partial(self.scheduler.quote, sequence, 1.0)) for sequence in asked]
        adds = [_timed(partial(self.scheduler.add, self.sequence(), 1.0)) for _ in range(calls)]
        return 1e6 * statistics.median(adds), 1e6 * statistics.median(quotes)


def _timed(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return time.thread_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="measured in each run (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each policy (default %(default)s)")
    parser.add_argument("--waiting", default="0,1024,4096", help="comma-separated (default %(default)s)")
    parser.add_argument("--calls", type=int, default=100, help="adds and quotes of each (default %(default)s)")
    parser.add_argument("--windows", default="512", help="in tokens, comma-separated (default %(default)s)")
    args = parser.parse_args()
    windows = tuple(map(int, args.windows.split(",")))
    for _ in range(args.rounds):
        for policy in (Fifo, ServicePolicy):
            print(f"{policy.__name__:14} {microseconds(policy, args.steps):8.1f} us")
        print(f"Fifo, windows  {microseconds(Fifo, args.steps, windows):8.1f} us")
    for targets, shared in itertools.product((False, True), (0, 1000)):
        arrivals = Arrivals(targets=targets, shared=shared)
        for waiting in map(int, args.waiting.split(",")):
            add, quote = arrivals.microseconds(waiting, args.calls)
            name = f"{'targets' if targets else 'no targets'}, {shared} shared, {waiting} waiting"
            print(f"{name:40} add {add:6.0f} us, quote {quote:6.0f} us", flush=True)


if __name__ == "__main__":
    main()
