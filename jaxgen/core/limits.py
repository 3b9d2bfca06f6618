"""Checks of a request's limits, for the engine and for front ends that refuse a request earlier. Host only, no jax."""

from collections.abc import Collection

from jaxgen.core.errors import ContextLengthError, RequestRefusedError

MAX_MASKED_TOKENS = 128
"""Most EOS and stop tokens of one request; they are masked while it has fewer than min_tokens tokens."""


def require(ok: bool, param: str, rest: str) -> None:
    """Raise RequestRefusedError with the message ``"{param} {rest}"`` if not ``ok``."""
    if not ok:
        raise RequestRefusedError(f"{param} {rest}", param)


def check_token_ids(param: str, ids: Collection[int], vocab_size: int) -> None:
    """Raise RequestRefusedError if one of the ``ids`` is outside the vocabulary."""
    if not ids:
        return
    for token in (min(ids), max(ids)):
        if not 0 <= token < vocab_size:
            raise RequestRefusedError(f"{param}: {token} is not a valid token id: ids are 0 to {vocab_size - 1}", param)


def check_context_length(num_prompt: int, max_tokens: int, max_model_len: int, *, at_least: bool = False) -> None:
    """Raise ContextLengthError if prompt and answer are longer than the context. All lengths are in tokens.

    ``at_least``: the prompt may have more than ``num_prompt``.
    """
    if num_prompt + max_tokens > max_model_len:
        raise ContextLengthError(num_prompt, max_tokens, max_model_len, at_least=at_least)


def check_dimensions(dimensions: int, size: int) -> None:
    """Raise RequestRefusedError if an embedding of ``size`` numbers cannot be cut to this number of dimensions."""
    require(1 <= dimensions <= size, "dimensions", f"must be between 1 and {size}, as this model has, not {dimensions}")
