"""Resolve the value of ``--model`` or ``--tokenizer`` to a directory, fetched if need be. Host only, no jax."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError, check_path
from jaxgen.files.text_files import check_not_pointer
from jaxgen.weights.files.file_names import CARRIED_FILES, CONFIG, TOKENIZER_FILES, model_hint
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.gguf.source import FetchFiles, find_gguf, tags_of
from jaxgen.weights.huggingface.hub import Fetch, download, fetched, files_of

_WEIGHTS = "*.safetensors"
_TIKTOKEN = "*.tiktoken"
_WANTED = ["*.json", _WEIGHTS, "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model", "tiktoken.model", _TIKTOKEN]
_UNWANTED = ["[!1a]*/*", "a[!d]*/*", "ad[!d]*/*", "consolidated*"]
"""Subfolders other than 1_Pooling and additional_chat_templates, and Mistral's own format: they repeat the weights."""

OfGguf = Callable[[Path], Path]
"""A function that returns a directory for a GGUF file: its conversion, or an outline. It may raise ConfigError."""


def download_model(name: str, hub: HubOptions, *, cached: bool = False) -> Path:
    """Return the directory of a hub id in the hub's cache, with all that a model is loaded from.

    ``cached``: what is not in the cache is not fetched. Raises the errors of the hub's client.
    """
    return download(name, hub, _WANTED, _UNWANTED, cached=cached)


def download_outline(name: str, hub: HubOptions) -> Path:
    """Return the directory of a hub id in the hub's cache, without weights. Raises the errors of the hub's client."""
    return download(name, hub, [pattern for pattern in _WANTED if pattern != _WEIGHTS], _UNWANTED)


def resolve_model(
    model: str,
    hub: HubOptions | None = None,
    *,
    fetch: Fetch = download_model,
    fetch_gguf: FetchFiles = download,
    of_gguf: OfGguf | None = None,
) -> Path:
    """Return the directory of a model: an existing one, or that of a hub id in the hub's cache, fetched if missing.

    Only JSON, safetensors, tokenizer and GGUF files are fetched, never pickles or code; ``fetch`` and ``fetch_gguf``
    replace how. ``of_gguf`` gives the directory of a GGUF file, or of one of a repository's by its tag; None: such a
    file is refused. Raises ConfigError when the directory does not exist and cannot be fetched, for links that lead out
    of the directory, and for a revision of a directory.
    """
    hub = hub or HubOptions()
    check_path("--model", model)
    if (file := find_gguf(model, hub, fetch_gguf)) is not None:
        if of_gguf is None:
            raise ConfigError(f"--model {model} is a GGUF file: name a directory with weights")
        return of_gguf(file)
    directory = Path(model).expanduser()
    if directory.is_file():
        check_not_pointer(directory)
        raise ConfigError(f"--model {model} is a file, and no GGUF file; name the directory it is in")
    if not directory.is_dir():
        directory = fetched("--model", model, hub, fetch)
        _check_not_gguf(model, directory, hub)
    elif hub.revision is not None:
        raise ConfigError(f"--revision {hub.revision} needs a hub id: --model {model} is a directory")
    _check_files(directory, CARRIED_FILES)
    if not (directory / CONFIG).is_file():
        raise ConfigError(f"{directory} is not a model directory: it has no {CONFIG}{model_hint(directory)}")
    return directory


def _check_not_gguf(model: str, directory: Path, hub: HubOptions) -> None:
    """Raise ConfigError for a hub id that has its weights in GGUF files alone, of which none is named."""
    if (directory / CONFIG).is_file() and any(directory.glob("*.safetensors*")):
        return
    try:
        tags = tags_of(files_of(model, hub))
    # the hub's client raises errors of its HTTP library; that what is needed is missing is said later
    except Exception:
        return
    if tags:
        raise ConfigError(
            f"--model {model} has its weights in GGUF files: name one, as --model {model}:{tags[0]}; "
            f"there are {', '.join(tags)}"
        )


def resolve_tokenizer(tokenizer: str, download_dir: Path | None = None) -> Path:
    """Return the directory of a tokenizer, as ``resolve_model`` does for a model. Raises ConfigError."""
    check_path("--tokenizer", tokenizer)
    directory = Path(tokenizer).expanduser()
    if directory.is_file():
        raise ConfigError(f"--tokenizer {tokenizer} is a file; name the directory it is in")
    if not directory.is_dir():
        # transformers may ask config.json which tokenizer it is
        fetch = partial(download, wanted=(CONFIG, _TIKTOKEN, *TOKENIZER_FILES))
        directory = fetched("--tokenizer", tokenizer, HubOptions(download_dir=download_dir), fetch)
    _check_files(directory, TOKENIZER_FILES)
    return directory


def _check_files(directory: Path, names: Iterable[str]) -> None:
    """Raise ConfigError for a link that leads out of the directory, and for a pointer in place of a file."""
    files = ModelFiles(directory)
    for name in names:
        file = files.path(name)
        with suppress(OSError):  # what reads it says why it cannot
            check_not_pointer(file)
