"""``jaxgen verify-determinism``: what it says, and its exit status."""

import json
from pathlib import Path

import pytest

from jaxgen.core.identity import Identity
from jaxgen.kernels.choice import REFERENCE
from jaxgen.server.cli import main
from jaxgen.tools.determinism import Scenario
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint

FLAGS = (
    "--requests",
    "14",
    "--token-budget",
    "32",
    "--max-num-seqs",
    "8",
    "--max-model-len",
    "96",
    "--block-size",
    "8",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny_checkpoint(directory)
    return str(directory)


@pytest.fixture(autouse=True)
def _reference_kernels_and_short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native kernels would be compiled anew for this run's cache directory; answers of the usual length, and what
    happens to them, are tests/tools' to compare."""
    monkeypatch.setattr("jaxgen.assembly.kernels.choose", lambda *_, **__: REFERENCE)
    monkeypatch.setattr("jaxgen.tools.determinism.ANSWER_TOKENS", 6)


@pytest.mark.parametrize(
    ("more", "scenarios"),
    [
        ((), 8),
        # Thousands of steps that stream each layer; that these keep their bits is test_streamed_engine's.
        pytest.param(("--kv-residency", "host", "--kv-offloading-size", "0.01"), 9, marks=pytest.mark.full),
    ],
)
def test_all_bits_agree(
    directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], scenarios: int
) -> None:
    report = tmp_path / "report.json"
    assert main(["verify-determinism", "--model", directory, *FLAGS, *more, "--json", str(report)]) == 0
    printed = capsys.readouterr().out
    assert "all bits agree" in printed
    found = json.loads(report.read_text())
    assert found["passed"] is True
    assert (found["model"], found["token_budget"]) == (directory, 32)
    assert f"digest {Identity(found['digest_parts']).digest}" in printed
    assert len(found["scenarios"]) == scenarios
    for scenario in found["scenarios"]:
        assert scenario["name"] in printed
        assert scenario["compared"] > 0
        assert all(scenario["happened"].values())


def test_what_differs_is_shown(
    directory: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    different = Scenario("all at once")
    different.compare("request-1", ["a", "b"], ["a", "c"])
    monkeypatch.setattr("jaxgen.tools.verify.Verifier.verify", lambda self: [different])
    assert main(["verify-determinism", "--model", directory, *FLAGS]) == 1
    printed = capsys.readouterr().out
    assert "1 of 1 answers differ" in printed
    assert "request-1, event 1" in printed
    assert "expected b" in printed
    assert "found    c" in printed
    assert "NOT reproducible" in printed


def test_what_was_not_covered_is_no_success(
    directory: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = Scenario("all at once", compared=3, happened={"preemptions": 0})
    monkeypatch.setattr("jaxgen.tools.verify.Verifier.verify", lambda self: [missing])
    assert main(["verify-determinism", "--model", directory, *FLAGS]) == 1
    assert "not covered" in capsys.readouterr().out


def test_what_cannot_be_done(directory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify-determinism", "--model", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err
    assert main(["verify-determinism", "--model", directory, "--max-model-len", "100000"]) == 2
    assert "--max-model-len" in capsys.readouterr().err
    assert main(["verify-determinism", "--model", directory, "--kv-offload-inputs"]) == 2
    assert "--kv-offloading-size" in capsys.readouterr().err
    with pytest.raises(SystemExit) as error:
        main(["verify-determinism", "--requests", "3"])
    assert error.value.code == 2
    assert "--requests" in capsys.readouterr().err
