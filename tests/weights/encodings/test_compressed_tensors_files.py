"""What compressed-tensors wrote is read as the weight that it makes of it again, to the bit.

python -m scripts.make.compressed_weights wrote the files, of a layer each, with that tool.
"""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (np.dtype knows its names then)
import numpy as np
import pytest

from jaxgen.core.quantization import GroupedWeight, WeightFormat
from jaxgen.weights.encodings.encoding import RawWeight
from jaxgen.weights.encodings.methods import encodings_of
from jaxgen.weights.encodings.quantize import dequantized
from jaxgen.weights.files.model_files import ModelFiles
from tests.support.paths import ROOT

FILES = ROOT / "tests" / "data" / "compressed_tensors"
SHAPE = (24, 256)
FORMATS = {
    "W4A16": WeightFormat(4, 128),
    "W4A16_ASYM": WeightFormat(4, 128, zeros=True),
    "W8A16": WeightFormat(8, 128),
    "W8A8": WeightFormat(8, None),
    "FP8": WeightFormat(8, None, floats=True),
    "FP8_DYNAMIC": WeightFormat(8, None, floats=True),
    "FP8_BLOCK": WeightFormat(8, 128, floats=True),
    "MXFP8": WeightFormat(8, 32, floats=True),
    "NVFP4": WeightFormat(4, 16, "float32", floats=True),
    "MXFP4": WeightFormat(4, 32, floats=True),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_weight_is_what_the_tool_makes_of_it(name: str, tmp_path: Path) -> None:
    shutil.copyfile(FILES / f"{name}.safetensors", tmp_path / "model.safetensors")
    about = metadata(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": json.loads(about["quantization_config"])}))
    files = ModelFiles(tmp_path).safetensors
    (found,) = [
        (encoding, parts)
        for encoding in encodings_of(ModelFiles(tmp_path))
        if (parts := encoding.parts("linear.weight", files)) is not None
    ]
    encoding, parts = found
    form = encoding.kept_as({part: files.header(one) for part, one in parts.items()}, SHAPE)
    assert form == FORMATS[name]
    weight = encoding.read(RawWeight({part: files.read(one) for part, one in parts.items()}, SHAPE, form))
    assert isinstance(weight, GroupedWeight)
    numbers = dequantized(weight, np.dtype(about["dtype"]))
    assert hashlib.sha256(numbers.tobytes()).hexdigest() == about["sha256"]
    left = set(files) - set(parts.values())
    assert all(encoding.unread is not None and encoding.unread.fullmatch(one) for one in left)


def test_all_files_are_read() -> None:
    assert {path.stem for path in FILES.iterdir()} == set(FORMATS)


def metadata(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    found: dict[str, Any] = header["__metadata__"]
    return found
