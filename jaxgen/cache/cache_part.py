"""The interface of what sequences have in the cache besides the blocks that keep all tokens. Host only, no jax."""

from typing import Protocol

from jaxgen.core.sequence import Chunk, Sequence


class CachePart(Protocol):
    """What a sequence needs in addition to its block table: the blocks of a kind with a window, or a state.

    A prefix is found only as far as all parts agree. ``agrees`` changes nothing. For each sequence that begins to run,
    ``KVCacheManager`` calls ``share`` once, then ``begin_chunk`` for planned chunks, and ``release`` when the sequence
    gives its row back. If blocks are found while it runs, ``share`` comes again, before its next chunk.
    ``first`` is the number of blocks that the sequence has computed to their end, 0 if it waits.
    """

    @property
    def is_all_free(self) -> bool:
        """Whether no sequence holds anything of it."""
        ...

    def begin_plan(self) -> None:
        """Note that a new plan is made, so that the chunks planned before count as computed."""
        ...

    def agrees(self, sequence: Sequence, first: int, length: int, *, host: bool = False) -> int:
        """Return the most blocks, from ``first`` to ``length``, after which a sequence could go on; ``first``: no more.

        The keys of its first ``length`` blocks are known. ``host``: what host memory has of the part counts too.
        """
        ...

    def share(self, sequence: Sequence, first: int, length: int) -> None:
        """Give a sequence what it needs to go on after ``length`` blocks, on which all parts agree.

        ``length`` 0: it computes all its tokens. It has its row.
        """
        ...

    def begin_chunk(self, chunk: Chunk) -> None:
        """Give a sequence what a planned chunk needs that begins a block or reaches the end of one.

        It is called again with a longer chunk if forced tokens follow the chunk.
        """
        ...

    def register(self, sequence: Sequence, index: int, key: bytes) -> None:
        """Note the key of a sequence's block ``index``, whose tokens are all computed and known now."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Take everything back from a sequence; it may hold nothing."""
        ...
