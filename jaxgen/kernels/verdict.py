"""The shapes in which GPU kernels are proven, and the verdict of a proof. Host only, no jax."""

from dataclasses import dataclass
from typing import Literal

from jaxgen.core.config import ModelConfig
from jaxgen.core.decoder_config import AttentionConfig, DecoderConfig

Outcome = Literal["right", "wrong", "crashed", "timed out", "killed", "unavailable"]


@dataclass(frozen=True, slots=True)
class ServedShapes:
    """Shapes of the attention that a server will run: a model's heads and the bounds of its steps.

    ``token_budgets``: tokens of each program that will run.
    """

    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    windows: tuple[int | None, ...]
    """Each of the layers' windows once."""
    block_size: int
    token_budgets: tuple[int, ...]
    max_num_seqs: int
    max_model_len: int
    soft_cap: bool = False
    """Whether scores have a soft cap."""
    sinks: bool = False
    """Whether each query head has a sink."""

    @property
    def window(self) -> int | None:
        """That of shapes with one window."""
        (window,) = self.windows
        return window

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        *,
        block_size: int,
        token_budgets: tuple[int, ...],
        max_num_seqs: int,
        max_model_len: int,
    ) -> "ServedShapes":
        """Return the shapes of a model's attention."""
        attention = model.attention if isinstance(model, DecoderConfig) else AttentionConfig()
        return cls(
            model.num_heads,
            model.num_kv_heads,
            model.head_dim,
            model.dtype,
            tuple(sorted(set(model.windows) or {None}, key=lambda window: window or 0)),
            block_size,
            token_budgets,
            max_num_seqs,
            max_model_len,
            soft_cap=attention.soft_cap is not None,
            sinks=attention.sinks,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a proof and, if it is not ``right``, the reason in words for the log."""

    outcome: Outcome
    reason: str = ""

    @property
    def is_right(self) -> bool:
        return self.outcome == "right"

    @property
    def is_final(self) -> bool:
        """Whether another proof of the same kernels would end with the same outcome, so that it may be kept."""
        return self.outcome not in ("killed", "unavailable")
