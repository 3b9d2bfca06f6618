"""What a step moves and multiplies at least, against counts by hand."""

from dataclasses import replace

import pytest

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.layer_kind import ConvolutionConfig
from jaxgen.core.moe_config import MoEConfig
from scripts.measure.step_floor import step_floor
from tests.support.engines import LLAMA

LAYER = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96
"""Numbers of a layer's matrices."""
NORMS = 2 * 2 * 64 + 64
MIXED = replace(LLAMA, layer_kinds=("conv", "attention"), convolution=ConvolutionConfig(taps=3))


def test_a_decode_reads_each_weight_and_its_context_once() -> None:
    floor = step_floor(LLAMA, rows=1, context=100, chunk=0)
    assert floor.num_bytes == 4 * (2 * LAYER + 300 * 64 + NORMS + 100 * 2 * 2 * 2 * 16)
    assert floor.flops == 2 * (2 * LAYER + 300 * 64 + NORMS) + 4 * 2 * 4 * 16 * 100


def test_only_layers_with_attention_read_a_context() -> None:
    none, some = (step_floor(MIXED, rows=1, context=context, chunk=0) for context in (0, 100))
    assert some.num_bytes - none.num_bytes == 4 * 100 * 2 * 2 * 16
    assert some.flops - none.flops == 4 * 4 * 16 * 100


def test_a_decode_reads_the_state_of_its_sequence() -> None:
    none, some = (step_floor(MIXED, rows=rows, context=0, chunk=1) for rows in (0, 1))
    assert some.num_bytes - none.num_bytes == 4 * 2 * 64


def test_a_chunk_is_multiplied_by_all_but_the_head() -> None:
    floor = step_floor(LLAMA, rows=0, context=0, chunk=8)
    assert floor.num_bytes == 4 * (2 * LAYER + 300 * 64 + NORMS)
    assert floor.flops == 2 * (8 * (2 * LAYER + NORMS) + 300 * 64) + 4 * 2 * 4 * 16 * 36


@pytest.mark.parametrize("model", [LLAMA, MIXED], ids=["one stack", "two stacks"])
def test_experts_are_read_if_one_token_chooses_them(model: DecoderConfig) -> None:
    sparse = replace(model, moe=MoEConfig(experts=8, per_token=2, inner=24))
    one, all_ = (step_floor(replace(sparse, moe=moe), rows=2, context=0, chunk=0) for moe in (sparse.moe, ALL))
    experts = 2 * 8 * 3 * 64 * 24
    assert all_.num_bytes - one.num_bytes == pytest.approx(4 * experts * 0.75**2)
    assert all_.flops - one.flops == pytest.approx(2 * experts * 2 * 0.75)


ALL = MoEConfig(experts=8, per_token=8, inner=24)
