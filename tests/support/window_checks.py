"""What must hold of the blocks of windows after a plan, and which rare events it brought."""

from itertools import takewhile

from jaxgen.core.sequence import Sequence
from jaxgen.core.step_plan import StepPlan
from tests.support.scheduler_book import Book

type Owners = list[dict[int, Sequence]]
"""By kind and block: a sequence that holds it."""


def owners_of(book: Book) -> Owners:
    return [
        {block: sequence for sequence in book.running() for block in held_by(sequence, number)}
        for number in range(len(book.cache.windows))
    ]


def held_by(sequence: Sequence, number: int) -> list[int]:
    """Its blocks of a kind."""
    held = sequence.blocks.windows[number]
    return held.table[held.num_freed :]


def check_windows(book: Book, plan: StepPlan, before: Owners) -> None:
    """Each sequence holds its blocks from one that a later token attends to; nothing is kept that no token needs."""
    if not book.cache.windows:
        return
    size = book.cache.block_size
    chunks = {chunk.sequence: chunk for chunk in plan.chunks}
    for number, (window, was, now) in enumerate(zip(book.cache.windows, before, owners_of(book), strict=True)):
        for sequence in book.running():
            held = sequence.blocks.windows[number]
            chunk = chunks.get(sequence)
            restore = sequence.blocks.restore
            waits = sequence.num_computed if restore is None else restore.end
            start, length = (waits, 0) if chunk is None else (chunk.start, chunk.length)
            assert held.num_freed <= max(0, start - window + 1) // size
            assert len(held_by(sequence, number)) <= book.blocks(window - 1) + 2 + book.blocks(length)
            assert length == 0 or len(held.table) == book.blocks(start + length)
            book.seen["freed behind the window"] += held.num_freed > 0
        for block, sequence in now.items():
            giver = was.get(block, sequence)
            both = giver is not sequence and giver in chunks and sequence in chunks
            book.seen["freed and given to another by one plan"] += both and block not in held_by(giver, number)
    for sequence in plan.admitted:
        hit, keys = chunks[sequence].start // size if sequence in chunks else 0, sequence.blocks.keys
        longer = hit < len(keys) and book.scheduler.pool.find(keys[hit]) not in (None, sequence.blocks.table[hit])
        book.seen["a window shortened a hit"] += longer


def window_shortens_hit(book: Book, sequence: Sequence) -> bool:
    """Whether blocks that a sequence would share are known, but not those of some window before their end."""
    keys, size = sequence.blocks.keys, book.cache.block_size
    known = list(takewhile(lambda key: book.scheduler.pool.find(key) is not None, keys))
    return any(
        pool.find(key) is None
        for window, pool in zip(book.cache.windows, book.scheduler.pools[1:], strict=True)
        for key in known[max(0, len(known) * size - window + 1) // size :]
    )


def windows_lack_room(book: Book, running: list[Sequence]) -> bool:
    """Whether the pool of some window could run out if these run to their ends, in steps of the longest chunks."""
    for window, blocks in zip(book.cache.windows, book.cache.window_blocks, strict=True):
        most = sum(min(book.blocks(sequence.max_cached), book.blocks(window - 1) + 2) for sequence in running)
        if most + book.blocks(book.config.token_budget) > blocks:
            return True
    return False
