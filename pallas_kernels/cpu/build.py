"""Compile the C++ sources of this package for this machine."""

import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jaxlib.version

DTYPES = ("float32", "bfloat16")
"""What the kernels compute with; for others use the ``_ref`` twins."""
COMPILERS = ("g++", "clang++", "c++")
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-fvisibility=hidden")
"""-ffp-contract=off: a sum is fused where the source says so and nowhere else, so all copies of a loop round alike."""
LINKED = "-shared"
PREFIX_MAP = "-ffile-prefix-map={headers}=jaxlib"
"""XLA's headers put their path into what they say of errors; with it, libraries would differ by where they are made."""
UNITS = ("handlers.cc", "bfloat16.cc", "quantized.cc", "experts.cc", "float32.cc", "elements.cc")
"""Source files that compile at the same time, the slowest first."""
BUILD_SECONDS = 300
_SOURCES = Path(__file__).parent


class UnavailableError(RuntimeError):
    """There are no native kernels on this machine; the message says why."""


@dataclass(frozen=True)
class Recipe:
    """The commands that make the library on this machine, and its name."""

    command: tuple[str, ...]
    digest: str
    """Of everything that decides what the library does: sources, compiler, flags, jaxlib's headers, the processor."""
    compiler: str
    """Name and version of the compiler, as it says them."""

    @classmethod
    def find(cls, compiler: str | None = None) -> "Recipe":
        """Return the recipe of ``compiler``, or of the first installed one of ``COMPILERS``. Raises
        UnavailableError."""
        found = next((path for name in ([compiler] if compiler else COMPILERS) if (path := shutil.which(name))), None)
        if found is None:
            raise UnavailableError(f"no C++ compiler is installed ({compiler or ', '.join(COMPILERS)})")
        native = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
        command = (found, *FLAGS, native, *(("-DKERNELS_INTEL",) if _is_intel() else ()))
        version = run([found, "--version"], seconds=30)
        sources = [path.name.encode() + b"\0" + path.read_bytes() for path in sorted(_SOURCES.glob("*.[ch]*"))]
        decided = (command, LINKED, PREFIX_MAP, version, jaxlib.version.__version__, processor(), "sealed")
        parts = [*sources, repr(decided).encode()]
        return cls(command, hashlib.sha256(b"\0".join(parts)).hexdigest()[:20], version.partition("\n")[0])

    def compile(self, target: Path, compiled: Callable[[], object] = lambda: None, *, threads: int = 1) -> None:
        """Write the shared library; raises UnavailableError with the compiler's words if it cannot.

        ``compiled`` is called after each of ``UNITS``, from several ``threads``, each of which runs a compiler.
        """
        import jax  # here: whether there will be native kernels is known without it

        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".objects-") as work:

            def compile_unit(name: str) -> str:
                result = str(Path(work, name).with_suffix(".o"))
                headers = jax.ffi.include_dir()
                source = ("-isystem", headers, PREFIX_MAP.format(headers=headers), "-c", str(_SOURCES / name))
                run([*self.command, *source, "-o", result], seconds=BUILD_SECONDS)
                compiled()
                return result

            pool = ThreadPoolExecutor(max_workers=threads)
            try:
                objects = list(pool.map(compile_unit, UNITS))
            finally:
                pool.shutdown(cancel_futures=True)
            run([*self.command, LINKED, *objects, "-o", str(target)], seconds=BUILD_SECONDS)


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
        # A compiler says much after its first error: notes, the source around it, how it came there.
        words = " | ".join([line.strip() for line in lines if "error: " in line][:3] or lines[-3:])
        raise UnavailableError(f"{name} ended with status {done.returncode}: {words}")
    return done.stdout
