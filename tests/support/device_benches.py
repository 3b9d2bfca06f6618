"""What rows of python -m scripts.gpu are given when a test calls them."""

from pathlib import Path
from typing import Any

from scripts.gpu.bench import Bench, Shared
from scripts.gpu.plan import REGISTERS
from scripts.gpu.sizes import DRY, Sizes


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
