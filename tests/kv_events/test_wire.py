"""The bytes of a batch, as vLLM 0.26 was seen to send them."""

import msgpack

from jaxgen.cache.block_log import AllBlocksCleared, BlockEvent, BlockRemoved, BlockStored
from jaxgen.kv_events.wire import encode

KEYS = [bytes(8) + bytes([1, 0, 0, 0, 0, 0, 0, n]) for n in range(5)]
HASHES = [2**56 + n for n in range(5)]


def stored(n: int, parent: int | None, salt: str | None = None) -> BlockStored:
    return BlockStored(KEYS[n], None if parent is None else KEYS[parent], (10 * n, 10 * n + 1), salt)


def test_blocks_in_a_row_are_one_event_and_everything_keeps_its_order() -> None:
    events = [stored(0, None, "s"), stored(1, 0, "s"), stored(3, 1, "s"), stored(4, None), stored(2, 1, "s")]
    events_after: list[BlockEvent] = [BlockRemoved(KEYS[3]), BlockRemoved(KEYS[4]), AllBlocksCleared(), stored(1, 0)]
    now, found, rank = msgpack.unpackb(encode([*events, *events_after], 1.5))
    assert (now, rank) == (1.5, 0)
    common = {
        "type": "BlockStored",
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    assert found == [
        {
            **common,
            "block_hashes": [HASHES[0], HASHES[1], HASHES[3]],
            "parent_block_hash": None,
            "token_ids": [0, 1, 10, 11, 30, 31],
            "extra_keys": [["s"], None, None],
        },
        {
            **common,
            "block_hashes": [HASHES[4]],
            "parent_block_hash": None,
            "token_ids": [40, 41],
            "extra_keys": [None],
        },
        {
            **common,
            "block_hashes": [HASHES[2]],
            "parent_block_hash": HASHES[1],
            "token_ids": [20, 21],
            "extra_keys": [None],
        },
        {"type": "BlockRemoved", "block_hashes": [HASHES[3], HASHES[4]], "medium": "GPU", "group_idx": 0},
        {"type": "AllBlocksCleared"},
        {
            **common,
            "block_hashes": [HASHES[1]],
            "parent_block_hash": HASHES[0],
            "token_ids": [10, 11],
            "extra_keys": [None],
        },
    ]
