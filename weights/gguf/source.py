"""Find the GGUF file that ``--model`` means: a path, or a file of a hub id, as REPOSITORY:Q4_K_M. Host only, no jax."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError
from jaxgen.terminal.extras import need
from jaxgen.weights.files.file_names import gguf_parts, is_gguf, named_gguf
from jaxgen.weights.huggingface import hub as hubs

FetchFiles = Callable[[str, HubOptions, Sequence[str]], Path]
"""A function that returns a directory with these files of a hub id. It may raise any error."""
_TAGGED = re.compile(r"([^/:\\]+/[^/:\\]+):([\w.\-]+)")
_NO_MODEL = ("mmproj", "imatrix")
"""Beginnings of names of files that come with a model: of images, and of a quantiser."""
_NOTHING = ("?",)
"""Patterns of no file: the hub's client takes a cache that lacks one of the wanted files for none."""
_SHOWN = 8


def find_gguf(model: str, hub: HubOptions, fetch: FetchFiles = hubs.download, *, flag: str = "--model") -> Path | None:
    """Return the GGUF file that a ``--model`` value means, or the first of its parts; None: it means something else.

    ``fetch`` replaces how files of the hub are fetched; ``flag`` has the value in errors. Raises ConfigError for a file
    that is not there, and for a tag that no file of the repository has, or several have.
    """
    path = Path(model).expanduser()
    tagged = None if path.exists() else _TAGGED.fullmatch(model)
    if tagged is not None:
        return _of_hub(tagged[1], tagged[2], hub, fetch, flag)
    if named_gguf(path.name) and not path.exists():
        raise ConfigError(f"{flag} {model}: there is no such file")
    if not is_gguf(path):
        return None
    if hub.revision is not None:
        raise ConfigError(f"--revision {hub.revision} needs a hub id: {flag} {model} is a file")
    return path


def tags_of(names: Iterable[str]) -> list[str]:
    """Return how each GGUF model among a repository's files is named behind a colon."""
    tags = dict.fromkeys(tag for name in _models(names) if (tag := _tag(name)) is not None)
    return list(tags)


def _of_hub(name: str, tag: str, hub: HubOptions, fetch: FetchFiles, flag: str) -> Path:
    need("gguf", f"{flag} {name}:{tag}")
    chosen = ""

    def fetch_chosen(name: str, hub: HubOptions) -> Path:
        nonlocal chosen
        chosen = _chosen(f"{flag} {name}:{tag}", tag, _listed(name, hub))
        return fetch(name, hub, gguf_parts(chosen))

    return hubs.fetched(flag, name, hub, fetch_chosen) / chosen


def _listed(name: str, hub: HubOptions) -> list[str]:
    """Return the names of a hub id's files; where the hub cannot be asked, of those in its cache."""
    try:
        return hubs.files_of(name, hub)
    except Exception as error:
        try:
            folder = hubs.download(name, hub, _NOTHING, cached=True)
        except Exception:
            raise error from None  # which says why the hub cannot be asked
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if named_gguf(path.name))


def _chosen(asked: str, tag: str, files: Iterable[str]) -> str:
    """Return the file of a repository that has this tag in its name, or in that of its folder.

    ``asked``: what is asked for, for errors.
    """
    models = _models(files)
    ends = re.compile(rf"(?:.*[-._])?{re.escape(tag)}", re.IGNORECASE)
    match = [file for file in models if ends.fullmatch(_stem(file)) or _folder(file).lower() == tag.lower()]
    if len(match) == 1:
        return match[0]
    if not models:
        raise ConfigError(f"{asked}: the repository has no GGUF file; leave :{tag} out")
    shown = ", ".join((match or models)[:_SHOWN])
    reason = "several files have this tag" if match else "no file has this tag"
    raise ConfigError(f"{asked}: {reason}; use a longer tag, of one of these files: {shown}")


def _models(names: Iterable[str]) -> list[str]:
    """Return the GGUF files that are models, of those in parts the first."""
    first_parts = [name for name in names if named_gguf(name) and gguf_parts(name)[0] == name]
    return [name for name in first_parts if not PurePosixPath(name).name.startswith(_NO_MODEL)]


def _stem(name: str) -> str:
    """Return the name without folder, number of the part and suffix."""
    return re.sub(r"(?i)(-\d{5}-of-\d{5})?\.gguf$", "", PurePosixPath(name).name)


def _folder(name: str) -> str:
    return PurePosixPath(name).parent.name


def _tag(name: str) -> str | None:
    """Return the last word of a name, which says the type of its tensors; None: it has one word."""
    words = re.split(r"[-.]", _stem(name))
    return words[-1] if len(words) > 1 else None
