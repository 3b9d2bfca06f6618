"""Size of the staging memory on the device for copies of blocks to and from the host. Host only, no jax."""

GROUP_BYTES = 32 * 2**20
"""Bytes gathered or scattered together: many, since each group costs a dispatch."""
MOST_GROUP_BLOCKS = 32
RESTORING_GROUPS = 4
"""Groups under way to the device at a time: more than the links hold, since they enter the cache between steps."""
SAVING_GROUPS = 2
STATES_EACH_WAY = 1
"""Snapshots of states under way to the host, and from it, at a time: one may be as large as many blocks."""
PROJECTED_TOKENS = 256
"""Tokens whose layer inputs are copied and projected together: enough for a product to be bound by arithmetic, and few
enough to project one group while the next is copied."""


def projected_blocks(block_size: int, group: int) -> int:
    """Return the number of blocks projected together, if ``group`` blocks are gathered or scattered together."""
    return max(1, min(group, PROJECTED_TOKENS // block_size))


def group_size(block_bytes: int) -> int:
    """Return the number of blocks gathered or scattered together."""
    return max(1, min(MOST_GROUP_BLOCKS, GROUP_BYTES // block_bytes))


def staging_bytes(*block_bytes: int, state_bytes: int = 0) -> int:
    """Return the most bytes of staging memory, including a group for the program that gathers or scatters.

    ``block_bytes``: of a block of each kind of cache. ``state_bytes``: of a snapshot of states, of which one is copied
    each way.
    """
    groups = [group_size(size) * size for size in block_bytes]
    return (RESTORING_GROUPS + 1) * max(groups) + SAVING_GROUPS * sum(groups) + 2 * STATES_EACH_WAY * state_bytes
