"""The checkpoints and recorded answers in tests/data/goldens, made by scripts/make/goldens."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxgen.core.model_info import Pooling
from tests.support.paths import ROOT

GOLDENS = ROOT / "tests" / "data" / "goldens"
NAMES = tuple(sorted(path.name for path in GOLDENS.iterdir()))
"""All folders."""
OF_FAMILIES = (
    *("llama", "opt_pre", "qwen2_yarn", "qwen3_bias", "ministral3", "phi3_long", "gemma3", "smollm3_bias", "gpt2"),
    *("qwen2_moe", "gpt_oss_mxfp4", "mixtral", "olmo3", "granite", "glm4_bias", "falcon_40b", "phi_qk", "gpt_neox"),
)
"""One of each, that with most of its own. What the others have is in their logits."""

TRANSFORMERS_BFLOAT16 = {
    "llama": 0.0746,
    "opt_pre": 0.0266,
    "qwen2_yarn": 0.0378,
    "qwen3_bias": 0.0244,
    "ministral3": 0.0593,
    "phi3_long": 0.0631,
    "gemma3": 0.0100,
    "smollm3_bias": 0.0662,
    "gpt2": 0.0432,
    "qwen2_moe": 0.0582,
    "gpt_oss_mxfp4": 0.0836,
    "mixtral": 0.1125,
    "olmo3": 0.0138,
    "granite": 0.0056,
    "glm4_bias": 0.0521,
    "falcon_40b": 0.0203,
    "phi_qk": 0.0105,
    "gpt_neox": 0.0182,
}
"""How far transformers' own bfloat16 is from its float32: the mean difference of log-probabilities at the recorded rows
of the longest prompt, as python -m scripts.make.goldens.narrow prints it."""


@dataclass(frozen=True)
class Golden:
    """What transformers answers to one prompt, in float32.

    ``greedy`` are 24 tokens. The logits [R, V] follow the first ``rows[i] + 1`` tokens of ``prompt`` and ``greedy``;
    older goldens have those of all positions but the last. ``pooled`` are the embeddings [D] of the prompt, where they
    were recorded.
    """

    prompt: list[int]
    greedy: list[int]
    rows: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]
    pooled: dict[Pooling, npt.NDArray[np.float32]] | None


def golden_answers(name: str) -> list[Golden]:
    with np.load(GOLDENS / name / "golden.npz") as arrays:
        count = sum(key.startswith("prompt_") for key in arrays.files)
        return [_answer({key: arrays.get(f"{key}_{i}") for key in _KEYS}) for i in range(count)]


_KEYS = ("prompt", "greedy", "rows", "logits", "pooled")


def _answer(arrays: dict[str, Any]) -> Golden:
    logits, rows, pooled = arrays["logits"], arrays["rows"], arrays["pooled"]
    return Golden(
        arrays["prompt"].tolist(),
        arrays["greedy"].tolist(),
        np.arange(len(logits), dtype=np.int32) if rows is None else rows,
        logits,
        None if pooled is None else dict(zip((Pooling.MEAN, Pooling.LAST, Pooling.CLS), pooled, strict=True)),
    )


def copy_golden(name: str, destination: Path) -> Path:
    """A copy of a checkpoint, to be damaged."""
    shutil.copytree(GOLDENS / name, destination, ignore=shutil.ignore_patterns("golden.npz"))
    return destination


def bits(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """What must be equal for two arrays to be the same."""
    host = np.asarray(array)
    return str(host.dtype), host.shape, host.tobytes()
