"""Say which native kernels a device will have, before they are compiled and without importing jax."""

from jaxgen.hardware.device_info import DeviceInfo
from pallas_kernels.cpu.build import DTYPES, Recipe, UnavailableError

MATRIX_UNITS = "amx_bf16"
"""XLA multiplies bfloat16 on a CPU's matrix units, at about eight times the rate of its vector units."""


def native_dtypes(device: DeviceInfo) -> tuple[str, ...]:
    """Return the dtypes for which ``choose`` can make native kernels with the installed compiler."""
    try:
        Recipe.find()
    except UnavailableError:
        return ()
    return DTYPES if device.is_cpu else ()


def skips_padding(device: DeviceInfo, dtype: str) -> bool:
    """Return whether products of the kernels that ``choose`` makes for a dtype leave out padding, if they compile."""
    return dtype in native_dtypes(device) and not has_matrix_units(device, dtype)


def has_matrix_units(device: DeviceInfo, dtype: str) -> bool:
    """Return whether XLA's products of this dtype run on a CPU's matrix units."""
    return dtype == "bfloat16" and MATRIX_UNITS in device.features
