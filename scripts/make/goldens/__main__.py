"""Make tests/data/goldens: tiny seeded checkpoints of each family, and what transformers computes with them.

It is not part of the tests, since it needs torch. It runs in an environment of its own, of Python 3.11 or newer,

    pip install torch==2.13.0+cpu
    pip install transformers==5.23.0

(the first from the index of torch's CPU builds), as ``python -m scripts.make.goldens [NAME ...]``; without names it
makes all. A golden is an entry in ``recipes/``. Each folder gets the checkpoint as a hub has it and golden.npz with,
for every prompt number i,

    prompt_i  int32   [T]       random token ids
    greedy_i  int32   [24]      the most probable continuation
    rows_i    int32   [R]       positions in prompt_i followed by greedy_i
    logits_i  float32 [R, V]    the logits after each of them
    pooled_i  float32 [3, D]    mean, last and first of what the head takes of the prompt

and ``bfloat16``, how far transformers' own bfloat16 is from these logits (``narrow.py``).
``logits_i[rows_i == T - 1].argmax()`` is ``greedy_i[0]``. The seed of a checkpoint is the first that passes some
tests. Every greedy token leads the second best by at least ``least_gap``, and the worst chosen expert leads the best of
the others by at least MIN_ROUTER_GAP. So rounding changes neither. Continuations vary, and each contrast of the recipe
and each tensor moves the logits by more than the tests tolerate. If no seed passes, an error counts the failures.
transformers must read the same model from the files. Made again, a golden is the same to the byte.
"""

import argparse
from pathlib import Path

import torch  # type: ignore[import-not-found, unused-ignore]
import transformers

from scripts.make.goldens.recipes.every import VARIANTS
from scripts.make.goldens.record import find
from scripts.make.goldens.variant import Variant
from scripts.make.goldens.write import write

GOLDENS = Path(__file__).parents[3] / "tests" / "data" / "goldens"


def main() -> None:
    """Make the goldens that are named."""
    parser = argparse.ArgumentParser(description="Make tests/data/goldens.")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"one of {', '.join(VARIANTS)}; default: all")
    names = parser.parse_args().names or list(VARIANTS)
    if unknown := sorted(set(names) - set(VARIANTS)):
        parser.error(f"{unknown[0]} is no golden; there are {', '.join(VARIANTS)}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in names:
        try:
            make(name, VARIANTS[name])
        except (ValueError, AssertionError) as error:
            raise SystemExit(f"{name}: {error}") from error


def make(name: str, variant: Variant) -> None:
    """Make one golden and print a line."""
    found = find(variant)
    write(GOLDENS / name, variant, found.model, found.answers)
    size = sum(path.stat().st_size for path in (GOLDENS / name).iterdir())
    gap, (change, part) = min(answer.gap for answer in found.answers), found.least_change
    print(
        f"{name}: seed {found.seed}, smallest gap {gap:.4f}, least change {change:.1e} by {part}, {size / 1000:.0f} kB"
    )


if __name__ == "__main__":
    main()
