"""The shapes in which GPU kernels are proven, and the verdict of a proof. Host only, no jax."""

from dataclasses import dataclass
from typing import Any, Literal

from jaxgen.core.config import ModelConfig
from jaxgen.core.decoder_config import AttentionConfig, DecoderConfig
from jaxgen.core.mixed_weight import AnyFormat
from jaxgen.core.quantization import WeightFormat

EXPERT_WEIGHTS = ("layers.mlp.experts.gate_up.weight", "layers.mlp.experts.down.weight")
Outcome = Literal["right", "wrong", "crashed", "timed out", "killed", "unavailable"]


@dataclass(frozen=True, slots=True)
class ExpertShapes:
    """Shapes of a layer's experts, MLPs of ``width`` with ``inner`` neurons. A token goes to ``per_token`` of them."""

    experts: int
    per_token: int
    width: int
    inner: int
    formats: tuple[WeightFormat | None, WeightFormat | None] = (None, None)
    """Of the weights of each of the products; None: numbers, or several formats, which XLA's loop takes."""

    @classmethod
    def of(cls, model: ModelConfig) -> "ExpertShapes | None":
        """Return the shapes of a model's experts; None: it has none."""
        moe = model.moe if isinstance(model, DecoderConfig) else None
        if moe is None:
            return None
        gate_up, down = map(model.weight_format, EXPERT_WEIGHTS)
        formats = (_single(gate_up), _single(down))
        return cls(moe.experts, moe.per_token, model.hidden_size, moe.inner, formats)

    @classmethod
    def read(cls, values: dict[str, Any]) -> "ExpertShapes":
        """Return the shapes that ``dataclasses.asdict`` has told, and JSON has carried."""
        gate_up, down = (None if fields is None else WeightFormat(**fields) for fields in values["formats"])
        return cls(**values | {"formats": (gate_up, down)})

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each product: gates together with the values that they multiply, and the way back."""
        return (self.width, 2 * self.inner), (self.inner, self.width)


def _single(form: AnyFormat | None) -> WeightFormat | None:
    return form if isinstance(form, WeightFormat) else None


@dataclass(frozen=True, slots=True)
class ServedShapes:
    """Shapes of the attention and experts that a server will run: those of a model, and the bounds of its steps.

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
    experts: ExpertShapes | None = None

    @property
    def window(self) -> int | None:
        """Window of shapes with one window."""
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
        """Return the shapes of a model's attention and experts."""
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
            experts=ExpertShapes.of(model),
        )

    @classmethod
    def read(cls, values: dict[str, Any]) -> "ServedShapes":
        """Return the shapes that ``dataclasses.asdict`` has told, and JSON has carried."""
        lists = {name: tuple(values[name]) for name in ("windows", "token_budgets")}
        experts = values["experts"]
        return cls(**values | lists | {"experts": None if experts is None else ExpertShapes.read(experts)})


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of a proof and, if it is not ``right``, the reason in words for the log.

    ``experts``: why the product of experts may not be used although the others are right; empty: it may.
    """

    outcome: Outcome
    reason: str = ""
    experts: str = ""

    @property
    def is_right(self) -> bool:
        return self.outcome == "right"

    @property
    def is_final(self) -> bool:
        """Whether another proof of the same kernels would end with the same outcome, so that it may be kept."""
        return self.outcome not in ("killed", "unavailable")
