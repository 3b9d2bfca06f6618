"""The figures of each format of weights: errors of logits, bits, and memory while loading.

Checkpoints are the ones that tests write. The error of logits is the largest difference from the model with the same
weights as numbers in float32, as a share of the largest logit, on a text of a golden checkpoint. It is measured with
the program for GPUs, in which activations stay as they are, and with the native kernels for CPUs. The memory that
loading takes on top of its result is measured on larger matrices, as a share of the largest matrix in float32.
"""

import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxgen.core.model_config import ModelConfig
from jaxgen.core.quantization import GroupedWeight, Quantization
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.placement import pack_params
from jaxgen.weights.convert import command as convert
from jaxgen.weights.encodings.quantize import dequantized
from jaxgen.weights.encodings.weight_formats import FP8, INT4, INT8, parameter_bytes, with_formats
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint
from tests.support.format_cases import EVERY
from tests.support.golden_runs import SMALL, Forward, logits_of_chunks, make_forward
from tests.support.goldens import GOLDENS, golden_answers
from tests.support.quantised_checkpoints import quantised_pair

GOLDEN = "llama"
MADE = {"--quantization int8": INT8, "--quantization int4": INT4, "--quantization fp8": FP8}
NAMES = (*MADE, *EVERY)
LARGE = {"hidden_size": 256, "intermediate_size": 1024, "vocab_size": 512}


@dataclass(frozen=True)
class Row:
    """``bits``: of a weight of the layers' matrices, with its scales. ``gpu``, ``cpu``: errors of logits.

    ``loading``: bytes on top of the result, as a share of the largest matrix in float32. ``same``: whether a converted
    directory has the bits that were loaded.
    """

    name: str
    bits: float
    gpu: float
    cpu: float
    loading: float
    same: bool

    def __str__(self) -> str:
        same = "same bits" if self.same else "OTHER BITS"
        errors = f"{self.gpu:.0e} | {self.cpu:.1%}"
        return f"| {self.name} | {self.bits:.2f} | {errors} | {self.loading:.2f} | {same} |"


def measure(name: str, native_kernels: Kernels) -> Row:
    """Return the figures of a format, one of NAMES."""
    with TemporaryDirectory() as folder:
        directory, flag = _checkpoint(name, Path(folder, "small"), GOLDEN)
        config, params = _loaded(directory, flag)
        convert.convert(str(directory), Path(folder, "converted"), quantization=flag, progress=False)
        same = _bits(params) == _bits(_loaded(Path(folder, "converted"), "none")[1])
        make_tiny_checkpoint(Path(folder, "source"), **LARGE)
        large, flag = _checkpoint(name, Path(folder, "large"), str(Path(folder, "source")))
        loading = _loading(large, flag)
    numbers = {path: dequantized(one) if isinstance(one, GroupedWeight) else one for path, one in params.items()}
    wanted = _logits(with_formats(config, {}), numbers, REFERENCE)
    gpu, cpu = (
        float(np.abs(_logits(config, params, kernels) - wanted).max() / np.abs(wanted).max())
        for kernels in (REFERENCE_GPU, native_kernels)
    )
    matrices = with_formats(config, {path: form for path, form in config.weight_formats if path.startswith("layers")})
    saved = parameter_bytes(with_formats(config, {})) - parameter_bytes(matrices)
    count = sum(numbers[path].size for path, _ in matrices.weight_formats)
    return Row(name, 32 - 8 * saved / count, gpu, cpu, loading, same)


def _checkpoint(name: str, folder: Path, source: str) -> tuple[Path, Quantization]:
    """Return a checkpoint in a format, with the weights of a golden or of a directory, and the flag that keeps it."""
    if name in MADE:
        return GOLDENS / source, cast(Quantization, MADE[name].title)
    about, encode, form = EVERY[name]
    return quantised_pair(folder, source, about, encode)[0], cast(Quantization, form.title) if form.floats else "none"


def _loaded(directory: Path, flag: Quantization) -> tuple[ModelConfig, dict[str, Any]]:
    config = load_model_config(directory, "float32", flag)
    config = replace(config, max_position=min(config.max_position, SMALL.scheduler.max_model_len))
    return config, load_params(directory, config, place=lambda _, value: value, progress=False)


def _bits(params: Mapping[str, Any]) -> dict[str, bytes]:
    result: dict[str, bytes] = {}
    for path, value in params.items():
        arrays = value.arrays() if isinstance(value, GroupedWeight) else (("", np.asarray(value)),)
        result |= {f"{path}.{part}": np.ascontiguousarray(array).tobytes() for part, array in arrays}
    return result


def _loading(directory: Path, flag: Quantization) -> float:
    tracemalloc.start()
    try:
        _, params = _loaded(directory, flag)
        final, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    largest = max(np.prod(value.shape[1:] if len(value.shape) > 2 else value.shape) for value in params.values())
    return (peak - final) / (4 * largest)


@cache
def _forward(config: ModelConfig) -> Forward:
    return make_forward(config, SMALL)


def _logits(config: ModelConfig, params: Mapping[str, Any], kernels: Kernels) -> npt.NDArray[np.float32]:
    arrays = {path: one if isinstance(one, GroupedWeight) else jnp.asarray(one) for path, one in params.items()}
    packed = pack_params(config, arrays, kernels)
    return logits_of_chunks(_forward(config), config, packed, golden_answers(GOLDEN)[0], SMALL, kernels)
