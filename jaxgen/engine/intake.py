"""Check the requests that an engine gets, and make their sequences. Runs in the engine's thread. Host only, no jax."""

import random
import sys
from itertools import count

from jaxgen.core.config import EngineConfig
from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.limits import MAX_MASKED_TOKENS, check_token_ids, require
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.request import Request
from jaxgen.core.sequence import Sequence
from jaxgen.text.constraint import Constraint


class Intake:
    """Makes the sequence of each request, or refuses a request that the engine can never run."""

    def __init__(self, model: ModelConfig, config: EngineConfig, eos_token_ids: frozenset[int]) -> None:
        self._vocab_size = model.vocab_size
        self._max_logit_bias = config.max_logit_bias
        self._eos_token_ids = eos_token_ids
        self._seeds = random.Random(config.seed)
        self._arrivals = count()

    def take(self, request: Request, constraint: Constraint | None) -> Sequence:
        """Return the sequence of a request. It is younger than all before it, and has a seed if the request has none.

        Raises RequestRefusedError, which names field and limit.
        """
        self._check(request)
        if constraint is None and request.params.is_constrained:
            raise RequestRefusedError(
                "grammar, allowed_token_ids, bad_words: this engine was not given a tokenizer to follow them with"
            )
        seed = request.params.seed
        return Sequence(
            request,
            eos_token_ids=self._eos_token_ids,
            arrival=next(self._arrivals),
            seed=self._seeds.getrandbits(63) if seed is None else seed,
            constraint=constraint,
        )

    def preview(self, request: Request) -> Sequence:
        """Return a sequence that is only asked about: it takes no seed and no arrival. Raises as ``take``."""
        self._check(request)
        return Sequence(request, eos_token_ids=self._eos_token_ids, arrival=sys.maxsize, seed=0)

    def _check(self, request: Request) -> None:
        """Refuse tokens outside the vocabulary, and lists too long for the rows on the device."""
        params, vocab = request.params, self._vocab_size
        check_token_ids("prompt", request.prompt, vocab)
        check_token_ids("answer", request.answer, vocab)
        check_token_ids("logit_bias", params.logit_bias.keys(), vocab)
        check_token_ids("stop_token_ids", params.stop_token_ids, vocab)
        ending = len(self._eos_token_ids | set(params.stop_token_ids))
        require(
            ending <= MAX_MASKED_TOKENS,
            "stop_token_ids",
            f"and the model's EOS tokens are {ending} tokens, the limit is {MAX_MASKED_TOKENS}",
        )
        entries, limit = len(params.logit_bias), self._max_logit_bias
        require(entries <= limit, "logit_bias", f"has {entries} entries, the limit is {limit}")
