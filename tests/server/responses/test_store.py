"""The store of responses: whose they are, how long and how many are kept, and what those that continue others hold."""

import json
from typing import Any

import pytest

from jaxgen.server.responses.store import ITEM_OVERHEAD, OVERHEAD, ResponseStore, StoredResponse


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def put(
    store: ResponseStore, name: str, *, caller: str = "a", after: StoredResponse | None = None, text: str = "x"
) -> None:
    """Keep a response with one item of input and one of output, called after it."""
    answer: dict[str, Any] = {"id": name, "output": [{"id": f"{name}-out", "text": text}]}
    store.keep(caller, answer, [{"id": f"{name}-in", "text": text}], after)


def got(store: ResponseStore, name: str, caller: str = "a") -> StoredResponse:
    found = store.get(caller, name)
    assert found is not None
    return found


def names(items: list[dict[str, Any]]) -> list[str]:
    return [item["id"] for item in items]


def size_of(name: str) -> int:
    """With its items both in the response and beside it."""
    answer = {"id": name, "output": [{"id": f"{name}-out", "text": "x"}]}
    texts = [answer, *answer["output"], {"id": f"{name}-in", "text": "x"}]
    return sum(len(json.dumps(one, separators=(",", ":"))) for one in texts) + OVERHEAD + 2 * ITEM_OVERHEAD


def test_a_response_is_its_callers_alone() -> None:
    store = ResponseStore(10, 10**6, 60)
    put(store, "r")
    assert json.loads(got(store, "r").response)["id"] == "r"
    assert store.get("b", "r") is None
    assert store.item("b", "r-out") is None
    assert not store.delete("b", "r")
    assert store.item("a", "r-out") == b'{"id":"r-out","text":"x"}'
    assert store.item("a", "r-in") == b'{"id":"r-in","text":"x"}'
    assert store.delete("a", "r")
    assert not store.delete("a", "r")
    assert (store.get("a", "r"), store.item("a", "r-out"), store.size) == (None, None, 0)


def test_a_conversation_is_all_turns_in_order() -> None:
    store = ResponseStore(10, 10**6, 60)
    put(store, "1")
    put(store, "2", after=got(store, "1"))
    put(store, "3", after=got(store, "2"))
    put(store, "2b", after=got(store, "1"))
    assert names(got(store, "3").context()) == ["1-in", "1-out", "2-in", "2-out", "3-in"]
    assert names(got(store, "3").conversation()) == ["1-in", "1-out", "2-in", "2-out", "3-in", "3-out"]
    assert names(got(store, "2b").context()) == ["1-in", "1-out", "2b-in"]


def test_items_of_one_id_are_all_kept_and_the_last_is_referred_to() -> None:
    store = ResponseStore(10, 10**6, 60)
    for name, texts in (("1", "xy"), ("2", "z")):
        store.keep("a", {"id": name, "output": []}, [{"id": "same", "text": text} for text in texts], None)
    assert [item["text"] for item in got(store, "1").context()] == ["x", "y"]
    assert store.item("a", "same") == b'{"id":"same","text":"z"}'
    store.delete("a", "1")
    assert store.item("a", "same") == b'{"id":"same","text":"z"}'
    store.delete("a", "2")
    assert store.item("a", "same") is None


def test_what_is_continued_outlives_its_own_place() -> None:
    """It counts once, however many continue it, and until the last of them is gone."""
    store = ResponseStore(10, 10**6, 60)
    put(store, "1")
    first = got(store, "1")
    put(store, "2", after=first)
    put(store, "3", after=first)
    whole = store.size
    assert whole == size_of("1") + size_of("2") + size_of("3")
    assert store.delete("a", "1")
    assert store.get("a", "1") is None
    assert store.size == whole
    assert names(got(store, "2").context()) == ["1-in", "1-out", "2-in"]
    assert store.delete("a", "2")
    assert store.size == size_of("1") + size_of("3")
    assert store.delete("a", "3")
    assert store.size == 0


def test_what_was_dropped_while_it_was_continued_counts_again() -> None:
    store = ResponseStore(10, 10**6, 60)
    put(store, "1")
    first = got(store, "1")
    assert store.delete("a", "1")
    assert store.size == 0
    put(store, "2", after=first)
    assert store.size == size_of("1") + size_of("2")
    assert store.delete("a", "2")
    assert store.size == 0


def test_the_least_recently_used_of_too_many_goes_first() -> None:
    store = ResponseStore(2, 10**6, 60)
    put(store, "1")
    put(store, "2")
    got(store, "1")
    put(store, "3")
    put(store, "of b", caller="b")
    assert store.get("a", "2") is None
    assert store.item("a", "2-out") is None
    assert [got(store, name) is not None for name in ("1", "3")] == [True, True]
    got(store, "of b", "b")


def test_of_too_many_bytes_the_largest_caller_loses_its_oldest() -> None:
    store = ResponseStore(100, 30_000, 60)
    put(store, "of b", caller="b")
    for i in range(50):
        put(store, str(i), text="x" * 1000)
        assert store.size <= 30_000
    got(store, "of b", "b")
    got(store, "49")
    assert store.get("a", "0") is None
    put(store, "huge", caller="c", text="x" * 20_000)
    assert store.get("c", "huge") is None
    got(store, "of b", "b")


def test_a_response_expires_after_its_last_use() -> None:
    clock = Clock()
    store = ResponseStore(10, 10**6, 60, clock)
    put(store, "1")
    put(store, "2")
    clock.now = 40
    got(store, "1")
    clock.now = 60
    assert store.get("a", "2") is None
    assert store.item("a", "2-out") is None
    clock.now = 99.9
    got(store, "1")
    clock.now = 160
    assert not store.delete("a", "1")
    assert store.size == 0


def test_a_long_conversation_is_read_without_recursion() -> None:
    store = ResponseStore(3000, 10**9, 60)
    previous = None
    for i in range(3000):
        put(store, str(i), after=previous)
        previous = got(store, str(i))
    assert previous is not None
    assert len(previous.conversation()) == 6000
    assert len(previous.context()) == 5999
    for i in range(3000):
        assert store.delete("a", str(i))
    assert store.size == 0


@pytest.mark.parametrize(("most", "keeps"), [(0, False), (1, True)])
def test_whether_it_keeps_any(most: int, keeps: bool) -> None:
    assert ResponseStore(most, 10**6, 60).keeps_any == keeps


def test_a_response_that_is_kept_again_replaces_itself() -> None:
    """As of a stream that went on twice: it counts once, and what it continues stays."""
    store = ResponseStore(10, 10**6, 60)
    put(store, "1")
    first = got(store, "1")
    put(store, "2", after=first)
    store.delete("a", "1")
    size = store.size
    put(store, "2", after=first)
    assert (store.size, names(got(store, "2").context())) == (size, ["1-in", "1-out", "2-in"])
    assert store.item("a", "2-out") is not None
    store.delete("a", "2")
    assert (store.size, store.item("a", "2-out")) == (0, None)
