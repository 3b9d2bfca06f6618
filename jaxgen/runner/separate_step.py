"""The step for GPUs: programs without branches, of which the host starts the ones for a plan.

A branch or a loop of unknown length in a program for GPUs makes the host wait: it reads the condition when the device
gets there. The host knows what a plan's rows need, so it chooses the programs. What two of them share has equal bits:
``layers`` alone computes logits, and the others treat each row by itself (jaxgen.sampling.sampler).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.sampling_params import Sampling
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.model import PackedParams, bind, graph_of
from jaxgen.runner.devices import Devices, on_each
from jaxgen.runner.program import Program, compile_together, int32
from jaxgen.runner.row_state import ROWS_AT_ONCE, RowLoader, RowState, load_rows
from jaxgen.runner.step import Logprobs, StepOutput, begin, chosen_tokens, prompt_logprobs_of, sample_products
from jaxgen.runner.step_layout import StepLayout
from jaxgen.sampling.row_params import Needs
from jaxgen.sampling.sampler import token_logprobs

LAYERS, LOGPROBS, PROMPT_LOGPROBS = "layers", "logprobs", "prompt_logprobs"


def separate_programs(model: ModelConfig, config: EngineConfig, kernels: Kernels, width: int) -> dict[str, Program]:
    """Return the programs of a step of ``width`` tokens by name. Programs that choose tokens have the name of a
    Sampling."""
    graph, layout = graph_of(model), StepLayout(model, config, width)

    def layers(
        params: PackedParams, cache: KVCache, rows: RowState, words: Int[Array, "W"], loaded: Int[Array, "8 L"]
    ) -> tuple[KVCache, RowState, Float[Array, "T D"], Float[Array, "R V"]]:
        bound = bind(graph, params)
        rows, batch = begin(load_rows(rows, loaded), words, layout, counted=True)
        hidden, cache = bound(batch, cache)
        return cache, rows, hidden, bound.logits(sample_products(bound, hidden, batch))

    def choosing(sampling: Sampling) -> Any:
        def choose_tokens(
            rows: RowState, words: Int[Array, "W"], logits: Float[Array, "R V"]
        ) -> tuple[RowState, Int[Array, "R"]]:
            plan, needs = layout.plan.split(words), Needs.up_to(sampling)
            tokens = chosen_tokens(logits, rows, layout, plan["sample_rows"], plan["sample_positions"], needs)
            return rows.with_sampled(plan["sample_rows"], tokens), tokens

        return choose_tokens

    def logprobs(logits: Float[Array, "R V"], tokens: Int[Array, "R"]) -> Logprobs:
        return Logprobs(*token_logprobs(logits, tokens))

    def prompt_logprobs(params: PackedParams, hidden: Float[Array, "T D"], words: Int[Array, "W"]) -> Logprobs:
        targets, tile = layout.plan.split(words)["prompt_targets"], layout.num_rows
        return prompt_logprobs_of(bind(graph, params), hidden, targets, layout.vocab_size, tile=tile, skip=False)

    params, cache, rows, words = layout.shapes(kernels)
    loaded = int32(ROWS_AT_ONCE, RowLoader(config, model.vocab_size).num_words)
    program = partial(Program, devices=Devices.of(model))
    whole = program(layers, (params, cache, rows, words, loaded), donated=(1, 2))
    _, _, hidden, logits = whole.results
    tokens = int32(*logits.shape[:1])
    return {
        LAYERS: whole,
        **{sampling.name: program(choosing(sampling), (rows, words, logits), donated=(0,)) for sampling in Sampling},
        LOGPROBS: program(logprobs, (logits, tokens)),
        PROMPT_LOGPROBS: program(prompt_logprobs, (params, hidden, words)),
    }


class SeparateStep:
    """The compiled programs of a step of one width. Called like the program of a Step."""

    def __init__(self, model: ModelConfig, config: EngineConfig, kernels: Kernels, width: int, options: dict[str, str]):
        """Compile all of them, at the same time. ``options``: XLA's."""
        programs = separate_programs(model, config, kernels, width)
        self._programs: Mapping[str, Any] = compile_together(programs, options)
        self._choices = [self._programs[sampling.name] for sampling in Sampling]
        layout = StepLayout(model, config, width)
        first = layout.plan.first_words
        self._sampling, self._logprobs = first["sampling"], first["want_logprobs"]
        self._targets = slice(first["prompt_targets"], first["prompt_targets"] + width)
        self._no_rows = on_each(Devices.of(model), lambda: jax.device_put(RowLoader(config, model.vocab_size).rows(())))
        self._none = Logprobs.zeros(layout.num_rows, model.vocab_size), Logprobs.zeros(width, model.vocab_size)

    def __call__(
        self,
        params: PackedParams,
        cache: KVCache,
        rows: RowState,
        words: np.ndarray,
        products_buffer: None,
        loaded: np.ndarray | None = None,
    ) -> tuple[KVCache, RowState, None, StepOutput]:
        """Start the programs that the plan needs. Their logits are temporaries, without a buffer of their own.

        ``loaded``: the words of rows that the step loads first, from ``RowLoader.rows``; None: there are none.
        """
        # Programs take NumPy's words themselves: device_put takes longer than two of their transfers.
        loaded_words = self._no_rows if loaded is None else loaded
        cache, rows, hidden, logits = self._programs[LAYERS](params, cache, rows, words, loaded_words)
        rows, tokens = self._choices[words[self._sampling]](rows, words, logits)
        logprobs, prompt_logprobs = self._none
        if words[self._logprobs]:
            logprobs = self._programs[LOGPROBS](logits, tokens)
        if (words[self._targets] >= 0).any():
            prompt_logprobs = self._programs[PROMPT_LOGPROBS](params, hidden, words)
        return cache, rows, products_buffer, StepOutput(tokens, logprobs, prompt_logprobs, hidden)

    @property
    def texts(self) -> list[str | None]:
        """The text of each program after XLA's passes; None where XLA shows none."""
        return [program.as_text() for program in self._programs.values()]

    @property
    def analyses(self) -> list[Any]:
        """XLA's analysis of the memory of each program, the layers' first."""
        return [program.memory_analysis() for program in self._programs.values()]
