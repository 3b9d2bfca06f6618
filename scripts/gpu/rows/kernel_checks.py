"""Check the kernels on the device: attention against its definition in float64, and bitwise against itself; writes and
copies against numpy. Values that must not be read are NaN."""

import time
from dataclasses import asdict, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgen.core.model_config import ModelConfig
from jaxgen.hardware.nvidia import find_gpu
from jaxgen.kernels.choice import REFERENCE, made_for
from jaxgen.kernels.kernels import Kernel, Kernels
from jaxgen.kernels.proving.proof import run_proof
from jaxgen.kernels.proving.verdict import ServedShapes, operations_of
from pallas_kernels.proof import prove_expert_product
from scripts.gpu.result.report import Measurement, Run
from scripts.gpu.rows.bench import Bench, UnavailableError
from scripts.gpu.rows.kernels import BLOCK_SIZE, kernels_for, recompute_kernel
from scripts.gpu.rows.ragged import Padding, Piece, cancelling, padded, random_rows, rearranged
from scripts.gpu.rows.timing import compiled as program_of
from scripts.gpu.rows.work import BITS, BITS_TOKENS, RANDOM_ROWS, RANDOM_TOKENS, SMOKE_CTAS, SmokeLoad
from tests.support.attention_cases import TOLERANCE, Case, Inputs, compiled, expected, make_inputs

START_SECONDS = 150.0
BITS_PADDING = (Padding(8, 24, 64, 20), Padding(16, BITS_TOKENS, 64, 20))
N, L, K, B, D, E, H = 12, 3, 2, 16, 64, 256, 4
"""Blocks, layers, KV heads, block size, head dimension, hidden size and query heads of the other checks."""


def smoke(bench: Bench, load: SmokeLoad) -> Run:
    """Check that attention returns, and is right."""
    return check_attention(kernels_for(bench, num_ctas=SMOKE_CTAS), load.case, make_inputs(load.case))


def write_kv(bench: Bench) -> Run:
    return check_write_kv(kernels_for(bench, num_ctas=SMOKE_CTAS).write_kv)


def gather_blocks(bench: Bench) -> Run:
    return check_gather_blocks(kernels_for(bench, num_ctas=SMOKE_CTAS).gather_blocks)


def scatter_blocks(bench: Bench) -> Run:
    return check_scatter_blocks(kernels_for(bench, num_ctas=SMOKE_CTAS).scatter_blocks)


def partial_recompute(bench: Bench) -> Run:
    _, function = recompute_kernel(bench)
    return check_partial_recompute(function)


def expert_product(bench: Bench) -> Run:
    return check_expert_product(kernels_for(bench, num_ctas=SMOKE_CTAS).expert_product)


def _shapes(model: ModelConfig, tokens: int, rows: int) -> ServedShapes:
    longest = model.max_position
    return ServedShapes.of(
        model, block_size=BLOCK_SIZE, token_budgets=(tokens,), max_num_seqs=rows, max_model_len=longest
    )


def start(_: Bench, model: ModelConfig, tokens: int, rows: int) -> Measurement:
    """Run the proof as a starting server does, in a separate process, before this one opens the device."""
    gpu = find_gpu(None)
    if gpu is None:
        raise UnavailableError("the driver has no GPU for JAX")
    began = time.monotonic()
    shapes = _shapes(model, tokens, rows)
    kernels = made_for(gpu.device, model, BLOCK_SIZE)
    operations = [name for name in operations_of(model) if name in kernels.own]
    job = {"shapes": asdict(shapes), "device": asdict(gpu.device), "operations": operations}
    verdict = run_proof(job, START_SECONDS)
    detail = {"gpu": asdict(gpu), "findings": {name: asdict(one) for name, one in verdict.findings.items()}}
    refused = verdict.refused(operations)
    failure = "; ".join(f"{name}: {reason}" for name, reason in refused.items()) or kernels.reason or None
    return Measurement(detail=detail | {"seconds_in_all": round(time.monotonic() - began, 1)}, failure=failure)


def case(bench: Bench, case: Case) -> Run:
    return check_attention(kernels_for(bench), case, make_inputs(case))


def bits(bench: Bench, window: int | None = None) -> Run:
    return check_bits(kernels_for(bench), replace(BITS, window=window))


