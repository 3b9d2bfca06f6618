"""How much of the device's memory blocks pass through on their way to and from the host. Host only, no jax."""

GROUP_BYTES = 32 * 2**20
"""What is gathered or scattered at a time: much, since each costs a dispatch."""
MOST_GROUP_BLOCKS = 32
RESTORING_GROUPS = 4
"""Groups under way to the device at a time: more than the links hold, since they are taken over between steps."""
SAVING_GROUPS = 2


def group_size(block_bytes: int) -> int:
    """Blocks that are gathered or scattered together."""
    return max(1, min(MOST_GROUP_BLOCKS, GROUP_BYTES // block_bytes))


def staging_bytes(block_bytes: int) -> int:
    """The most that staging takes, one group more for the program that gathers or scatters included."""
    return (RESTORING_GROUPS + SAVING_GROUPS + 1) * group_size(block_bytes) * block_bytes
