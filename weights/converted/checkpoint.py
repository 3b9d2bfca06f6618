"""Save and restore a converted directory: an Orbax checkpoint, configuration and tokenizer files, and a manifest.

jaxgen.json             see jaxgen.weights.converted.manifest
config.json, ...        as in the Hugging Face directory, except the name of a model without a head
params/                 Orbax checkpoint: the flat dict from dotted path to array. A quantized weight has an array for
                        each part. The part's name follows the path: layers.attn.out.weight.codes
"""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from jaxgen.core.errors import ConfigError
from jaxgen.core.mixed_weight import AnyFormat, AnyWeight, MixedFormat, MixedWeight, PartFormat, empty_part
from jaxgen.core.model_config import DType, ModelConfig
from jaxgen.core.plain_weight import PlainFormat
from jaxgen.core.quantization import WeightFormat
from jaxgen.terminal.progress import show_progress
from jaxgen.weights.converted.manifest import MANIFEST, manifest_of, verify, write_manifest
from jaxgen.weights.encodings.quantize import quantized
from jaxgen.weights.encodings.weight_formats import NUMPY_DTYPES, with_formats
from jaxgen.weights.encodings.zero_weights import ZeroWeights
from jaxgen.weights.families.parameters import Array, Parameter, Place, Value, family_name, parameters
from jaxgen.weights.families.registry import ARCHITECTURES, without_head
from jaxgen.weights.files.file_names import CARRIED_FILES, CONFIG
from jaxgen.weights.files.model_files import ModelFiles

PARAMS = "params"
_DATA_FILE_BYTES = 2**30


def save(
    directory: Path, params: Mapping[str, Any], config: ModelConfig, source: Path, *, progress: bool = True
) -> None:
    """Write ``params`` and the CARRIED_FILES of ``source`` into the empty ``directory``.

    The manifest comes last: a directory without it does not count as converted.
    """
    carried = ModelFiles(source)
    for name in CARRIED_FILES:
        if carried.path(name).exists():
            (directory / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, directory / name)
    if not config.generates:
        _name_headless(directory)
    with _orbax():
        ocp.save((directory / PARAMS).resolve(), dict(_arrays(params)))
    write_manifest(directory, family_name(config), config.dtype, dict(config.weight_formats), progress=progress)


def _name_headless(directory: Path) -> None:
    """Write the architecture without a head into config.json, where files without one told it."""
    data = ModelFiles(directory).read_json(CONFIG)
    names = [without_head(name) if name in ARCHITECTURES else name for name in data["architectures"]]
    (directory / CONFIG).write_text(json.dumps(data | {"architectures": names}, indent=2) + "\n", encoding="utf-8")


