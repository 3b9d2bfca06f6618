"""Sampling parameters of a request: how the tokens of its answer are chosen. Host only, no jax."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from hashlib import sha256
from math import isfinite

from jaxgen.core.limits import require

MAX_LOGPROBS = 20
"""Most alternatives that a step computes in addition to the chosen token."""

MAX_SEED = 2**63 - 1


class Sampling(IntEnum):
    """The work of choosing a sequence's tokens. Each value includes the work of those before it."""

    GREEDY = 0
    """The greatest logit."""
    DRAWN = 1
    """Draws by temperature, min_p and top_p."""
    ADJUSTED = 2
    """Also top_k, penalties, bias, forbidden tokens and constraints."""


WORK_OF: Mapping[str, Sampling] = {
    "drawn": Sampling.DRAWN,
    "nucleus": Sampling.DRAWN,
    "limited": Sampling.ADJUSTED,
    "penalised": Sampling.ADJUSTED,
    "biased": Sampling.ADJUSTED,
    "masked": Sampling.ADJUSTED,
    "constrained": Sampling.ADJUSTED,
}
"""The least work that includes each part of the rule; ``jaxgen.sampling.row_params.Needs`` says what they are.

Only this table decides which program a row needs: the host chooses by it, and programs without branches have their
parts from it.
"""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that the text of an answer must follow: llguidance's dialect of Lark, with a rule ``start``, or GBNF,
    which is llama.cpp's notation.

    ``source``: the field that the grammar was made from; error messages name it.
    """

    text: str
    source: str = "grammar"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The rules by which tokens are chosen. Raises RequestRefusedError that names the field if a value is out of range.

    The raw logits go through, in this order: repetition_penalty (multiplicative, prompt and output), presence and
    frequency penalties (output only), logit_bias, temperature, min_p, top_k, top_p (over what top_k kept,
    renormalised). temperature 0 is greedy. ``logprobs`` come from the raw model, before all of this.
    ``top_k`` 0 means off. Tokens that the ``grammar`` or ``allowed_token_ids`` (None: all) do not allow are never
    chosen. Nor is the token that would complete one of ``bad_words``, as the tokenizer writes it at the beginning of a
    text or after a space. Where all of these allow only the end, the sequence ends even before ``min_tokens``.

    These fields are handled where text becomes tokens and tokens become text, not by the engine. ``stop``: strings that
    end the text. ``include_stop_str_in_output`` leaves them, and stop tokens, in the text. ``skip_special_tokens``
    False: special tokens are part of the text. ``truncate_prompt_tokens``: the number of a prompt's last tokens to keep
    (-1: as many as the context has room for).
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        require(self.max_tokens >= 0, "max_tokens", f"must be 0 or more, not {self.max_tokens}")
        require(
            0 <= self.min_tokens <= self.max_tokens,
            "min_tokens",
            f"must be between 0 and max_tokens ({self.max_tokens}), not {self.min_tokens}",
        )
        require(0.0 <= self.temperature <= 2.0, "temperature", f"must be between 0 and 2, not {self.temperature}")
        require(0.0 <= self.top_p <= 1.0, "top_p", f"must be between 0 and 1, not {self.top_p}")
        require(self.top_k >= 0, "top_k", f"must be 0 (off) or more, not {self.top_k}")
        require(0.0 <= self.min_p <= 1.0, "min_p", f"must be between 0 and 1, not {self.min_p}")
        for name in ("presence_penalty", "frequency_penalty"):
            value: float = getattr(self, name)
            require(-2.0 <= value <= 2.0, name, f"must be between -2 and 2, not {value}")
        penalty = self.repetition_penalty
        require(0.0 < penalty <= 10.0, "repetition_penalty", f"must be in (0, 10], not {penalty}")
        for token, bias in self.logit_bias.items():
            require(token >= 0, "logit_bias", f"has a negative token id: {token}")
            in_range = isfinite(bias) and -100.0 <= bias <= 100.0
            require(in_range, "logit_bias", f"of token {token} must be between -100 and 100, not {bias}")
        fits = self.seed is None or -MAX_SEED - 1 <= self.seed <= MAX_SEED
        require(fits, "seed", f"must fit in 64 bits, not {self.seed}")
        require(all(self.stop), "stop", "must not contain an empty string")
        require(
            self.grammar is None or not self.ignore_eos,
            "ignore_eos",
            "cannot go with a grammar, which ends where the end-of-sequence token is all that it allows",
        )
        require(self.allowed_token_ids != (), "allowed_token_ids", "must not be empty: no token could be chosen")
        require(all(self.bad_words), "bad_words", "must not contain an empty string")
        kept = self.truncate_prompt_tokens
        require(
            kept is None or kept == -1 or kept > 0, "truncate_prompt_tokens", f"must be -1, or 1 or more, not {kept}"
        )
        check_logprobs("logprobs", self.logprobs)
        check_logprobs("prompt_logprobs", self.prompt_logprobs)

    @property
    def is_constrained(self) -> bool:
        """Whether not every token may be chosen, whatever its probability."""
        return self.grammar is not None or self.allowed_token_ids is not None or bool(self.bad_words)

    @property
    def has_penalties(self) -> bool:
        """Whether the device must count this request's tokens."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1.0)

    @property
    def sampling(self) -> Sampling:
        """The work of choosing this request's tokens."""
        parts = {
            "drawn": self.temperature > 0,
            "limited": self.top_k > 0,
            "penalised": self.has_penalties,
            "biased": bool(self.logit_bias),
            "masked": self.min_tokens > 0,
            "constrained": self.is_constrained,
        }
        return max([WORK_OF[part] for part, needed in parts.items() if needed], default=Sampling.GREEDY)


def check_logprobs(param: str, count: int | None) -> None:
    """Raise RequestRefusedError if a step cannot compute this number of alternatives; None: none are wanted."""
    in_range = count is None or 0 <= count <= MAX_LOGPROBS
    require(in_range, param, f"must be between 0 and {MAX_LOGPROBS}, not {count}")


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed of the choice-th completion of a request with this seed.

    Choice 0 uses the request's own seed. Choice i > 0 uses the first 8 bytes, big-endian, of SHA-256 over the ASCII
    text ``"{seed}:{i}"``. They are shifted right by one bit, which gives a non-negative signed 64-bit number.
    """
    if choice == 0:
        return seed
    return int.from_bytes(sha256(f"{seed}:{choice}".encode("ascii")).digest()[:8], "big") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Values of the parameters that a request leaves out. These are neutral: the model's distribution as it is.

    Raises RequestRefusedError that names the field if a value is out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    """None: each route has its own."""

    def __post_init__(self) -> None:
        self.params()

    def params(self) -> SamplingParams:
        """Return parameters with these values, and the defaults of SamplingParams for all others."""
        return SamplingParams(**{name: value for name, value in asdict(self).items() if value is not None})


NEUTRAL = SamplingDefaults()
