"""Describe all that the bits of an engine's answers depend on, and its digest. Host only, no jax."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DIGITS = 16
"""Hexadecimal digits of a digest: 64 bits tell any number of replicas apart."""
_SIZES = ("num_blocks", "window_blocks", "num_snapshots", "max_model_len")


def digest_of(value: Any) -> str:
    """Return the digest of a JSON value: the first digits of SHA-256 over its canonical text."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


@dataclass(frozen=True, slots=True)
class Identity:
    """Named parts, JSON values, of all that the bits of answers depend on, and the digest of them; no parts: empty.

    Paths and secrets have no place in it: it is shown to callers.
    """

    parts: Mapping[str, Any] = field(default_factory=dict)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", digest_of(self.parts) if self.parts else "")

    @property
    def kv_namespace(self) -> bytes:
        """Digest of all that the bits of a block of the KV cache depend on, except its tokens.

        How requests become tokens is not in it. Nor are the number of blocks and the longest context: they follow the
        memory that is free at a start, and no product or sum depends on them. But a GPU's programs are, whose text has
        the number of blocks.
        """
        parts = {name: value for name, value in self.parts.items() if name != "texts"}
        steps = {name: value for name, value in parts.get("steps", {}).items() if name not in _SIZES}
        return digest_of({**parts, "steps": steps}).encode()


UNKNOWN = Identity()
"""Of an engine that is made without one."""
