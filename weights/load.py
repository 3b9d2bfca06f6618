"""From a ``--model`` value to a configuration and parameters, whatever kind of directory it is."""

import atexit
import shutil
import tempfile
import textwrap
from functools import cache
from pathlib import Path
from typing import Any, Literal

import huggingface_hub
import jax

from jaxgen.core.config import DType, ModelConfig
from jaxgen.core.errors import ConfigError
from jaxgen.weights import hf_checkpoint
from jaxgen.weights.files import CARRIED_FILES, CONFIG, member
from jaxgen.weights.hf_config import read_model_config
from jaxgen.weights.manifest import is_converted, read_manifest
from jaxgen.weights.placing import Place, on_device
from jaxgen.weights.tiny import make_tiny_checkpoint

DEMO = Path(__file__).parent / "demo"

_WANTED = ["*.json", "*.safetensors", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model"]
_UNWANTED = ["[!1]*/*", "consolidated*"]
"""Subfolders but 1_Pooling, and Mistral's own format, repeat the weights."""


def resolve_model(model: str) -> Path:
    """The directory of a model: an existing one, or a hub id, which is fetched into the hub's cache or found there.

    Only JSON, safetensors and tokenizer files are fetched, never pickles or code. Raises ConfigError when there is no
    such directory or the hub cannot be asked, and for links that lead out of the directory.
    """
    directory = Path(model).expanduser()
    if directory.is_file():
        raise ConfigError(f"--model {model} is a file; name the directory it is in")
    if not directory.is_dir():
        directory = _fetch(model)
    for name in CARRIED_FILES:
        member(directory, name)
    if not (directory / CONFIG).is_file():
        raise ConfigError(f"{directory} is no model directory: it has no {CONFIG}")
    return directory


@cache
def default_model() -> Path:
    """The directory of the embedded model or, where the package has none, of a tiny random one that lives as long as
    the process."""
    if (DEMO / CONFIG).is_file():
        return DEMO
    directory = Path(tempfile.mkdtemp(prefix="jaxgen-tiny-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    make_tiny_checkpoint(directory)
    return directory


def load_model_config(directory: Path, dtype: Literal["auto"] | DType = "auto") -> ModelConfig:
    """The configuration of a Hugging Face or converted directory.

    ``dtype`` "auto" is the one a Hugging Face directory's config.json names, and the one a conversion chose.
    """
    if dtype == "auto" and is_converted(directory):
        dtype = read_manifest(directory).dtype
    return read_model_config(directory, dtype)


def load_params(
    directory: Path,
    config: ModelConfig,
    *,
    place: Place = on_device,
    checksums: bool = True,
    progress: bool = True,
) -> dict[str, Any]:
    """The parameters of a Hugging Face or converted directory on the default device, in ``config.dtype``, by path.

    ``place`` puts each there, given its path and the host's array, before the next is read. ``checksums`` False trusts
    the files of a converted directory that have the right size. Raises ConfigError naming the file or tensor that is
    missing, corrupt or does not fit ``config``.
    """
    if is_converted(directory):
        from jaxgen.weights import (
            checkpoint,  # here, because importing Orbax takes 0.2 s, and only these directories need it
        )

        return checkpoint.restore(directory, config, place=place, checksums=checksums, progress=progress)
    return {
        path: jax.block_until_ready(place(path, array))
        for path, array in hf_checkpoint.read_parameters(directory, config, progress=progress)
    }


def _fetch(model: str) -> Path:
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ConfigError(f"--model {model}: there is no such directory")
    try:
        return Path(huggingface_hub.snapshot_download(model, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    # the hub's client lets errors of its HTTP library through, and which library that is depends on its version
    except Exception as error:
        reason = textwrap.shorten(str(error) or type(error).__name__, 400, placeholder=" ...")
        raise ConfigError(
            f"--model {model}: there is no such directory, and it cannot be fetched from the hub: {reason}"
        ) from error
