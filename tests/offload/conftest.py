"""Engines of these tests share the programs that copy and project blocks: each is compiled once for its shapes."""

from functools import partial
from typing import Any

import jax
import pytest

from jaxgen.offload.transfer import copy_programs, kv_transfer, projection
from jaxgen.runner.program import Program, shapes_of

_compile_copies, _known = copy_programs.compile_blocks, dict[Any, Any]()


def _shared(key: Any, arrays: Any, compile_anew: Any) -> Any:
    leaves, tree = jax.tree.flatten(shapes_of(arrays))
    key = (key, tuple(leaves), tree)
    if key not in _known:
        _known[key] = compile_anew()
    return _known[key]


class _SharedProgram(Program):
    """A program of a ``functools.partial``, compiled once for its shapes."""

    def compile(self, options: Any = None) -> Any:
        assert isinstance(self.function, partial)
        assert (self.function.keywords, options) == ({}, None), "they would belong to what is compared"
        made = super().compile
        return _shared((self.function.func, self.function.args, self.donated), self.shapes, made)


@pytest.fixture(autouse=True)
def _shared_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_copies(cache: Any, *kind: Any) -> Any:
        return _shared(kind, cache, lambda: _compile_copies(cache, *kind))

    monkeypatch.setattr(kv_transfer, "compile_blocks", compile_copies)
    monkeypatch.setattr(projection, "Program", _SharedProgram)
