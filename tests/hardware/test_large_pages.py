"""Large pages: the memory has them, and holds what it held."""

import ctypes
import mmap
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from jaxgen.hardware import large_pages
from jaxgen.hardware.large_pages import LARGE_PAGE, use_large_pages


def _in_large_pages(address: int) -> int:
    """Bytes in large pages of the mapping that has this address, as the kernel counts them."""
    found = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if span := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            found = int(span[1], 16) <= address < int(span[2], 16)
        elif found and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no mapping has {address:#x}")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which pages it uses")
def test_memory_moves_with_what_it_holds() -> None:
    memory = mmap.mmap(-1, 5 * LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    numbers = np.frombuffer(memory, np.int32)
    numbers[:] = np.arange(len(numbers))
    address = numbers.ctypes.data + 64  # an array begins at any cache line
    whole = (address + 4 * LARGE_PAGE) // LARGE_PAGE * LARGE_PAGE - -(-address // LARGE_PAGE) * LARGE_PAGE
    moved = use_large_pages(address, 4 * LARGE_PAGE)
    assert moved in (0, whole)  # none where the kernel is older than 6.1 or has no free page
    assert _in_large_pages(address + 2 * LARGE_PAGE) >= moved
    assert (numbers == np.arange(len(numbers))).all()


@pytest.mark.parametrize("num_bytes", [0, 64, LARGE_PAGE])
def test_less_than_a_whole_page_stays(num_bytes: int) -> None:
    memory = ctypes.create_string_buffer(64)
    address = ctypes.addressof(memory) // LARGE_PAGE * LARGE_PAGE + 64
    assert use_large_pages(address, num_bytes) == 0


def test_systems_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    large_pages._madvise.cache_clear()
    assert use_large_pages(LARGE_PAGE, 2 * LARGE_PAGE) == 0
    large_pages._madvise.cache_clear()
