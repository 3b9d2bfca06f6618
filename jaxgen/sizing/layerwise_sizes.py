"""Memory of a KV cache that is in host memory and streamed through the device. Host only, no jax."""

from dataclasses import dataclass

from jaxgen.cache.cache_format import CacheFormat
from jaxgen.core.model_config import ModelConfig
from jaxgen.sizing.device_memory import DeviceMemory


@dataclass(frozen=True, slots=True)
class StreamSizes:
    """Sizes in bytes of a cache of which the device has one layer at a time.

    The device has one layer of all blocks, and copies under way of the same size. It has all layers of the open blocks,
    and all layers of as many blocks again that are gathered to be saved.

    ``layer``: K and V of a block in one layer. ``inputs``: its layer inputs, 0 if they are not kept. ``num_layers``:
    layers that have K and V. ``on_cpu``: host memory is the device's own memory.
    """

    layer: int
    inputs: int
    num_layers: int
    on_cpu: bool

    @property
    def host(self) -> int:
        """Bytes of a block in host memory."""
        return self.num_layers * (self.layer + self.inputs)

    @property
    def each(self) -> int:
        """Bytes of the device's memory for each block."""
        return 2 * self.layer + (self.host if self.on_cpu else 0)

    def fixed(self, num_open: int) -> int:
        """Return the bytes of the device's memory that do not depend on the number of blocks."""
        return 2 * num_open * self.host


def stream_sizes(model: ModelConfig, block_size: int, memory: DeviceMemory, *, keep_inputs: bool) -> StreamSizes:
    """Return the sizes of the blocks of a streamed cache."""
    whole = CacheFormat.of(model, block_size, keep_inputs=keep_inputs)
    layer = whole.of_layer
    kv, inputs = block_size * layer.kv_bytes, block_size * layer.kept_input_bytes
    return StreamSizes(kv, inputs, len(whole.rows), on_cpu=memory.is_cpu)
