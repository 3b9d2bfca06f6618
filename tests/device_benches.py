"""What rows of scripts/gpu_check.py are given when a test calls them."""

from pathlib import Path
from typing import Any

from scripts.device_check.bench import Bench, Shared
from scripts.device_check.plan import REGISTERS
from scripts.device_check.sizes import DRY, Sizes


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
