"""Closed loops on a device at the costs of result files, against the server that was measured there."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.config import CacheConfig, SchedulerConfig
from scripts.simulation.cli import main
from scripts.simulation.device import Device, read_rows, simulate_device
from scripts.simulation.load import Due, OpenLoop, SimulatedRequest
from scripts.simulation.loop import Simulation
from scripts.simulation.policies import SplitFuse
from tests.support.hub_configs import HUB, read
from tests.support.paths import ROOT

H200 = [ROOT / "docs" / "results" / f"nvidia-h200-2026-11-{day}.json" for day in ("27", "27-2", "26")]
MODEL = read(HUB["Llama-3.1-8B"].config)
DEVICE = Device(8, ((2, 1.0), (4, 3.0), (8, 4.0)), per_context=0.25, pads=False, admission=100.0, delivery=10.0)


@pytest.mark.parametrize(("pads", "first"), [(False, 2.0), (True, 4.0)])
def test_a_step_costs_its_tokens_contexts_samples_and_admissions(pads: bool, first: float) -> None:
    """A prompt of 3 tokens: a step of 3 tokens without context, then a decode after 3 tokens."""
    device = replace(DEVICE, pads=pads)
    policy = SplitFuse(SchedulerConfig(8, 8, 100), CacheConfig(4, 100), runs_ahead=False)
    load = OpenLoop([Due(0.0, SimulatedRequest(prompt_tokens=3, output_tokens=2))])
    (record,) = Simulation(policy, device.seconds, load).run().records
    decode = 4.0 if pads else 1.0
    times = [time for time, _ in record.arrivals]
    assert times == [first + 110.0, first + 110.0 + decode + 0.75 + 10.0]


@pytest.fixture(scope="module")
def points() -> list[dict[str, Any]]:
    """Of the server that was measured."""
    return list(simulate_device(H200, MODEL, 256))


def test_the_measured_server_comes_out(points: list[dict[str, Any]]) -> None:
    """Within 10 % of the measured output tokens/s of every load, though only one load was fitted."""
    assert [point["clients"] for point in points] == [1, 16, 64, 256]
    assert all(abs(point["error"]) < 0.1 for point in points)
    assert [point["measured"] for point in points] == [116.9, 1371.0, 3244.0, 4342.0]


def test_wide_steps_gain_output_without_longer_gaps_between_few(points: list[dict[str, Any]]) -> None:
    """If steps take what is expected of kernels that skip padding; docs/simulation.md has the other loads."""
    expected = ((64, 0.0049), (128, 0.0052), (256, 0.00655), (512, 0.012), (1024, 0.023))
    wide = {point["clients"]: point for point in simulate_device(H200, MODEL, 1024, expected)}
    before = {point["clients"]: point for point in points}
    for clients, gain in ((16, 1.5), (64, 1.35)):
        assert wide[clients]["output_tokens_per_s"] > gain * before[clients]["output_tokens_per_s"]
        assert wide[clients]["inter_token_p95"] <= before[clients]["inter_token_p95"]
    assert wide[256]["ttft_p50"] < 1.0
    assert wide[256]["inter_token_p95"] < 0.03


def test_rows_come_from_the_first_file_in_which_they_ran(tmp_path: Path) -> None:
    for file, of_file in {
        "a": [("x", "ran", 1), ("y", "not reached", 2)],
        "b": [("x", "ran", 3), ("y", "ran", 4)],
    }.items():
        fields = [{"name": row, "state": state, "seconds": seconds} for row, state, seconds in of_file]
        (tmp_path / file).write_text(json.dumps({"rows": fields}))
    rows = read_rows([tmp_path / "a", tmp_path / "b"])
    assert {name: row["seconds"] for name, row in rows.items()} == {"x": 1, "y": 4}


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--expected", "64"], "--expected: must be TOKENS:SECONDS, such as 256:0.0066, not '64'"),
        (["--token-budget", "8"], "--token-budget must be 256 or more, a token for each row, not 8"),
        (["--token-budget", "512", "--expected", "256:1"], "steps of 256 tokens at most, and --token-budget is 512"),
        (["--token-budget", "300"], "the files have no row step_llama3_8b_300 that ran"),
    ],
)
def test_refusals_name_the_flag(
    flags: list[str], error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["simulation", "--device", *map(str, H200), *flags])
    with pytest.raises(SystemExit):
        main(None)
    assert error in capsys.readouterr().err
