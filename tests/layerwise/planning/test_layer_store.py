"""Where blocks are, from step to step: open, on their way to the host, or there."""

from types import SimpleNamespace
from typing import Any

import pytest

from jaxgen.core.sequence import SequenceBlocks
from jaxgen.layerwise.planning.layer_store import LayerStore, StreamedBlock

B = 4
N = 10


def chunk(table: list[int], start: int, end: int) -> Any:
    return SimpleNamespace(sequence=SimpleNamespace(blocks=SequenceBlocks(table)), start=start, end=end)


def store(num_open: int = 3) -> LayerStore[str]:
    return LayerStore(N, num_open, B)


def open_blocks(places: list[int]) -> dict[int, int]:
    return {block: place for block, place in enumerate(places) if place >= N}


def fill(blocks: LayerStore[str], table: list[int], tokens: int) -> None:
    """A prompt whose full blocks reach the host."""
    for block in blocks.begin([chunk(table, 0, tokens)]).filled:
        blocks.saved(blocks.save(block), f"content of {block}")


def test_a_prompt_opens_its_blocks_and_a_decode_streams_them() -> None:
    blocks = store()
    step = blocks.begin([chunk([7, 2, 5], 0, 10)])
    assert (step.streamed, step.filled) == ((), (7, 2))
    assert open_blocks(step.places) == {7: 10, 2: 11, 5: 12}
    saves = [blocks.save(block) for block in step.filled]
    step = blocks.begin([chunk([7, 2, 5], 10, 11)])
    assert step.streamed == (), "what is on its way to the host is read where it is"
    assert open_blocks(step.places) == {7: 10, 2: 11, 5: 12}
    for save in saves:
        blocks.saved(save, f"content of {save.block}")
    step = blocks.begin([chunk([7, 2, 5], 11, 12)])
    assert step.streamed == (StreamedBlock(7, 0), StreamedBlock(2, 4))
    assert step.filled == (5,)
    assert open_blocks(step.places) == {5: 12}
    assert blocks.piece(2) == "content of 2"


def test_blocks_at_the_front_of_their_sequences_come_first_and_shared_ones_once() -> None:
    blocks = store(6)
    fill(blocks, [1, 2, 3], 12)
    fill(blocks, [1, 4, 5], 12)
    step = blocks.begin([chunk([1, 2, 3, 6], 12, 13), chunk([1, 4, 5, 7], 12, 13)])
    assert [one.start for one in step.streamed] == [0, 4, 4, 8, 8]
    assert {one.block for one in step.streamed} == {1, 2, 3, 4, 5}


def test_an_open_block_whose_sequence_is_passed_over_stays() -> None:
    blocks = store(2)
    blocks.begin([chunk([1], 0, 2)])
    idle: list[Any] = [
        SimpleNamespace(blocks=SequenceBlocks([1]), num_computed=2),
        SimpleNamespace(blocks=SequenceBlocks([5, 6]), num_computed=B),
    ]
    assert not blocks.has_room([chunk([2], 0, 2), chunk([3], 0, 2)], idle)
    assert blocks.has_room([chunk([2], 0, 2)], idle)
    step = blocks.begin([chunk([2], 0, 2)], idle)
    assert open_blocks(step.places) == {1: 10, 2: 11}
    assert open_blocks(blocks.begin([chunk([1], 2, 3)]).places) == {1: 10}


def test_an_open_block_whose_sequence_is_gone_makes_room() -> None:
    blocks = store(1)
    blocks.begin([chunk([3], 0, 2)])
    assert blocks.has_room([chunk([8], 0, 2)])
    assert open_blocks(blocks.begin([chunk([8], 0, 2)]).places) == {8: 10}
    assert open_blocks(blocks.begin([chunk([8], 2, 3)]).places) == {8: 10}


def test_there_is_no_room_until_a_copy_has_ended() -> None:
    blocks = store(1)
    (full,) = blocks.begin([chunk([3, 4], 0, 4)]).filled
    save = blocks.save(full)
    following = [chunk([3, 4], 4, 5)]
    assert not blocks.has_room(following)
    with pytest.raises(RuntimeError, match="no room"):
        blocks.begin(following)
    blocks.saved(save, "content")
    assert blocks.has_room(following)
    assert blocks.begin(following).streamed == (StreamedBlock(3, 0),)


def test_a_block_that_is_written_anew_forgets_what_it_was() -> None:
    blocks = store()
    fill(blocks, [3], 4)
    blocks.begin([chunk([3], 0, 2)])
    with pytest.raises(KeyError):
        blocks.piece(3)
    (full,) = blocks.begin([chunk([3], 2, 4)]).filled
    old = blocks.save(full)
    step = blocks.begin([chunk([3], 0, 4)])
    assert open_blocks(step.places) == {3: old.place}
    new = blocks.save(3)
    blocks.saved(old, "old")
    with pytest.raises(KeyError):
        blocks.piece(3)
    blocks.saved(new, "new")
    assert blocks.piece(3) == "new"
    assert len(blocks.begin([chunk([1, 2, 4], 0, 9)]).filled) == 2, "every place is free again"


def test_what_is_nowhere_is_an_error() -> None:
    blocks = store()
    with pytest.raises(RuntimeError, match="not open"):
        blocks.begin([chunk([3], 2, 3)])
    with pytest.raises(RuntimeError, match="neither"):
        store().begin([chunk([3, 4], 4, 5)])


@pytest.mark.parametrize(("window", "first"), [(None, 0), (1, 12), (5, 8), (6, 4), (100, 0)])
def test_what_is_outside_the_window_is_not_brought(window: int | None, first: int) -> None:
    """The token at position 12 attends to positions above 12 - window."""
    blocks: LayerStore[str] = LayerStore(N, 3, B, window=window)
    fill(blocks, [1, 2, 3], 12)
    step = blocks.begin([chunk([1, 2, 3, 4], 12, 13)])
    assert [one.start for one in step.streamed] == list(range(first, 12, B))


@pytest.mark.parametrize("lengths", [[20], [1, 1, 18], [7, 7, 6], [2, 9, 9]])
def test_no_step_touches_more_blocks_than_most_open(lengths: list[int]) -> None:
    """Chunks that begin at the end of a block touch the most."""
    most = LayerStore.most_open(20, len(lengths), B)
    touched = sum((B - 1 + length - 1) // B + 1 for length in lengths)
    assert touched <= most
