"""Mixtures of experts that cannot be are refused, with what would be right."""

from typing import Any

import pytest

from jaxgen.core.errors import ConfigError
from jaxgen.core.moe_config import MoEConfig

RIGHT: dict[str, Any] = {"experts": 8, "per_token": 2, "inner": 16}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": 0}, "number of experts is 0, but must be 1 or more"),
        ({"inner": 0}, "inner width is 0, but must be 1 or more"),
        ({"per_token": 9}, r"num_experts_per_tok \(9\) must be between 1 and the number of experts \(8\)"),
        ({"per_token": 0}, r"num_experts_per_tok \(0\) must be between 1"),
        ({"scoring": "tanh"}, "'tanh', but must be one of softmax, softmax_after_topk, sigmoid"),
        ({"activation": "relu"}, "'relu', but must be one of silu, gelu, gelu_tanh, swiglu_clipped"),
        ({"scoring": "softmax_after_topk", "renormalise": False}, "renormalise must be True"),
        ({"scoring": "softmax_after_topk", "corrected": True}, "corrected must be False"),
        ({"groups": 3}, r"n_group \(3\) must divide the number of experts \(8\) into groups of 1 or more"),
        ({"groups": 8, "corrected": True}, "into groups of 2 or more"),
        ({"groups": 8}, r"such groups must have the experts of a token \(2\)"),
        ({"groups": 4, "best_groups": 5}, r"topk_group \(5\) must be at most n_group \(4\)"),
        ({"shared_inner": 0}, "shared expert's inner width is 0, but must be 1 or more"),
        ({"shared_gate": True}, "without shared_inner they must be False"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MoEConfig(**(RIGHT | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"per_token": 8, "renormalise": False},
        {"scoring": "softmax_after_topk", "router_bias": True, "expert_bias": True, "activation": "swiglu_clipped"},
        {"shared_inner": 24, "shared_gate": True},
        {"shared_inner": 24},
        {"scoring": "sigmoid", "corrected": True, "least_sum": 1e-20, "scale": 2.5},
    ],
)
def test_what_fits_is_taken(changes: dict[str, Any]) -> None:
    assert MoEConfig(**(RIGHT | changes)).experts == 8
