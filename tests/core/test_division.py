"""What each device has of a model that is divided, and which models are not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.decoder_parts import AttentionConfig, NormConfig
from jaxgen.core.division import Division
from jaxgen.core.errors import ConfigError
from jaxgen.core.layer_kind import ConvolutionConfig
from jaxgen.core.moe_config import MoEConfig
from tests.support.engines import LLAMA

QKV, OUT = "layers.attn.qkv.weight", "layers.attn.out.weight"
EXPERTS = MoEConfig(experts=4, per_token=2, inner=32, shared_inner=64)
RMS = NormConfig(eps=1e-5)


def heads_of(rank: int, ranks: int) -> list[str]:
    """The heads of queries, keys and values that a device has, of 4 and 2."""
    names = np.asarray([*(f"q{i}" for i in range(4)), "k0", "k1", "v0", "v1"])
    rows = np.repeat(names, LLAMA.head_dim)[None, :, None]
    cut = Division(LLAMA, ranks).cut(QKV, rows, rank)[0, :: LLAMA.head_dim, 0]
    return [str(name) for name in cut]


def test_heads_go_with_the_keys_and_values_that_they_read() -> None:
    assert [heads_of(rank, 2) for rank in range(2)] == [["q0", "q1", "k0", "v0"], ["q2", "q3", "k1", "v1"]]


def test_neighbours_have_the_same_keys_where_there_are_fewer_heads_of_them() -> None:
    found = [heads_of(rank, 4) for rank in range(4)]
    assert found == [["q0", "k0", "v0"], ["q1", "k0", "v0"], ["q2", "k1", "v1"], ["q3", "k1", "v1"]]


@pytest.mark.parametrize("ranks", [2, 4])
def test_inputs_of_a_sum_are_those_that_the_device_computes(ranks: int) -> None:
    """Queries and columns of what ends attention, rows and columns of the MLP."""
    division = Division(LLAMA, ranks)
    for rank in range(ranks):
        (heads,), (queries, *_) = _ranges(division, OUT, rank), _ranges(division, QKV, rank)
        assert heads == queries
        (inner,), (gate, up) = (_ranges(division, f"layers.mlp.{name}.weight", rank) for name in ("down", "gate_up"))
        assert inner == gate
        assert (up.start, len(up)) == (gate.start + LLAMA.intermediate_size, len(gate))
        assert division.share("layers.attn.out.bias", rank) is None
        assert division.share("embed.weight", rank) is None


def _ranges(division: Division, path: str, rank: int) -> tuple[range, ...]:
    share = division.share(path, rank)
    assert share is not None
    return share.ranges


def test_each_device_has_a_part_of_every_expert() -> None:
    division = Division(replace(LLAMA, moe=EXPERTS), 4)
    moe, path = division.part.moe, "layers.mlp.experts.gate_up.weight"
    assert moe is not None
    assert (moe.experts, moe.inner, moe.shared_inner) == (4, 8, 16)
    assert _ranges(division, path, 1) == (range(8, 16), range(40, 48))
    assert _ranges(division, "layers.mlp.shared.down.weight", 1) == (range(16, 32),)
    assert division.share("layers.mlp.router.weight", 1) is None
    share, whole = division.share(path, 3), np.arange(4 * 64 * 2).reshape(4, 64, 2)
    assert share is not None
    value = np.zeros((4, 16, 2), int)  # as of a tensor that has all experts
    share.put(whole, value, slice(0, 64))
    np.testing.assert_array_equal(value, division.cut(path, whole, 3))


def test_a_part_is_a_model_with_fewer_heads() -> None:
    part = Division(LLAMA, 4).part
    sizes = part.num_heads, part.num_kv_heads, part.head_dim, part.intermediate_size, part.hidden_size, part.num_devices
    assert sizes == (1, 1, 16, 24, 64, 4)
    assert part.score_scale == LLAMA.score_scale


@pytest.mark.parametrize(
    ("change", "ranks", "message"),
    [
        ({}, 3, "num_attention_heads (4), and 3 does not"),
        ({"num_heads": 12, "num_kv_heads": 6}, 4, "num_key_value_heads (6), and 4 does not"),
        ({"num_heads": 12, "num_kv_heads": 4, "head_dim": 8}, 6, "multiple of the model's num_key_value_heads (4) or"),
        ({"intermediate_size": 98}, 4, "intermediate_size (98), and 4 does not"),
        ({"moe": MoEConfig(experts=4, per_token=2, inner=34)}, 4, "width of an expert (34), and 4 does not"),
        ({"moe": replace(EXPERTS, expert_bias=True)}, 2, "that have experts with biases are not divided yet"),
        ({"moe": replace(EXPERTS, norms=True)}, 2, "that have experts with norms"),
        (
            {"layer_kinds": ("conv", "attention"), "convolution": ConvolutionConfig(taps=3)},
            2,
            "have states in place",
        ),
        ({"layer_kinds": ("attention", "reader")}, 2, "that have layers of several kinds"),
        ({"attention": AttentionConfig(sinks=True)}, 2, "that have attention sinks"),
        ({"attention": AttentionConfig(output_gate=True)}, 2, "that have gated attention"),
        ({"attention": AttentionConfig(qk_norm=RMS, qk_norm_rows=True)}, 2, "that have norms over all heads"),
        (
            {"attention": AttentionConfig(qk_norm=RMS, qk_norm_heads=True)},
            2,
            "norms with weights for",
        ),
    ],
)
def test_what_is_not_divided_is_named(change: dict[str, Any], ranks: int, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Division(changed(**change), ranks)
    assert "--tensor-parallel-size" in str(caught.value)
    assert message in str(caught.value)


def changed(**change: Any) -> DecoderConfig:
    return replace(LLAMA, **change)
