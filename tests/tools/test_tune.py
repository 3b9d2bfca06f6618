"""``jaxgen tune``: the steps it times are full, and what it finds is what the next engine uses."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxgen.assembly.load_engine import load_engine
from jaxgen.core.config import EngineOptions
from jaxgen.core.errors import ConfigError
from jaxgen.core.operations import OPERATIONS, Choice
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels, PackedProduct
from jaxgen.server.cli import main
from jaxgen.sizing.device_memory import GIB, DeviceMemory
from jaxgen.tools.tune import BUDGETS, BudgetTime, FullSteps, Tuning, fill_steps, measure, tune
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from pallas_kernels.expert_product import packed_expert_product_ref
from pallas_kernels.packed_product import pack, packed_product_ref, rows
from tests.support.engines import LLAMA, compiled_step, engine_config, make_engine

CPU = DeviceMemory("cpu", GIB)
LOAD: dict[str, Any] = {"context": 8, "rounds": 2}
"""Of all measurements here, which so have the same programs."""
PACKED = PackedProduct(pack, packed_product_ref, rows, packed_expert_product_ref)
SKIPPING = replace(REFERENCE, packed=PACKED, choices=dict.fromkeys(OPERATIONS, Choice("native")))
"""Kernels that say that no operation computes padding."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny_checkpoint(directory, num_hidden_layers=1)
    return directory


@pytest.fixture(autouse=True)
def _reference_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native kernels would be compiled anew into each test's cache directory. Each budget's step is compiled once."""
    monkeypatch.setattr("jaxgen.assembly.kernels.choose", lambda *_, **__: REFERENCE)
    monkeypatch.setattr("jaxgen.tools.tune.compile_step", lambda model, config, _: compiled_step(model, config))


@pytest.fixture(scope="module")
def measured(directory: Path) -> Callable[..., Tuning]:
    """``measure`` with the model of ``directory``."""
    model = load_model_config(directory)
    params = load_params(directory, model, progress=False)
    return lambda memory=CPU, **options: measure(model, params, memory, **{**LOAD, **options})


@pytest.mark.parametrize("context", [5, 40])
def test_the_steps_are_full(context: int) -> None:
    """Short prompts end in the step they begin in, long ones go on in the next; no step has a token of padding."""
    config = engine_config(token_budget=16, max_num_seqs=8, num_blocks=128)
    engine = make_engine(config=config)
    load = FullSteps(engine, decodes=4, context=context, steps=35)
    load.seconds(2)
    for steps in (10, 20):
        before = engine.stats()
        assert load.seconds(steps) > 0
        after = engine.stats()
        assert after.steps - before.steps == steps + 1
        assert after.padded_tokens == before.padded_tokens
        assert after.num_running >= 4
    assert after.preemptions == 0


@pytest.mark.parametrize(("budget", "decodes", "context"), [(16, 12, 128), (16, 4, 5), (64, 32, 100)])
def test_filling_takes_no_more_steps_than_allowed_for(budget: int, decodes: int, context: int) -> None:
    """Worked out by hand: each prompt gets what the decodes before it leave, and shares no step with another."""
    steps = sum(-(-context // (budget - row)) for row in range(decodes))
    assert steps <= fill_steps(budget, decodes, context) <= steps + 2 * decodes


def test_every_budget_is_timed_and_the_best_is_chosen(measured: Callable[..., Tuning]) -> None:
    reported: list[BudgetTime] = []
    tuning = measured(budgets=(24, 16), report=reported.append)
    assert [found.token_budget for found in tuning.times] == [16, 24]
    assert [found.token_budget for found in reported] == [16, 24]
    assert all(len(found.blocks) == 2 and min(found.blocks) <= found.seconds for found in tuning.times)
    best = max(tuning.times, key=lambda found: found.token_budget / found.seconds**2)
    assert tuning.token_budget == best.token_budget


@pytest.mark.parametrize(
    ("kernels", "chosen"),
    [(REFERENCE, 16), (SKIPPING, 24)],
)
def test_where_padding_costs_nothing_room_for_prompts_comes_first(
    measured: Callable[..., Tuning], kernels: Kernels, chosen: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With times of which the smallest budget has the most power; none measured has that room, so the largest is it."""
    monkeypatch.setattr(FullSteps, "seconds", lambda self, steps: self._engine.config.scheduler.token_budget / 1000)
    assert measured(kernels=kernels, budgets=(16, 24)).token_budget == chosen


