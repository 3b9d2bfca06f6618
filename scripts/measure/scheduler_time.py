"""Host time of planning and completing a step, by policy: 64 rows that decode, and prompts that come between.

    .venv/bin/python -m scripts.measure.scheduler_time

The policies are measured in turn, several times; each line is the median of one run, in microseconds a step. No model
runs and no jax is loaded.
"""

import argparse
import itertools
import statistics
import time

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.request import Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.policy import Fifo
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.scheduling.service.policy import ServicePolicy

ROWS, BUDGET, PROMPT, ANSWER = 64, 256, 100, 400
WARM_UP = 200
"""Steps that are not counted."""


def microseconds(policy: type[Fifo], steps: int) -> float:
    """Return the median time of a step's ``schedule`` and the ``complete`` of the one before it."""
    config = SchedulerConfig(BUDGET, ROWS, 4096, prefix_caching=False)
    scheduler = Scheduler(config, CacheConfig(block_size=16, num_blocks=ROWS * 64), policy=policy)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="measured in each run (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each policy (default %(default)s)")
    args = parser.parse_args()
    for _ in range(args.rounds):
        for policy in (Fifo, ServicePolicy):
            print(f"{policy.__name__:14} {microseconds(policy, args.steps):8.1f} us")


if __name__ == "__main__":
    main()
