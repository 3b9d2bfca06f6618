"""Weights of few bits in a model: their numbers' answers, by any kernels, whole or layer by layer."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from jaxgen.arrays import num_bytes
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.quantization import FLOATS as NUMBERS
from jaxgen.core.quantization import Bits, GroupedWeight, WeightFormat, packed
from jaxgen.core.request import TokenEvent
from jaxgen.engine.start.build import build_engine
from jaxgen.kernels.choice import REFERENCE, REFERENCE_GPU, ampere, blackwell, blackwell_rtx, hopper, native
from jaxgen.kernels.kernels import Kernels, QuantizedProduct
from jaxgen.models.model import Params
from jaxgen.models.placement import abstract_packed_params, pack_params, placed_formats
from jaxgen.models.quantized_weight import Codes, QuantizedWeight
from tests.support.engines import EOS, LLAMA, compiled_step, engine_config, make_engine, params_of, request, run
from tests.support.golden_runs import logits_of_chunks, make_forward
from tests.support.goldens import Golden
from tests.support.native import native as library
from tests.support.quantized import (
    FP4,
    FP8,
    INT4,
    INT8,
    ORDERED,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_K,
    Q6_K,
    TWINS,
    mixed,
    numbers,
    quantized,
    random_weight,
)

FOUR_LAYERS = replace(LLAMA, num_layers=4)
TIED = replace(LLAMA, head=replace(LLAMA.head, tied=True), num_heads=2, head_dim=32)
FORMATS = {"int8": INT8, "int4": INT4, "ordered": ORDERED}
GGUF = {"Q4_0": Q4_0, "Q4_1": Q4_1, "Q4_K": Q4_K, "Q5_K": Q5_K, "Q6_K": Q6_K}
FLOATS = {"fp8": FP8, "fp8 in groups": WeightFormat(8, 32, floats=True), "fp4": FP4}
PLAIN = (
    FORMATS
    | GGUF
    | FLOATS
    | {"int8 with zeros": WeightFormat(8, None, zeros=True), "int8 in groups": WeightFormat(8, 32)}
)
PROMPTS = [np.random.default_rng(1).integers(3, 300, size=n).tolist() for n in (1, 7, 40)]
REQUESTS = [
    request(f"r{i}", prompt, max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=3)
    for i, prompt in enumerate(PROMPTS)
]
# In one program each: by themselves, operations are compiled one after another.
product = jax.jit(lambda weight, x: weight.product(x, jnp.int32(5)))
rows_of = jax.jit(lambda weight, ids: weight.rows(ids))


def first_logprobs(events: dict[str, list[TokenEvent]]) -> list[float]:
    """Of the first tokens: of later ones the texts before them may differ."""
    found = [of_one[0].logprobs for _, of_one in sorted(events.items())]
    return [one.logprob for one in found if one is not None]


def exact(model: DecoderConfig) -> tuple[DecoderConfig, Params]:
    """The model of the numbers that the codes of ``model`` mean."""
    return replace(model, weight_formats=()), numbers(params_of(model))


def logprobs(model: DecoderConfig, params: Any, kernels: Kernels = REFERENCE) -> list[np.ndarray]:
    """Of all tokens after each prompt, by the model without an engine, whose programs take longer to compile."""
    config = engine_config()
    forward, packed = make_forward(model, config), pack_params(model, dict(params), kernels)
    nothing = np.zeros(0, np.int32), np.zeros(0, np.float32), dict[Any, Any]()
    answers = [Golden(prompt, [0], *nothing) for prompt in PROMPTS]
    return [log_softmax(logits_of_chunks(forward, model, packed, one, config, kernels)[-1]) for one in answers]


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        *(("int8", 301), ("int4", 96), ("ordered", 320)),
        *(("Q4_1", 96), ("Q4_0", 320), ("Q4_K", 512), ("Q6_K", 96)),  # Q5_K is as Q4_K
    ],
)
def test_a_weight_multiplies_as_its_numbers_do(name: str, inputs: int) -> None:
    weight_format, rng = PLAIN[name], np.random.default_rng(0)
    weight = random_weight(weight_format, (3, 70, inputs), rng)
    kernel = native(library()).quantized if inputs > 96 else TWINS.quantized
    assert kernel is not None
    placed = QuantizedWeight.pack(weight_format, Codes.of(weight), kernel, "float32")
    x, wanted = rng.normal(size=(5, inputs)).astype(np.float32), weight.dequantized((2,)).astype(np.float64)
    found = product(placed.at(jnp.int32(2)), jnp.asarray(x))
    # an input is rounded to 1/254 of the greatest of its group
    np.testing.assert_allclose(found, x @ wanted.T, atol=0.015 * np.abs(wanted).sum(axis=1).max())
    assert np.abs(found - x @ wanted.T).mean() < 0.01 * np.abs(x @ wanted.T).mean()
    np.testing.assert_array_equal(rows_of(placed, jnp.asarray([0, 69])), weight.dequantized((0,))[[0, 69]])
    np.testing.assert_array_equal(product(placed.alone(2), jnp.asarray(x)), found)


@pytest.mark.parametrize("name", FORMATS)
def test_dequantized_numbers_are_codes_less_zero_times_scale(name: str) -> None:
    weight_format = FORMATS[name]
    weight = random_weight(weight_format, (2, 3, 64), np.random.default_rng(0))
    whole = weight.dequantized()
    for layer, out, code in np.ndindex(2, 3, 64):
        byte = int(weight.codes[layer, out, code if weight_format.bits == 8 else code // 2])
        value = byte if weight_format.bits == 8 else byte >> 4 if code % 2 else byte & 15
        group = 0 if weight_format.group is None else code // weight_format.group
        zero = (1 << weight_format.bits) // 2 if weight.zeros is None else int(weight.zeros[layer, out, group])
        at = code if weight.order is None else int(weight.order[layer, code])
        assert whole[layer, out, at] == np.float32(value - zero) * np.float32(weight.scales[layer, out, group])


@pytest.mark.parametrize(("name", "inputs"), [*((name, 96) for name in PLAIN), ("int4", 80), ("fp8 in groups", 75)])
def test_gpus_multiply_codes_as_their_numbers(name: str, inputs: int) -> None:
    """Also where the last group is shorter. In bfloat16 scales of groups and their products are rounded to 8 bits."""
    weight_format, rng = PLAIN[name], np.random.default_rng(0)
    weight = random_weight(weight_format, (3, 70, inputs), rng)
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 2**-7)):
        placed = QuantizedWeight.pack(weight_format, Codes.of(weight), gpu_product(weight_format), dtype)
        x = jnp.asarray(rng.normal(size=(5, inputs)), dtype)
        wanted = np.asarray(x, np.float64) @ weight.dequantized((2,)).astype(np.float64).T
        found = placed.at(jnp.int32(2)).product(x, jnp.int32(5))
        np.testing.assert_allclose(found, wanted, atol=tolerance * np.abs(wanted).max())
        np.testing.assert_array_equal(placed.alone(2).product(x, jnp.int32(5)), found)
        added = placed.at(jnp.int32(2)).product(x, jnp.int32(5), x[:, :70], dtype=x.dtype)
        np.testing.assert_array_equal(added, x[:, :70] + found.astype(x.dtype))
        rows = placed.rows(jnp.asarray([0, 69]))
        np.testing.assert_array_equal(rows, jnp.asarray(weight.dequantized((0,))[[0, 69]], dtype))


@pytest.mark.parametrize("name", [name for name, weight_format in PLAIN.items() if not weight_format.ordered])
def test_gpus_multiply_rows_by_the_codes_of_their_experts(name: str) -> None:
    weight_format, rng = PLAIN[name], np.random.default_rng(0)
    weight = random_weight(weight_format, (2, 3, 70, 96), rng)
    placed = QuantizedWeight.pack(weight_format, Codes.of(weight), gpu_product(weight_format), "float32")
    x, starts = rng.normal(size=(9, 96)).astype(np.float32), [0, 4, 4, 9]
    found = placed.at(jnp.int32(1)).expert_product(jnp.asarray(x), jnp.asarray(starts, jnp.int32))
    for expert, (start, end) in enumerate(pairwise(starts)):
        wanted = x[start:end].astype(np.float64) @ weight.dequantized((1, expert)).astype(np.float64).T
        np.testing.assert_allclose(found[start:end], wanted, atol=1e-5 * np.abs(x).max() * 96)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_with_inputs_in_fp8_are_those_of_the_rounded_numbers(dtype: str) -> None:
    """Sums of e4m3 times e4m3, whose products float32 holds, times the scales of token and output."""
    rng = np.random.default_rng(0)
    weight, x = random_weight(FP8, (2, 3, 70, 96), rng), jnp.asarray(rng.normal(size=(9, 96)), dtype)
    by_token = np.abs(np.asarray(x, np.float64)).max(axis=1, keepdims=True) / 448
    codes = (np.asarray(x, np.float64) / by_token).astype(np.float32).astype(NUMBERS[8]).astype(np.float64)
    dense = GroupedWeight(FP8, weight.codes[:, 1], weight.scales[:, 1])
    pack = partial(QuantizedWeight.pack, FP8, kernel=gpu_product(FP8), dtype=dtype, fp8_inputs=True)
    placed, experts = (pack(Codes.of(one)).at(jnp.int32(1)) for one in (dense, weight))
    found = jax.jit(lambda weight, x: weight.product(x, jnp.int32(9)))(placed, x)
    wanted = codes * by_token @ dense.dequantized((1,)).astype(np.float64).T
    close = 1e-6 * np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, atol=close)
    added = placed.product(x, jnp.int32(9), x[:, :70], dtype=x.dtype)
    np.testing.assert_array_equal(added, x[:, :70] + found.astype(x.dtype))
    starts = [0, 4, 4, 9]
    by_expert = jax.jit(lambda weight, x, starts: weight.expert_product(x, starts))
    rows = by_expert(experts, x, jnp.asarray(starts, jnp.int32))
    for expert, (start, end) in enumerate(pairwise(starts)):
        wanted = codes[start:end] * by_token[start:end] @ weight.dequantized((1, expert)).astype(np.float64).T
        np.testing.assert_allclose(rows[start:end], wanted, atol=2 * close)


def gpu_product(weight_format: WeightFormat) -> QuantizedProduct:
    found = REFERENCE_GPU.floats if weight_format.floats else REFERENCE_GPU.quantized
    assert found is not None
    return found


@pytest.mark.parametrize("bits", [4, 8])
def test_plain_codes_take_the_bytes_of_their_format(bits: Bits) -> None:
    for floats in (False, True):
        weight_format = WeightFormat(bits, 16, floats=floats)
        weight = random_weight(weight_format, (1, 6, 32), np.random.default_rng(0))
        placed = QuantizedWeight.pack(weight_format, Codes.of(weight), gpu_product(weight_format), "bfloat16")
        assert num_bytes(placed.parts.codes) == weight.codes.nbytes


@pytest.mark.parametrize("bits", [8, 4])
def test_each_floating_point_code_is_its_number(bits: Bits) -> None:
    """Also those below the normal numbers; e4m3 has one that is none, of either sign."""
    codes = np.arange(1 << bits, dtype=np.uint8)
    wanted = codes.view(NUMBERS[bits]).astype(np.float32)
    finite = np.isfinite(wanted)
    assert finite.sum() == len(codes) - (2 if bits == 8 else 0)
    weight_format, scales = WeightFormat(bits, None, "float32", floats=True), np.ones((len(codes), 1), np.float32)
    columns = np.repeat(packed(codes[:, None].repeat(2, axis=1), weight_format), 4, axis=1)
    rows = QuantizedWeight.pack(weight_format, Codes(columns, scales), gpu_product(weight_format), "float32").rows(
        jnp.arange(1 << bits)
    )
    np.testing.assert_array_equal(np.asarray(rows)[finite, 0], wanted[finite])


def test_native_kernels_get_integers_of_fp4_and_numbers_of_fp8() -> None:
    kernels = native(library())
    fp4, fp8 = (quantized(LLAMA, weight_format) for weight_format in (FP4, FP8))
    assert set(placed_formats(fp4, kernels).values()) == {WeightFormat(8, 16, "float32")}
    for value in params_of(fp4).values():
        if isinstance(value, GroupedWeight):
            np.testing.assert_array_equal(
                value.as_placed(WeightFormat(8, 16, "float32")).dequantized(), value.dequantized()
            )
    assert placed_formats(fp8, kernels) == {}
    placed = pack_params(fp8, dict(params_of(fp8)), kernels)
    plain = pack_params(replace(fp8, weight_formats=()), numbers(params_of(fp8)), kernels)
    for found, wanted in zip(jax.tree.leaves(placed), jax.tree.leaves(plain), strict=True):
        np.testing.assert_array_equal(found, wanted)
    check_shapes(pack_params(fp4, dict(params_of(fp4)), kernels), abstract_packed_params(fp4, kernels))


@pytest.mark.full  # the kernels get integers, by the test above
def test_native_kernels_answer_as_the_numbers_of_fp4() -> None:
    model = quantized(TIED, FP4)
    found = logprobs(model, params_of(model), native(library()))
    for one, wanted in zip(found, logprobs(*exact(model)), strict=True):
        assert one.max() == pytest.approx(wanted.max(), abs=0.2)


def test_kernels_without_products_of_codes_get_numbers() -> None:
    model = quantized(LLAMA, INT4)
    placed = pack_params(model, dict(params_of(model)), REFERENCE)
    for path, value in numbers(params_of(model)).items():
        np.testing.assert_array_equal(placed[path], value)


@pytest.mark.parametrize("name", ["ordered", "fp4", "mixed", "fp8_dynamic"])
def test_shapes_are_known_before_weights_are_loaded(name: str) -> None:
    model = mixed(FOUR_LAYERS) if name == "mixed" else quantized(LLAMA, PLAIN.get(name, FP8))
    model = replace(model, fp8_inputs=name == "fp8_dynamic")
    for kernels in (TWINS, REFERENCE_GPU):
        check_shapes(pack_params(model, dict(params_of(model)), kernels), abstract_packed_params(model, kernels))


def check_shapes(placed: dict[str, Any], wanted: dict[str, Any]) -> None:
    structure: Any = jax.tree.structure(placed)
    assert structure == jax.tree.structure(wanted)
    for found, one in zip(jax.tree.leaves(placed), jax.tree.leaves(wanted), strict=True):
        assert (found.shape, found.dtype) == (one.shape, one.dtype)


def test_native_kernels_answer_as_the_twins_and_as_the_numbers() -> None:
    model = quantized(TIED, INT4)
    by_twins, by_native = (logprobs(model, params_of(model), kernels) for kernels in (TWINS, native(library())))
    for found, of_twins, wanted in zip(by_native, by_twins, logprobs(*exact(model)), strict=True):
        assert found.max() == pytest.approx(of_twins.max(), abs=0.05)  # inputs near a half round either way
        assert found.max() == pytest.approx(wanted.max(), abs=0.2)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(mixed(FOUR_LAYERS), id="mixed"),  # which has both
        pytest.param(quantized(replace(LLAMA, dtype="bfloat16"), INT8), id="int8", marks=pytest.mark.full),
        pytest.param(quantized(LLAMA, INT4), id="int4", marks=pytest.mark.full),
    ],
)
def test_a_request_has_the_same_bits_alone_and_among_others(model: DecoderConfig) -> None:
    kernels = native(library())
    config = engine_config(num_blocks=32, token_budget=9)
    together = run(make_engine(model, config, kernels), REQUESTS)
    for one in REQUESTS:
        assert together[one.request_id] == run(make_engine(model, config, kernels), [one])[one.request_id]


@pytest.mark.parametrize("name", ["ordered", "mixed"])  # of each format test_gpus_multiply_codes_as_their_numbers
def test_programs_for_gpus_multiply_by_the_numbers(name: str) -> None:
    model = mixed(LLAMA) if name == "mixed" else quantized(LLAMA, (FORMATS | FLOATS)[name])
    found = logprobs(model, params_of(model), REFERENCE_GPU)
    for one, wanted in zip(found, logprobs(*exact(model)), strict=True):
        np.testing.assert_allclose(one, wanted, atol=1e-4)


@pytest.mark.full  # compiles the programs of two engines, of the model above
def test_engines_for_gpus_multiply_by_the_numbers() -> None:
    model, config = mixed(LLAMA), engine_config()
    plain, params = exact(model)
    engine = build_engine(plain, config, params, frozenset({EOS}), compiled=compiled_step(plain, config))
    found = run(make_engine(model, kernels=REFERENCE_GPU), REQUESTS)
    assert first_logprobs(found) == pytest.approx(first_logprobs(run(engine, REQUESTS)), abs=1e-4)


def test_all_kernels_of_gpus_take_the_same_weights() -> None:
    """Memory is planned whichever of them a device gets. Only scales may be in another order."""
    for kernels in (make(8) for make in (hopper, ampere, blackwell, blackwell_rtx)):
        for own, twins in ((kernels.quantized, REFERENCE_GPU.quantized), (kernels.floats, REFERENCE_GPU.floats)):
            assert own is not None
            assert twins is not None
            assert own.pack_codes == twins.pack_codes
            assert own.otherwise in (twins, None)
            assert own.pack_groups(jnp.zeros((2, 3, 8, 4))).size == 2 * 3 * 8 * 4
