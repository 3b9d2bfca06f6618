"""Compare models of other families by the device's kernels with XLA's, both in bfloat16, and with XLA's in float32.

Weights are random, in the models' true widths, with few layers.
"""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from jaxgen.core.config import CacheConfig, EngineConfig, SchedulerConfig
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.sequence import Chunk
from jaxgen.core.step_plan import StepPlan
from jaxgen.kernels.choice import reference
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.kv_cache import init_cache
from jaxgen.models.model import Params, init_params
from jaxgen.models.placement import pack_params
from jaxgen.runner.model_runner import device_info
from jaxgen.runner.packer import Packer
from jaxgen.runner.row_state import RowLoader, init_rows, load_row
from jaxgen.runner.timing import dummy_sequence
from scripts.gpu.result.report import Measurement
from scripts.gpu.rows.bench import Bench
from scripts.gpu.rows.kernels import BLOCK_SIZE, kernels_for
from scripts.gpu.rows.listing import FAMILY_TOKENS
from scripts.gpu.rows.step_times import GREEDY
from tests.support.golden_runs import make_forward

MOST = 1.5
"""Most times that the error of the device's kernels may be that of XLA's."""
LIMITS = EngineConfig(CacheConfig(BLOCK_SIZE, 4), SchedulerConfig(FAMILY_TOKENS, 4, 256), seed=0, max_logit_bias=4)
CHUNKS = (FAMILY_TOKENS, FAMILY_TOKENS, 22, *(1,) * 10)
"""Tokens of a text's steps: a prompt in pieces, then decodes."""


def compare(bench: Bench, model: DecoderConfig) -> Measurement:
    """Compare the logits of all tokens of a text. An error is the mean difference from float32, relative to its mean.

    XLA's error in bfloat16 is the measure: a token near the edge between two experts may take the other one.
    """
    params = init_params(model, seed=0)
    kernels, plain = kernels_for(bench, model=model), reference(device_info())
    own, xla = (_logits(model, params, one) for one in (kernels, plain))
    wide: Params = {name: value.astype(jnp.float32) for name, value in params.items()}
    params.clear()
    exact = _logits(replace(model, dtype="float32"), wide, plain)
    errors = [float(np.abs(got - exact).mean() / np.abs(exact).mean()) for got in (own, xla)]
    detail = {"kernels": kernels.name, "error": errors[0], "xla_error": errors[1], "layers": model.num_layers}
    return Measurement(detail=detail, failure=failure(*errors))


def failure(own: float, xla: float) -> str | None:
    """Return why the error of the device's kernels is too large next to that of XLA's; a NaN is too."""
    if own <= MOST * xla:
        return None
    return f"mean error of logits {own:.2e} by the device's kernels, {xla:.2e} by XLA's"


def _logits(model: DecoderConfig, params: Params, kernels: Kernels) -> npt.NDArray[np.float32]:
    tokens = tuple((7919 * i + i * i) % model.vocab_size for i in range(sum(CHUNKS)))
    sequence = dummy_sequence(0, tokens, GREEDY, blocks=range(LIMITS.cache.num_blocks))
    forward, packer = make_forward(model, LIMITS), Packer(LIMITS)
    packed, cache = pack_params(model, dict(params), kernels), init_cache(model, LIMITS.cache, kernels)
    pieces = []
    for length in CHUNKS:
        plan = StepPlan((Chunk(sequence, sequence.num_computed, length),), (sequence,))
        words = RowLoader(LIMITS, model.vocab_size).words(sequence)
        rows = load_row(init_rows(LIMITS, model.vocab_size), jnp.asarray(words))
        logits, cache = forward(packed, cache, rows, jnp.asarray(packer.pack(plan)))
        pieces.append(np.asarray(logits)[:length])
        sequence.num_computed += length
    return np.concatenate(pieces)
