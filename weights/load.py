"""Load the configuration and the parameters of a model directory, Hugging Face or converted, and name its weights.

Only what makes arrays imports jax: a model is found and described without it.
"""

from collections.abc import Callable, MutableMapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jaxgen.core.division import Division, Share
from jaxgen.core.errors import ConfigError
from jaxgen.core.identity import digest_of
from jaxgen.core.mixed_weight import AnyWeight
from jaxgen.core.model_config import DType, ModelConfig
from jaxgen.core.quantization import STORED_AS, Quantization
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
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.gguf.tensors import GgufTensors
from jaxgen.weights.huggingface import checkpoint as hf_checkpoint
from jaxgen.weights.huggingface.config import read_model_config

if TYPE_CHECKING:
    import jax

PlaceShares = Callable[[str, Callable[[int], Value]], Any]
_PARAMS = "params/"


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
    files = ModelFiles(directory)
    if not is_converted(directory):
        config = read_model_config(files, dtype)
        if lacks_head(config, files.tensor_names()):
            config = config.headless()
        if tensors is not None:
            formats = tensors.kept_formats(parameters(config)) if quantization in ("none", "fp4") else {}
            return _quantized(directory, with_formats(config, formats), quantization)
        stored = hf_checkpoint.stored_formats(files, config) if encodings_of(files) else {}
        return _quantized(directory, with_formats(config, kept_formats(stored, quantization)), quantization)
    manifest = read_manifest(files)
    config = read_model_config(files, manifest.dtype if dtype == "auto" else dtype)
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
    files = ModelFiles(directory)
    if is_converted(directory):
        # here, because importing Orbax takes 0.2 s, and only these directories need it
        from jaxgen.weights.converted import checkpoint

        return checkpoint.restore(files, config, place=place, checksums=checksums, progress=progress)
    import jax

    values = hf_checkpoint.read_parameters(files, config, tensors=tensors, progress=progress)
    return {path: jax.block_until_ready(place(path, value)) for path, value in values}


def load_shares(directory: Path, division: Division, *, place: PlaceShares, progress: bool = True) -> dict[str, Any]:
    """Load the parameters of a directory that several devices have a share of each, by path.

    ``place`` puts all shares of a parameter where programs read them, given its path and what reads the share of a
    rank, before the next is read. Of a Hugging Face directory there is one share in host memory at a time, and one
    tensor; of a converted one the whole parameter. Raises ConfigError like ``load_params``.
    """
    files = ModelFiles(directory)
    if is_converted(directory):
        from jaxgen.weights.converted import checkpoint

        def place_cuts(path: str, value: Any) -> Any:
            return place(path, partial(division.cut, path, value))

        return checkpoint.restore(files, division.whole, place=place_cuts, progress=progress)
    readers = hf_checkpoint.open_parameters(files, division.whole, ranks=division.ranks, progress=progress)

    def read_share(path: str, read: Callable[[Share | None], Value], rank: int) -> Value:
        return read(division.share(path, rank))

    return {path: place(path, partial(read_share, path, read)) for path, read in readers}


def weights_digest(
    directory: Path,
    folder: Path | None = None,
    *,
    known: MutableMapping[Path, Checksum] | None = None,
    progress: bool = False,
) -> str:
    """Return a digest of the names and contents of a model directory's weight files, whatever its path.

    ``folder``, ``known``: as for ``file_checksums``. Raises ConfigError for a directory without weights.
    """
    files = ModelFiles(directory)
    if is_converted(directory):
        records = read_manifest(files).files
        return digest_of({name: record.sha256 for name, record in records.items() if name.startswith(_PARAMS)})
    return digest_of(file_checksums(directory, files.weight_files.names, folder, known=known, progress=progress))
