"""A model and a device that are found but not loaded, and the configuration of an engine on them."""

import logging
from dataclasses import dataclass
from pathlib import Path

from jaxgen.assembly.model_sizes import dequantised_bytes, token_budget, tuning_folder, weight_bytes
from jaxgen.core.config import EngineConfig, EngineOptions, KernelChoice, LoadFormat
from jaxgen.core.division import Division
from jaxgen.core.model_config import ModelConfig
from jaxgen.files.cache_dirs import CacheDirs
from jaxgen.hardware.device_info import DeviceInfo
from jaxgen.kernels.choice import proven
from jaxgen.kernels.proving.verdict import NOTHING_PROVEN, Verdict
from jaxgen.sizing.device_memory import DeviceMemory
from jaxgen.sizing.memory import resolve
from jaxgen.sizing.step_bounds import DEFAULT_BLOCK_SIZE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model and device that are found but not loaded: the model's directory, its configuration in the dtype to
    compute in, the device, its memory, and the cache directories.

    ``division``: how several devices have the model, of which ``model``, ``device`` and ``memory`` are one's part then.
    """

    directory: Path
    model: ModelConfig
    device: DeviceInfo
    memory: DeviceMemory
    caches: CacheDirs
    kernels: KernelChoice
    verdict: Verdict = NOTHING_PROVEN
    """Verdict on the kernels made for a GPU."""
    load_format: LoadFormat = "auto"
    division: Division | None = None

    @property
    def params_bytes(self) -> int:
        return weight_bytes(self.model, self.device, self.kernels)

    @property
    def dequantised_bytes(self) -> int:
        return dequantised_bytes(self.model, self.device, self.kernels)

    @property
    def tuning_folder(self) -> Path | None:
        return tuning_folder(self.caches, self.kernels)

    def configure(self, options: EngineOptions) -> EngineConfig:
        """Return the configuration that meets ``options`` and fits, and log which rule chose the token budget."""
        padded = self._padded(options.block_size or DEFAULT_BLOCK_SIZE)
        budget = token_budget(self.model, self.device, self.kernels, self.caches, padded)
        config = resolve(
            options,
            self.model,
            self.memory,
            token_budget=budget.tokens,
            params_bytes=self.params_bytes,
            dequantised_bytes=self.dequantised_bytes,
            most_rows=budget.most_rows,
        )
        if options.token_budget is None:
            logger.info("token budget %d: %s", config.scheduler.token_budget, budget.reason)
        return config

    def _padded(self, block_size: int) -> str | None:
        """Return what the chosen kernels of a GPU compute for padding; None for other kernels."""
        if self.device.is_cpu or self.kernels == "xla":
            return None
        return proven(self.device, self.model, block_size, self.verdict).computes_padding
