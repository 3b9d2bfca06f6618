"""Cache the findings of helper processes about chat templates.

So a start need not wait for a process to start and to import transformers (about a second). Host only, no jax."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jaxgen.core.identity import digest_of
from jaxgen.files.cache_files import find, keep

LIBRARIES = ("jinja2", "transformers")
"""What compiles and renders templates."""


def cached_answer(folder: Path | None, question: Mapping[str, Any], ask: Callable[[], str | None]) -> str | None:
    """Return what ``ask`` returned at an earlier start, else what it returns now; None is not cached.

    ``folder``: of answers, by the digest of the ``question``, of the versions of LIBRARIES and of this package's own
    sources; None: none are cached.
    ``question``: all that the answer depends on, as JSON's values. Raises what ``ask`` raises.
    """
    if folder is None:
        return ask()
    versions = {name: version(name) for name in LIBRARIES}
    path = folder / f"{digest_of({**question, 'versions': versions, 'sources': _sources()})}.json"
    text = find(path, "the chat template is compiled and rendered again")
    if text is not None:
        return str(json.loads(text))
    answer = ask()
    if answer is not None:
        keep(path, json.dumps(answer))
    return answer


@cache
def _sources() -> str:
    """Return a digest of the sources that read and render templates."""
    return digest_of({path.name: path.read_text("utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))})
