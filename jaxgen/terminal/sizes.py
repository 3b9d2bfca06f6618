"""Read sizes of memory that people write. Host only, no jax."""

import argparse
import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([kmgt])(i?)b", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Return the bytes of a size like 24GiB (powers of 1024) or 24GB (powers of 1000), in capitals or not.

    For argparse: raises ArgumentTypeError, with what would be right.
    """
    match = _SIZE.fullmatch(text.strip())
    number, unit, binary = match.groups() if match else ("0", "k", "")
    size = int(float(number) * (1024 if binary else 1000) ** _POWERS[unit.lower()])
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid size: write a number and its unit, as 24GiB or 24GB")
    return size
