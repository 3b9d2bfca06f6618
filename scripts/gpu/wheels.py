"""Collect wheels of jaxgen and of all that its server needs, for a machine that can fetch nothing.

    .venv/bin/python -m scripts.gpu.wheels .whl --have FILE

FILE lists the packages that the machine has, separated by commas or white space. Versions are those installed here. The
wheels are for Linux on x86-64 and this version of Python; docs/gpu_check.md says how they are installed there.
"""

import argparse
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.gpu.result.header import ROOT

_GLIBC = ("2_17", "2_24", "2_27", "2_28", "2_31", "2_34", "2_35")
"""pip matches versions of manylinux exactly, so that all have to be named."""
_PLATFORMS = ("manylinux1_x86_64", "manylinux2014_x86_64", *(f"manylinux_{version}_x86_64" for version in _GLIBC))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the wheels go; emptied before")
    parser.add_argument("--have", type=Path, metavar="FILE", help="names of packages that are there (default: none)")
    options = parser.parse_args(arguments)
    have = names_in(options.have.read_text()) if options.have else set()
    wanted = missing("jaxgen", have)
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    pip = (sys.executable, "-m", "pip", "-q")
    subprocess.run((*pip, "wheel", "--no-deps", "-w", str(options.folder), str(ROOT)), check=True)
    if wanted:
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        kind = ("--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", here)
        platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
        pins = [f"{name}=={version}" for name, version in sorted(wanted.items())]
        subprocess.run((*pip, "download", *kind, *platforms, "-d", str(options.folder), *pins), check=True)
    files = sorted(options.folder.iterdir())
    total = sum(path.stat().st_size for path in files)
    print(
        f"{len(files)} wheels, {total / 2**20:.1f} MiB, in {options.folder}: {', '.join(path.name for path in files)}"
    )
    return 0


def names_in(text: str) -> set[str]:
    """Return the names of packages in a list, in their canonical spelling."""
    return {str(canonicalize_name(word)) for word in re.split(r"[\s,]+", text) if word}


def missing(package: str, have: set[str]) -> dict[str, str]:
    """Return the version, as installed here, of each package that ``package`` needs and is not among ``have``.

    Raises PackageNotFoundError for one that is not installed here.
    """
    result: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = _requirements(package, frozenset())
    while waiting:
        name, extras = one = waiting.pop()
        if one in seen or (name in have and not extras):  # an installed package has all that it needs, except extras
            continue
        seen.add(one)
        try:
            if name not in have:
                result[name] = distribution(name).version
            waiting += _requirements(name, extras)
        except PackageNotFoundError as error:
            raise PackageNotFoundError(f"{name}, which {package} needs, is not installed here") from error
    return result


def _requirements(package: str, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """Return names and extras of what a package with these extras needs."""
    declared = [Requirement(text) for text in distribution(package).requires or ()]
    needed = (
        one
        for one in declared
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras | {""})
    )
    return [(str(canonicalize_name(one.name)), frozenset(one.extras)) for one in needed]


if __name__ == "__main__":
    sys.exit(main())
