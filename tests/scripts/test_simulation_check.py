"""The simulator beside a real engine: the same steps, and costs fitted to those of one load."""

import pytest

from jaxgen.core.step_plan import StepPlan
from jaxgen.scheduling.cost_model import LinearCost, StepSample
from scripts.simulation import cli
from scripts.simulation.check import FIGURES, PREDICTED, StepTimes, fitted_load, predict
from scripts.simulation.live import LiveRun, MeasuredEngine, MeasuredStep
from scripts.simulation.load import Waves, closed_loop, normal_requests
from scripts.simulation.loop import Simulation
from scripts.simulation.policies import SplitFuse
from tests.support.engines import LLAMA, compiled_step, engine_config, params_of

COST = LinearCost(base=0.01, per_token=0.001, per_position=1e-5)
NARROW = LinearCost(base=0.002, per_token=0.0005)


@pytest.fixture(scope="module")
def engine() -> MeasuredEngine:
    config = engine_config()
    return MeasuredEngine(LLAMA, config, params_of(LLAMA), frozenset(), compiled=compiled_step(LLAMA, config))


def waves(*sizes: int) -> Waves:
    requests = iter(normal_requests(40, 8, sum(sizes), 5))
    return Waves([[next(requests) for _ in range(size)] for size in sizes])


def test_the_simulator_plans_the_steps_that_an_engine_runs(engine: MeasuredEngine) -> None:
    """To the token, where nothing depends on time: requests that are there together, in waves; more than rows."""
    engine.measured.clear()
    recorder = LiveRun(engine, waves(3, 9, 1), 0).run()
    planned: list[tuple[int, int, int]] = []

    def step_seconds(plan: StepPlan) -> float:
        planned.append((plan.num_tokens, plan.num_positions, plan.num_contexts))
        return 1.0

    policy = SplitFuse(engine.engine.config.scheduler, engine.engine.config.cache, narrow=engine.has_narrow)
    simulated = Simulation(policy, step_seconds, waves(3, 9, 1)).run()
    samples = [step.sample for step in engine.measured]
    assert [(sample.tokens, sample.positions, sample.contexts) for sample in samples] == planned
    assert recorder.requests == simulated.requests
    assert [record.output_tokens for record in recorder.records] == [
        request.output_tokens for request in recorder.requests
    ]
    assert all(step.sample.seconds > 0.0 for step in engine.measured)


def steps(slowed: float = 1.0) -> list[MeasuredStep]:
    """Of both programs; every fourth takes ``slowed`` times as long."""
    found = []
    for number in range(400):
        narrow, tokens = number % 2 == 0, 1 + number // 40
        positions = tokens * (number % 29)
        seconds = (NARROW if narrow else COST).seconds(tokens, positions) * (slowed if number % 4 == 3 else 1.0)
        found.append(MeasuredStep(StepSample(tokens, positions, seconds), narrow))
    return found


def test_costs_of_both_programs_are_found() -> None:
    programs = StepTimes(steps(), 0).programs
    assert programs["wide"].cost.seconds(64, 5000) == pytest.approx(COST.seconds(64, 5000), rel=0.01)
    assert programs["narrow"].cost.seconds(16) == pytest.approx(NARROW.seconds(16), rel=0.01)


def test_a_step_that_was_read_late_does_not_spoil_the_fit() -> None:
    """The next one seems to have taken no time; both together took what they should."""
    late = []
    for number, step in enumerate(steps()):
        sample = step.sample
        if step.narrow and number % 20 in (6, 8):
            seconds = 1e-6 if number % 20 == 8 else 2 * NARROW.seconds(sample.tokens)
            sample = StepSample(sample.tokens, sample.positions, seconds)
        late.append(MeasuredStep(sample, step.narrow))
    cost = StepTimes(late, 0).programs["narrow"].cost
    for tokens in (1, 5, 10):
        assert cost.seconds(tokens) == pytest.approx(NARROW.seconds(tokens), rel=0.02)


def test_the_unrest_of_the_machine_is_in_what_is_drawn(engine: MeasuredEngine) -> None:
    """Half of the wide steps took three times as long: so do about half of those that are drawn."""
    times = StepTimes(steps(slowed=3.0), 0)
    plan = StepPlan(())
    del times.programs["narrow"]
    drawn = [times(plan) for _ in range(2000)]
    assert max(drawn) / min(drawn) == pytest.approx(3.0, rel=0.3)
    assert 0.4 < sum(seconds > 2 * min(drawn) for seconds in drawn) / len(drawn) < 0.6
    load = closed_loop(normal_requests(40, 8, 12, 1), 3, 1)
    unrest = predict(engine, times, load)
    assert unrest["inter_token_p95"] > 1.5 * unrest["inter_token_p50"]


def test_a_prediction_has_all_figures_and_repeats(engine: MeasuredEngine) -> None:
    def once() -> dict[str, float]:
        return predict(engine, StepTimes(steps(slowed=2.0), 7), closed_loop(normal_requests(40, 8, 12, 1), 3, 1))

    assert once() == once()
    assert set(once()) == set(FIGURES)


def test_the_fitted_load_is_not_among_those_predicted() -> None:
    """Nor does it have the same requests."""
    fitted = fitted_load().take(0.0)[0].request
    for load in PREDICTED:
        made = load.make(1.0)
        assert fitted not in [due.request for due in made.take(1e9)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "x"], "--model goes with --check"),
        (["--trace", "x", "--rounds", "2"], "--rounds goes with --check"),
        (["--setting", "13b"], "--setting goes with --trace"),
        (["--check", "--rounds", "0"], "--rounds must be 1 or more, not 0"),
        (["--trace", "/nowhere.jsonl"], "nowhere"),
        (["--check", "--trace", "x"], "not allowed with"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["simulate.py", *arguments])
    with pytest.raises(SystemExit):
        cli.main("")
    assert message in capsys.readouterr().err
