"""``jaxgen convert-weights SOURCE DEST``: convert a Hugging Face checkpoint, or a GGUF file, to a directory that loads
fast."""

import logging
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import jax

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError, check_path
from jaxgen.core.model_config import DType, ModelConfig
from jaxgen.core.quantization import QUANTIZATIONS, STORED_AS, Quantization
from jaxgen.terminal.command_line import CommandLine
from jaxgen.terminal.model_flags import add_dtype_flag, add_hub_flags, add_quantization_flag, hub_options
from jaxgen.weights.converted import checkpoint
from jaxgen.weights.converted.manifest import is_converted
from jaxgen.weights.encodings.weight_formats import parameter_bytes
from jaxgen.weights.files.atomic import new_directory
from jaxgen.weights.gguf import model as gguf
from jaxgen.weights.gguf.source import find_gguf
from jaxgen.weights.gguf.tensors import GgufTensors
from jaxgen.weights.load import load_model_config, load_params
from jaxgen.weights.packaged.files import packaged_file
from jaxgen.weights.resolve import resolve_model


def main(argv: Sequence[str] | None = None) -> None:
    """Convert as the command line says. Raises ConfigError or OSError when that is not possible."""
    parser = CommandLine(
        prog="jaxgen convert-weights",
        allow_abbrev=True,
        description="Convert a Hugging Face checkpoint, or a GGUF file, to an Orbax checkpoint that loads fast and is "
        "verified on load.",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="directory with config.json and safetensors files, hub id, GGUF file, REPOSITORY:Q4_K_M of the hub, or a "
        "name that jaxgen models lists",
    )
    parser.add_argument("destination", metavar="DEST", type=Path, help="directory to make")
    add_dtype_flag(
        parser, "dtype to store; auto: as in SOURCE's config.json; of a GGUF file that is quantised, bfloat16"
    )
    add_quantization_flag(
        parser,
        "what matrices are rounded to, or kept in (fp8, fp4); none: integers are stored as they are in SOURCE, "
        "others as numbers",
        [name for name in QUANTIZATIONS if name not in STORED_AS],
    )
    add_hub_flags(parser)
    parser.add_argument("--force", action="store_true", help="replace DEST when it is an earlier conversion")
    options = parser.parse_args(argv)
    # weights only pass through memory here, so a GPU stays free for other processes
    jax.config.update("jax_platforms", "cpu")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("jaxgen").setLevel(logging.INFO)
    convert(
        options.source,
        options.destination,
        hub=hub_options(options),
        dtype=options.dtype,
        quantization=options.quantization,
        force=options.force,
    )
    sys.stdout.write(f"{options.destination} is ready: jaxgen serve --model {options.destination}\n")


def convert(
    source: str,
    destination: Path,
    *,
    hub: HubOptions | None = None,
    dtype: Literal["auto"] | DType = "auto",
    quantization: Quantization = "none",
    force: bool = False,
    confirm: Callable[[], None] = lambda: None,
    progress: bool = True,
) -> None:
    """Make the converted directory ``destination`` from ``source``, a Hugging Face directory, a hub id, or a GGUF file.

    It appears when it is complete and on the disk, and not at all when a step fails before that. ``force`` replaces an
    earlier conversion. ``confirm`` is called before it appears, and may raise. Raises ConfigError for an unusable
    source or destination.
    """
    check_path("DEST", destination)
    with _opened(source, hub) as (directory, tensors):
        config = load_model_config(directory, dtype, quantization, tensors=tensors)
        _check_room(destination, config)
        with new_directory(destination, replaceable=is_converted if force else None) as partial:
            params = load_params(directory, config, tensors=tensors, progress=progress)
            checkpoint.save(partial, params, config, directory, progress=progress)
            confirm()


def _check_room(destination: Path, config: ModelConfig) -> None:
    """Raise ConfigError where the disk has less room than the parameters take."""
    above = next(folder for folder in destination.absolute().parents if folder.exists())
    room, wanted = shutil.disk_usage(above).free, parameter_bytes(config)
    if room < wanted:
        raise ConfigError(
            f"{destination} needs {wanted / 2**30:,.2f} GiB, and its disk has {room / 2**30:,.2f} GiB left"
        )


@contextmanager
def _opened(source: str, hub: HubOptions | None) -> Iterator[tuple[Path, GgufTensors | None]]:
    """Give the directory that describes the model, and its tensors where they are elsewhere."""
    check_path("SOURCE", source)
    source = packaged_file(source, hub) or source
    if (file := find_gguf(source, hub or HubOptions(), flag="SOURCE")) is not None:
        with gguf.opened(file) as opened:
            yield opened
        return
    directory = resolve_model(source, hub)
    if is_converted(directory):
        raise ConfigError(f"{directory} is converted already")
    yield directory, None
