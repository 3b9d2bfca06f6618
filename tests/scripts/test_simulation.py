"""The simulator against cases worked out by hand, and what SplitFuse is for. All times are virtual."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.sequence import Sequence
from jaxgen.core.service_class import ServiceClass
from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.cost_model import LinearCost
from jaxgen.scheduling.step_time import StepTimeModel
from jaxgen.server.benchmark.metrics import RequestRecord
from scripts.simulation.baselines import WholePrompts
from scripts.simulation.fastgen import figure_samples, fit_with_floor, make_policies, residuals, settings
from scripts.simulation.load import (
    ClosedLoop,
    Due,
    OpenLoop,
    SimulatedRequest,
    Waves,
    closed_loop,
    normal_requests,
    read_trace,
)
from scripts.simulation.loop import Simulation, seconds_at
from scripts.simulation.merits import simulate_setting
from scripts.simulation.policies import Policy, SplitFuse
from scripts.simulation.record import Recorder, kept
from tests.support.paths import ROOT

COST = LinearCost(base=1.0, per_token=0.1)
"""A step of n tokens takes 1 + n / 10 seconds."""
PACE = StepTimeModel(10, COST)
FAST = ServiceClass(name="fast", first_token_seconds=7.0, inter_token_seconds=5.0)
NAMES = ("SplitFuse", "prompt-first", "static")
DOCS = ROOT / "docs"


def asked(prompt: int, output: int, **fields: Any) -> SimulatedRequest:
    return SimulatedRequest(prompt_tokens=prompt, output_tokens=output, **fields)


def split_fuse(budget: int = 10, num_blocks: int = 100) -> SplitFuse:
    return SplitFuse(SchedulerConfig(budget, budget, 100), CacheConfig(4, num_blocks))


def whole_prompts(*, joining: bool = True, cache_tokens: int = 1000, max_num_seqs: int = 8) -> WholePrompts:
    return WholePrompts(max_num_seqs=max_num_seqs, max_batched_tokens=10, cache_tokens=cache_tokens, joining=joining)


def run(policy: Policy, *due: tuple[float, SimulatedRequest]) -> list[RequestRecord]:
    """In the order of their starts."""
    records = Simulation(policy, seconds_at(PACE), OpenLoop(Due(*one) for one in due)).run().records
    return sorted(records, key=lambda record: record.start)


def times(record: RequestRecord) -> list[float]:
    assert all(count == 1 for _, count in record.arrivals)
    return [round(time, 9) for time, _ in record.arrivals]


@pytest.mark.parametrize("policy", [split_fuse(), whole_prompts(), whole_prompts(joining=False)])
def test_one_request(policy: Policy) -> None:
    """A step of 5 tokens, and two of one."""
    (record,) = run(policy, (2.0, asked(5, 3)))
    assert times(record) == [3.5, 4.6, 5.7]
    assert record.start == 2.0
    assert record.end == record.arrivals[-1][0]


def test_a_prompt_that_the_budget_cuts() -> None:
    """Of 10, 10 and 3 tokens, then a decode."""
    (record,) = run(split_fuse(), (0.0, asked(23, 2)))
    assert times(record) == [2.0 + 2.0 + 1.3, 6.4]


def test_a_prompt_joins_a_decode_in_the_step_after_the_next() -> None:
    """It comes while the first step, 0 to 1.5, runs and the second, a decode, is planned: the third, from 2.6, has the
    other's token and 9 tokens of its prompt, the fourth, from 4.6, the last one and another decode."""
    first, second = run(split_fuse(), (0.0, asked(5, 4)), (1.0, asked(10, 1)))
    assert times(first) == [1.5, 2.6, 4.6, 5.8]
    assert times(second) == [5.8]


def test_prompt_first_stalls_decodes() -> None:
    """The second prompt, there at 1, is computed from 1.5 to 3.5; then both decode together."""
    first, second = run(whole_prompts(), (0.0, asked(5, 3)), (1.0, asked(10, 2)))
    assert times(first) == [1.5, 4.7, 5.8]
    assert times(second) == [3.5, 4.7]


def test_prompts_fill_a_step_up_to_the_limit_and_a_longer_one_has_its_own() -> None:
    records = run(whole_prompts(), *((0.0, asked(length, 1)) for length in (4, 6, 7, 12)))
    assert [round(record.end, 9) for record in records] == [2.0, 2.0, 3.7, 5.9]


