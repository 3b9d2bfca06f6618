"""Refuse requests that an engine can never run."""

from jaxgen.core.config import EngineConfig, ModelConfig
from jaxgen.core.limits import check_token_ids, require
from jaxgen.core.request import Request
from jaxgen.runner.row_state import MAX_MASKED_TOKENS


def check_request(request: Request, model: ModelConfig, config: EngineConfig, eos_token_ids: frozenset[int]) -> None:
    """Raise RequestRefusedError for tokens outside the vocabulary and for lists too long for the rows on the device."""
    params, vocab = request.params, model.vocab_size
    check_token_ids("prompt", request.prompt, vocab)
    check_token_ids("answer", request.answer, vocab)
    check_token_ids("logit_bias", params.logit_bias.keys(), vocab)
    check_token_ids("stop_token_ids", params.stop_token_ids, vocab)
    ending = len(eos_token_ids | set(params.stop_token_ids))
    require(
        ending <= MAX_MASKED_TOKENS,
        "stop_token_ids",
        f"and the model's EOS tokens are {ending} tokens, the limit is {MAX_MASKED_TOKENS}",
    )
    entries, limit = len(params.logit_bias), config.max_logit_bias
    require(entries <= limit, "logit_bias", f"has {entries} entries, the limit is {limit}")