class FakeTrial:
    """A budget on a GPU that takes 5 ms to read the weights, and 22 us for a token if that is longer."""

    cache_bytes = 0

    def __init__(self, *args: Any) -> None:
        self.budget, self.blocks = args[4], [max(0.005, 22e-6 * args[4])]

    def run_block(self) -> None:
        self.blocks.append(self.blocks[0])

    def result(self) -> BudgetTime:
        return BudgetTime(self.budget, 32, self.blocks[0], tuple(self.blocks), 4, 1.0)


@pytest.mark.parametrize(("kernels", "chosen", "last"), [(REFERENCE, 256, 1024), (SKIPPING, 1024, 1024)])
def test_a_gpu_is_tuned_from_its_own_budgets(
    kernels: Kernels, chosen: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that skips padding is not given less than the default, whatever the knee."""
    monkeypatch.setattr("jaxgen.tools.tune._Trial", FakeTrial)
    tuning = measure(LLAMA, {}, DeviceMemory("gpu", GIB), kernels=kernels)
    assert (tuning.token_budget, tuning.skips_padding) == (chosen, kernels is SKIPPING)
    assert [found.token_budget for found in tuning.times] == [budget for budget in BUDGETS if budget <= last]


def test_budgets_that_do_not_fit_end_the_search(measured: Callable[..., Tuning]) -> None:
    tuning = measured(budgets=(16, 4096))
    assert tuning.token_budget == 16
    assert "2048 positions" in tuning.ended
    with pytest.raises(ConfigError, match="2048 positions"):
        measured(budgets=(4096,))
    with pytest.raises(ConfigError, match="memory"):
        measured(DeviceMemory("cpu", 1000), budgets=(16,))


def test_the_next_engine_uses_what_was_measured(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jaxgen")
    tuning, kept = tune(str(directory), cache_dir=tmp_path, budgets=(24,), **LOAD)
    assert tuning.token_budget == 24
    assert kept is not None
    assert json.loads(kept.read_text().rpartition("\nSHA-256 ")[0])["times"][0]["token_budget"] == 24
    load_engine(str(directory), cache_dir=tmp_path)
    assert f"token budget 24: measured by jaxgen tune ({kept})" in caplog.text
    caplog.clear()
    load_engine(str(directory), cache_dir=tmp_path / "other")
    assert "token budget 384: the most of a step where padding costs nothing" in caplog.text
    caplog.clear()
    load_engine(str(directory), cache_dir=tmp_path, options=EngineOptions(token_budget=16))
    assert "token budget" not in caplog.text


def test_the_command(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [
        "--model",
        str(directory),
        "--cache-dir",
        str(tmp_path),
        "--budgets",
        "16",
        "--context",
        "8",
        "--rounds",
        "2",
    ]
    plot = tmp_path / "plot.png"
    assert main(["tune", *flags, "--json", "--plot", str(plot)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["token_budget"] == 16
    assert Path(found["kept"]).is_file()
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert main(["tune", *flags]) == 0
    assert "token budget 16, kept in" in capsys.readouterr().out
    assert main(["tune", "--model", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags", [["--budgets", "16,x"], ["--budgets", "1"], ["--rounds", "0"], ["--plot", "/nowhere/plot.png"]]
)
def test_flags_that_make_no_sense_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["tune", *flags])
    assert error.value.code == 2
    assert flags[0] in capsys.readouterr().err