def test_a_static_batch_waits_until_the_one_before_has_ended() -> None:
    """The first two prompts in one step, 0 to 1.8, and decodes until the longer answer ends at 4.1."""
    first, second, third = run(whole_prompts(joining=False), (0.0, asked(4, 2)), (0.0, asked(4, 3)), (1.0, asked(5, 1)))
    assert (times(first), times(second)) == ([1.8, 3.0], [1.8, 3.0, 4.1])
    assert times(third) == [5.6]


def test_prompt_first_admits_with_room_for_all_tokens() -> None:
    """Two of 10 tokens do not fit into 15 at once."""
    first, second = run(whole_prompts(cache_tokens=15), (0.0, asked(9, 1)), (0.0, asked(9, 1)))
    assert times(first) == [1.9]
    assert times(second) == [3.8]


def test_a_closed_loop_sends_the_next_request_at_the_end_of_one() -> None:
    load = ClosedLoop([asked(5, 1)] * 3, [0.5, 3.0])
    records = Simulation(split_fuse(), seconds_at(PACE), load).run().records
    assert [record.start for record in records] == [0.5, 2.0, 3.0]
    assert [record.end for record in records] == [2.0, 3.5, 5.0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("clients", [1, 7, 40])
def test_every_token_is_generated_once(name: str, clients: int) -> None:
    """Steps compute each token of prompts and answers but the last, whatever the policy; nothing is preempted here."""
    requests = normal_requests(300, 20, 60, 3)
    computed: list[StepPlan] = []

    def step_seconds(plan: StepPlan) -> float:
        computed.append(plan)
        return COST.seconds(plan.num_tokens)

    setting = settings()["13b"]
    policy = make_policies(setting)[name]
    recorder = Simulation(policy, step_seconds, closed_loop(requests, clients, 3)).run()
    assert sorted((r.prompt_tokens, r.output_tokens) for r in recorder.requests) == sorted(
        (r.prompt_tokens, r.output_tokens) for r in requests
    )
    for record, request in zip(recorder.records, recorder.requests, strict=True):
        assert (record.prompt_tokens, record.output_tokens) == (request.prompt_tokens, request.output_tokens)
    assert sum(plan.num_tokens for plan in computed) == sum(r.prompt_tokens + r.output_tokens - 1 for r in requests)
    assert sum(plan.num_samples for plan in computed) == sum(r.output_tokens for r in requests)
    assert not policy.has_work


def test_a_cache_that_is_too_small_for_all_preempts_and_answers_all_the_same() -> None:
    requests = normal_requests(40, 20, 30, 1)
    load = closed_loop(requests, 8, 1)
    simulation = Simulation(split_fuse(budget=16, num_blocks=30), seconds_at(PACE), load)
    assert sorted(r.output_tokens for r in simulation.run().records) == sorted(r.output_tokens for r in requests)


class _Idle:
    """Never plans anything."""

    runs_ahead = True
    has_work = True

    def add(self, sequence: Sequence, now: float) -> None: ...

    def schedule(self, now: float) -> StepPlan:
        return StepPlan(())

    def complete(self, plan: StepPlan, sampled: list[int]) -> list[object]:
        return []


def test_a_policy_that_leaves_requests_unanswered_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="1 requests are live"):
        run(_Idle(), (0.0, asked(5, 1)))  # type: ignore[arg-type]


def test_the_promise_of_split_fuse_shows() -> None:
    """With FastGen's costs, lengths and 16 clients: a smoother stream than prompt-first's, and more requests whose
    stream is as smooth as promised."""
    setting = settings()["points"]
    figures = {
        name: Simulation(policy, seconds_at(setting.step_time), closed_loop(normal_requests(2600, 60, 200, 42), 16, 42))
        .run()
        .summary()
        for name, policy in make_policies(setting).items()
    }
    at_4 = {name: found["effective"][1]["requests_per_s"] for name, found in figures.items()}
    assert figures["SplitFuse"]["inter_token_s"]["p95"] < 0.3 * figures["prompt-first"]["inter_token_s"]["p95"]
    assert at_4["SplitFuse"] > 1.3 * at_4["prompt-first"]
    assert at_4["prompt-first"] > at_4["static"]


def test_the_figures_are_those_that_are_published() -> None:
    """Of docs/results/simulation.json."""
    setting = replace(settings()["calibrated"], loads=((2600, 60),))
    points = json.loads((DOCS / "results" / "simulation.json").read_text())["calibrated"]["points"]
    about = {"policy": "SplitFuse", "prompt": 2600, "output": 60, "clients": 8}
    (known,) = (point for point in points if point | about == point)
    (found,) = (point for point in simulate_setting(setting, clients=(8,)) if point["policy"] == "SplitFuse")
    assert found == known


