"""Arrays of a GGUF file's metadata are what was written, and what the gguf package reads, short and long."""

from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import GGUFValueType as Type

from jaxgen.core.errors import ConfigError
from jaxgen.weights.gguf.file import GgufFile
from jaxgen.weights.gguf.header import SHORT

VALUES: dict[Type, list[Any]] = {
    Type.UINT8: [0, 255],
    Type.INT8: [-128, 127],
    Type.UINT16: [0, 2**16 - 1],
    Type.INT16: [-(2**15), 7],
    Type.UINT32: [0, 2**32 - 1],
    Type.INT32: [-(2**31), 7],
    Type.UINT64: [0, 2**64 - 1],
    Type.INT64: [-(2**63), 7],
    Type.FLOAT32: [-0.5, 2.0**-140, float("inf")],
    Type.FLOAT64: [0.1, -1e300],
    Type.BOOL: [True, False],
    Type.STRING: ["", "a", "naïve 😀", "\0", "x" * 5000],
}


def written(path: Path, arrays: dict[str, tuple[Type, list[Any]]]) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, (kind, values) in arrays.items():
        writer.add_key_value(name, values, Type.ARRAY, sub_type=kind)
    writer.add_uint32("behind", 7)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("length", [1, SHORT, SHORT + 1, 3 * SHORT])
def test_arrays_of_every_type(length: int, tmp_path: Path) -> None:
    arrays = {kind.name: (kind, [values[i % len(values)] for i in range(length)]) for kind, values in VALUES.items()}
    file = GgufFile(written(tmp_path / "a.gguf", arrays))
    reader = gguf.GGUFReader(file.path)
    for name, (_, values) in arrays.items():
        field = reader.get_field(name)
        assert field is not None
        assert file.array(name) == field.contents() == values
        assert (name in file.fields.data) == (length <= SHORT), "long ones are read when asked for"
    assert file.fields.data["behind"] == 7
    assert file.array("missing") is None


@pytest.mark.parametrize("length", [3, SHORT + 1])
def test_a_text_that_is_not_utf_8_is_named(length: int, tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf", {"words": (Type.STRING, ["marker"] * length)})
    path.write_bytes(path.read_bytes().replace(b"marker", b"mark\xff\xff", 1))
    with pytest.raises(ConfigError, match="words is not UTF-8"):
        GgufFile(path).array("words")
