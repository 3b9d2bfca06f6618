"""Compile the C++ sources of this package for this machine."""

import hashlib
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import jax
import jaxlib.version

COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-fvisibility=hidden")
"""-ffp-contract=off: a sum is fused where the source says so and nowhere else, so all copies of a loop round alike."""
BUILD_SECONDS = 300
_SOURCES = Path(__file__).parent


class UnavailableError(RuntimeError):
    """There are no native kernels on this machine; the message says why."""


@dataclass(frozen=True)
class Recipe:
    """How the library is made here, and the name under which it is known."""

    command: tuple[str, ...]
    digest: str
    """Of everything that decides what the library does: sources, compiler, flags, jaxlib's headers, the processor."""

    @classmethod
    def find(cls, compiler: str | None = None) -> "Recipe":
        """With ``compiler``, or the first of ``COMPILERS`` that is installed; raises UnavailableError."""
        found = next((path for name in ([compiler] if compiler else COMPILERS) if (path := shutil.which(name))), None)
        if found is None:
            raise UnavailableError(f"no C++ compiler is installed ({compiler or ', '.join(COMPILERS)})")
        native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
        command = (found, *FLAGS, native)
        version = run([found, "--version"], seconds=30)
        sources = [path.name.encode() + b"\0" + path.read_bytes() for path in sorted(_SOURCES.glob("*.[ch]*"))]
        parts = [*sources, repr((command, version, jaxlib.version.__version__, processor())).encode()]
        return cls(command, hashlib.sha256(b"\0".join(parts)).hexdigest()[:20])

    def compile(self, target: Path) -> None:
        """Write the shared library; raises UnavailableError with the compiler's words if it cannot."""
        source = str(_SOURCES / "handlers.cc")
        run([*self.command, "-isystem", jax.ffi.include_dir(), source, "-o", str(target)], seconds=BUILD_SECONDS)


def processor() -> str:
    """What tells this processor's instruction sets from another's."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def run(command: list[str], *, seconds: float) -> str:
    """Its output; raises UnavailableError with its errors, or the end of what it wrote, where it fails or is slow."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{name}: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        # A compiler says much after its first error: notes, the source around it, how it came there.
        words = " | ".join([line.strip() for line in lines if "error: " in line][:3] or lines[-3:])
        raise UnavailableError(f"{name} ended with status {done.returncode}: {words}")
    return done.stdout
