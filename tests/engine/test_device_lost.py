"""Steps that fail: their requests end, the log says what was computed, and a device that is lost ends the process."""

import asyncio
import logging
import re
import subprocess
import sys
from typing import Any

import httpx2
import pytest

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.core.errors import DeviceLostError, EngineDeadError
from jaxgen.core.model_info import ModelInfo
from jaxgen.core.request import FinishReason, TokenEvent
from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import MOST_DESCRIBED, MOST_OF_AN_ID, StepPlan
from jaxgen.engine.async_engine import AsyncEngine
from jaxgen.engine.engine import Engine
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.scheduling.scheduler import Scheduler
from jaxgen.text.tokenizer import Tokenizer
from tests.support.engines import EOS, LLAMA, make_engine, request, run, tokens
from tests.support.paths import ROOT
from tests.support.tiny_tokenizers import byte_level

PROMPT = [211, 212, 213, 214, 215, 216, 217]


def break_steps(monkeypatch: pytest.MonkeyPatch, *, empty_ones_too: bool = False) -> None:
    real = ModelRunner.run

    def run(self: ModelRunner, plan: StepPlan, **how: Any) -> Any:
        if plan.chunks or empty_ones_too:
            raise FloatingPointError("injected\nin a second line")
        return real(self, plan, **how)

    monkeypatch.setattr(ModelRunner, "run", run)


def test_a_failing_step_ends_its_requests_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    todo = [request(f"r{i}", PROMPT * (i + 1), temperature=0.0, ignore_eos=True) for i in range(6)]
    alone = {one.request_id: tokens(run(make_engine(), [one])[one.request_id]) for one in todo}
    engine = make_engine()
    for one in todo:
        engine.add(one)
    engine.step()
    with monkeypatch.context() as patch:
        break_steps(patch)
        failed = engine.step()
    assert {event.finish_reason for event in failed} == {FinishReason.ERROR}
    assert all("FloatingPointError" in (event.error or "") for event in failed)
    events = run(engine, [])
    ended = {event.request_id for event in failed}
    assert set() < ended < set(alone)
    for name in set(alone) - ended:
        assert tokens(events[name]) == alone[name], name
    assert engine.stats().blocks_free == engine.stats().blocks_total


def test_the_log_says_what_was_computed_and_nothing_of_the_text(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make_engine()
    engine.add(request("first", PROMPT, temperature=0.0, ignore_eos=True))
    engine.step()
    engine.add(request("second", PROMPT * 4, temperature=0.0))
    break_steps(monkeypatch)
    with caplog.at_level(logging.ERROR):
        engine.step()
    (record,) = caplog.records
    said = record.getMessage()
    assert "2 chunks of 16 tokens (first decode 7+1, second prompt 0+15)" in said
    assert "under way: 1 chunks of 7 tokens (first prompt 0+7)" in said
    assert record.exc_info is not None
    assert not any(str(token) in said for token in PROMPT)


def test_a_description_of_a_plan_is_bounded() -> None:
    scheduler = Scheduler(SchedulerConfig(512, 256, 64), CacheConfig(8, 512))
    for i in range(200):
        one = request(f"{i}" * 100, [5, 6])
        scheduler.add(Sequence(one, eos_token_ids=frozenset({EOS}), arrival=i, seed=0))
    said = scheduler.schedule().describe()
    assert said.startswith("200 chunks of 400 tokens (")
    assert said.endswith(f", {200 - MOST_DESCRIBED} more)")
    assert len(said) < MOST_DESCRIBED * (MOST_OF_AN_ID + 30) + 60


@pytest.mark.parametrize("what", ["steps", "reset"])
def test_a_device_that_runs_no_more_is_lost(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    def reset(self: ModelRunner) -> None:
        raise MemoryError("no memory for the cache")

    engine = make_engine()
    engine.add(request("r", PROMPT))
    break_steps(monkeypatch, empty_ones_too=what == "steps")
    if what == "reset":
        monkeypatch.setattr(ModelRunner, "reset", reset)
    expected = "FloatingPointError: injected" if what == "steps" else "MemoryError: no memory for the cache"
    with pytest.raises(DeviceLostError, match=f"FloatingPointError in a step .* {expected}$"):
        engine.step()


def test_a_lost_device_ends_the_engine_and_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = AsyncEngine(ModelInfo("tiny", 256, LLAMA.vocab_size), Tokenizer(byte_level()), make_engine)
    engine.start()
    engine.wait_ready()
    break_steps(monkeypatch, empty_ones_too=True)

    async def ask(name: str) -> None:
        async for _ in engine.generate(request(name, PROMPT)):
            raise AssertionError("no step ran")

    async def main() -> None:
        answers = await asyncio.gather(*(ask(f"r{i}") for i in range(9)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {EngineDeadError}

    asyncio.run(main())
    assert engine.status().state == "dead"
    assert "DeviceLostError" in engine.status().reason
    engine.stop()


def test_waiting_for_copies_that_never_come_is_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of ``step`` that return without a step do not hide that requests wait."""
    engine = AsyncEngine(ModelInfo("tiny", 256, LLAMA.vocab_size), Tokenizer(byte_level()), make_engine)
    engine.start()
    engine.wait_ready()
    real = Engine.step
    calls: list[int] = []
    let_go = asyncio.Event()

    def idle(self: Engine) -> list[TokenEvent]:
        calls.append(1)
        return real(self) if let_go.is_set() else []

    monkeypatch.setattr(Engine, "step", idle)

    async def main() -> None:
        async def ask() -> list[TokenEvent]:
            return [event async for event in engine.generate(request("r", PROMPT))]

        task = asyncio.create_task(ask())
        while len(calls) < 50:
            await asyncio.sleep(0.001)
        before = engine.status().stalled_seconds
        since = len(calls)
        while len(calls) < since + 50:
            await asyncio.sleep(0.001)
        assert engine.status().stalled_seconds > before > 0
        let_go.set()
        await task
        assert engine.status().stalled_seconds == 0

    asyncio.run(main())
    engine.stop()


LOST = """
import sys
from jaxgen.runner.model_runner import ModelRunner
from jaxgen.server.cli import main
from tests.support.server_process import SMALL

run, lost = ModelRunner.run, []

def lose(self, plan, **how):
    if lost or any(chunk.start > 20 and chunk.sequence.request_id.startswith("cmpl") for chunk in plan.chunks):
        lost.append(True)
        raise RuntimeError("INTERNAL: CUDA error: CUDA_ERROR_ILLEGAL_ADDRESS")
    return run(self, plan, **how)

ModelRunner.run = lose
flags = "--port 0 --kernels xla --single-shape"  # and the limits of other tests, so that they share a program
sys.exit(main(["serve", *flags.split(), *SMALL]))
"""


@pytest.mark.full
def test_the_process_ends_with_1_when_the_device_is_lost() -> None:
    """Full: a server starts. The parts of this are above, and in tests/server/commands/test_run.py."""
    process = subprocess.Popen(
        [sys.executable, "-c", LOST], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        (url,) = re.findall(r"http://\S+/v1", process.stdout.readline())
        body = {"model": "jaxgen-default", "prompt": "a", "max_tokens": 100, "ignore_eos": True}
        answer = httpx2.post(f"{url}/completions", json=body, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_dead")
        assert process.wait(120) == 1
        assert process.stderr is not None
        said = process.stderr.read()
        (last_words,) = [line for line in said.splitlines() if line.startswith("jaxgen serve: ")]
        assert "the device runs no other" in last_words
        assert "decode 21+1" in said
    finally:
        process.kill()
        process.communicate()
