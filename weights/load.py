"""Load a configuration and parameters for a ``--model`` value, from any kind of directory.

Only what makes arrays imports jax: a model is found and described without it.
"""

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jaxgen.core.config import DType, HubOptions, ModelConfig
from jaxgen.core.errors import ConfigError, check_path
from jaxgen.core.identity import digest_of
from jaxgen.core.mixed_weight import AnyWeight
from jaxgen.core.quantization import STORED_AS, Quantization
from jaxgen.core.text_files import check_not_pointer
from jaxgen.text.named_templates import template_text
from jaxgen.weights.converted.manifest import is_converted, read_manifest
from jaxgen.weights.encodings.methods import encodings_of
from jaxgen.weights.encodings.weight_formats import (
    kept_formats,
    quantization_of,
    quantized_config,
    with_formats,
    with_fp8_inputs,
)
from jaxgen.weights.families.parameters import Place, Value, lacks_head, parameters
from jaxgen.weights.files.checksums import Checksum, file_checksums
from jaxgen.weights.files.headers import tensor_names, weight_files
from jaxgen.weights.files.model_files import CARRIED_FILES, CONFIG, TOKENIZER_FILES, member, model_hint
from jaxgen.weights.gguf.source import FetchFiles, find_gguf, tags_of
from jaxgen.weights.gguf.tensors import GgufTensors
from jaxgen.weights.huggingface import checkpoint as hf_checkpoint
from jaxgen.weights.huggingface.chat_template import TEMPLATE_FILE
from jaxgen.weights.huggingface.config import read_model_config
from jaxgen.weights.huggingface.hub import Fetch, download, fetched, files_of
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint

if TYPE_CHECKING:
    import jax

DEMO = Path(__file__).parent / "demo"

_PARAMS = "params/"
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
    return download(name, hub, [one for one in _WANTED if one != _WEIGHTS], _UNWANTED)


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
    for name in names:
        file = member(directory, name)
        with suppress(OSError):  # what reads it says why it cannot
            check_not_pointer(file)


@cache
def default_model() -> Path:
    """Return the directory of the embedded model or, if the package has none, of a tiny random model, which is deleted
    when the process ends."""
    if (DEMO / CONFIG).is_file():
        return DEMO
    directory = Path(tempfile.mkdtemp(prefix="jaxgen-tiny-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    make_tiny_checkpoint(directory)
    (directory / TEMPLATE_FILE).write_text(template_text("plain"), encoding="utf-8")
    return directory


def load_model_config(
    directory: Path,
    dtype: Literal["auto"] | DType = "auto",
    quantization: Quantization = "none",
    *,
    tensors: GgufTensors | None = None,
) -> ModelConfig:
    """Return the configuration of a Hugging Face or converted directory, with the formats of its weights.

    ``tensors``: None: those in the directory. Others stay in their formats unless there is a quantization.

    ``dtype`` "auto": that in config.json of a Hugging Face directory, or the stored dtype of a converted one.
    ``quantization``: what the weights are rounded to when they are loaded, or stay in if they are stored in it; "none":
    integers stay as they are stored, and so do all of a converted directory; other floating-point codes become numbers.
    "fp8_dynamic": as "fp8", with ``fp8_inputs``.
    Raises ConfigError for a quantization of weights that are stored with another.
    """
    if not is_converted(directory):
        config = read_model_config(directory, dtype)
        if lacks_head(config, tensor_names(directory)):
            config = config.headless()
        if tensors is not None:
            kept = tensors.kept_formats(parameters(config)) if quantization in ("none", "fp4") else {}
            return _quantized(directory, with_formats(config, kept), quantization)
        formats = hf_checkpoint.stored_formats(directory, config) if encodings_of(directory) else {}
        return _quantized(directory, with_formats(config, kept_formats(formats, quantization)), quantization)
    manifest = read_manifest(directory)
    config = read_model_config(directory, manifest.dtype if dtype == "auto" else dtype)
    return _quantized(directory, with_formats(config, manifest.formats), quantization)


def _quantized(directory: Path, config: ModelConfig, quantization: Quantization) -> ModelConfig:
    stored, wanted = quantization_of(config), STORED_AS.get(quantization, quantization)
    if stored == "none":
        if quantization == "fp4":
            raise ConfigError(
                f"--quantization fp4 keeps weights that are stored in it, in NVFP4 or MXFP4, and {directory} has none: "
                f"use int4 or fp8"
            )
        return quantized_config(config, quantization)
    if wanted not in ("none", stored):
        raise ConfigError(
            f"--quantization {quantization}: {directory} has weights that are quantised already, to {stored}; "
            f"leave the flag out, or take a checkpoint that is not quantised"
        )
    return config if wanted == quantization else with_fp8_inputs(config)


def on_device(_: str, value: Value) -> "jax.Array | AnyWeight":
    """Put an array on the default device, unchanged; a quantized weight stays as it is, in host memory."""
    import jax

    return value if isinstance(value, AnyWeight) else jax.device_put(value)


def load_params(
    directory: Path,
    config: ModelConfig,
    *,
    place: Place = on_device,
    tensors: hf_checkpoint.Tensors | None = None,
    checksums: bool = True,
    progress: bool = True,
) -> dict[str, Any]:
    """Load the parameters of a Hugging Face or converted directory by path, each in its format or ``config.dtype``.

    ``place`` puts each parameter where programs read it, given its path and the host's array, or an AnyWeight for a
    path of ``config.weight_formats``, before the next is read. ``tensors``: None: those in the directory.
    ``checksums`` False: files of a converted directory need only have the right size. Raises ConfigError that names the
    file or tensor that is missing, corrupt or does not fit ``config``.
    """
    if is_converted(directory):
        # here, because importing Orbax takes 0.2 s, and only these directories need it
        from jaxgen.weights.converted import checkpoint

        return checkpoint.restore(directory, config, place=place, checksums=checksums, progress=progress)
    import jax

    return {
        path: jax.block_until_ready(place(path, value))
        for path, value in hf_checkpoint.read_parameters(directory, config, tensors=tensors, progress=progress)
    }


def weights_digest(
    directory: Path,
    kept: Path | None = None,
    *,
    known: MutableMapping[Path, Checksum] | None = None,
    progress: bool = False,
) -> str:
    """Return a digest of the names and contents of a model directory's weight files, whatever its path.

    ``kept``, ``known``: as for ``file_checksums``. Raises ConfigError for a directory without weights.
    """
    if is_converted(directory):
        files = read_manifest(directory).files
        return digest_of({name: record.sha256 for name, record in files.items() if name.startswith(_PARAMS)})
    return digest_of(file_checksums(directory, weight_files(directory), kept, known=known, progress=progress))
