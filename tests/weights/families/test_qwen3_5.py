"""Qwen3.5 and Qwen3-Next: which layers are gated delta nets, and what of them is refused."""

from pathlib import Path
from typing import Any

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.weights.families.row_orders import delta_by_key_head, gated_queries, gates_by_key_head
from tests.weights.families.test_families import config_of, read


def test_every_fourth_layer_has_attention_where_a_file_lists_none(tmp_path: Path) -> None:
    config = config_of("qwen3_5") | {"layer_types": None, "num_hidden_layers": 6}
    assert read(tmp_path, config).layer_kinds == ("delta", "delta", "delta", "attention", "delta", "delta")
    config["full_attention_interval"] = 2
    assert read(tmp_path, config).layer_kinds == ("delta", "attention") * 3


def test_attention_alone_needs_no_sizes_of_nets(tmp_path: Path) -> None:
    for name in ("qwen3_5", "qwen3_next"):
        found = read(tmp_path, config_of(name) | {"layer_types": ["full_attention"] * 3})
        assert (found.layer_kinds, found.delta, found.states) == ((), None, ())


@pytest.mark.parametrize(
    ("name", "changed", "says"),
    [
        ("qwen3_5", {"layer_types": ["linear_attention"] * 3}, "must have 'full_attention' for a layer at least"),
        ("qwen3_5", {"layer_types": ["full_attention", "mamba", "full_attention"]}, "'linear_attention', not"),
        ("qwen3_5", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be at least 2, not 1"),
        ("qwen3_5", {"linear_num_value_heads": 3}, r"linear_num_value_heads \(3\) must be a multiple of linear_num_ke"),
        ("qwen3_5", {"attn_output_gate": False}, "attn_output_gate False is not supported, only True"),
        ("qwen3_5", {"output_gate_type": "sigmoid"}, "output_gate_type 'sigmoid' is not supported, only 'swish'"),
        ("qwen3_next", {"mlp_only_layers": ["0"]}, "mlp_only_layers must be a list of numbers of layers, not"),
    ],
)
def test_what_is_not_computed_is_refused(name: str, changed: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=says):
        read(tmp_path, config_of(name) | changed)


def test_rows_by_head_become_all_of_each(tmp_path: Path) -> None:
    """Of 2 key heads of 8 numbers, each with 2 heads of 16 values, and of 4 heads of 32 queries."""
    config = read(tmp_path, config_of("qwen3_next"))
    counts = {"q": 8, "k": 8, "v": 32, "z": 32}
    stored = [f"{name}{head}" for head in range(2) for name, count in counts.items() for _ in range(count)]
    wanted = [f"{name}{head}" for name, count in counts.items() for head in range(2) for _ in range(count)]
    assert [stored[row] for row in delta_by_key_head(config)] == wanted
    stored, wanted = ["b0", "b1", "a0", "a1", "b2", "b3", "a2", "a3"], ["b0", "b1", "b2", "b3", "a0", "a1", "a2", "a3"]
    assert [stored[row] for row in gates_by_key_head(config)] == wanted
    assert gated_queries(config)[:33] == (*range(32), 64)
