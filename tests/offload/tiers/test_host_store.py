"""The pool of host memory: places, pins, and who makes room."""

import pytest

from jaxgen.cache.host_tier import state_key
from jaxgen.offload.tiers.host_store import HostStore


def key(n: int) -> bytes:
    return bytes([n])


def full(num_blocks: int) -> HostStore[str]:
    store: HostStore[str] = HostStore(num_blocks)
    for n in range(num_blocks):
        assert store.reserve(key(n))
        store.put(key(n), f"piece {n}")
    return store


def test_a_piece_is_there_when_it_has_come() -> None:
    store: HostStore[str] = HostStore(2)
    assert store.reserve(key(1))
    assert (store.holds(key(1)), store.has_place(key(1)), store.num_reserved) == (False, True, 1)
    assert not store.reserve(key(1)), "it has a place"
    store.put(key(1), "one")
    assert (store.holds(key(1)), store.num_reserved, len(store)) == (True, 0, 1)
    assert store.pin([key(1)]) == ["one"]


def test_who_was_used_least_recently_makes_room() -> None:
    store = full(3)
    store.pin([key(0)])
    store.unpin([key(0)])
    assert store.reserve(key(9))
    assert [store.holds(key(n)) for n in range(3)] == [True, False, True]
    assert store.evictions == 1


def test_the_end_of_a_chain_goes_before_its_beginning() -> None:
    store = full(3)
    store.pin([key(0), key(1), key(2)])
    store.unpin([key(0), key(1), key(2)])
    store.reserve(key(9))
    assert [store.holds(key(n)) for n in range(3)] == [True, True, False]


def test_the_pinned_and_the_reserved_stay() -> None:
    store = full(2)
    store.pin([key(0)])
    store.pin([key(0)])
    assert store.reserve(key(8))
    assert not store.reserve(key(9)), "one is pinned, one reserved"
    store.unpin([key(0)])
    assert not store.reserve(key(9)), "pinned twice"
    store.unpin([key(0)])
    assert store.reserve(key(9))
    assert (len(store), store.num_reserved) == (0, 2)


def test_a_place_is_given_up_when_nothing_comes() -> None:
    store = full(1)
    store.reserve(key(5))
    store.cancel_reservation(key(5))
    assert (len(store), store.num_reserved, store.has_place(key(5))) == (0, 0, False)


def test_no_place_is_kept_for_copies_that_will_not_end() -> None:
    store: HostStore[str] = HostStore(2)
    store.reserve(key(0))
    store.put(key(0), "piece 0")
    store.pin([key(0)])
    assert store.reserve(key(1))
    store.end_copies()
    assert (store.num_reserved, store.holds(key(0)), store.has_place(key(1))) == (0, True, False)
    assert all(store.reserve(key(n)) for n in (2, 3))


def test_misuse_is_refused() -> None:
    store = full(1)
    with pytest.raises(ValueError, match="num_blocks"):
        HostStore(0)
    with pytest.raises(KeyError):
        store.pin([key(7)])
    with pytest.raises(KeyError):
        store.put(key(7), "piece")
    with pytest.raises(ValueError, match="not pinned"):
        store.unpin([key(0)])


def test_a_piece_of_several_places_pushes_out_as_many_or_none() -> None:
    store, state = full(4), state_key(key(7))
    assert store.reserve(state, 3)
    assert (len(store), store.num_filled, store.num_snapshots) == (1, 1, 0)
    store.put(state, "snapshot")
    assert (store.num_filled, store.evictions, store.num_snapshots) == (4, 3, 1)
    store.pin([state])
    assert not store.reserve(key(8), 2), "one place is not pinned"
    assert store.holds(key(3)), "and it stays"
    store.unpin([state])
    assert not store.reserve(key(8), 5)
    store.discard(state)
    store.discard(state)
    assert (store.num_filled, store.num_snapshots, store.reserve(key(8), 3), len(store)) == (1, 0, True, 1)
