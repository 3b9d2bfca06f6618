"""Several replicas in virtual time: the same as one where they are alike, and what each router is for."""

import json
from collections.abc import Callable
from itertools import count
from math import inf
from pathlib import Path

import pytest

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.sequence import Sequence
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.step_time import StepTimeModel
from jaxgen.server.benchmark.metrics import RequestRecord
from scripts.scaling.page import LIVE
from scripts.simulation.baselines import WholePrompts
from scripts.simulation.fastgen import make_policies, settings
from scripts.simulation.load import ClosedLoop, Due, Load, OpenLoop, SimulatedRequest, closed_loop, normal_requests
from scripts.simulation.loop import Fleet, Simulation, seconds_at
from scripts.simulation.policies import SplitFuse
from scripts.simulation.replicas.loads import PrefixedRequest, scaled_closed_loop, zipf_requests
from scripts.simulation.replicas.page import PAGE, page
from scripts.simulation.replicas.replica import Replica
from scripts.simulation.replicas.routers import LeastWork, PrefixAffinity, Quote, RoundRobin, Router
from scripts.simulation.replicas.study import RESULTS, simulate, studies

DOCS = Path(__file__).resolve().parents[2] / "docs"
PACE = StepTimeModel(10, LinearCost(base=1.0, per_token=0.1))
"""A step of n tokens takes 1 + n / 10 seconds."""
ROUTERS: dict[str, Callable[[], Router]] = {
    "round robin": RoundRobin,
    "requests": lambda: LeastWork("requests"),
    "tokens": lambda: LeastWork("tokens"),
    "affinity": PrefixAffinity,
    "no bound": lambda: PrefixAffinity(inf),
    "two quotes": lambda: Quote(1),
    "all quotes": lambda: Quote(1, None),
    "home": lambda: Quote(1, home=True),
}


def policy(*, num_blocks: int = 200, caching: bool = False) -> SplitFuse:
    config, cache = SchedulerConfig(10, 10, 200), CacheConfig(4, num_blocks)
    return SplitFuse(config, cache, step_time=PACE, prefix_caching=caching)


def fleet(number: int, load: Load, router: Router, *, num_blocks: int = 200, caching: bool = False) -> Fleet:
    policies = [policy(num_blocks=num_blocks, caching=caching) for _ in range(number)]
    return Fleet(policies, seconds_at(PACE), load, router)


def sequence(prompt: int, number: int = 0, output: int = 1) -> Sequence:
    request = SimulatedRequest(prompt_tokens=prompt, output_tokens=output)
    return Sequence(
        request.to_request(str(number), request.prompt(number)), eos_token_ids=frozenset(), arrival=number, seed=0
    )


def first_tokens(records: list[RequestRecord]) -> list[float]:
    return [round(record.first_token_time, 9) for record in sorted(records, key=lambda one: one.start)]


def test_one_replica_has_the_figures_that_are_published() -> None:
    """Those of docs/results/simulation.json, which a loop of one scheduler and nothing else wrote first."""
    setting = settings()["calibrated"]
    points = json.loads((DOCS / "results" / "simulation.json").read_text())["calibrated"]["points"]
    (known,) = (
        p for p in points if (p["policy"], p["prompt"], p["output"], p["clients"]) == ("SplitFuse", 2600, 60, 8)
    )
    simulation = Simulation(
        make_policies(setting)["SplitFuse"],
        seconds_at(setting.step_time),
        closed_loop(normal_requests(2600, 60, 512, 42), 8, 42),
    )
    found = simulation.run().summary()
    assert simulation.num_steps == known["steps"]
    assert float(f"{found['requests_per_s']:.4g}") == known["requests_per_s"]
    for name, spread in (("ttft", "ttft_s"), ("latency", "e2e_s"), ("token", "inter_token_s")):
        assert float(f"{found[spread]['p95']:.4g}") == known[f"{name}_p95"]


@pytest.mark.parametrize("name", ROUTERS)
def test_one_replica_is_the_same_behind_every_router(name: str) -> None:
    requests = normal_requests(30, 8, 40, 1)
    alone = Simulation(policy(), seconds_at(PACE), closed_loop(requests, 5, 1)).run()
    assert fleet(1, scaled_closed_loop(requests, 5, 1, 1), ROUTERS[name]()).run().records == alone.records


def test_replicas_that_are_given_the_same_do_the_same() -> None:
    """Three times each client and each request, one after the other: round robin gives every replica what one has. The
    first requests of a replica also end together."""
    requests = [SimulatedRequest(prompt_tokens=4, output_tokens=3)] * 12 + normal_requests(30, 8, 40, 1)
    alone = Simulation(policy(), seconds_at(PACE), ClosedLoop(requests, [0.0, 0.0, 0.5, 2.0])).run()
    thrice = [request for request in requests for _ in range(3)]
    load = ClosedLoop(thrice, [delay for delay in (0.0, 0.0, 0.5, 2.0) for _ in range(3)])
    together = fleet(3, load, RoundRobin())

    def known(record: RequestRecord) -> tuple[object, ...]:
        return record.start, record.end, record.prompt_tokens, record.arrivals

    found = sorted(map(known, together.run().records))
    assert found[::3] == found[1::3] == found[2::3] == sorted(map(known, alone.records))
    assert len({replica.num_steps for replica in together.replicas}) == 1


@pytest.mark.parametrize("name", ROUTERS)
def test_every_request_is_answered(name: str) -> None:
    requests = zipf_requests(20, 6, 30, 3, prefixes=5, prefix_tokens=12)
    several = fleet(4, scaled_closed_loop(requests, 6, 4, 3), ROUTERS[name](), num_blocks=60, caching=True)
    recorder = several.run()
    assert sorted((r.prompt_tokens, r.output_tokens) for r in recorder.records) == sorted(
        (r.prompt_tokens, r.output_tokens) for r in requests * 4
    )
    assert {record.outcome for record in recorder.records} == {"completed"}
    assert all((r.unanswered, r.unbegun_tokens) == (0, 0) and not r.policy.has_work for r in several.replicas)


