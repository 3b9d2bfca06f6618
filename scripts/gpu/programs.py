"""Take compiled programs from one machine to the next: JAX's cache on disk, with XLA's autotuning results in it, as a
tar archive that is cut into files."""

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PART_BYTES, MOST_PARTS = 14 * 2**20, 2
"""Size and number of files: with the tree and the wheels they stay below 64 MiB, which a borrowed machine may get."""
_NAME = "{stem}.programs-{number}.tar"


def parts_of(result: Path) -> list[Path]:
    """Return the files of the archive next to a result, in order."""
    named = (result.with_name(_NAME.format(stem=result.stem, number=number)) for number in range(1, MOST_PARTS + 1))
    return [path for path in named if path.exists()]


def pack(cache: Path, result: Path) -> dict[str, Any]:
    """Write the archive of a cache next to a result, in place of the existing one; return what is in it.

    What took long to compile is large: where not all fits, small files are left out.
    """
    for path in parts_of(result):
        path.unlink()
    found = (path for path in cache.rglob("*") if path.is_file() and "tokenizers" not in path.parts)
    files = sorted(found, key=lambda path: -path.stat().st_size)
    packed, left = 0, PART_BYTES * MOST_PARTS - 2 * tarfile.RECORDSIZE
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for path in files:
            size = path.stat().st_size + 4 * tarfile.BLOCKSIZE  # headers, also of a long name, and padding
            if size <= left:
                archive.add(path, str(path.relative_to(cache)), recursive=False)
                packed, left = packed + 1, left - size
    whole = stream.getvalue() if packed else b""
    for number, start in enumerate(range(0, len(whole), PART_BYTES), 1):
        path = result.with_name(_NAME.format(stem=result.stem, number=number))
        path.write_bytes(whole[start : start + PART_BYTES])
    return {"packed": packed, "left_out": len(files) - packed}


def unpack(parts: Sequence[Path], cache: Path) -> int:
    """Put the files of an archive into a cache, and return their number.

    Raises OSError or tarfile.TarError for files that are missing, or not the whole archive in order.
    """
    whole = io.BytesIO(b"".join(path.read_bytes() for path in parts))
    with tarfile.open(fileobj=whole) as archive:
        members = archive.getmembers()
        archive.extractall(cache, members, filter="data")
    return len(members)
