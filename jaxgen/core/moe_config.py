"""Describe a mixture-of-experts block. Host only, no jax."""

from dataclasses import dataclass
from typing import Literal, get_args

from jaxgen.core.errors import ConfigError

Scoring = Literal["softmax", "softmax_after_topk"]
ExpertActivation = Literal["silu", "gelu", "gelu_tanh", "swiglu_clipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """A router that sends each token to ``per_token`` of ``experts`` gated MLPs of width ``inner``.

    The experts with the highest logits are chosen. ``scoring``: their weights come from a softmax over all experts
    (Mixtral, Qwen), divided by their sum if ``renormalise``. Or they come from a softmax over the chosen experts alone
    (gpt-oss), whose sum is 1. ``router_bias``, ``expert_bias``: whether the router, and both products of the experts,
    have biases. ``shared_inner``: width of an MLP of the same kind that all tokens go through, without biases; None:
    there is none. ``shared_gate``: whether its result is multiplied by a sigmoid of one product of the token
    (Qwen2-MoE). Raises ConfigError if numbers do not fit each other.
    """

    experts: int
    per_token: int
    inner: int
    scoring: Scoring = "softmax"
    renormalise: bool = True
    router_bias: bool = False
    expert_bias: bool = False
    shared_inner: int | None = None
    shared_gate: bool = False
    activation: ExpertActivation = "silu"

    def __post_init__(self) -> None:
        _check_positive("the number of experts", self.experts)
        _check_positive("the experts' inner width", self.inner)
        if not 1 <= self.per_token <= self.experts:
            raise ConfigError(
                f"num_experts_per_tok ({self.per_token}) must be between 1 and the number of experts ({self.experts})"
            )
        _check_name("the scoring of experts", self.scoring, get_args(Scoring))
        _check_name("the activation of experts", self.activation, get_args(ExpertActivation))
        if self.scoring == "softmax_after_topk" and not self.renormalise:
            raise ConfigError("a softmax over the chosen experts has the sum 1: renormalise must be True")
        if self.shared_inner is not None:
            _check_positive("the shared expert's inner width", self.shared_inner)
        elif self.shared_gate:
            raise ConfigError("shared_gate is the gate of a shared expert: without shared_inner it must be False")


def _check_positive(what: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{what} is {value}, but must be 1 or more")


def _check_name(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{what} is {value!r}, but must be one of {', '.join(known)}")
