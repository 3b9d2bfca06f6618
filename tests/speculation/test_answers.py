"""Places in answers that ended, as one finds them by trying all."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxgen.speculation import answers
from jaxgen.speculation.answers import Answers

TEXTS = st.lists(st.integers(0, 2), max_size=12)


def common(text: list[int], at: int, tail: list[int]) -> int:
    """By definition: how many of the last tokens of ``tail`` precede a place."""
    count = 0
    while count < min(at, len(tail)) and text[at - 1 - count] == tail[-1 - count]:
        count += 1
    return count


@settings(max_examples=150)
@given(
    texts=st.lists(st.tuples(st.sampled_from([None, "a", "b"]), TEXTS), max_size=8),
    tail=st.lists(st.integers(0, 2), min_size=1, max_size=8),
    depth=st.integers(1, 5),
)
def test_they_follow_most_of_the_last_tokens_in_answers_of_the_salt(
    texts: list[tuple[str | None, list[int]]], tail: list[int], depth: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "MOST_PLACES", 2)  # leaves become branches early
        kept = Answers(100, depth)
        for salt, text in texts:
            kept.add(salt, text)
        for salt in (None, "a", "b"):
            own = [text for other, text in texts if other == salt]
            counts = [common(text, at, tail[-depth:]) for text in own for at in range(1, len(text))]
            places, most = kept.find(salt, tail)
            assert most == max(counts, default=0)
            assert bool(places) is (most > 0)
            for place in places:
                assert list(place.text) in own
                assert common(list(place.text), place.at, tail[-depth:]) == most
                assert place.following(2) == place.text[place.at :][:2] != ()


@pytest.mark.parametrize("most", [0, 1, 2, 3, 10])
def test_the_last_answers_are_kept(most: int) -> None:
    kept = Answers(most, 4)
    for number in range(30):
        kept.add(None, [number, 90, 91])
        assert len(kept) <= most
        assert bool(kept.find(None, [number])[0]) is (most > 0)
        assert most // 2 <= len(kept) or number + 1 == len(kept)
    assert not kept.find(None, [0])[0]


def test_their_tokens_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_TOKENS", 100)
    kept = Answers(1000, 4)
    for first in range(0, 240, 20):
        kept.add(None, range(first, first + 20))
        found = [token for token in range(first + 20) if kept.find(None, [token])[0]]
        assert len(found) <= 100
        assert found[-1] == first + 18, "the last token is followed by nothing"
    kept.add(None, range(400))
    assert kept.find(None, [390])[1] == 1
    assert kept.find(None, [349])[1] == 0, "of a long one its last tokens are kept"


def test_a_frequent_beginning_is_told_from_others_by_what_is_before() -> None:
    kept = Answers(10_000, 4)
    for number in range(100, 400):
        kept.add(None, [number, 1, 2, number])
    for number in (100, 250, 399):
        places, most = kept.find(None, [7, number, 1, 2])
        assert most == 3
        assert [place.following(9) for place in places] == [(number,)]
    assert kept.find(None, [1, 2])[1] == 2
    assert all(one.at == 3 for one in kept.find(None, [7, 1, 2])[0])
