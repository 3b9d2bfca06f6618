"""How far transformers' own bfloat16 is from its float32: what the accuracy of bfloat16 is compared with."""

from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
import transformers

from scripts.make.goldens.model import forward
from scripts.make.goldens.variant import Variant


def bfloat16_error(folder: Path, variant: Variant, tokens: Any, rows: Any, logits: Any) -> float:
    """Return the mean difference of log-probabilities after ``rows`` of ``tokens``, whose float32 ``logits`` [R, V]
    are known."""
    kinds: Any = transformers  # whose types do not name all that it has
    options: dict[str, Any] = {"dtype": torch.bfloat16, "attn_implementation": "eager"}
    if variant.mxfp4:
        options["quantization_config"] = kinds.Mxfp4Config(dequantize=True)
    model = getattr(kinds, variant.architecture).from_pretrained(folder, **options).eval()
    model.config._experts_implementation = "eager"
    narrow = forward(model, tokens)[rows]
    return float(np.abs(log_probabilities(narrow) - log_probabilities(logits)).mean())


def log_probabilities(logits: Any) -> Any:
    """Return float64 log-probabilities over the last axis."""
    return torch.from_numpy(logits).double().log_softmax(-1).numpy()
