"""Converted directories for tests."""

from pathlib import Path
from typing import Any

from jaxgen.core.mixed_weight import AnyWeight
from jaxgen.core.model_config import DType, ModelConfig
from jaxgen.weights.convert import command as convert
from jaxgen.weights.families.parameters import Array
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.checkpoint import read_parameters
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.goldens import bits

Bits = tuple[str, tuple[int, ...], bytes]


def bits_of(directory: Path, dtype: DType | None = None) -> dict[str, Bits]:
    """Every parameter of a Hugging Face or converted directory."""
    config = load_model_config(directory, dtype or "auto")
    return {path: bits(array) for path, array in load_params(directory, config, progress=False).items()}


def host_arrays(directory: Path, config: ModelConfig) -> dict[str, Array]:
    """The parameters of a Hugging Face directory that is not quantised, as they are read."""
    found = dict(read_parameters(ModelFiles(directory), config, progress=False))
    return {path: value for path, value in found.items() if not isinstance(value, AnyWeight)}


def run(source: Path, destination: Path, **options: Any) -> Path:
    """Convert; gives the destination."""
    convert.convert(str(source), destination, progress=False, **options)
    return destination


def tiny_conversion(directory: Path) -> Path:
    """``directory``/converted, made of the tiny checkpoint ``directory``/source; to be damaged."""
    make_tiny_checkpoint(directory / "source")
    return run(directory / "source", directory / "converted")
