"""Parameters of layers in host memory, copied to the device for each step."""

from itertools import accumulate
from typing import Protocol, runtime_checkable

import jax

from jaxgen.arrays import num_bytes
from jaxgen.layerwise.links import Links
from jaxgen.models import PackedParams
from jaxgen.offload.link import Transfer


@runtime_checkable
class Layers(Protocol):
    """Parameters by layer: a tuple of all layers, or a LayerWeights with those on the device."""

    def __getitem__(self, layer: int, /) -> PackedParams: ...

    def __len__(self) -> int: ...


class LayerWeights:
    """The parameters of L layers: the device has those of one layer, and those of the next are being copied to it.

    Layers are asked for and taken in order, the first again after the last. The first is asked for at once. Used by one
    thread.
    """

    def __init__(self, layers: tuple[PackedParams, ...], links: Links) -> None:
        """``layers``: parameters in host memory, in the form of ``links.put_on_host``."""
        self._layers, self._links = layers, links
        self._asked: list[tuple[tuple[str, ...], Transfer]] = []
        self._taken: tuple[int, PackedParams] | None = None
        self.ask(0, 0, 1)

    @property
    def num_bytes(self) -> int:
        """Bytes of one layer's parameters."""
        return sum(map(num_bytes, self._layers[0].values()))

    def ask(self, layer: int, part: int, parts: int) -> None:
        """Begin to copy one of ``parts`` parts of a layer's parameters, and return at once.

        Parts are of about the same size, as far as whole arrays allow.
        """
        params = self._layers[layer % len(self._layers)]
        paths = _part(params, part, parts)
        self._asked.append((paths, self._links.up.submit(tuple(params[path] for path in paths))))

    def take(self, layer: int) -> None:
        """Wait for this layer's parameters and make them the current ones. Raises what a copy raised."""
        params: PackedParams = {}
        while len(params) < len(self._layers[layer]):
            paths, transfer = self._asked.pop(0)
            params.update(zip(paths, self._links.wait_idle(transfer, ()), strict=True))
        self._taken = layer, params

    def __getitem__(self, layer: int) -> PackedParams:
        """Return the parameters of the layer that was taken last. LookupError for another layer."""
        if self._taken is None or self._taken[0] != layer:
            raise LookupError(f"layer {layer} is not on the device")
        return self._taken[1]

    def __len__(self) -> int:
        return len(self._layers)


def _part(params: PackedParams, part: int, parts: int) -> tuple[str, ...]:
    """Return the paths of the arrays whose middle byte is in this part of all bytes."""
    sizes = [num_bytes(array) for array in jax.tree.leaves(list(params.values()))]
    ends = list(accumulate(sizes))
    middles = (end - size / 2 for end, size in zip(ends, sizes, strict=True))
    return tuple(path for path, middle in zip(params, middles, strict=True) if int(middle / ends[-1] * parts) == part)