def test_the_fit_to_the_figure_is_near_its_points() -> None:
    samples = figure_samples()
    cost = fit_with_floor(samples)
    assert [sample.tokens for sample in samples] == [64, 128, 256, 384, 512, 768, 1024, 2048]
    assert max(abs(error) for error in residuals(cost, samples)) < 0.16
    assert max(abs(error) for error in residuals(cost, samples[2:])) < 0.05


def test_service_classes_and_tenants_are_told_apart() -> None:
    """The scheduler knows them: the fast one, which comes last, has its first token at 6, in the third step; without
    its class it would have come after the second's prompt, at 9.8."""
    due = [
        Due(0.0, asked(20, 4, tenant="a")),
        Due(0.0, asked(20, 3, tenant="b", tenant_weight=2.0)),
        Due(0.5, asked(5, 2, tenant="a", service=FAST)),
    ]
    policy = SplitFuse(SchedulerConfig(10, 10, 100), CacheConfig(4, 100), step_time=PACE)
    recorder = Simulation(policy, seconds_at(PACE), OpenLoop(due)).run()
    figures = recorder.summary()
    fast = [request.service.name for request in recorder.requests].index("fast")
    assert times(recorder.records[fast])[0] == 6.0
    assert figures["tenants"] == {
        "a": {"prompt_tokens": 25, "output_tokens": 6},
        "b": {"prompt_tokens": 20, "output_tokens": 3},
    }
    classes = figures["service_classes"]
    assert {name: (found["requests"]["completed"], found["kept"]) for name, found in classes.items()} == {
        "fast": (1, 1),
        "default": (2, 2),
    }
    assert "tenants" not in Recorder().summary()


def test_what_a_class_promises_is_kept_or_not() -> None:
    (record,) = run(split_fuse(), (0.0, asked(5, 4)))  # after 1.5 s, then every 1.1 s
    for first, between, expected in ((1.5, 1.11, True), (1.4, 2.0, False), (2.0, 1.0, False), (None, None, True)):
        service = ServiceClass(name="x", first_token_seconds=first, inter_token_seconds=between)
        assert kept(record, service) is expected


def test_a_request_that_would_be_late_is_refused_and_counted() -> None:
    policy = SplitFuse(SchedulerConfig(10, 10, 100), CacheConfig(4, 100), step_time=PACE)
    load = ClosedLoop([asked(60, 1, service=FAST), asked(5, 1)], [0.0])
    figures = Simulation(policy, seconds_at(PACE), load).run().summary()
    assert figures["requests"]["failed"] == 1
    assert figures["requests"]["reasons"] == {"WouldBeLateError": 1}
    assert figures["requests"]["completed"] == 1


def test_waves_come_one_after_the_other() -> None:
    """Two requests of a token: one step of 4 tokens, 0 to 1.4; then the third."""
    load = Waves([[asked(2, 1), asked(2, 1)], [asked(5, 1)]])
    records = Simulation(split_fuse(), seconds_at(PACE), load).run().records
    assert [record.start for record in records] == [0.0, 0.0, 1.4]
    assert [record.end for record in records] == [1.4, 1.4, 2.9]


def test_a_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [
        {"arrival": 1.5, "prompt_tokens": 5, "output_tokens": 2},
        {
            "arrival": 0.5,
            "prompt_tokens": 3,
            "output_tokens": 1,
            "tenant": "a",
            "service": {"name": "x", "prompt_rate": 9},
        },
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    load = read_trace(path)
    assert load.take(1.0) == [Due(0.5, asked(3, 1, tenant="a", service=ServiceClass(name="x", prompt_rate=9)))]
    assert load.next_due == 1.5
    assert load.take(2.0) == [Due(1.5, asked(5, 2))]
    assert load.next_due == inf


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt_tokens": 5, "output_tokens": 2}', "line 1: 'arrival' is missing"),
        ('{"arrival": 0, "prompt_tokens": 0, "output_tokens": 2}', "prompt_tokens must be a whole number, 1 or more"),
        ('{"arrival": -1, "prompt_tokens": 1, "output_tokens": 2}', "arrival must be 0 or more"),
        ('{"arrival": 0, "prompt_tokens": 1, "output_tokens": 2, "colour": 1}', "colour"),
        ('{"arrival": 0, "prompt_tokens": 1, "output_tokens": 2, "tenant_weight": 0}', "tenant_weight must be above 0"),
        ('{"arrival": 0, "prompt_tokens": 1, "output_tokens": 2, "service": {"prompt_rate": 0}}', "prompt_rate must"),
        ("nothing", "line 1: "),
        ("", "no request"),
    ],
)
def test_a_trace_that_is_wrong_is_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
        read_trace(path)
