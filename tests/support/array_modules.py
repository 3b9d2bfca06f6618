"""Which modules handle arrays: those whose shapes and types the test run checks."""

import re

from tests.support.paths import ROOT

_IMPORTED = re.compile(r"^\s*(?:from (\S+) import (?:\(([^)]*)\)|([^(\n]*))|import (\S+))", re.MULTILINE)
_OUTSIDE = {"jax", "jaxtyping", "pallas_kernels"}


def array_modules() -> list[str]:
    """Return pallas_kernels, and the modules of jaxgen that import jax or jaxtyping, directly or through others.

    Host packages never reach jax: the check would only slow their tests. Left out are the server and weights, which
    are packages of their own, the root, which only hands names on, and LLM, which itself refuses wrong arguments.
    """
    imports = {}
    for path in sorted((ROOT / "jaxgen").rglob("*.py")):  # which follows no links
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        imports[name] = _imported(path.read_text(encoding="utf-8"))
    del imports["jaxgen"], imports["jaxgen.llm"]
    found: set[str] = set()
    reached = _OUTSIDE
    while reached:
        reached = {name for name, those in imports.items() if name not in found and those & reached}
        found |= reached
    return ["pallas_kernels", *sorted(found)]


def _imported(source: str) -> set[str]:
    """Return the modules that a source imports. A name taken from a package may be a module, and is returned too."""
    found = set()
    for package, several, names, module in _IMPORTED.findall(source):
        name = package or module
        found |= {name, name.partition(".")[0]}
        found |= {f"{package}.{one.split(' as ')[0].strip()}" for one in (several or names).split(",") if package}
    return found
