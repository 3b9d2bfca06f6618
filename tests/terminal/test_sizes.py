"""Sizes of memory as people write them."""

import argparse

import pytest

from jaxgen.terminal.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GiB", 24 * 2**30),
        ("24GB", 24 * 10**9),
        ("24gb", 24 * 10**9),
        (" 1.5 TiB ", 3 * 2**39),
        (".5mib", 2**19),
        ("8KB", 8000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["24 apples", "24", "GiB", "-1GiB", "0GiB", "nanGiB", "infGB", "1e3GB", "24G", "", "1,5GB"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"is not a valid size: write a number and its unit, as 24GiB or 24GB"
    ):
        parse_size(text)
