"""Simulated links: each copy is made, and held back until a link of a given rate would have carried it."""

from jaxgen.layerwise.links import Links
from jaxgen.offload.transfer.kv_transfer import KVTransfer


def simulate(links: Links | KVTransfer, bytes_per_second: float | None) -> None:
    """Delay copies, both ways and from now on, as links of this rate would; None: do not."""
    links.down.bytes_per_second = links.up.bytes_per_second = bytes_per_second
