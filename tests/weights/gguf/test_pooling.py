"""The pooling that a GGUF file names becomes the files in which sentence-transformers writes it."""

import json
from pathlib import Path

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_info import Pooling
from jaxgen.weights.huggingface.pooling import read_pooling
from jaxgen.weights.load import load_model_config
from tests.support.conversions import run
from tests.support.gguf_files import write
from tests.support.goldens import GOLDENS


def gguf_file(folder: Path, metadata: dict[str, int], without: tuple[str, ...] = ()) -> Path:
    return write(folder / "model.gguf", GOLDENS / "qwen3_bias", "qwen3", metadata=metadata, without=without)


@pytest.mark.parametrize(
    ("number", "pooling", "module"),
    [(1, Pooling.MEAN, "mean_tokens"), (2, Pooling.CLS, "cls_token"), (3, Pooling.LAST, "lasttoken")],
)
@pytest.mark.parametrize("head", [True, False])
def test_pooling_goes_into_the_files_of_sentence_transformers(
    number: int, pooling: Pooling, module: str, head: bool, tmp_path: Path
) -> None:
    """Without a head it is for embeddings alone: that of a tied model cannot be told from one that is not there."""
    without = () if head else ("output.weight",)
    file = gguf_file(tmp_path, {"pooling_type": number}, without)
    converted = run(file, tmp_path / "converted")
    assert read_pooling(converted) is pooling
    assert json.loads((converted / "modules.json").read_text())[1]["type"] == "sentence_transformers.models.Pooling"
    assert json.loads((converted / "1_Pooling" / "config.json").read_text())[f"pooling_mode_{module}"] is True
    assert load_model_config(converted).generates == head


@pytest.mark.parametrize("metadata", [{}, {"pooling_type": 0}])
def test_without_pooling_there_are_no_such_files(metadata: dict[str, int], tmp_path: Path) -> None:
    converted = run(gguf_file(tmp_path, metadata, ("output.weight",)), tmp_path / "converted")
    assert not (converted / "modules.json").exists()
    assert load_model_config(converted).generates


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (4, r"qwen3: pooling_type is 4 \(rank\): rerankers are not supported"),
        (5, r"pooling_type is 5, .* supported: 0 \(none\), 1 \(mean\), 2 \(cls\), 3 \(last\)"),
    ],
)
def test_other_ways_are_refused(number: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        run(gguf_file(tmp_path, {"pooling_type": number}), tmp_path / "dest")
    assert not (tmp_path / "dest").exists()
