"""Draft what mostly followed a request's last tokens: method suffix. Host only, no jax.

It is SuffixDecoding (arXiv 2411.04975): the tokens are looked up in the request's own tokens and in the answers of
requests with its ``cache_salt`` that ended. The one of both that is expected to bring more tokens is taken. The chance
of a draft is learned by request, by where it was found, and by how many tokens were.
"""

from collections import Counter
from weakref import WeakKeyDictionary

from jaxgen.core.sequence import Sequence
from jaxgen.core.speculation import SuffixConfig
from jaxgen.scheduling.drafts import Draft
from jaxgen.speculation.answers import MOST_PLACES, Answers
from jaxgen.speculation.chances import Chances
from jaxgen.speculation.tokens import Tokens

Kind = tuple[str, int]


class SuffixDrafter:
    """Drafts from a request's own tokens and from answers that ended: a ``Drafter``."""

    def __init__(self, config: SuffixConfig) -> None:
        self._config = config
        self._texts: WeakKeyDictionary[Sequence, Tokens] = WeakKeyDictionary()
        self._answers = Answers(config.suffix_decoding_max_cached_requests, config.suffix_decoding_max_tree_depth)
        self._chances = Chances()

    def draft(self, sequence: Sequence, most: int) -> Draft:
        """See Drafter."""
        tokens = self._texts.setdefault(sequence, Tokens())
        tokens.extend(sequence.tokens[len(tokens) :])
        tail = tokens.last(self._config.suffix_decoding_max_tree_depth)
        own, length = tokens.find(tail, before=len(tokens) - 1)
        count = self._most(length, most)
        found = {("own", length): [tokens.following(place, count) for place in own[: -MOST_PLACES - 1 : -1]]}
        answers, length = self._answers.find(sequence.request.cache_salt, tail.tolist())
        count = self._most(length, most)
        found["answers", length] = [place.following(count) for place in answers]
        drafts = {kind: self._likeliest(texts) for kind, texts in found.items()}
        (source, length), draft = max(drafts.items(), key=lambda one: self._expected(sequence, *one))
        return self._chances.offer(sequence, _kind(source, length), draft) if draft else Draft((), 0.0)

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """See Drafter."""
        self._chances.checked(sequence, drafted, accepted)

    def ended(self, sequence: Sequence) -> None:
        """See Drafter."""
        self._answers.add(sequence.request.cache_salt, sequence.tokens[sequence.num_prompt :])

    def _most(self, found: int, most: int) -> int:
        """Return how many tokens are drafted at most where ``found`` of the last tokens were found."""
        return min(most, self._config.most_drafts, int(found * self._config.suffix_decoding_max_spec_factor + 1e-6))

    def _likeliest(self, texts: list[tuple[int, ...]]) -> tuple[int, ...]:
        """Return what most texts begin with, as far as a share of them that is large enough does."""
        least, draft, left = len(texts) * self._config.suffix_decoding_min_token_prob, list[int](), texts
        while left := [text for text in left if len(text) > len(draft)]:
            ((token, votes),) = Counter([text[len(draft)] for text in left]).most_common(1)
            if votes < least:
                break
            left = [text for text in left if text[len(draft)] == token]
            draft.append(token)
        return tuple(draft)

    def _expected(self, sequence: Sequence, kind: Kind, draft: tuple[int, ...]) -> float:
        """Return how many tokens of a draft are expected to be right."""
        chance = self._chances.chance(sequence, _kind(*kind))
        return sum([chance**place for place in range(1, len(draft) + 1)])


def _kind(source: str, found: int) -> Kind:
    """Return the kind of drafts of a source: about as many tokens were found for all of it."""
    return source, found.bit_length()
