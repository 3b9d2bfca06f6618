"""Every format of weights gives its numbers' logits, loads in little memory, and keeps its bits when converted."""

import pytest

from jaxgen.kernels.choice import native
from tests.support.format_figures import NAMES, measure
from tests.support.native import native as library

QUICK = ("gptq in an order", "compressed nvfp4")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in NAMES]
)
def test_a_format_is_its_numbers(name: str) -> None:
    row = measure(name, native(library()))
    print(row)  # noqa: T201
    assert row.gpu < 1e-4
    assert row.cpu < 0.1
    assert row.loading < 1.2  # a tensor, and blocks in work, which are large beside matrices that are so small
    assert row.same
