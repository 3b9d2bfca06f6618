"""The host's side of sampling: each row's parameters, packed and kept on the device while they do not change."""

import jax
import numpy as np

from jaxgen.config import EngineConfig
from jaxgen.request import SamplingParams
from jaxgen.sampling import RowParams
from jaxgen.scheduler import StepPlan
from jaxgen.sequence import Sequence

MAX_MASKED_TOKENS = 128
"""Room for the EOS and stop tokens of one row, which are masked while it is below min_tokens."""

_WORD = 0xFFFFFFFF


def has_penalties(params: SamplingParams) -> bool:
    """Whether the device must count this request's tokens."""
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)


def masked_tokens(sequence: Sequence) -> frozenset[int]:
    """Tokens that would end the sequence and may not come yet."""
    params = sequence.params
    if sequence.num_generated >= params.min_tokens:
        return frozenset()
    return (frozenset() if params.ignore_eos else sequence.eos_token_ids) | set(params.stop_token_ids)


class RowPacker:
    """Makes RowParams of a plan. Rows come and go seldom: what is on the device is used again until they do."""

    def __init__(self, config: EngineConfig, vocab_size: int):
        self._num_rows = config.scheduler.max_num_seqs
        self._max_bias = config.max_logit_bias + MAX_MASKED_TOKENS
        self._vocab_size = vocab_size
        self._key: tuple[tuple[int, int | None, bool], ...] | None = None
        self._packed = self._neutral = jax.device_put(self._new())

    def pack(self, plan: StepPlan) -> RowParams:
        """Parameters of the plan's rows, on the device; padded rows are greedy and neutral."""
        key = tuple((c.sequence.arrival, c.sequence.sampler_row, bool(masked_tokens(c.sequence))) for c in plan.chunks)
        if key != self._key:
            self._packed, self._key = self._pack(plan), key
        return self._packed

    def _new(self) -> RowParams:
        return RowParams.neutral(self._num_rows, self._max_bias, self._vocab_size)

    def _pack(self, plan: StepPlan) -> RowParams:
        rows = self._new()
        biased = False
        for row, chunk in enumerate(plan.chunks):
            sequence = chunk.sequence
            params = sequence.params
            rows.temperature[row] = params.temperature
            rows.top_p[row] = params.top_p
            rows.top_k[row] = min(params.top_k, self._vocab_size)
            rows.min_p[row] = params.min_p
            rows.presence[row] = params.presence_penalty
            rows.frequency[row] = params.frequency_penalty
            rows.repetition[row] = params.repetition_penalty
            rows.seed[row] = (sequence.seed >> 32) & _WORD, sequence.seed & _WORD
            rows.sampler_rows[row] = sequence.sampler_row
            bias = dict(params.logit_bias) | dict.fromkeys(masked_tokens(sequence), -np.inf)
            if bias:
                biased = True
                rows.bias_tokens[row, : len(bias)] = list(bias)
                rows.bias_values[row, : len(bias)] = list(bias.values())
        return self._put(rows, biased)

    def _put(self, rows: RowParams, biased: bool) -> RowParams:
        """On the device; without any bias the wide, neutral arrays are those that are there already."""
        if biased:
            return jax.device_put(rows)
        shared = {"bias_tokens", "bias_values"}
        return RowParams(
            **{
                name: getattr(self._neutral, name) if name in shared else jax.device_put(getattr(rows, name))
                for name in RowParams.__dataclass_fields__
            }
        )
