"""The engine's loop by hand, on a runner without a device and by a clock that stands still: no jax is imported."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from jaxgen.core.errors import DeviceLostError
from jaxgen.core.request import FinishReason
from jaxgen.core.step_plan import StepPlan
from jaxgen.engine.engine import CLOSE_SECONDS, MOST_WAIT
from jaxgen.scheduling.background_hold import HOLD_SECONDS
from tests.support.fake_runner import STEP_SECONDS, FakeRunner, ask, ends, loop_of
from tests.support.paths import ROOT


def test_a_step_is_launched_before_the_last_one_is_read() -> None:
    runner = FakeRunner()
    engine, _ = loop_of(runner)
    engine.add(ask("a", 3))
    events = [engine.step() for _ in range(3)]
    assert runner.log == [
        "queued a",
        *("planned 3", "run"),
        *("planned 1", "run", "wait", "read", "completed [3]"),
        *("planned 0", "load", "wait", "read", "completed [4]", "ended a length"),
    ]
    assert [[event.token for event in some] for some in events] == [[], [3], [4]]
    assert not engine.has_work


@pytest.mark.parametrize("who", ["config", "runner"])
def test_where_nothing_runs_ahead_each_step_is_read_at_once(who: str) -> None:
    runner = FakeRunner(runs_ahead=who != "runner")
    engine, _ = loop_of(runner, run_ahead=who != "config")
    engine.add(ask("a", 3, max_tokens=1))
    assert ends(engine.step()) == {"a": FinishReason.LENGTH}
    assert runner.log == ["queued a", "planned 3", "run", "wait", "read", "completed [3]", "ended a length"]


def test_times_are_those_of_the_device_and_the_host_waits_for_them() -> None:
    runner = FakeRunner()
    engine, witness = loop_of(runner)
    engine.add(ask("a", 20, max_tokens=2))
    runner.clock.now += 2.0
    events = [event for _ in range(5) for event in engine.step()]
    assert [(step.number, step.seconds, len(step.pieces)) for step in witness.steps] == [
        *((1, STEP_SECONDS, 1), (2, STEP_SECONDS, 1), (3, STEP_SECONDS, 1)),
        (4, STEP_SECONDS, 0),
    ]
    stats = engine.stats()
    assert (stats.steps, stats.step_seconds, stats.host_seconds) == (4, 4 * STEP_SECONDS, 0.0)
    assert (stats.prompt_tokens, stats.generation_tokens, stats.padded_tokens) == (20, 2, 4 * 8 - 21)
    latency = events[-1].latency
    assert latency is not None
    assert (latency.queue_seconds, latency.prompt_seconds, latency.decode_seconds) == (2.0, 1.5, 0.5)


def test_the_journal_has_a_step_after_the_ends_that_it_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that who reads the steps so far has read of these ends too."""
    engine, _ = loop_of(FakeRunner())
    journal, kinds = engine.journal, list[list[str]]()

    def append(_: object) -> None:
        kinds.append([kind for _, _, kind, *_ in journal.events.between(0, journal.events.count)])

    monkeypatch.setattr(journal.steps, "append", append)
    engine.add(ask("a", 3, max_tokens=1))
    while engine.has_work:
        engine.step()
    assert kinds == [["queued", "begun", "chunk", "first", "ended"]]


def test_a_request_that_wants_nothing_is_answered_without_a_step() -> None:
    runner = FakeRunner()
    engine, _ = loop_of(runner)
    engine.add(ask("a", 3, max_tokens=0))
    assert runner.log == ["queued a", "ended a length"]
    assert engine.has_work
    assert ends(engine.step()) == {"a": FinishReason.LENGTH}
    assert not engine.has_work


def test_a_step_that_fails_ends_who_runs_and_leaves_who_waits() -> None:
    runner = FakeRunner()
    engine, _ = loop_of(runner)
    for name in "abc":
        engine.add(ask(name, 4, max_tokens=1))
    runner.errors = [FloatingPointError()]
    assert ends(engine.step()) == {"a": FinishReason.ERROR, "b": FinishReason.ERROR}
    assert runner.log[3:] == [
        *("planned 8", "run", "failed", "reset", "run", "wait for all"),
        *("ended a error", "ended b error"),
    ]
    assert ends(engine.step() + engine.step()) == {"c": FinishReason.LENGTH}


