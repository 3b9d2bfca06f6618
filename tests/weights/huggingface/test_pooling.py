"""What sentence-transformers writes beside a model decides how its embeddings are pooled."""

import json
from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.model_info import Pooling, PoolingChoice
from jaxgen.weights.convert.command import convert
from jaxgen.weights.huggingface.pooling import pooling_files, read_pooling, texts_differ
from tests.support.goldens import GOLDENS, copy_golden

TYPES = "sentence_transformers.models."
MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")


def modules(*names: str) -> list[dict[str, Any]]:
    return [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": TYPES + name}
        for i, name in enumerate(names)
    ]


def flags(*on: str) -> dict[str, Any]:
    """As versions up to 5 write it."""
    return {"word_embedding_dimension": 64, "include_prompt": True} | {
        f"pooling_mode_{name}": name in on for name in MODES
    }


def write(directory: Path, config: Any, names: tuple[str, ...] = ("Transformer", "Pooling", "Normalize")) -> Path:
    (directory / "modules.json").write_text(json.dumps(modules(*names)))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (flags("mean_tokens"), Pooling.MEAN),
        (flags("lasttoken"), Pooling.LAST),
        (flags("cls_token"), Pooling.CLS),
        ({"pooling_mode": "mean"}, Pooling.MEAN),
        ({"pooling_mode": "lasttoken"}, Pooling.LAST),
        ({"pooling_mode": "cls"}, Pooling.CLS),
    ],
)
def test_the_model_says_how(tmp_path: Path, config: Any, expected: Pooling) -> None:
    assert read_pooling(write(tmp_path, config)) is expected


def test_a_model_that_does_not_say_is_pooled_by_the_mean(tmp_path: Path) -> None:
    assert read_pooling(GOLDENS / "llama") is Pooling.MEAN
    write(tmp_path, flags("lasttoken"))
    (tmp_path / "modules.json").unlink()
    assert read_pooling(tmp_path) is Pooling.MEAN, "sentence-transformers does not look either"


@pytest.mark.parametrize(
    "name", ["1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"]
)
def test_files_without_the_one_that_says_it_are_named(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}")
    assert read_pooling(tmp_path, "last") is Pooling.LAST
    assert caplog.records == []
    assert read_pooling(tmp_path) is Pooling.MEAN
    (said,) = [one.getMessage() for one in caplog.records]
    assert said.startswith(f"{tmp_path} has {name}, but no modules.json")
    assert "by the mean" in said
    assert "say --pooling last" in said


@pytest.mark.parametrize("pooling", Pooling)
def test_what_is_written_is_read(tmp_path: Path, pooling: Pooling) -> None:
    for name, data in pooling_files(pooling).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(data))
    assert read_pooling(tmp_path) is pooling


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_seq_length": 16, "do_lower_case": False}, ["max_seq_length is 16, to which sentence-transformers cuts"]),
        ({"max_seq_length": 128, "do_lower_case": True}, ["do_lower_case is true, which is not done here"]),
        ({"max_seq_length": 127, "do_lower_case": True}, ["max_seq_length is 127", "do_lower_case is true"]),
        ({"max_seq_length": None}, []),
        ({}, []),
    ],
)
def test_what_is_not_done_to_texts_is_said(tmp_path: Path, config: dict[str, Any], expected: list[str]) -> None:
    assert texts_differ(tmp_path, 128) == []
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(config))
    found = texts_differ(tmp_path, 128)
    assert len(found) == len(expected)
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(f"{tmp_path}/sentence_bert_config.json: {start}")


def test_a_length_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": "16"}')
    with pytest.raises(ConfigError, match=r"sentence_bert_config\.json: max_seq_length must be a positive integer"):
        texts_differ(tmp_path, 128)


@pytest.mark.parametrize(("choice", "expected"), [("mean", Pooling.MEAN), ("last", Pooling.LAST), ("cls", Pooling.CLS)])
def test_a_choice_wins_over_the_model(tmp_path: Path, choice: PoolingChoice, expected: Pooling) -> None:
    assert read_pooling(write(tmp_path, flags("max_tokens"), ("Transformer", "Pooling", "Dense")), choice) is expected


@pytest.mark.parametrize(
    ("config", "names", "message"),
    [
        (flags("max_tokens"), ("Transformer", "Pooling"), "1_Pooling/config.json: cannot pool by max_tokens; "),
        (flags("cls_token", "lasttoken"), ("Transformer", "Pooling"), "cannot pool by cls_token and lasttoken; "),
        (flags(), ("Transformer", "Pooling"), "cannot pool by nothing; "),
        ({"pooling_mode": "max"}, ("Transformer", "Pooling"), "cannot pool by max; "),
        (
            flags("mean_tokens"),
            ("Transformer", "Pooling", "Dense"),
            "modules.json: embeddings cannot pass through Dense",
        ),
        (flags("mean_tokens"), ("Transformer",), "modules.json names no module that pools; "),
    ],
)
def test_what_cannot_be_honoured_names_file_and_flag(
    tmp_path: Path, config: Any, names: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_pooling(write(tmp_path, config, names))
    assert message in str(refused.value)
    assert "--pooling" in str(refused.value)


@pytest.mark.parametrize("content", ["{}", "[", "[5]", '[{"type": 5, "path": ""}]'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "modules.json").write_text(content)
    with pytest.raises(ConfigError, match=r"modules\.json"):
        read_pooling(tmp_path)


def test_a_path_that_leads_out_is_refused(tmp_path: Path) -> None:
    listed = [{"type": TYPES + "Pooling", "path": "../elsewhere"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(ConfigError, match="leads out of the directory"):
        read_pooling(tmp_path)


def test_a_conversion_takes_it_along(tmp_path: Path) -> None:
    source = write(copy_golden("llama", tmp_path / "source"), flags("lasttoken"))
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    convert(str(source), tmp_path / "converted", progress=False)
    assert read_pooling(tmp_path / "converted") is Pooling.LAST
    assert texts_differ(tmp_path / "converted", 128) != []
