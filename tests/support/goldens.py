"""The checkpoints and recorded answers in tests/data/goldens, made by scripts/make/goldens.py."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.paths import ROOT

GOLDENS = ROOT / "tests" / "data" / "goldens"
NAMES = (
    "llama",
    "llama3_rope",
    "llama_linear_rope",
    "llama_bias",
    "mistral_window",
    "opt_pre",
    "opt_350m",
)


@dataclass(frozen=True)
class Golden:
    """What transformers answers to one prompt: row t of ``logits`` [len(prompt) + 23, V] follows the first t + 1 tokens
    of ``prompt`` and ``greedy``, which has 24 tokens."""

    prompt: list[int]
    greedy: list[int]
    logits: npt.NDArray[np.float32]


def golden_answers(name: str) -> list[Golden]:
    with np.load(GOLDENS / name / "golden.npz") as arrays:
        return [
            Golden(arrays[f"prompt_{i}"].tolist(), arrays[f"greedy_{i}"].tolist(), arrays[f"logits_{i}"])
            for i in range(len(arrays.files) // 3)
        ]


def copy_golden(name: str, destination: Path) -> Path:
    """A copy of a checkpoint, to be damaged."""
    shutil.copytree(GOLDENS / name, destination, ignore=shutil.ignore_patterns("golden.npz"))
    return destination


def bits(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """What must be equal for two arrays to be the same."""
    host = np.asarray(array)
    return str(host.dtype), host.shape, host.tobytes()
