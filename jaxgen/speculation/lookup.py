"""Draft what followed when a request's last tokens came before: method ngram. Host only, no jax.

It is the prompt lookup of vLLM and transformers. Texts that are edited, quoted or repeated go on as they did before.
The chance of a draft is learned by request, and by how many tokens were found.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from jaxgen.core.sequence import Sequence
from jaxgen.core.speculation import SpeculationConfig
from jaxgen.scheduling.drafts import Draft
from jaxgen.speculation.chances import FADING, UNKNOWN, Record
from jaxgen.speculation.tokens import Tokens

NOTHING = Draft((), 0.0)


@dataclass(slots=True)
class _Text:
    """The tokens of a request so far, and what became of its drafts. ``found``: tokens found for the last drafts."""

    tokens: Tokens = field(default_factory=Tokens)
    record: Record = field(default_factory=Record)
    found: int = 0


class LookupDrafter:
    """Drafts from a request's own tokens: a ``Drafter``."""

    def __init__(self, config: SpeculationConfig) -> None:
        self._most = config.num_speculative_tokens
        self._least_found, self._most_found = config.lookup
        self._texts: WeakKeyDictionary[Sequence, _Text] = WeakKeyDictionary()
        self._by_found: defaultdict[int, Record] = defaultdict(Record)

    def draft(self, sequence: Sequence, most: int) -> Draft:
        """See Drafter."""
        text = self._texts.get(sequence)
        if text is None:
            text = self._texts[sequence] = _Text()
        tokens = text.tokens
        tokens.extend(sequence.tokens[len(tokens) :])
        place, text.found = tokens.find(tokens.last(self._most_found), before=len(tokens) - 1)
        if text.found < self._least_found:
            return NOTHING
        found = self._by_found[text.found]
        found.fade(FADING)
        text.record.fade(FADING)
        return Draft(tokens.following(place, min(most, self._most)), text.record.chance(found.chance(UNKNOWN)))

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """See Drafter."""
        text = self._texts[sequence]
        text.record.note(drafted, accepted)
        self._by_found[text.found].note(drafted, accepted)