def _arrays(params: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, value in params.items():
        if isinstance(value, AnyWeight):
            yield from ((f"{path}.{name}", array) for name, array in value.arrays())
        else:
            yield path, value


def restore(
    files: ModelFiles, config: ModelConfig, *, place: Place, checksums: bool = True, progress: bool = True
) -> dict[str, Any]:
    """Load the parameters of a converted directory, each in its format or ``config.dtype``, and ``place`` each.

    File sizes are always compared with the manifest, checksums if ``checksums``. Raises ConfigError when a file is
    missing or differs, or the directory has other parameters than ``config`` describes.
    """
    directory = files.directory
    manifest = manifest_of(files, family_name(config))
    verify(files, manifest, checksums=checksums, progress=progress)
    params: dict[str, Any] = {}
    zeros = ZeroWeights()
    table = parameters(config)
    # parts that are numbers may be stored in another dtype
    formats = dict(with_formats(config, manifest.formats).weight_formats)
    with _orbax(), show_progress("loading weights", len(table), "it", bar=progress) as advance:
        _check_shapes(directory, config, manifest.formats)
        # one at a time, through the host: Orbax would commit the arrays to their device, and a step with only some
        # committed inputs compiles twice
        for parameter in table:
            path = parameter.path
            if path in manifest.formats:
                value: Value = _load_weight(directory, path, formats[path], parameter.shape)
            else:
                value = _load_array(directory, parameter, config.dtype)
                zeros.look(path, value)
                if isinstance(form := config.weight_format(path), WeightFormat):
                    value = quantized(value, form, f"{directory}: {path}")
            params[path] = jax.block_until_ready(place(path, value))
            advance(1)
    zeros.warn(directory)
    return params


def _check_shapes(directory: Path, config: ModelConfig, formats: Mapping[str, AnyFormat]) -> None:
    """Compare shapes with the checkpoint's metadata: Orbax itself loads arrays of other shapes than requested.

    Raises ConfigError for a parameter that is missing, unknown or of another shape.
    """
    with _readable(directory):
        saved = ocp.metadata((directory / PARAMS).resolve()).metadata
    if saved is None:
        raise ConfigError(f"{directory / PARAMS} is not an Orbax checkpoint; convert the checkpoint again")
    shapes = {path: tuple(array.shape) for path, array in saved.items()}
    wanted: dict[str, tuple[int, ...]] = {}
    for parameter in parameters(config):
        form = formats.get(parameter.path)
        if isinstance(form, MixedFormat):
            stacked, outputs = parameter.shape[0], parameter.shape[-2]
            if (len(form.layers), form.outputs) != (stacked, outputs):
                raise ConfigError(
                    f"{directory / MANIFEST}: weight_formats has {parameter.path} in {len(form.layers)} layers with "
                    f"{form.outputs} outputs, but {CONFIG} means {stacked} with {outputs}; convert the checkpoint again"
                )
        arrays = {} if form is None else form.arrays(parameter.shape)
        wanted |= {f"{parameter.path}.{name}": shape for name, (shape, _) in arrays.items()}
        wanted |= {} if arrays else {parameter.path: parameter.shape}
    for path in sorted(shapes.keys() | wanted.keys()):
        if shapes.get(path) != wanted.get(path):
            raise ConfigError(
                f"{directory / PARAMS}: {path} has shape {shapes.get(path)}, but {CONFIG} means {wanted.get(path)}; "
                f"convert the checkpoint again"
            )


def _load_weight(directory: Path, path: str, form: AnyFormat, shape: tuple[int, ...]) -> AnyWeight:
    if isinstance(form, MixedFormat):
        parts = (
            tuple(_load_part(directory, f"{path}.{kind}.{number}", *part) for number, part in enumerate(parts))
            for kind, parts in enumerate(form.shapes(shape))
        )
        return MixedWeight(form, tuple(parts))
    return _load_part(directory, path, form, shape)


def _load_part(directory: Path, path: str, form: PartFormat, shape: tuple[int, ...]) -> Any:
    """Return a part of a weight, a GroupedWeight or a PlainWeight."""
    empty = empty_part(form, shape)
    arrays: dict[str, Any] = {name: _load(directory, f"{path}.{name}", like) for name, like in empty.arrays()}
    if isinstance(form, PlainFormat):
        _check_fits(directory, path, arrays["numbers"])
    return replace(empty, **arrays)


def _load_array(directory: Path, parameter: Parameter, model_dtype: DType) -> Array:
    dtype = NUMPY_DTYPES[parameter.dtype or model_dtype]
    array = _load(directory, parameter.path, np.empty(parameter.shape, dtype))
    _check_fits(directory, parameter.path, array)
    return array


def _check_fits(directory: Path, path: str, array: Array) -> None:
    if array.dtype == np.float16 and not np.isfinite(array).all():
        raise ConfigError(f"{directory}: {path} has values that float16 cannot hold; use --dtype bfloat16 or float32")


def _load(directory: Path, path: str, like: Array) -> Array:
    """Load the parameter at ``path`` with the shape and dtype of ``like``, on the host."""
    with _readable(directory):
        array: Array = ocp.load((directory / PARAMS).resolve(), {path: like})[path]
    return array


@contextmanager
def _readable(directory: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as error:
        # tensorstore appends its whole specification in brackets
        reason = str(error).partition(" [")[0]
        raise ConfigError(f"{directory / PARAMS} cannot be read, convert the checkpoint again: {reason}") from error


@contextmanager
def _orbax() -> Iterator[None]:
    """Set Orbax's options: no compression (it saves a tenth and halves the speed), files of 1 GiB, only error messages.

    Its limits on concurrent bytes stay unset: it refuses to write or read an array that is larger than such a limit.
    """
    context = ocp.Context()
    context.array.saving.use_compression = False
    context.array.saving.ocdbt_target_data_file_size = _DATA_FILE_BYTES
    context.pytree.loading.partial_load = True
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with context:
            yield
    finally:
        logger.setLevel(level)
