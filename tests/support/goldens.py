"""The checkpoints and recorded answers in tests/data/goldens, made by scripts/make/goldens."""

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.model_info import Pooling
from jaxgen.weights.families.parameters import parameters
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.huggingface.config import read_model_config
from scripts.make.goldens.recipes.every import VARIANTS
from tests.support.paths import ROOT

GOLDENS = ROOT / "tests" / "data" / "goldens"
NAMES = tuple(sorted(path.name for path in GOLDENS.iterdir()))
"""All folders."""


@cache  # every process that collects tests asks for all of them
def _config(name: str) -> DecoderConfig:
    config = read_model_config(ModelFiles(GOLDENS / name))
    assert isinstance(config, DecoderConfig)
    return config


def _of_its_own(name: str) -> tuple[int, int]:
    """How many kinds of tensors a golden has, and how many settings its recipe shows to matter."""
    return len(parameters(_config(name))), len(VARIANTS[name].contrasts)


OF_FAMILIES = tuple(
    max((name for name in NAMES if _config(name).family == family), key=_of_its_own)
    for family in sorted({_config(name).family for name in NAMES})
)
"""One of each family, that with most of its own: a family's tests follow from its goldens and are listed nowhere. What
the others have is in their logits."""


@dataclass(frozen=True)
class Golden:
    """What transformers answers to one prompt, in float32.

    ``greedy`` are 24 tokens. The logits [R, V] follow the first ``rows[i] + 1`` tokens of ``prompt`` and ``greedy``.
    ``pooled`` are the embeddings [D] of the prompt.
    """

    prompt: list[int]
    greedy: list[int]
    rows: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]
    pooled: dict[Pooling, npt.NDArray[np.float32]]


def golden_answers(name: str) -> list[Golden]:
    with np.load(GOLDENS / name / "golden.npz") as arrays:
        count = sum(key.startswith("prompt_") for key in arrays.files)
        return [_answer({key: arrays[f"{key}_{i}"] for key in _KEYS}) for i in range(count)]


def transformers_bfloat16(name: str) -> float:
    """How far transformers' own bfloat16 is from its float32: the mean difference of log-probabilities at the recorded
    rows of the longest prompt."""
    with np.load(GOLDENS / name / "golden.npz") as arrays:
        return float(arrays["bfloat16"])


_KEYS = ("prompt", "greedy", "rows", "logits", "pooled")


def _answer(arrays: dict[str, Any]) -> Golden:
    return Golden(
        arrays["prompt"].tolist(),
        arrays["greedy"].tolist(),
        arrays["rows"],
        arrays["logits"],
        dict(zip((Pooling.MEAN, Pooling.LAST, Pooling.CLS), arrays["pooled"], strict=True)),
    )


def copy_golden(name: str, destination: Path) -> Path:
    """A copy of a checkpoint, to be damaged."""
    shutil.copytree(GOLDENS / name, destination, ignore=shutil.ignore_patterns("golden.npz"))
    return destination


def bits(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """What must be equal for two arrays to be the same."""
    host = np.asarray(array)
    return str(host.dtype), host.shape, host.tobytes()
