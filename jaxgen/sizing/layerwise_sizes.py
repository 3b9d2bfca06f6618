"""How much memory a cache takes that is in host memory and streamed through the device. Host only, no jax."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamSizes:
    """Bytes. The device has one layer of every block, copies under way of as much, all layers of the open blocks, and
    of as many that are gathered to be saved.

    ``layer``: of K and V of a block in one layer; ``inputs``: of its layer inputs, 0 if they are not kept. ``on_cpu``:
    host memory is the device's own.
    """

    layer: int
    inputs: int
    num_layers: int
    on_cpu: bool

    @property
    def host(self) -> int:
        """Of a block on the host."""
        return self.num_layers * (self.layer + self.inputs)

    @property
    def each(self) -> int:
        """Of a block in the device's memory."""
        return 2 * self.layer + (self.host if self.on_cpu else 0)

    def fixed(self, num_open: int) -> int:
        """Of the device's memory, however many blocks there are."""
        return 2 * num_open * self.host