def random(bench: Bench, seed: int) -> Run:
    """Check random rows, many at the edges of tiles and pieces, in a padded shape that all seeds share."""
    case, most = bench.sizes.random_case, bench.sizes.random_most_context
    blocks = -(-most // case.block_size)
    rows = random_rows(seed, most_rows=RANDOM_ROWS, most_tokens=RANDOM_TOKENS, most_context=most)
    case = replace(case, rows=rows, padding=0)
    to = Padding(RANDOM_ROWS, RANDOM_TOKENS, RANDOM_ROWS * blocks + 5, blocks + 2)
    return check_attention(kernels_for(bench), *padded(case, make_inputs(case, seed), to))


def check_attention(kernels: Kernels, case: Case, inputs: Inputs) -> Run:
    """Compare with the definition in float64."""
    attend = compiled(kernels.ragged_paged_attention, case, inputs)
    want = expected(case, inputs)

    def run() -> Measurement:
        got = attend(case, inputs)
        error, limit = float(np.abs(got - want[: len(got)]).max(initial=0.0)), TOLERANCE[case.dtype]
        failure = None
        if not error <= limit:  # so a NaN fails
            failure = f"wrong by {error}, limit {limit}, rows {case.rows}"
        detail = {"kernels": kernels.name, "largest_error": error, "limit": limit, "rows": case.rows}
        return Measurement(detail=detail, failure=failure)

    return run


def check_bits(kernels: Kernels, case: Case) -> Run:
    """Check that the first row's outputs have the same bits in all batches: all queries at once, alone or with other
    rows; one by one, as decodes or as chunks; in chunks; and in a wider step. XLA's kernels are only reported on."""
    inputs, length = cancelling(case), case.rows[0][0]
    single = tuple(Piece(0, i, i + 1) for i in range(length))
    whole, other = Piece(0, 0, length), Piece(1, 0, 7)
    variants: dict[str, tuple[tuple[Piece, ...], int, int, Padding]] = {
        "decodes": (single, length, 0, BITS_PADDING[0]),
        "chunks of one": (single, 0, 0, BITS_PADDING[0]),
        "chunks": ((other, Piece(0, 0, 3), Piece(0, 3, length)), 0, 7, BITS_PADDING[0]),
        "among others": ((Piece(1, 6, 7), Piece(0, 1, 2), other, whole), 2, 9, BITS_PADDING[0]),
        "a wider step": ((whole, other), 0, 0, BITS_PADDING[1]),
    }

    def batch(pieces: tuple[Piece, ...], num_decodes: int, to: Padding) -> tuple[Case, Inputs]:
        return padded(*rearranged(case, inputs, pieces, num_decodes), to)

    programs = {to: compiled(kernels.ragged_paged_attention, *batch((whole,), 0, to)) for to in BITS_PADDING}

    def outputs(pieces: tuple[Piece, ...], num_decodes: int, first: int, to: Padding) -> np.ndarray:
        return programs[to](*batch(pieces, num_decodes, to))[first : first + length]

    def run() -> Measurement:
        reference = outputs((whole,), 0, 0, BITS_PADDING[0])
        unequal = [name for name, variant in variants.items() if not np.array_equal(outputs(*variant), reference)]
        if len(np.unique(reference.reshape(length, -1), axis=0)) != length or not np.isfinite(reference).all():
            raise RuntimeError("the queries' outputs are alike or not finite, so compare to anything")
        failure = f"bits differ: {', '.join(unequal)}" if unequal and kernels.name != REFERENCE.name else None
        return Measurement(detail={"kernels": kernels.name, "equal": not unequal, "unequal": unequal}, failure=failure)

    return run


def check_write_kv(write_kv: Kernel) -> Run:
    """Check writes into one layer of a random cache; some tokens are padding."""
    rng = np.random.default_rng(0)
    T = 61
    cache, (k, v), slots = _cache(rng), _bf16(rng.normal(size=(2, T, K, D))), _slots(rng, T)
    want = cache.copy()
    for token, slot in enumerate(slots):
        if slot < N * B:
            want[slot // B, 1, :, :, slot % B] = np.stack([k[token], v[token]])
    return _exactly("write_kv", write_kv, (cache, np.int32(1), k, v, slots), want)


def check_gather_blocks(gather: Kernel) -> Run:
    """Check a gather of the first ``count`` listed blocks: it must read no others."""
    cache, ids, count = _listed_blocks()
    unlisted = cache.copy()
    unlisted[sorted(set(range(N)) - set(ids[:count].tolist()))] = np.nan
    beyond = np.where(np.arange(len(ids)) < count, ids, 10**6).astype(np.int32)
    return _exactly("gather_blocks", gather, (unlisted, beyond, np.int32(count)), cache[ids[:count]])


def check_scatter_blocks(scatter: Kernel) -> Run:
    """Check a scatter into the first ``count`` listed blocks: it must write no others."""
    cache, ids, count = _listed_blocks()
    staging = _cache(np.random.default_rng(1))[: len(ids)]
    twice = np.where(np.arange(len(ids)) < count, ids, ids[0]).astype(np.int32)
    want = cache.copy()
    want[ids[:count]] = staging[:count]
    return _exactly("scatter_blocks", scatter, (cache, twice, staging, np.int32(count)), want)


def _listed_blocks() -> tuple[np.ndarray, np.ndarray, int]:
    """Return a cache, ids of blocks, and the number of these ids to use."""
    rng = np.random.default_rng(0)
    return _cache(rng), rng.permutation(N)[:7].astype(np.int32), 5


def check_partial_recompute(function: Kernel) -> Run:
    """Compare with float64, with bias and rotation; some tokens are padding. Other slots must keep their bits."""
    rng = np.random.default_rng(0)
    T, KD = 150, K * D
    x, weight = _bf16(rng.normal(size=(T, E))), np.full((L, (H + 2 * K) * D, E), np.nan)
    bias = np.full((L, (H + 2 * K) * D), np.nan)
    weight[1, H * D :] = rng.normal(size=(2 * KD, E)) * E**-0.5
    bias[1, H * D :] = rng.normal(size=2 * KD)
    weight, bias, cache, slots = _bf16(weight), _bf16(bias), _cache(rng), _slots(rng, T)
    turns = np.exp(1j * np.arange(T)[:, None, None] * 100.0 ** -(np.arange(D // 2) / (D // 2)))
    angles = tuple(jnp.asarray(part, jnp.float32) for part in (turns.real, turns.imag))
    arrays: list[Any] = [jnp.asarray(array) for array in (cache, np.int32(1), x, weight, bias)]
    arguments = (*arrays, angles, jnp.asarray(slots))
    program = program_of(function, *arguments)
    kv = x.astype(np.float64) @ weight[1, H * D :].astype(np.float64).T + bias[1, H * D :].astype(np.float64)
    k, v = np.split(kv.reshape(T, 2 * K, D), 2, axis=1)
    turned = (k[..., : D // 2] + 1j * k[..., D // 2 :]) * turns
    k = np.concatenate([turned.real, turned.imag], axis=-1)
    want, written = cache.astype(np.float64), np.zeros(cache.shape, bool)
    for token, slot in enumerate(slots):
        if slot < N * B:
            want[slot // B, 1, :, :, slot % B] = np.stack([k[token], v[token]])
            written[slot // B, 1, :, :, slot % B] = True

    def run() -> Measurement:
        got = np.asarray(program(*arguments)).astype(np.float64)
        error, limit = float(np.abs(got - want)[written].max()), 2.0**-5
        failure = None if error <= limit else f"wrong by {error}, limit {limit}"
        if not np.array_equal(got[~written], want[~written]):
            failure = "something was written that should not be"
        return Measurement(detail={"largest_error": error, "limit": limit}, failure=failure)

    return run


def check_expert_product(product: Kernel) -> Run:
    """Compare with float64, with experts without rows; a row must have the same bits among fewer rows. All of these
    are enough for the tiles of many rows, the fewer are not."""
    shapes: dict[str, Any] = {"experts": 12, "inputs": 448, "outputs": 320, "rows": 900}

    def run() -> Measurement:
        try:
            prove_expert_product(product, **shapes, dtype="bfloat16")
        except AssertionError as error:
            return Measurement(detail=shapes, failure=str(error))
        return Measurement(detail=shapes)

    return run


def _exactly(name: str, function: Kernel, arrays: tuple[Any, ...], want: np.ndarray) -> Run:
    """Compare the first rows of a kernel's result with ``want``."""
    arguments = [jnp.asarray(array) for array in arrays]
    program = program_of(function, *arguments)

    def run() -> Measurement:
        equal = np.array_equal(np.asarray(program(*arguments))[: len(want)], want)
        return Measurement(detail={"equal": equal}, failure=None if equal else f"{name} differs from numpy")

    return run


def _bf16(array: np.ndarray) -> np.ndarray:
    return np.asarray(jnp.asarray(array, jnp.bfloat16))


def _cache(rng: np.random.Generator) -> np.ndarray:
    return _bf16(rng.normal(size=(N, L, 2, K, B, D)))


def _slots(rng: np.random.Generator, tokens: int) -> np.ndarray:
    """Return distinct slots. Every seventh is past the end of the cache: its token writes nothing."""
    slots = rng.permutation(N * B)[:tokens]
    slots[::7] = N * B + np.arange(len(slots[::7]))
    return slots.astype(np.int32)
