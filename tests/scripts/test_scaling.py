"""scripts.scaling: the device that sleeps under the real engine, the load in virtual time, the tables."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import jaxgen.engine.engine
from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.request import FinishReason, Request
from jaxgen.core.sampling_params import SamplingParams
from jaxgen.core.sequence import Chunk
from jaxgen.core.step_plan import StepPlan
from jaxgen.runner.timing import made_up_sequence
from scripts.event_loop.text import tokens
from scripts.peers.load import Window
from scripts.scaling import device
from scripts.scaling.cli import main
from scripts.scaling.device import SleepingRunner
from scripts.scaling.page import live_parts
from scripts.scaling.sleeping_server import sleeping_engine
from scripts.scaling.studies import in_virtual_time
from tests.support.engines import LLAMA

CONFIG = EngineConfig(CacheConfig(4, 64), SchedulerConfig(16, 4, 64), 0, 8)


class Clock:
    """Time passes only while something sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(device, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_step_begins_when_the_one_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    runner = SleepingRunner(LLAMA, CONFIG, lambda plan: 0.5 * plan.num_tokens)
    sequence = made_up_sequence(0, (0,) * 3, SamplingParams(), blocks=range(1))
    prompt, decode = (StepPlan((Chunk(sequence, start, length),)) for start, length in ((0, 3), (3, 1)))
    first, second = runner.run(prompt), runner.run(decode)
    assert clock.now == 100.0, "it returns at once"
    for output, due, token in ((first, 101.5, tokens(2)[0]), (second, 102.0, tokens(2)[1])):
        output.tokens.block_until_ready()
        assert clock.now == due
        assert int(output.tokens[0]) == token
    clock.now = 200.0
    runner.run(decode)
    runner.wait()
    assert clock.now == 200.5


def test_the_real_engine_runs_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxgen.engine.engine, "make_device", None)  # and put back
    Clock(monkeypatch)
    engine = sleeping_engine(LLAMA, CONFIG, lambda plan: 1.0 + plan.num_tokens)
    for token, name in enumerate(("a", "b")):
        engine.add(Request(name, (token,) * 20, SamplingParams(max_tokens=6, ignore_eos=True)))
    events = []
    while engine.has_work:
        events += engine.step()
    for name in ("a", "b"):
        own = [event for event in events if event.request_id == name]
        assert [event.token for event in own] == tokens(6)
        assert own[-1].finish_reason is FinishReason.LENGTH
    assert engine.stats().prompt_tokens == 40


def test_virtual_time_has_the_window_of_the_live_load() -> None:
    one, two = in_virtual_time(Window(10.0, 60.0), (1, 2))
    assert one["failed"] == two["failed"] == 0
    assert two["output_tokens_per_s"] == pytest.approx(2 * one["output_tokens_per_s"], rel=0.1)


def point(router: str, replicas: int, rate: float, **fields: Any) -> dict[str, Any]:
    times = {"ttft_s": {"p50": 0.5, "p95": 1.25}, "inter_token_s": {"p95": 0.0625}, "requests_per_s": rate / 50}
    return {"router": router, "replicas": replicas, "output_tokens_per_s": rate} | times | fields


def test_the_tables() -> None:
    busy = {"cores": {"servers": 1.5, "router": 0.25, "client": 0.125}}
    study = {"machine": "a machine", "warmup_s": 1.0, "window_s": 2.0}
    alone = [
        point("one alone, on core 0", 1, rate, round=turn, **busy) for turn, rate in enumerate((90.0, 100.0, 110.0))
    ]
    both = [point("SMG", 2, 180.0, round=turn, **busy) for turn in range(3)]
    processes = [point("SMG", 1, 100.0, **busy), point("SMG", 16, 1520.0, **busy), point("virtual time", 16, 1500.0)]
    text = "\n".join(
        live_parts({"pinned": study | {"points": alone + both}, "sleeping": study | {"points": processes}})
    )
    assert "| 1 | one alone, on core 0 | 100 (90-110) | 100 % | 0.50, 1.25 | 0.062 | 1.50, 0.25, 0.12 |" in text
    assert "| 2 | SMG | 180 (180-180) | 90 % | 0.50, 1.25 | 0.062 | 1.50, 0.25, 0.12 |" in text
    assert "| 16 | SMG | 30.40 | 1520 | 95 % | 0.50, 1.25 | 0.062 | 1.50, 0.25, 0.12 |" in text
    assert "| 16 | virtual time | 30.00 | 1500 | 94 % | 0.50, 1.25 | 0.062 |  |" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pinned", "--smg", "nothing"], "--smg nothing is no command: pip install smg"),
        (["sleeping", "--seconds", "0"], "--seconds must be more than 0, not 0"),
    ],
)
def test_what_cannot_be_measured(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main("", words)
    assert said in capsys.readouterr().err


def test_the_page_alone_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    empty: dict[str, Any] = {"loads": {}}
    (tmp_path / "results" / "replicas.json").write_text(json.dumps(empty))
    assert main("", ["page", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "scale.md").read_text().startswith("# Scale")
