"""What one golden checkpoint is: a class of transformers, its settings, and how its files are spelt. Needs no torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scripts.make.goldens.spelling import AS_SAVED, Spelling

LENGTHS = (1, 7, 33, 90)
"""Tokens of the prompts."""

Settings = Mapping[str, Any]
Tensors = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One checkpoint.

    ``contrasts`` are settings that must change the logits, which shows that each setting is used. ``idle`` are the
    names of parameters that cannot change them: a key's bias adds the same to all scores of a query where no position
    rotates it. ``lengths`` are the prompts' tokens.
    """

    architecture: str
    settings: Settings
    contrasts: tuple[Settings, ...]
    idle: tuple[str, ...] = ()
    lengths: tuple[int, ...] = LENGTHS
    dtype: str = "bfloat16"
    """Of the stored weights, which float32 then computes with."""
    embedding: float = 2.0
    """The length of a token's embedding before the family's multiplier. Tied to the head, a long one repeats itself."""
    least_gap: float = 5e-3
    """By which each greedy token leads the second best. Smaller logits have smaller errors."""
    norm_about_one: bool = True
    """Norms multiply by their weight; else by 1 + weight, which then is about 0."""
    inputs_first: bool = False
    """Matrices of layers are [..., in, out]; else [..., out, in]."""
    mxfp4: bool = False
    """Experts are stored as blocks and scales."""
    shard_size: str = "1GB"
    spelling: Spelling = AS_SAVED
    rewrite: Callable[[Tensors], Tensors] | None = None
    """The tensors under the names of a hub's checkpoint, and its further tensors."""


def merged(settings: Settings, changes: Settings) -> dict[str, Any]:
    """Return the settings with some changed; those of ``text_config`` one by one."""
    inner = "text_config"
    if inner in settings and inner in changes:
        changes = {**changes, inner: merged(settings[inner], changes[inner])}
    return {**settings, **changes}
