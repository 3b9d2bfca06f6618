"""Summarize a model directory from its configuration and the headers of its weights. Host only.

Nothing is loaded, and no jax is imported: a directory of any size takes well under a second.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from jaxgen.core.errors import ConfigError, one_line
from jaxgen.core.model_config import ModelConfig
from jaxgen.weights.converted.manifest import is_converted, manifest_of, verify
from jaxgen.weights.encodings.methods import encodings_of
from jaxgen.weights.encodings.weight_formats import quantization_of, with_formats
from jaxgen.weights.families.config_fields import text_part
from jaxgen.weights.families.parameters import family_name, parameters
from jaxgen.weights.families.registry import FAMILIES
from jaxgen.weights.files.file_names import CONFIG
from jaxgen.weights.files.model_files import ModelFiles, StoredWeights
from jaxgen.weights.huggingface.checkpoint import check_parameters
from jaxgen.weights.huggingface.wrappers import WRAPPERS
from jaxgen.weights.load import load_model_config


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """What ``jaxgen models`` and ``jaxgen plan`` say of a model; None: not known.

    ``parameters``: their number. ``context``: tokens. ``dtype``: of its weights. ``windows``: those of the layers, as
    in ModelConfig. ``generates``: as there, whether it continues texts.
    ``problem``: why it cannot be loaded, in one line; empty: it is supported.
    """

    architecture: str | None = None
    parameters: int | None = None
    dtype: str | None = None
    context: int | None = None
    windows: tuple[int | None, ...] | None = None
    generates: bool | None = None
    problem: str = ""

    def __str__(self) -> str:
        """Return the facts in one line: ``Qwen3ForCausalLM, 0.6 B parameters, bfloat16, context 40,960, no window``."""
        return ", ".join(
            [
                *([self.architecture] if self.architecture else []),
                *([f"{in_short(self.parameters)} parameters"] if self.parameters else []),
                *([self.dtype] if self.dtype else []),
                *([f"context {self.context:,}"] if self.context else []),
                *([] if self.windows is None else [_windows(self.windows)]),
            ]
        )


def served_architectures() -> dict[str, list[str]]:
    """Return the values of ``architectures`` in config.json that are supported, by family."""
    around = {
        name: [outer for outer, wrapper in WRAPPERS.items() if wrapper.text in FAMILIES[name].read] for name in FAMILIES
    }
    return {name: [*family.read, *around[name]] for name, family in FAMILIES.items()}


def summarize(directory: Path) -> ModelSummary:
    """Return the summary of a directory, also of one whose model is not supported."""
    try:
        config = load_model_config(directory)
        check_weights(directory, config)
    except ConfigError as error:
        return _of_unsupported(directory, one_line(str(error)))
    return summary_of(directory, config)


def summary_of(directory: Path, config: ModelConfig) -> ModelSummary:
    """Return the summary of a directory whose configuration has been read."""
    files = ModelFiles(directory)
    architecture = _architecture(files.read_json(CONFIG))
    stored, quantization = _encodings(files), quantization_of(config)
    if quantization == "none":
        dtype = f"{stored} as {config.dtype}" if stored else config.dtype
    else:
        dtype = stored if quantization in stored.lower() else quantization
    return ModelSummary(
        architecture, num_parameters(config), dtype, config.max_position, config.windows, config.generates
    )


def _encodings(files: ModelFiles) -> str:
    """Return what the encodings of a checkpoint that is not converted are called; empty: it has none."""
    encodings = () if is_converted(files.directory) else encodings_of(files)
    return " and ".join(dict.fromkeys(encoding.title for encoding in encodings))


def check_weights(directory: Path, config: ModelConfig) -> StoredWeights:
    """Return what a directory stores. Raises ConfigError, as loading would, unless it is what ``config`` means.

    Looks at the headers of safetensors files, or the manifest of a converted directory and the sizes of its files.
    """
    files = ModelFiles(directory)
    if not is_converted(directory):
        stored = files.stored_weights()
        check_parameters(files, config)
        encoded = _encodings(files)
        return replace(stored, numbers={encoded: num_parameters(config)}) if encoded else stored
    manifest = manifest_of(files, family_name(config))
    verify(files, manifest, checksums=False)
    sizes = [record.size for name, record in manifest.files.items() if name.startswith("params/")]
    quantization = quantization_of(with_formats(config, manifest.formats))
    dtype = manifest.dtype if quantization == "none" else quantization
    return StoredWeights(len(sizes), sum(sizes), {dtype: num_parameters(config)})


def num_parameters(config: ModelConfig) -> int:
    """Return the number of parameters of a model."""
    return sum(prod(parameter.shape) for parameter in parameters(config))


def in_short(count: int) -> str:
    """Return a number of parameters as people say it: 0.6 B, 88.2 M, 4,096."""
    if count >= 500_000_000:
        return f"{count / 1e9:.1f} B"
    return f"{count / 1e6:.1f} M" if count >= 500_000 else f"{count:,}"


def _of_unsupported(directory: Path, problem: str) -> ModelSummary:
    """Return what can be said of a model that cannot be loaded."""
    data: Mapping[str, Any] = {}
    count: int | None = None
    files = ModelFiles(directory)
    with suppress(ConfigError):
        data = files.read_json(CONFIG)
    with suppress(ConfigError):
        numbers = files.stored_weights().numbers
        count = sum(numbers.values()) if "I32" not in numbers else None  # a word has an unknown number of weights
    text = text_part(data) or {}
    dtype = _first(str, data.get("dtype"), data.get("torch_dtype"), text.get("dtype"), text.get("torch_dtype"))
    context = _first(int, *(part.get("max_position_embeddings") for part in (data, text)))
    return ModelSummary(_architecture(data), count, dtype and dtype.removeprefix("torch."), context, problem=problem)


def _windows(windows: tuple[int | None, ...]) -> str:
    """Return the windows of the layers in short: all that there are have one size."""
    there = [window for window in windows if window is not None]
    if not there:
        return "no window"
    share = "" if len(there) == len(windows) else f" in {len(there)} of {len(windows)} layers"
    return f"window {max(there):,}{share}"


def _architecture(data: Mapping[str, Any]) -> str | None:
    names = data.get("architectures")
    return _first(str, *names) if isinstance(names, list) else None


def _first[T](kind: type[T], *values: object) -> T | None:
    """Return the first value of this type."""
    return next((value for value in values if isinstance(value, kind)), None)
