"""Layers' parameters in host memory, brought to the device for each step."""

from itertools import accumulate
from typing import Protocol, runtime_checkable

import jax

from jaxgen.layerwise.links import Links
from jaxgen.models import PackedParams
from jaxgen.offload.link import Transfer


@runtime_checkable
class Layers(Protocol):
    """Parameters by layer: a tuple of all, or those that are on the device."""

    def __getitem__(self, layer: int, /) -> PackedParams: ...

    def __len__(self) -> int: ...


class LayerWeights:
    """The parameters of L layers, of which the device has one layer's, and the next one's on their way.

    The layers are asked for and taken one after another, the first again after the last. The first is asked for at
    once. Used by one thread.
    """

    def __init__(self, layers: tuple[PackedParams, ...], links: Links) -> None:
        """``layers``: on the host, as ``links`` has them."""
        self._layers, self._links = layers, links
        self._asked: list[tuple[tuple[str, ...], Transfer]] = []
        self._taken: tuple[int, PackedParams] | None = None
        self.ask(0, 0, 1)

    @property
    def num_bytes(self) -> int:
        """Of one layer."""
        return sum(array.nbytes for array in self._layers[0].values())

    def ask(self, layer: int, part: int, parts: int) -> None:
        """Begin to bring one of ``parts`` parts of a layer's parameters, of about the same size as far as whole arrays
        allow. Returns at once."""
        params = self._layers[layer % len(self._layers)]
        paths = _part(params, part, parts)
        self._asked.append((paths, self._links.up.submit(tuple(params[path] for path in paths))))

    def take(self, layer: int) -> None:
        """Let the device have this layer's parameters, when they have landed. Raises what a copy raised."""
        params: PackedParams = {}
        while len(params) < len(self._layers[layer]):
            paths, transfer = self._asked.pop(0)
            params.update(zip(paths, self._links.wait_idle(transfer, ()), strict=True))
        self._taken = layer, params

    def __getitem__(self, layer: int) -> PackedParams:
        """Of the layer that was taken last. LookupError for another."""
        if self._taken is None or self._taken[0] != layer:
            raise LookupError(f"layer {layer} is not on the device")
        return self._taken[1]

    def __len__(self) -> int:
        return len(self._layers)


def _part(params: PackedParams, part: int, parts: int) -> tuple[str, ...]:
    """Paths of the arrays whose middle byte is in this part of all bytes."""
    sizes = [array.nbytes for array in jax.tree.leaves(list(params.values()))]
    ends = list(accumulate(sizes))
    middles = (end - size / 2 for end, size in zip(ends, sizes, strict=True))
    return tuple(path for path, middle in zip(params, middles, strict=True) if int(middle / ends[-1] * parts) == part)
