"""Sampling defaults of generation_config.json."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.sampling_params import NEUTRAL, SamplingDefaults
from jaxgen.weights.huggingface.generation_config import read_sampling_defaults
from jaxgen.weights.packaged.default_model import DEMO


def written(folder: Path, **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return folder


LLAMA = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [1, 2], "transformers_version": "4.38"}
LLAMA_DEFAULTS = SamplingDefaults(temperature=0.6, top_p=0.9)


def test_the_models_own_are_taken_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    written(tmp_path, **LLAMA)
    assert read_sampling_defaults(tmp_path) == LLAMA_DEFAULTS
    (line,) = caplog.messages
    assert "get temperature 0.6, top_p 0.9, from " in line


def test_every_field(tmp_path: Path) -> None:
    fields = {"temperature": 0, "top_k": 40, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.1}
    written(tmp_path, **fields, max_new_tokens=99, do_sample=False, max_length=7)
    expected = SamplingDefaults(temperature=0, top_k=40, top_p=0.5, min_p=0.1, repetition_penalty=1.1, max_tokens=99)
    assert read_sampling_defaults(tmp_path) == expected
    off = written(tmp_path, top_k=-1, temperature=None)
    assert read_sampling_defaults(off, str(off)) == NEUTRAL, "no error: these are off"


@pytest.mark.parametrize("choice", ["none", "vllm"])
def test_none(tmp_path: Path, choice: str) -> None:
    assert read_sampling_defaults(written(tmp_path, **LLAMA), choice) == NEUTRAL


def test_without_anything_to_say_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert read_sampling_defaults(tmp_path) == NEUTRAL
    assert read_sampling_defaults(DEMO) == NEUTRAL
    assert caplog.messages == []


def test_those_of_another_directory(tmp_path: Path) -> None:
    own, other = written(tmp_path / "own", temperature=0.1), written(tmp_path / "other", **LLAMA)
    assert read_sampling_defaults(own, str(other)) == LLAMA_DEFAULTS
    with pytest.raises(ConfigError, match=r"--generation-config greedy: there is no greedy/generation_config.json"):
        read_sampling_defaults(own, "greedy")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("temperature", 2.5, "temperature must be between 0 and 2, not 2.5"),
        ("temperature", "hot", "temperature must be a number, not 'hot'"),
        ("temperature", True, "temperature must be a number, not True"),
        ("top_k", 1.5, "top_k must be a whole number, not 1.5"),
        ("max_new_tokens", 0, "max_new_tokens must be 1 or more, not 0"),
        ("top_p", -0.1, "top_p must be "),
    ],
)
def test_what_is_out_of_range(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, field: str, value: Any, says: str
) -> None:
    """A model that could be served before still can; a file that was named must be good."""
    written(tmp_path, **{"min_p": 0.25, field: value})
    assert read_sampling_defaults(tmp_path) == SamplingDefaults(min_p=0.25)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(f"{tmp_path / 'generation_config.json'}: {says}")
    with pytest.raises(ConfigError) as refused:
        read_sampling_defaults(tmp_path, str(tmp_path))
    assert str(refused.value).startswith(f"{tmp_path / 'generation_config.json'}: {says}")