def test_a_device_that_runs_no_empty_step_is_lost() -> None:
    runner = FakeRunner(errors=[FloatingPointError(), MemoryError("gone")])
    engine, _ = loop_of(runner)
    engine.add(ask("a", 3))
    with pytest.raises(DeviceLostError, match=r"after FloatingPointError in a step .* MemoryError: gone"):
        engine.step()


def test_an_aborted_request_gets_nothing_more() -> None:
    runner = FakeRunner()
    engine, _ = loop_of(runner)
    engine.add(ask("a", 3))
    engine.step()
    assert engine.abort("a")
    assert not engine.abort("a")
    assert (engine.step(), engine.has_work) == ([], False)
    assert runner.log[-1] == "completed []"
    assert runner.log.count("ended a abort") == 1


def test_the_background_waits_for_a_while_after_others() -> None:
    runner = FakeRunner()
    engine, _ = loop_of(runner, background_tokens=0)
    engine.add(ask("b", 3, max_tokens=1, background=True))
    engine.add(ask("a", 3, max_tokens=1))
    assert ends(engine.step() + engine.step()) == {"a": FinishReason.LENGTH}
    last_plan = runner.clock.now - STEP_SECONDS
    assert engine.held_for == last_plan + HOLD_SECONDS - runner.clock.now
    assert engine.step() == []
    runner.clock.now += engine.held_for
    assert (engine.has_work, engine.held_for) == (True, 0.0)
    assert ends(engine.step() + engine.step()) == {"b": FinishReason.LENGTH}


class Copies:
    """Offloading of which a test says what is under way."""

    tier = None
    projected = host_blocks = 0

    def __init__(self, runner: FakeRunner) -> None:
        self.runner = runner
        self.has_saves = self.has_blocks_to_write = self.copies = self.busy = False
        self.ended: list[Any] = []
        self.closed: list[float] = []

    def poll(self) -> list[Any]:
        ended, self.ended = self.ended, []
        return ended

    def start(self, plan: StepPlan) -> None:
        self.runner.log.append("start")

    def wait(self, seconds: float) -> None:
        self.runner.log.append("wait for copies")
        self.runner.clock.now += seconds

    def close(self, seconds: float) -> None:
        self.closed.append(seconds)

    def stats(self) -> None: ...

    def kv_tier_stats(self) -> None: ...


def test_copies_that_have_ended_come_first_and_those_of_the_plan_begin_before_its_step() -> None:
    runner = FakeRunner()
    copies = Copies(runner)
    engine, _ = loop_of(runner, offload=copies)
    engine.add(ask("a", 3))
    copies.ended = [(SimpleNamespace(is_under_way=False), True)]
    engine.step()
    assert runner.log == ["queued a", "restored", "planned 3", "start", "run"]


def test_without_a_step_the_engine_waits_for_copies() -> None:
    runner = FakeRunner()
    copies = Copies(runner)
    engine, _ = loop_of(runner, offload=copies)
    copies.has_saves = copies.busy = copies.copies = True
    assert (engine.has_work, engine.held_for) == (True, 0.0)
    engine.step()
    assert runner.log == ["planned 0", "start", "load", "wait for copies"]
    assert engine.stats().stalled_seconds == pytest.approx(MOST_WAIT)
    assert engine.stats().host_seconds == 0.0


def test_an_engine_that_ends_writes_blocks_for_a_bounded_time() -> None:
    runner = FakeRunner()
    copies = Copies(runner)
    engine, _ = loop_of(runner, offload=copies)
    copies.has_blocks_to_write = copies.busy = True
    began = runner.clock.now
    engine.close()
    assert CLOSE_SECONDS <= runner.clock.now - began < CLOSE_SECONDS + MOST_WAIT
    assert copies.closed == [0.0]


def test_no_jax_is_needed() -> None:
    code = "import sys, tests.engine.test_loop; assert not {'jax', 'jaxlib', 'flax'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
