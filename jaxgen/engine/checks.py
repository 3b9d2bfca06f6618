"""Refuse requests that an engine can never run."""

from jaxgen.core.config import EngineConfig, ModelConfig
from jaxgen.core.errors import RequestRefusedError
from jaxgen.core.request import Request
from jaxgen.runner.row_state import MAX_MASKED_TOKENS


def check_request(request: Request, model: ModelConfig, config: EngineConfig, eos_token_ids: frozenset[int]) -> None:
    """Raise RequestRefusedError for tokens outside the vocabulary and for lists too long for the rows on the device."""
    params, vocab = request.params, model.vocab_size
    if bad := [t for t in request.prompt if not 0 <= t < vocab]:
        raise RequestRefusedError(f"prompt has token id {bad[0]}, the vocabulary has {vocab}")
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        if bad := [t for t in ids if not 0 <= t < vocab]:
            raise RequestRefusedError(f"{name} has token id {bad[0]}, the vocabulary has {vocab}")
    ending = len(eos_token_ids | set(params.stop_token_ids))
    if ending > MAX_MASKED_TOKENS:
        raise RequestRefusedError(
            f"stop_token_ids and the model's EOS tokens are {ending} tokens, the limit is {MAX_MASKED_TOKENS}"
        )
    limit = config.max_logit_bias
    if len(params.logit_bias) > limit:
        raise RequestRefusedError(f"logit_bias has {len(params.logit_bias)} entries, the limit is {limit}")
