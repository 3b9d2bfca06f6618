"""Choose a model's token budget, and say how many bytes it takes on a device, without jax."""

from pathlib import Path

from jaxgen.core.config import KernelChoice
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.operations import OF_EVERY_TOKEN
from jaxgen.core.quantization import NATIVE_BITS, PLAIN_BITS
from jaxgen.files.cache_dirs import CacheDirs
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.code_support import read_in_registers
from jaxgen.kernels.native_support import multiplies_codes, skips_padding
from jaxgen.kernels.padding import padding_at_best
from jaxgen.sizing.token_budget import TokenBudget
from jaxgen.sizing.tuning_store import choose_budget
from jaxgen.weights.encodings.weight_formats import largest_matrix_bytes, parameter_bytes, placed_config, with_formats


def tuning_folder(caches: CacheDirs, kernels: KernelChoice) -> Path | None:
    """Return the folder of measurements, or None for XLA's kernels: only the default choice is measured."""
    return None if kernels == "xla" else caches.tuning


def token_budget(
    model: ModelConfig, device: DeviceInfo, kernels: KernelChoice, caches: CacheDirs, padded: str | None = None
) -> TokenBudget:
    """Return the tokens of a step that no option names: as measured on this device, else by the rule for it.

    ``padded``: what the chosen kernels of a GPU compute for padding; None: they are not chosen yet, and all made for it
    may be right.
    """
    folder = tuning_folder(caches, kernels)
    if device.is_cpu:
        skips = kernels == "auto" and skips_padding(device, model)
        return choose_budget(folder, model, device, skips_padding=skips)
    if padded is None:
        padded = ", ".join(OF_EVERY_TOKEN) if kernels == "xla" else padding_at_best(device, model)
    return choose_budget(folder, model, device, skips_padding=not padded, padded=padded)


def weight_bytes(model: ModelConfig, device: DeviceInfo, kernels: KernelChoice) -> int:
    """Return the bytes of a model's parameters as they are kept on a device.

    Quantized weights become numbers where no kernel multiplies them as they are.
    """
    multiplied = multiplies_codes(device, model.dtype) and not (device.is_cpu and kernels == "xla")
    integers = (NATIVE_BITS if device.is_cpu else PLAIN_BITS) if multiplied else ()
    return parameter_bytes(placed_config(model, lambda form: form.placed(integers=integers, floats=not device.is_cpu)))


def dequantised_bytes(model: ModelConfig, device: DeviceInfo, kernels: KernelChoice) -> int:
    """Return the bytes of numbers that a step makes of codes at a time: of the largest matrix that products do not read
    as codes, and none on a CPU."""
    if device.is_cpu:
        return 0
    read = read_in_registers(device, model, kernels)
    model = with_formats(model, {path: form for path, form in model.weight_formats if path not in read})
    return largest_matrix_bytes(model, device.compute_capability)
