"""Files that say absurd things of themselves are refused in one line, before anything of that size is made."""

from pathlib import Path
from struct import pack
from typing import Any

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.header import MOST_ENTRIES, BadHeaderError, check_header
from jaxgen.weights.huggingface.config import read_model_config
from jaxgen.weights.packaged.tiny import make_tiny_outline

ARRAY, STRING, U8 = 9, 8, 0


def config_of(directory: Path, **fields: Any) -> None:
    make_tiny_outline(directory, **fields)
    read_model_config(ModelFiles(directory))


@pytest.mark.parametrize("layers", [4097, 10**8, 10**30])
@pytest.mark.parametrize("window", [None, 32])
def test_absurd_layers(tmp_path: Path, layers: int, window: int | None) -> None:
    with pytest.raises(ConfigError, match="num_hidden_layers must be at most 4096"):
        config_of(tmp_path, num_hidden_layers=layers, sliding_window=window)


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        (
            {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
            | {"original_max_position_embeddings": 1},
            "'longrope' cannot be computed",
        ),
        ({"rope_type": "yarn", "factor": 10**400}, "'yarn' cannot be computed"),
        ({"rope_type": "yarn", "factor": 1e300}, "factor must be at most"),
        ({"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 10**400}, "must be at most"),
        ({"rope_type": "linear", "factor": 10**400}, "'linear' cannot be computed"),
    ],
)
def test_absurd_rope(tmp_path: Path, rope: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(tmp_path, rope_parameters=rope)


def text(value: bytes) -> bytes:
    return pack("<Q", len(value)) + value


def gguf_of(directory: Path, *values: bytes, tensors: int = 0, more: bytes = b"", count: int | None = None) -> Path:
    path = directory / "m.gguf"
    head = b"GGUF" + pack("<IQQ", 3, tensors, len(values) if count is None else count)
    path.write_bytes(head + b"".join(values) + more)
    return path


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return text(b"a.b") + pack("<IIQ", ARRAY, kind, count) + content


DEEP = text(b"a.b") + pack("<I", ARRAY) + pack("<IQ", ARRAY, 1) * 5000 + pack("<IQ", U8, 0)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"values": [array(U8, 2**40)]}, "entries"),
        ({"values": [array(STRING, 2**20)]}, "out of the file"),
        ({"values": [array(U8, 2**20)]}, "out of the file"),
        ({"values": [array(U8, MOST_ENTRIES + 1, bytes(MOST_ENTRIES + 1))]}, "entries"),
        ({"values": [text(b"a.b") + pack("<IQ", STRING, 2**63)]}, "out of the file"),
        ({"values": [DEEP]}, "deep"),
        ({"values": [text(b"a.b") + pack("<I", 77)]}, "type 77"),
        ({"values": [], "count": 2**60}, "metadata"),
        ({"values": [], "tensors": 2**60}, "tensors"),
        ({"values": [], "tensors": 1, "more": text(b"t") + pack("<I", 2**31)}, "axes"),
        ({"values": [], "tensors": 1, "more": text(b"t")}, "out of the file"),
    ],
)
def test_absurd_gguf_headers(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    path = gguf_of(tmp_path, *fields.pop("values"), **fields)
    with pytest.raises(BadHeaderError, match=said):
        check_header(path)
    with pytest.raises(ConfigError, match=f"{path} cannot be read.*{said}"):
        GgufFile(path)


def test_a_header_without_faults_is_read(tmp_path: Path) -> None:
    values = [text(b"general.name") + pack("<I", STRING) + text(b"x"), array(STRING, 2, text(b"a") + text(b""))]
    check_header(gguf_of(tmp_path, *values))
