"""Faults of what a device computes, and of the weights it computes with."""

from scripts.faults.fault import Fault

SAMPLING = (
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
        "tokens = sample(possible, chosen,",
        "tokens = sample(logits, chosen,",
        ("tests/engine/test_grammars.py::test_one_that_ends_at_max_tokens_has_the_beginning_of_a_text",),
    ),
    Fault(
        "bad-word-looked-for-at-the-beginning",
        "sampling",
        "jaxgen/text/constraint.py",
        "last[len(last) - length :]",
        "last[:length]",
        ("tests/text/test_constraint.py::test_no_token_completes_a_bad_word",),
    ),
)

MODELS = (
    Fault(
        "rope-scaled-in-radians",
        "models",
        "jaxgen/models/layers.py",
        "config.original_max_position * frequencies / (2 * jnp.pi)",
        "config.original_max_position * frequencies",
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
        "cpu-window-longer-by-one",
        "kernels",
        "pallas_kernels/cpu/attention.h",
        "std::max<int64_t>(0, position - batch_.window + 1)",
        "std::max<int64_t>(0, position - batch_.window)",
        ("tests/kernels/test_cpu_attention.py::test_matches_the_definition",),
    ),
)

WEIGHTS = (
    Fault(
        "bits-of-another-type",
        "weights",
        "weights/hf_checkpoint.py",
        "converted = tensor.astype(dtype, copy=False)",
        "converted = tensor.view(dtype) if tensor.itemsize == dtype.itemsize else tensor.astype(dtype)",
        ("tests/weights/test_checkpoint.py",),
    ),
    Fault(
        "checksums-not-compared",
        "weights",
        "weights/manifest.py",
        "if found != manifest.files[name].sha256:",
        "if len(found) != len(manifest.files[name].sha256):",
        ("tests/weights/test_verify.py",),
    ),
    Fault(
        "head-tied-unasked",
        "weights",
        "weights/hf_config.py",
        'tie_embeddings=fields.boolean("tie_word_embeddings", False)',
        'tie_embeddings=fields.boolean("tie_word_embeddings", True)',
        ("tests/weights/test_config.py",),
    ),
)
