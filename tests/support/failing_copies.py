"""Copies between device and host memory that are slow, or fail, when a test says so."""

from collections.abc import Callable
from typing import Any

import pytest

from jaxgen.engine.engine import Engine
from jaxgen.offload.build import Offload


def slow_links(engine: Engine, bytes_per_second: float) -> Engine:
    """Return an engine whose links have this rate from now on, and which has measured them."""
    assert isinstance(engine.offload, Offload)
    transfer = engine.offload.transfer
    transfer.down.bytes_per_second = transfer.up.bytes_per_second = bytes_per_second
    transfer.measure()
    return engine


def fail_first_copy_back(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, look_at: Callable[[Any], None] = lambda pieces: None
) -> None:
    """The first copy from host memory fails, after it has been made; ``look_at`` is told what it was of."""
    assert isinstance(engine.offload, Offload)
    link = engine.offload.transfer.up
    submit, failures = link.submit, iter([True])

    def failing(pieces: Any) -> Any:
        transfer = submit(pieces)
        if next(failures, False):
            look_at(pieces)
            while not transfer.done:
                pass
            transfer.error = MemoryError("no memory")
        return transfer

    monkeypatch.setattr(link, "submit", failing)
