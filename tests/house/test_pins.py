"""Everything that scripts/serve and the images install has an exact version."""

import re
import tomllib
from importlib.metadata import requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
OF_IMAGES = ("events", "gguf", "otel", "redis", "s3")
"""Extras that the Dockerfile names, but those of CUDA."""


def pins() -> dict[str, str]:
    text = (ROOT / "scripts" / "ci" / "constraints.txt").read_text(encoding="utf-8")
    found = dict(re.findall(r"^([\w.\[\]-]+)==(\S+)$", text, re.MULTILINE))
    return {canonicalize_name(name): version for name, version in found.items()}


def brought(wanted: list[str]) -> set[str]:
    """The packages that these requirements bring here, with what those bring."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    queue = [(Requirement(text), "") for text in wanted]
    while queue:
        one, extra = queue.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(one.name)
        found.add(name)
        for of in ("", *one.extras):
            if (name, of) in seen:
                continue
            seen.add((name, of))
            queue += [(Requirement(text), of) for text in requires(name) or ()]
    return found


def test_what_is_installed_is_pinned() -> None:
    project = PROJECT["project"]
    extras = [text for name in OF_IMAGES for text in project["optional-dependencies"][name]]
    found = brought([*project["dependencies"], *extras])
    assert {"starlette", "uvicorn", "jax", "obstore"} <= found
    assert sorted(found - pins().keys()) == []


def test_what_builds_is_pinned() -> None:
    assert {canonicalize_name(Requirement(text).name) for text in PROJECT["build-system"]["requires"]} <= pins().keys()
    for name in ("scripts/ci/environment.sh", "Dockerfile"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert {"PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"} <= set(re.findall(r"\bPIP_\w+", text)), name