@pytest.mark.parametrize("name", ["tokens", "two quotes"])
def test_long_prompts_do_not_meet_at_one_replica(name: str) -> None:
    """Every other prompt has 40 tokens, four steps of 2 s: round robin gives the second to the one that has the
    first."""
    due = [
        Due(0.1 * i, SimulatedRequest(prompt_tokens=length, output_tokens=1)) for i, length in enumerate((40, 5) * 2)
    ]
    in_turn = first_tokens(fleet(2, OpenLoop(due), RoundRobin()).run().records)
    assert in_turn[:3:2] == [8.0, 15.8]
    assert max(first_tokens(fleet(2, OpenLoop(due), ROUTERS[name]()).run().records)) < 10.0


def test_the_fewest_requests_of_equal_prompt_tokens() -> None:
    """The prompt is computed after 1.5 s, the answer goes on: the next request goes to the other one."""
    due = [Due(time, SimulatedRequest(prompt_tokens=5, output_tokens=4)) for time in (0.0, 2.0)]
    several = fleet(2, OpenLoop(due), LeastWork("tokens"))
    several.run()
    assert several.replicas[0].num_steps == several.replicas[1].num_steps == 4


def hits(router: Router) -> tuple[float, float]:
    """Share of prompt tokens found cached in four caches of which each has room for few of 12 prefixes; requests/s."""
    requests = zipf_requests(8, 4, 60, 3, prefixes=12, prefix_tokens=64)
    several = fleet(4, scaled_closed_loop(requests, 3, 4, 3), router, num_blocks=100, caching=True)
    rate = several.run().summary()["requests_per_s"]
    policies = [replica.policy for replica in several.replicas]
    assert all(isinstance(one, SplitFuse) for one in policies)
    return sum(one.prefix_hits for one in policies) / sum(one.prefix_queries for one in policies), rate  # type: ignore[attr-defined]


def test_affinity_finds_more_prefixes_and_without_a_bound_overloads_one_replica() -> None:
    in_turn, rate = hits(RoundRobin())
    bounded, bounded_rate = hits(PrefixAffinity())
    unbounded, unbounded_rate = hits(PrefixAffinity(inf))
    assert in_turn + 0.15 < bounded <= unbounded
    assert bounded_rate > 1.1 * rate
    assert unbounded_rate < 0.9 * bounded_rate


def test_a_prefix_spreads_only_as_far_as_the_bound_makes_it() -> None:
    replicas = [Replica(policy(), seconds_at(PACE)) for _ in range(4)]
    router, numbers = PrefixAffinity(1.5), count()
    for _ in range(8):
        request = PrefixedRequest(prompt_tokens=70, output_tokens=1, prefix=7, prefix_tokens=64)
        number = next(numbers)
        asked = Sequence(
            request.to_request(str(number), request.prompt(number)), eos_token_ids=frozenset(), arrival=number, seed=0
        )
        router.choose(asked, replicas, 0.0).send(asked)
    assert sorted(replica.unanswered for replica in replicas) == [0, 2, 3, 3]


def test_a_quote_is_when_the_first_token_comes() -> None:
    """Nothing comes later: 23 tokens are three steps, behind two steps in flight, two more of the same prompt, and one
    of 10 tokens that were sent meanwhile."""
    replica = Replica(policy(), seconds_at(PACE))
    replica.send(sequence(40, 0))
    assert replica.take(0.0) == []
    replica.plan(0.0)
    replica.send(sequence(10, 1))
    asked = sequence(23, 2)
    quoted = replica.first_token(asked, 0.5)
    assert quoted == pytest.approx((4.0 - 0.5) + 4.0 + 2.0 + 2.0 + 2.0 + 1.3)
    replica.send(asked)
    while replica.next_end < inf:
        now = replica.next_end
        came = [outcome.sequence.request_id for outcome in replica.complete()]
        replica.take(now)
        replica.plan(now)
    assert came == ["2"]
    assert now - 0.5 == pytest.approx(quoted)


def test_what_predicts_nothing_gives_no_quote() -> None:
    whole = WholePrompts(max_num_seqs=8, max_batched_tokens=10, cache_tokens=100, joining=True)
    with pytest.raises(TypeError, match="WholePrompts predicts no first token"):
        Replica(whole, seconds_at(PACE)).first_token(sequence(5), 0.0)
    blind = SplitFuse(SchedulerConfig(10, 10, 100), CacheConfig(4, 100))
    with pytest.raises(ValueError, match="without step times"):
        Replica(blind, seconds_at(PACE)).first_token(sequence(5), 0.0)


def test_a_study_repeats_and_its_efficiency_is_per_replica() -> None:
    """Of each load, small."""
    for study in studies(requests=12, fastgen_requests=12).values():
        points = list(simulate(study, sizes=(1, 2)))
        assert [point["router"] for point in points] == ["one replica", *study.routers]
        assert points == list(simulate(study, sizes=(1, 2)))
        for point in points[1:]:
            share = point["requests_per_s"] / (2 * points[0]["requests_per_s"])
            assert (point["completed"], point["efficiency"]) == (24, pytest.approx(share, abs=1e-4))


def test_the_page_is_that_of_the_results() -> None:
    simulated, live = (json.loads((DOCS / "results" / name).read_text()) for name in (RESULTS, LIVE))
    assert (DOCS / PAGE).read_text() == page(simulated, live)
