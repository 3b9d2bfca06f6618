"""Say in one line which extra of the package brings a module that is missing. Host only, and only Python's own modules:
tools import this where nothing else is installed."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from jaxgen.core.errors import ConfigError

EXTRAS = {
    "bench": ("aiohttp", "matplotlib"),
    "events": ("zmq",),
    "gguf": ("gguf",),
    "otel": ("opentelemetry",),
    "ray": ("ray",),
    "redis": ("redis",),
    "s3": ("obstore",),
    "sentencepiece": ("sentencepiece",),
    "test": (
        *(
            "beartype",
            "fakeredis",
            "httpx2",
            "hypothesis",
            "importlinter",
            "mypy",
            "openai",
            "pytest",
            "ruff",
            "schemathesis",
        ),
        *("scipy", "trustme"),
    ),
    "train": ("optax",),
}
"""Modules by the extra of pyproject.toml that brings them."""


def missing(module: str, what: str = "") -> str | None:
    """Return what to do without ``module``, which ``what`` needs; None: it is in no extra."""
    name = module.partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if name in modules), None)
    if extra is None:
        return None
    needs = f"{what} needs {name}" if what else f"{name} is missing"
    return f"{needs}: pip install -e '.[{extra}]' in the checkout brings it"


def need(module: str, what: str) -> None:
    """Raise ConfigError where ``module``, which is imported later for ``what``, is not installed."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        raise ConfigError(missing(module, what) or f"{what} needs {module}, which is not installed")


@contextmanager
def naming_extras(what: str = "") -> Iterator[None]:
    """Turn the error of an import that an extra would mend into a ConfigError. ``what``: what needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        advice = missing(error.name or "", what)
        if advice is None:
            raise
        raise ConfigError(advice) from error


def name_extras_at_the_end() -> None:
    """End this process with one line, and exit code 2, where such an error ends it."""
    tell = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        advice = missing(error.name or "") if isinstance(error, ModuleNotFoundError) else None
        if advice is None:
            tell(kind, error, traceback)
            return
        sys.stderr.write(f"{advice}\n")
        sys.exit(2)

    sys.excepthook = end
