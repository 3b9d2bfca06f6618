"""Print how far transformers' own bfloat16 is from its float32, for each golden that is named.

``python -m scripts.make.goldens.narrow NAME ...``, in the environment of scripts/make/goldens. The number is the mean
difference of log-probabilities at the recorded rows of the longest prompt; TRANSFORMERS_BFLOAT16 of
tests/support/goldens.py has them.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found, unused-ignore]
import transformers

from scripts.make.goldens.model import forward

GOLDENS = Path(__file__).parents[3] / "tests" / "data" / "goldens"


def log_probabilities(logits: Any) -> Any:
    """Return float64 log-probabilities over the last axis."""
    return torch.from_numpy(logits).double().log_softmax(-1).numpy()


def error(folder: Path) -> float:
    """Return the mean difference."""
    with np.load(folder / "golden.npz") as arrays:
        count = sum(name.startswith("prompt_") for name in arrays.files)
        longest = max(range(count), key=lambda i: len(arrays[f"prompt_{i}"]))
        prompt, greedy, logits = (arrays[f"{name}_{longest}"] for name in ("prompt", "greedy", "logits"))
        rows = arrays.get(f"rows_{longest}")
    options: dict[str, Any] = {"dtype": torch.bfloat16, "attn_implementation": "eager"}
    if "mxfp4" in folder.name:
        options["quantization_config"] = transformers.Mxfp4Config(dequantize=True)  # type: ignore[attr-defined, unused-ignore]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options).eval()
    model.config._experts_implementation = "eager"
    found = forward(model, np.concatenate([prompt, greedy[:-1]]))
    found = found if rows is None else found[rows]
    return float(np.abs(log_probabilities(found) - log_probabilities(logits)).mean())


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in sys.argv[1:]:
        print(f'    "{name}": {error(GOLDENS / name):.4f},')


if __name__ == "__main__":
    main()
