"""Encode events of blocks as vLLM does since June 2026: an array of time, events and rank; each event a map."""

from collections import abc
from collections.abc import Iterator
from typing import Any

import msgpack

from jaxgen.cache.block_log import AllBlocksCleared, BlockEvent, BlockRemoved, BlockStored

MEDIUM = "GPU"
"""vLLM's word for the cache of the device, which consumers know; also where that is a CPU."""
HASH_BYTES = 8


def encode(events: abc.Sequence[BlockEvent], now: float) -> bytes:
    """Return the payload of one batch. ``now``: seconds since 1970."""
    packed: bytes = msgpack.packb([now, list(_maps(events)), 0])
    return packed


def block_hash(key: bytes) -> int:
    """Return the number by which consumers know a block: the last 8 bytes of its key."""
    return int.from_bytes(key[-HASH_BYTES:], "big")


def _maps(events: abc.Sequence[BlockEvent]) -> Iterator[dict[str, Any]]:
    """Yield maps, one for blocks that follow each other and one for blocks removed together."""
    open_map: dict[str, Any] | None = None
    last: bytes | None = None
    for event in events:
        if isinstance(event, BlockStored) and open_map and open_map["type"] == "BlockStored" and event.parent == last:
            open_map["block_hashes"].append(block_hash(event.key))
            open_map["token_ids"].extend(event.tokens)
            open_map["extra_keys"].append(None)
        elif isinstance(event, BlockRemoved) and open_map and open_map["type"] == "BlockRemoved":
            open_map["block_hashes"].append(block_hash(event.key))
        else:
            if open_map:
                yield open_map
            open_map = _map(event)
        last = event.key if isinstance(event, BlockStored) else None
    if open_map:
        yield open_map


def _map(event: BlockEvent) -> dict[str, Any]:
    match event:
        case AllBlocksCleared():
            return {"type": "AllBlocksCleared"}
        case BlockRemoved(key):
            return {"type": "BlockRemoved", "block_hashes": [block_hash(key)], "medium": MEDIUM, "group_idx": 0}
        case BlockStored(key, parent, tokens, salt):
            return {
                "type": "BlockStored",
                "block_hashes": [block_hash(key)],
                "parent_block_hash": None if parent is None else block_hash(parent),
                "token_ids": list(tokens),
                "block_size": len(tokens),
                "lora_id": None,
                "medium": MEDIUM,
                "lora_name": None,
                "extra_keys": [None if salt is None or parent is not None else [salt]],
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
