"""Track the blocks of a streamed KV cache: open ones on the device, full ones in host memory. Host only, no jax."""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxgen.core.sequence import Chunk, Sequence


@dataclass(frozen=True, slots=True)
class StreamedBlock:
    """A block whose content is copied for each layer. ``start``: the position of its first token."""

    block: int
    start: int


@dataclass(frozen=True, slots=True)
class StepBlocks:
    """Blocks that one step reads and writes.

    ``streamed``: blocks that it only reads and the device does not have, ordered by their position in their sequences.
    ``places``: the places of all N blocks in LayerPool. ``filled``: open blocks whose last token it writes.
    """

    streamed: tuple[StreamedBlock, ...]
    places: list[int]
    filled: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SavedBlock:
    """A block that is being copied to the host from this place on the device."""

    block: int
    place: int


class LayerStore[Piece]:
    """N blocks, by id. The content of full blocks is in host memory, one Piece for all layers; other blocks are open.

    A block is opened when a chunk writes its first token. It is closed when its content has reached the host, or, if it
    is not full, when a step begins after its sequence has stopped running.
    """

    def __init__(self, num_blocks: int, num_open: int, block_size: int, *, window: int | None = None) -> None:
        """``window``: how many tokens a token attends to, including itself; None: all."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._window = window
        self._free = list(range(num_blocks + num_open - 1, num_blocks - 1, -1))
        self._open: dict[int, int] = {}
        self._saving: dict[int, SavedBlock] = {}
        self._pieces: dict[int, Piece] = {}

    @staticmethod
    def most_open(token_budget: int, max_num_seqs: int, block_size: int) -> int:
        """Return the most blocks that the chunks of one step can write to."""
        return token_budget // block_size + 2 * max_num_seqs

    def piece(self, block: int) -> Piece:
        """Return a block's content in host memory. Raises KeyError if it is not there."""
        return self._pieces[block]

    def __len__(self) -> int:
        """Return how many blocks have their content in host memory."""
        return len(self._pieces)

    def put(self, block: int, piece: Piece) -> None:
        """Enter the content of a block that no step wrote."""
        self._pieces[block] = piece

    def has_room(self, chunks: Iterable[Chunk], idle: Iterable[Sequence] = ()) -> bool:
        """Whether there are places for all blocks that the chunks open.

        Places of blocks being saved, and of ``idle`` sequences, which run but have no chunk, are not available.
        """
        written = {chunk.sequence.blocks.entry(i) for chunk in chunks for i in self._written(chunk)}
        still_open = written | self._begun(idle)
        freed = sum(block not in still_open for block in self._open)
        return len(self._free) + freed >= sum(b not in self._open and b not in self._saving for b in written)

    def begin(self, chunks: Iterable[Chunk], idle: Iterable[Sequence] = ()) -> StepBlocks:
        """Open the blocks that the chunks of a step write to. RuntimeError without room, or if a block is missing."""
        chunks = tuple(chunks)
        written = {chunk.sequence.blocks.entry(i) for chunk in chunks for i in self._written(chunk)}
        still_open = written | self._begun(idle)
        for block in [block for block in self._open if block not in still_open]:
            self._free.append(self._open.pop(block))
        streamed: dict[int, int] = {}
        filled = []
        for chunk in chunks:
            entry = chunk.sequence.blocks.entry
            for index in self._written(chunk):
                self._write(entry(index), anew=chunk.start <= index * self.block_size)
                if chunk.end >= (index + 1) * self.block_size:
                    filled.append(entry(index))
            for index in range(self._first_read(chunk), chunk.start // self.block_size):
                self._read(entry(index), index, streamed)
        places = list(range(self.num_blocks))
        for block, place in self._open.items():
            places[block] = place
        for saved in self._saving.values():
            places[saved.block] = saved.place
        ordered = sorted(streamed.items(), key=lambda item: item[1])
        return StepBlocks(
            tuple(StreamedBlock(block, index * self.block_size) for block, index in ordered), places, tuple(filled)
        )

    def save(self, block: int) -> SavedBlock:
        """Mark a full open block as being copied to the host. It stays in its place until ``saved``."""
        self._saving[block] = saved = SavedBlock(block, self._open.pop(block))
        return saved

    def saved(self, save: SavedBlock, piece: Piece) -> None:
        """Enter the copied content and free the place. If the block was opened again meanwhile, the copy is dropped."""
        if self._saving.get(save.block) is save:
            del self._saving[save.block]
            self._free.append(save.place)
            self._pieces[save.block] = piece

    def _first_read(self, chunk: Chunk) -> int:
        """Return the index of the first block of its sequence that a chunk attends to."""
        return 0 if self._window is None else max(0, chunk.start - self._window + 1) // self.block_size

    def _begun(self, idle: Iterable[Sequence]) -> set[int]:
        """Return the blocks of these sequences that are partly written."""
        size = self.block_size
        return {s.blocks.entry(s.num_computed // size) for s in idle if s.num_computed % size}

    def _written(self, chunk: Chunk) -> range:
        return range(chunk.start // self.block_size, (chunk.end - 1) // self.block_size + 1)

    def _write(self, block: int, *, anew: bool) -> None:
        if anew:
            self._pieces.pop(block, None)
            save = self._saving.pop(block, None)
            if save is not None:
                self._open[block] = save.place
        if block in self._open:
            return
        if not anew or not self._free:
            raise RuntimeError(f"block {block} is to be written, and {'there is no room' if anew else 'is not open'}")
        self._open[block] = self._free.pop()

    def _read(self, block: int, index: int, streamed: dict[int, int]) -> None:
        if block in self._pieces:
            streamed[block] = index
        elif block not in self._saving and block not in self._open:
            raise RuntimeError(f"block {block} is to be read, and neither on the device nor in host memory")
