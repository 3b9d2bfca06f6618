"""Draft what followed when a request's last tokens came before: method ngram. Host only, no jax.

It is the prompt lookup of vLLM and transformers. Texts that are edited, quoted or repeated go on as they did before.
The chance of a draft is learned by request, and by how many tokens were found.
"""

from weakref import WeakKeyDictionary

from jaxgen.core.sequence import Sequence
from jaxgen.core.speculation import NgramConfig
from jaxgen.scheduling.drafts import Draft
from jaxgen.speculation.chances import Chances
from jaxgen.speculation.tokens import Tokens

NOTHING = Draft((), 0.0)


class LookupDrafter:
    """Drafts from a request's own tokens: a ``Drafter``."""

    def __init__(self, config: NgramConfig) -> None:
        self._most = config.num_speculative_tokens
        self._least_found, self._most_found = config.lookup
        self._texts: WeakKeyDictionary[Sequence, Tokens] = WeakKeyDictionary()
        self._chances = Chances()

    def draft(self, sequence: Sequence, most: int) -> Draft:
        """See Drafter."""
        tokens = self._texts.setdefault(sequence, Tokens())
        tokens.extend(sequence.tokens[len(tokens) :])
        places, found = tokens.find(tokens.last(self._most_found), before=len(tokens) - 1)
        if found < self._least_found:
            return NOTHING
        return self._chances.offer(sequence, found, tokens.following(places[-1], min(most, self._most)))

    def checked(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """See Drafter."""
        self._chances.checked(sequence, drafted, accepted)

    def ended(self, sequence: Sequence) -> None:
        """Keep nothing of it: see Drafter."""
