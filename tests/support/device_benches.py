"""What rows of python -m scripts.gpu are given when a test calls them."""

from pathlib import Path
from typing import Any

from jaxgen.core.decoder_config import opt_config
from scripts.gpu.result.plan import REGISTERS
from scripts.gpu.rows.bench import Bench, Shared
from scripts.gpu.rows.sizes import DRY, Sizes

TINY_OPT = opt_config(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=256,
    num_layers=2,
    num_heads=4,
    num_kv_heads=4,
    head_dim=16,
    max_position=512,
    dtype="bfloat16",
    embed_size=64,
)
"""A model without grouped-query attention, with biases and a table of positions."""


def bench(sizes: Sizes = DRY, **given: Any) -> Bench:
    """On the CPU, with no ceilings and no results of other rows unless they are ``given``."""
    return Bench(
        **{
            "sizes": sizes,
            "shared": Shared(),
            "registers": REGISTERS,
            "ceilings": {},
            "results": {},
            "out": Path(),
            **given,
        }
    )
