"""Faults of what a device computes."""

from scripts.faults.fault import Fault

SAMPLING = (
    Fault(
        "program-without-the-bias",
        "sampling",
        "jaxgen/core/sampling_params.py",
        '"biased": bool(self.logit_bias),',
        '"biased": False,',
        ("tests/sampling/test_needs.py",),
    ),
    Fault(
        "top-p-without-the-crossing-token",
        "sampling",
        "jaxgen/sampling/sampler.py",
        "jnp.where(w >= _greatest(holds, w.shape[0])",
        "jnp.where(w > _greatest(holds, w.shape[0])",
        ("tests/sampling/test_sampler.py::test_thresholds_keep_what_ties",),
    ),
    Fault(
        "draw-without-position",
        "sampling",
        "jaxgen/sampling/sampler.py",
        "jax.vmap(jax.random.fold_in)(keys, positions)",
        "jax.vmap(jax.random.fold_in)(keys, 0 * positions)",
        ("tests/sampling/test_sampler.py::test_seeds_and_positions_give_different_draws",),
    ),
    Fault(
        "output-counted-twice",
        "sampling",
        "jaxgen/sampling/penalties.py",
        '.add(1, mode="drop")',
        '.add(2, mode="drop")',
        ("tests/sampling/test_penalties.py",),
    ),
    Fault(
        "grammar-not-applied",
        "sampling",
        "jaxgen/runner/step.py",
        "return sample(possible, params,",
        "return sample(logits, params,",
        ("tests/engine/test_grammars.py::test_one_that_ends_at_max_tokens_has_the_beginning_of_a_text",),
    ),
    Fault(
        "forced-run-ends-one-token-late",
        "sampling",
        "jaxgen/text/constraint.py",
        "return None if bits & (bits - 1) else",
        "return None if bits.bit_count() > 2 else",
        ("tests/engine/test_jump_ahead.py",),
    ),
    Fault(
        "grammar-that-waits-does-not-hold-its-row-back",
        "sampling",
        "jaxgen/core/sequence.py",
        "(self.num_pending > 0 or constraint.behind)",
        "self.num_pending > 0",
        ("tests/scheduling/test_behind.py", "tests/engine/test_jump_ahead.py"),
    ),
    Fault(
        "costly-grammars-are-not-charged",
        "sampling",
        "jaxgen/engine/constraints.py",
        "self._saved -= seconds",
        "self._saved -= 0.0",
        ("tests/engine/test_costly_grammars.py",),
    ),
    Fault(
        "forced-tokens-shift-the-noise",
        "sampling",
        "jaxgen/runner/step.py",
        "piece(batch.rows), piece(batch.context_lens))",
        "piece(batch.rows), piece(batch.context_lens - jnp.diff(batch.query_starts) + 1))",
        ("tests/engine/test_jump_ahead.py",),
    ),
    Fault(
        "beginning-of-a-bad-word-is-forgotten",
        "sampling",
        "jaxgen/text/constraint.py",
        "begun = (self._nothing, *self._begun)",
        "begun = (self._nothing,)",
        ("tests/text/test_constraint.py::test_no_token_completes_a_bad_word",),
    ),
)

MODELS = (
    Fault(
        "rope-scaled-in-radians",
        "models",
        "jaxgen/models/positions.py",
        "config.original_max_position * frequencies / (2 * jnp.pi)",
        "config.original_max_position * frequencies",
        ("tests/models/test_parity.py::test_logits_agree",),
    ),
    Fault(
        "rope-of-another-layer",
        "models",
        "jaxgen/models/positions.py",
        "kind = jnp.asarray(self.kinds)[layer]",
        "kind = jnp.asarray(self.kinds)[0]",
        ("tests/models/test_parity.py::test_logits_agree",),
    ),
    Fault(
        "window-of-another-layer",
        "models",
        "jaxgen/models/positions.py",
        "for window in windows], jnp.int32)[layer]",
        "for window in windows], jnp.int32)[0]",
        ("tests/models/test_parity.py::test_logits_agree",),
    ),
    Fault(
        "layers-are-not-told-their-windows",
        "models",
        "jaxgen/models/walk.py",
        "return config.windows if isinstance(batch, StepBatch) else ()",
        "return ()",
        ("tests/models/test_parity.py::test_logits_agree",),
    ),
    Fault(
        "prompt-logprob-lost-between-chunks",
        "models",
        "jaxgen/runner/packer.py",
        "min(chunk.end + 1, sequence.num_prompt)",
        "min(chunk.end, sequence.num_prompt)",
        ("tests/engine/test_engine.py::test_prompt_logprobs_are_those_of_generation",),
    ),
)

KERNELS = (
    Fault(
        "last-piece-left-out",
        "kernels",
        "pallas_kernels/ragged_paged_attention.py",
        "(groups.context_len.max(axis=1) + self.piece_tokens - 1) // self.piece_tokens",
        "groups.context_len.max(axis=1) // self.piece_tokens",
        ("tests/kernels/test_ragged_paged_attention.py::test_matches_the_definition",),
    ),
    Fault(
        "query-heads-of-another-group",
        "kernels",
        "pallas_kernels/ragged_paged_attention.py",
        "reshape(-1, QUERY_TILE, K, H // K, D)\n    queries",
        "reshape(-1, QUERY_TILE, H // K, K, D).swapaxes(2, 3)\n    queries",
        ("tests/kernels/test_ragged_paged_attention.py::test_matches_the_definition",),
    ),
    Fault(
        "gpu-padding-is-written",
        "kernels",
        "pallas_kernels/gpu/write_kv.py",
        "@pl.when(slot < N * B)",
        "@pl.when(slot <= N * B)",
        ("tests/kernels/test_gpu_write_kv.py::test_equals_the_reference",),
    ),
    Fault(
        "gpu-value-past-a-context-is-read",
        "kernels",
        "pallas_kernels/gpu/attention/tile.py",
        "token < item.context - tile * KV_TILE, loaded",
        "token <= item.context - tile * KV_TILE, loaded",
        ("tests/kernels/test_gpu_attention.py::test_matches_the_definition",),
    ),
    Fault(
        "cpu-window-longer-by-one",
        "kernels",
        "pallas_kernels/cpu/attention.h",
        "std::max<int64_t>(0, position - batch_.window + 1)",
        "std::max<int64_t>(0, position - batch_.window)",
        ("tests/kernels/test_cpu_attention.py::test_matches_the_definition",),
    ),
    Fault(
        "cpu-sink-of-another-head",
        "kernels",
        "pallas_kernels/cpu/attention.h",
        "batch_.sinks[HeadOf(i)]",
        "batch_.sinks[i % group_]",
        ("tests/kernels/test_cpu_attention.py::test_matches_the_definition",),
    ),
    Fault(
        "norm-rounded-before-a-float32-weight",
        "kernels",
        "pallas_kernels/norms.py",
        "(wide * scale).astype(weight.dtype)",
        "(wide * scale).astype(x.dtype)",
        ("tests/kernels/test_norms.py::test_a_float32_weight_multiplies_before_anything_is_rounded",),
    ),
    Fault(
        "rotated-before-the-norm-of-keys",
        "kernels",
        "pallas_kernels/partial_recompute.py",
        """    if k_norm is not None:
        k = k_norm(k)
    return write_kv_ref(cache, layer, rotate(k, angles), v, slots)
""",
        """    k = rotate(k, angles)
    return write_kv_ref(cache, layer, k if k_norm is None else k_norm(k), v, slots)
""",
        ("tests/kernels/test_partial_recompute.py::test_keys_are_normed_then_turned_in_part",),
    ),
)
