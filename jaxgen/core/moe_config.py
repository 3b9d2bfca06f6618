"""Describe a mixture-of-experts block. Host only, no jax."""

from dataclasses import dataclass
from typing import Literal, get_args

from jaxgen.core.errors import ConfigError

Scoring = Literal["softmax", "softmax_after_topk", "sigmoid"]
ExpertActivation = Literal["silu", "gelu", "gelu_tanh", "swiglu_clipped"]

MOE_NORMS = ("shared", "shared_post", "router", "experts", "experts_post")
"""Names of the norms of a block with ``norms``: before its parts, and ``_post`` of their results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """A router that sends each token to ``per_token`` of ``experts`` gated MLPs of width ``inner``.

    The experts with the highest scores are chosen. ``scoring``: scores are a softmax over all experts (Mixtral, Qwen)
    or sigmoids of the logits (DeepSeek-V3, arXiv 2412.19437). They are the weights too, divided by their sum plus
    ``least_sum`` if ``renormalise``. Or weights are a softmax over the chosen experts alone (gpt-oss), whose sum is 1.
    ``corrected``: each expert has a number that is added to its score where experts are chosen, and not to its weight
    (arXiv 2408.15664). ``groups``: the experts are groups of neighbours, of which a token takes experts of
    ``best_groups`` alone: those with the highest score, or sum of the two highest corrected scores. ``scale``: the
    weights are multiplied by it. ``router_bias``, ``expert_bias``: whether the router, and both products of the
    experts, have biases. ``shared_inner``: width of an MLP of the same kind that all tokens go through, without biases;
    None: there is none. ``shared_gate``: whether its result is multiplied by a sigmoid of one product of the token
    (Qwen2-MoE). ``norms``: the layer's norm before its MLP is the shared expert's. The router and the experts have
    norms of their own before them, and both results are normed before they are added. An expert's weight is multiplied
    by a number of the expert (Gemma 4). Raises ConfigError if numbers do not fit each other.
    """

    experts: int
    per_token: int
    inner: int
    scoring: Scoring = "softmax"
    renormalise: bool = True
    least_sum: float = 0.0
    corrected: bool = False
    groups: int = 1
    best_groups: int = 1
    scale: float = 1.0
    router_bias: bool = False
    expert_bias: bool = False
    shared_inner: int | None = None
    shared_gate: bool = False
    norms: bool = False
    activation: ExpertActivation = "silu"

    def __post_init__(self) -> None:
        _check_positive("the number of experts", self.experts)
        _check_positive("the experts' inner width", self.inner)
        if not 1 <= self.per_token <= self.experts:
            raise ConfigError(
                f"num_experts_per_tok ({self.per_token}) must be between 1 and the number of experts ({self.experts})"
            )
        self._check_groups()
        _check_name("the scoring of experts", self.scoring, get_args(Scoring))
        _check_name("the activation of experts", self.activation, get_args(ExpertActivation))
        if self.scoring == "softmax_after_topk" and not self.renormalise:
            raise ConfigError("a softmax over the chosen experts has the sum 1: renormalise must be True")
        if self.scoring == "softmax_after_topk" and self.corrected:
            raise ConfigError("a softmax over the chosen experts has no score of the others: corrected must be False")
        if self.shared_inner is not None:
            _check_positive("the shared expert's inner width", self.shared_inner)
        elif self.shared_gate or self.norms:
            raise ConfigError("shared_gate and norms are of a shared expert: without shared_inner they must be False")

    def _check_groups(self) -> None:
        least = 2 if self.corrected and self.groups > 1 else 1
        if self.experts % self.groups or self.experts < least * self.groups:
            raise ConfigError(
                f"n_group ({self.groups}) must divide the number of experts ({self.experts}) into groups of {least} or "
                "more"
            )
        if not self.per_token <= self.best_groups * (self.experts // self.groups) <= self.experts:
            raise ConfigError(
                f"topk_group ({self.best_groups}) must be at most n_group ({self.groups}), and such groups must have "
                f"the experts of a token ({self.per_token})"
            )


def _check_positive(what: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{what} is {value}, but must be 1 or more")


def _check_name(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{what} is {value!r}, but must be one of {', '.join(known)}")
