"""What a load is, and a kind of them."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from scripts.peers.load import Times
from scripts.peers.peer import Peer
from scripts.peers.records import Records
from scripts.peers.shapes import Shape


class Load(Protocol):
    """A load, as a dataclass: its fields name it in the records."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...

    def measure(self, base_url: str, peer: Peer, times: Times, seed: int) -> dict[str, Any]:
        """Return figures of a server under this load, ready for JSON: ``completed``, ``failed`` and ``reasons`` of
        requests, ``wrong_lengths``, and the load's own. The same seed makes the same requests."""
        ...

    def summary(self, figures: dict[str, Any]) -> str:
        """Return the figures in a line."""
        ...


@dataclass(frozen=True, slots=True)
class LoadKind:
    """Loads that are measured together. ``shapes``: by name, with what is measured of each unless flags say otherwise;
    ``loads``: the ones that flags ask for; ``sections``: of a page of their records."""

    shapes: Mapping[str, Shape]
    loads: Callable[[argparse.Namespace], Sequence[Load]]
    sections: Callable[[Records, Shape], Iterator[str]]
