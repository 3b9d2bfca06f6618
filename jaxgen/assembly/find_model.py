"""Find a model's directory, read its configuration and choose its dtype: what serving and planning share.

It opens no device and imports no jax, so that a plan is ready before an engine could be.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from jaxgen.core.config import LOAD_FORMATS, HubOptions, KernelChoice, LoadFormat
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.errors import ConfigError
from jaxgen.core.kv_dtype import KVDType
from jaxgen.core.model_config import DType, ModelConfig
from jaxgen.core.quantization import Quantization
from jaxgen.hardware.device_info import DeviceInfo, choose_dtype
from jaxgen.kernels.native_support import native_dtypes
from jaxgen.weights.encodings.methods import encodings_of
from jaxgen.weights.encodings.weight_formats import FIRST_WITH_FP8, with_dtype
from jaxgen.weights.files.file_names import CONFIG
from jaxgen.weights.files.model_files import ModelFiles
from jaxgen.weights.gguf.source import FetchFiles
from jaxgen.weights.huggingface.hub import Fetch, download
from jaxgen.weights.load import load_model_config
from jaxgen.weights.packaged.default_model import default_model
from jaxgen.weights.resolve import OfGguf, download_model, download_outline, resolve_model
from jaxgen.weights.summary import check_weights

logger = logging.getLogger(__name__)


def find_model(
    model: str | None,
    dtype: DType | Literal["auto"],
    kernels: KernelChoice,
    device: DeviceInfo,
    hub: HubOptions | None = None,
    *,
    quantization: Quantization = "none",
    load_format: LoadFormat = "auto",
    kv_dtype: KVDType = "auto",
    fetch: Fetch = download_model,
    fetch_gguf: FetchFiles = download,
    of_gguf: OfGguf | None = None,
) -> tuple[Path, ModelConfig]:
    """Return the directory of a model (None: the embedded default) and its configuration in the dtype to compute in.

    ``quantization``: what its weights become when they are loaded. ``load_format`` "dummy": no weight files are needed,
    and none is fetched. ``kv_dtype``: of its KV cache. ``fetch``, ``fetch_gguf``, ``of_gguf``: as for
    ``resolve_model``. Raises ConfigError.
    """
    if load_format not in LOAD_FORMATS:
        raise ConfigError(f"--load-format must be {' or '.join(LOAD_FORMATS)}, not {load_format!r:.40}")
    if quantization == "fp8_dynamic":
        _check_multiplies_fp8(device)
    if load_format == "dummy" and fetch is download_model:
        fetch = download_outline
    if not model and hub is not None and hub.revision is not None:
        raise ConfigError(f"--revision {hub.revision} needs the hub id of a model, by --model")
    ways: dict[str, Any] = {"fetch": fetch, "fetch_gguf": fetch_gguf, "of_gguf": of_gguf}
    directory = resolve_model(model, hub, **ways) if model else default_model()
    if load_format == "dummy":
        _check_formats_known(directory)
    config = load_model_config(directory, dtype, quantization)
    native = native_dtypes(device) if kernels == "auto" else ()
    chosen = choose_dtype(config.dtype, device, native) if dtype == "auto" else config.dtype
    if chosen != config.dtype:
        logger.info(
            "computing in %s, which holds the checkpoint's %s exactly and is faster on this %s (--dtype chooses)",
            chosen,
            config.dtype,
            device.platform,
        )
        config = with_dtype(config, chosen)
    if load_format == "auto":
        check_weights(directory, config)  # before anything is compiled for them
    return directory, replace(config, kv_dtype=kv_dtype)


def longrope_note(model: ModelConfig, max_model_len: int) -> str:
    """Return which list of longrope factors holds for the contexts that are served; empty: the model has not two."""
    ropes = model.positions.ropes if isinstance(model, DecoderConfig) else ()
    two = [rope for rope in ropes if rope.kind == "longrope" and rope.factors != rope.short_factors]
    if not two:
        return ""
    original = two[0].original_max_position
    if max_model_len > original:
        return (
            f"longrope: all texts get the long factors, since up to {max_model_len} tokens are served; transformers "
            f"gives the short ones to texts of up to {original}: --max-model-len {original} gives them to all"
        )
    return (
        f"longrope: all texts get the short factors, as by transformers, since at most {max_model_len} tokens are "
        f"served; a --max-model-len above {original} gives the long ones to all"
    )


def _check_multiplies_fp8(device: DeviceInfo) -> None:
    """Raise ConfigError for a device whose products have no FP8. One that is not known may have."""
    capability = device.compute_capability
    if device.is_cpu or (capability is not None and capability < FIRST_WITH_FP8):
        raise ConfigError(
            f"--quantization fp8_dynamic needs a GPU whose products read FP8, of compute capability "
            f"{'.'.join(map(str, FIRST_WITH_FP8))} or more, and {device.kind} is not one: use fp8, which leaves "
            "activations as they are, or int8"
        )


def _check_formats_known(directory: Path) -> None:
    """Raise ConfigError for quantised weights without files, in which alone it is written how each is stored."""
    if encodings_of(ModelFiles(directory)) and not any(directory.glob("*.safetensors")):
        raise ConfigError(
            f"--load-format dummy: {directory / CONFIG} has a quantization_config, and there are no weight files that "
            "say which weights it means: take it out, and choose by --quantization"
        )
