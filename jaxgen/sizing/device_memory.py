"""Describe the memory of a device. Host only, no jax."""

from dataclasses import dataclass

GIB = 2**30


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory that an engine may use. ``free_bytes``: those of JAX's pool on an accelerator, of the machine on a CPU.

    ``host_bytes``: all memory of the machine or container; None: unknown. ``container_bytes``: the container's limit,
    if it is what bounds ``host_bytes``.
    """

    platform: str
    free_bytes: int
    host_bytes: int | None = None
    container_bytes: int | None = None

    @property
    def is_cpu(self) -> bool:
        return self.platform == "cpu"

    def __str__(self) -> str:
        text = f"the {self.free_bytes / GIB:.2f} GiB of {self.platform} memory that may be used"
        if not self.is_cpu or self.container_bytes is None:
            return text
        return f"{text} of the container's {self.container_bytes / GIB:.2f} GiB"
