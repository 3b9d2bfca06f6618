"""The commands that compile the C++ sources of this package for this machine."""

import hashlib
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jaxlib.version

from pallas_kernels.cpu.parts import PARTS, Unit

COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-fvisibility=hidden")
"""-ffp-contract=off: a sum is fused where the source says so and nowhere else, so all copies of a loop round alike."""
LINKED = "-shared"
PREFIX_MAP = "-ffile-prefix-map={headers}=jaxlib"
"""XLA's headers put their path into what they say of errors; with it, libraries would differ by where they are made."""
BUILD_SECONDS = 300
_SOURCES = Path(__file__).parent


class UnavailableError(RuntimeError):
    """There are no native kernels on this machine; the message says why."""


@dataclass(frozen=True)
class Recipe:
    """The commands that make the libraries on this machine, and their names."""

    command: tuple[str, ...]
    digest: str
    """Of everything that decides what all libraries do: sources, compiler, flags, jaxlib's headers, the processor."""
    compiler: str
    """Name and version of the compiler, as it says them."""

    @classmethod
    def find(cls, compiler: str | None = None) -> "Recipe":
        """Return the recipe of ``compiler``, or of the first installed one of ``COMPILERS``. Raises
        UnavailableError."""
        executable = next(
            (path for name in ([compiler] if compiler else COMPILERS) if (path := shutil.which(name))), None
        )
        if executable is None:
            raise UnavailableError(f"no C++ compiler is installed ({compiler or ', '.join(COMPILERS)})")
        native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
        command = (executable, *FLAGS, native, *(("-DKERNELS_INTEL",) if _is_intel() else ()))
        version = run([executable, "--version"], seconds=30)
        sources = [path.name.encode() + b"\0" + path.read_bytes() for path in sorted(_SOURCES.glob("*.[ch]*"))]
        decided = (command, LINKED, PREFIX_MAP, version, jaxlib.version.__version__, processor(), "sealed")
        parts = [*sources, repr(decided).encode()]
        return cls(command, hashlib.sha256(b"\0".join(parts)).hexdigest()[:20], version.partition("\n")[0])

    def digest_of(self, part: str) -> str:
        """Return the digest of everything that decides what the library of a part does."""
        return hashlib.sha256(f"{self.digest} {part} {PARTS[part]}".encode()).hexdigest()[:20]

    def compile(self, unit: Unit, target: Path) -> None:
        """Write the unit's object file. Raises UnavailableError with the compiler's words if it cannot."""
        import jax  # here: whether there will be native kernels is known without it

        headers = jax.ffi.include_dir()
        source = ("-isystem", headers, PREFIX_MAP.format(headers=headers), "-c", str(_SOURCES / unit.source))
        run([*self.command, *unit.definitions, *source, "-o", str(target)], seconds=BUILD_SECONDS)

    def link(self, objects: Sequence[Path], target: Path) -> None:
        """Write the shared library of object files. Raises UnavailableError with the linker's words if it cannot."""
        run([*self.command, LINKED, *map(str, objects), "-o", str(target)], seconds=BUILD_SECONDS)


def processor() -> str:
    """Return a text that names this processor's instruction sets."""
    lines = _cpu_info()
    if lines is None:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


def _is_intel() -> bool:
    return any(line.startswith("vendor_id") and "GenuineIntel" in line for line in _cpu_info() or ())


def _cpu_info() -> list[str] | None:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None


def run(command: list[str], *, seconds: float) -> str:
    """Return a command's output. Raises UnavailableError with its errors if it fails or is slow."""
    name = Path(command[0]).name
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{name}: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        # A compiler says much after its first error: notes, the source around it, how it came there. Its last line may
        # call it an error that the linker failed, and the lines before say why.
        words = " | ".join([line.strip() for line in lines[:-1] if "error: " in line][:3] or lines[-3:])
        raise UnavailableError(f"{name} ended with status {done.returncode}: {words}")
    return done.stdout
