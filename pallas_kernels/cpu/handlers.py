"""Shared libraries of native kernels, loaded into this process and known to XLA."""

import ctypes
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
from jaxtyping import Array

from pallas_kernels.cpu.parts import DTYPES, PARTS

_opened: dict[str, str] = {}
"""By digest, the code of the parts whose handlers XLA knows; its registry is the process's, and takes a name once."""


@dataclass(frozen=True)
class Handlers:
    """The handlers of some parts, by which XLA calls the kernels on its own threads.

    Arrays that do not fit each other end the program's run with an error. A kernel of a part that is not among them
    raises ValueError.
    """

    digests: tuple[tuple[str, str], ...]
    """By part, the digest of its recipe, by which XLA knows the handlers."""
    code: str = ""
    """Digest of the libraries' files, so of their instructions."""
    compiler: str = ""

    def _target(self, part: str, handler: str) -> str:
        """A name that no other library's handler has: a stored program never meets another library."""
        digest = dict(self.digests).get(part)
        if digest is None:
            raise ValueError(f"the native kernels of {part} are not loaded, but {[name for name, _ in self.digests]}")
        return _target(handler, digest)


def open_parts(files: Mapping[str, tuple[Path, str]]) -> tuple[tuple[tuple[str, str], ...], str]:
    """Load parts into this process. Return their digests and the code of all; ``files``: as of ``Library.open``."""
    codes = [_open(part, path, digest) for part, (path, digest) in files.items()]
    digests = tuple((part, digest) for part, (_, digest) in files.items())
    return digests, hashlib.sha256("".join(codes).encode()).hexdigest()[:20]


def _open(part: str, path: Path, digest: str) -> str:
    """Load a part, unless one of this digest is, and make its handlers known to XLA. Return the digest of its code."""
    if digest not in _opened:
        code = hashlib.sha256(path.read_bytes()).hexdigest()
        loaded = ctypes.CDLL(str(path))
        for handler in PARTS[part].handlers:
            jax.ffi.register_ffi_target(_target(handler, digest), jax.ffi.pycapsule(loaded[handler]), platform="cpu")
        _opened[digest] = code
    return _opened[digest]


def _target(handler: str, digest: str) -> str:
    return f"pallas_kernels_cpu_{handler}_{digest}"


def check_dtypes(*arrays: Array | jax.ShapeDtypeStruct) -> None:
    """Raise ValueError unless all arrays are of one dtype that the native kernels take."""
    for array in arrays:
        if array.dtype.name not in DTYPES or array.dtype != arrays[0].dtype:
            raise ValueError(f"native kernels take {' or '.join(DTYPES)}, not {[a.dtype.name for a in arrays]}")
