"""How much of the device's memory blocks pass through on their way to and from the host. Host only, no jax."""

GROUP_BYTES = 32 * 2**20
"""What is gathered or scattered at a time: much, since each costs a dispatch."""
MOST_GROUP_BLOCKS = 32
RESTORING_GROUPS = 4
"""Groups under way to the device at a time: more than the links hold, since they are taken over between steps."""
SAVING_GROUPS = 2
PROJECTED_TOKENS = 256
"""Whose layer inputs come, and are projected, together: enough for a product to be bound by arithmetic, few enough to
project some while the next are copied."""


def projected_blocks(block_size: int, group: int) -> int:
    """Blocks that are projected together, where ``group`` are gathered or scattered."""
    return max(1, min(group, PROJECTED_TOKENS // block_size))


def group_size(block_bytes: int) -> int:
    """Blocks that are gathered or scattered together."""
    return max(1, min(MOST_GROUP_BLOCKS, GROUP_BYTES // block_bytes))


def staging_bytes(block_bytes: int) -> int:
    """The most that staging takes, one group more for the program that gathers or scatters included."""
    return (RESTORING_GROUPS + SAVING_GROUPS + 1) * group_size(block_bytes) * block_bytes
