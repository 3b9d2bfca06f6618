"""The places that follow most of the last tokens, as one finds them by trying all."""

import random

import pytest

from jaxgen.speculation.tokens import Tokens


def expected(tokens: list[int], most: int) -> tuple[list[int], int]:
    """By definition: the places of the longest match."""
    lengths = {}
    for place in range(1, len(tokens)):
        length = 0
        while length < min(place, most) and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        lengths[place] = length
    best = max(lengths.values(), default=0)
    return [place for place, length in lengths.items() if 0 < length == best], best


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_a_search_of_all_places_finds(seed: int) -> None:
    draw, found, tokens = random.Random(seed), Tokens(), list[int]()
    for _ in range(60):
        new = draw.choices(range(3), k=draw.randint(1, 3))
        found.extend(new)
        tokens += new
        most = draw.randint(1, 6)
        places, length = found.find(found.last(most), before=len(found) - 1)
        assert (places.tolist(), length) == expected(tokens, most)


def test_it_grows_and_a_loop_goes_on() -> None:
    found = Tokens()
    for _ in range(1000):
        found.extend([7, 8, 9])
    assert len(found) == 3000
    places, length = found.find(found.last(5), before=len(found) - 1)
    assert (places[-1], length) == (2997, 5)
    assert found.following(places[-1], 7) == (7, 8, 9, 7, 8, 9, 7)
