"""Shares of a model's parameters, read as parts of tensors, are what dividing the whole parameters gives."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.division import Division
from jaxgen.weights.families.parameters import parameters
from jaxgen.weights.load import load_model_config, load_params, load_shares
from tests.support.conversions import run as convert
from tests.support.goldens import GOLDENS, bits

GATE_UP = "layers.mlp.gate_up.weight"


def division_of(directory: Path, ranks: int) -> Division:
    config = load_model_config(directory, "float32")
    assert isinstance(config, DecoderConfig)
    return Division(config, ranks)


def shares_of(directory: Path, ranks: int) -> dict[str, list[Any]]:
    division = division_of(directory, ranks)

    def on_all(path: str, read: Callable[[int], Any]) -> list[Any]:
        return [bits(read(rank)) for rank in range(ranks)]

    return load_shares(directory, division, place=on_all, progress=False)


@pytest.mark.parametrize(
    ("name", "ranks"), [("llama_bias", 4), ("qwen3", 2), ("gpt2", 2), ("falcon_40b", 2), ("qwen2_moe", 2)]
)
def test_a_share_is_read_as_it_is_cut(name: str, ranks: int) -> None:
    """Of separate and joined projections, with biases and without, transposed, by groups of heads, and of experts."""
    division = division_of(GOLDENS / name, ranks)
    whole = load_params(GOLDENS / name, division.whole, progress=False)
    cut = {
        path: [bits(division.cut(path, np.asarray(value), rank)) for rank in range(ranks)]
        for path, value in whole.items()
    }
    assert shares_of(GOLDENS / name, ranks) == cut


@pytest.mark.full  # Orbax is imported and used for a second or more
def test_a_converted_directory_gives_the_same_shares(tmp_path: Path) -> None:
    convert(GOLDENS / "qwen3", tmp_path / "converted", dtype="float32")
    assert shares_of(tmp_path / "converted", 2) == shares_of(GOLDENS / "qwen3", 2)


def test_one_share_is_in_memory_at_a_time(tmp_path: Path) -> None:
    """A quarter of 8 MiB, next to tensors that are only mapped."""
    config = json.loads((GOLDENS / "llama" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 2**13}))
    of_model = load_model_config(tmp_path, "float32")
    sources = [source for parameter in parameters(of_model) for source, _ in parameter.pieces()]
    save_file({one.name: np.ones(one.shape, np.float32) for one in sources}, tmp_path / "model.safetensors")
    peaks = []

    def note(path: str, read: Callable[[int], Any]) -> None:
        for rank in range(4 if path == GATE_UP else 0):
            tracemalloc.start()
            size = read(rank).nbytes
            peaks.append(tracemalloc.get_traced_memory()[1] / size)
            tracemalloc.stop()

    load_shares(tmp_path, division_of(tmp_path, 4), place=note, progress=False)
    assert max(peaks) < 1.5
