"""The shapes in which GPU kernels are proven, and the verdict of a proof. Host only, no jax."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.decoder_parts import AttentionConfig
from jaxgen.core.kv_dtype import KVDType
from jaxgen.core.layer_kind import DELTA_STATES, GatedDeltaConfig, path_in_stack
from jaxgen.core.mixed_weight import AnyFormat
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.operations import CODES, CONVOLUTIONS, DELTA_NETS, EXPERTS, OPERATIONS
from jaxgen.core.quantization import WeightFormat
from jaxgen.kernels.proving.layer_shapes import (
    NormShape,
    ProductShape,
    RotationShape,
    coded_products_of,
    norms_of,
    products_of,
    read_shapes,
)

EXPERT_WEIGHTS = ("layers.mlp.experts.gate_up.weight", "layers.mlp.experts.down.weight")
Outcome = Literal["right", "wrong", "slow", "crashed", "timed out", "killed", "unavailable"]


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
        gate_up, down = expert_formats(model)
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


def expert_formats(model: ModelConfig) -> tuple[frozenset[AnyFormat | None], ...]:
    """Return the formats that the weights of each product of experts have in the stacks of layers."""
    stacks = [stack for stack in model.stacks if not stack.dense] if isinstance(model, DecoderConfig) else []
    paths = ([path_in_stack(path, stack) for stack in stacks] or [path] for path in EXPERT_WEIGHTS)
    return tuple([frozenset(map(model.weight_format, of_product)) for of_product in paths])


def _single(forms: frozenset[AnyFormat | None]) -> WeightFormat | None:
    form, *others = forms
    return form if isinstance(form, WeightFormat) and not others else None


@dataclass(frozen=True, slots=True)
class ServedShapes:
    """Shapes of what a server will run: those of a model, and the bounds of its steps.

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
    products: tuple[ProductShape, ...] = ()
    """With weights that are numbers, and quantized ones."""
    norms: tuple[NormShape, ...] = ()
    rotation: RotationShape | None = None
    delta: GatedDeltaConfig | None = None
    kv_dtype: KVDType = "auto"
    fp8_inputs: bool = False
    """Whether products with weights of FP8 round their inputs to FP8."""

    @property
    def codes(self) -> str | None:
        """What the cache's codes are; None: it has numbers."""
        return None if self.kv_dtype == "auto" else self.kv_dtype

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
        """Return the shapes of a model."""
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
            products=(*products_of(model), *coded_products_of(model)),
            norms=norms_of(model),
            rotation=RotationShape.of(model) if isinstance(model, DecoderConfig) else None,
            delta=model.delta if isinstance(model, DecoderConfig) else None,
            kv_dtype=model.kv_dtype,
            fp8_inputs=model.fp8_inputs,
        )

    @classmethod
    def read(cls, values: dict[str, Any]) -> "ServedShapes":
        """Return the shapes that ``dataclasses.asdict`` has told, and JSON has carried."""
        lists = {name: tuple(values[name]) for name in ("windows", "token_budgets")}
        experts, rotation, delta = values["experts"], values["rotation"], values["delta"]
        of_layers = {
            "products": tuple(map(ProductShape.read, values["products"])),
            "norms": read_shapes(NormShape, values["norms"]),
            "experts": None if experts is None else ExpertShapes.read(experts),
            "rotation": None if rotation is None else RotationShape(**rotation),
            "delta": None if delta is None else GatedDeltaConfig(**delta),
        }
        return cls(**values | lists | of_layers)


def operations_of(model: ModelConfig) -> tuple[str, ...]:
    """Return the operations of a model's steps."""
    experts, codes = ExpertShapes.of(model), any(model.weight_formats)
    missing = {EXPERTS} if experts is None or all(experts.formats) else set[str]()
    states = {state.name for state in model.states}
    missing |= set[str]() if codes else {CODES}
    missing |= set[str]() if states else {CONVOLUTIONS}
    missing |= set[str]() if states & set(DELTA_STATES) else {DELTA_NETS}
    return tuple(name for name in OPERATIONS if name not in missing)


@dataclass(frozen=True, slots=True)
class Finding:
    """What the proof of one operation's kernels found and, if they are not ``right``, the reason in words for the log.

    ``measured``: their time, in words; empty: they were not timed.
    """

    outcome: Outcome
    reason: str = ""
    measured: str = ""

    @property
    def is_right(self) -> bool:
        return self.outcome == "right"

    @property
    def is_final(self) -> bool:
        """Whether another proof of the same kernels would end with the same outcome, so that it may be kept."""
        return self.outcome not in ("killed", "unavailable")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Findings by operation; ``otherwise`` holds for the operations that have none."""

    findings: Mapping[str, Finding] = field(default_factory=dict)
    otherwise: Finding = Finding("unavailable", "nothing has proven the others")

    def refused(self, operations: Iterable[str]) -> dict[str, str]:
        """Return the operations whose kernels may not be used, and why."""
        found = {name: self.findings.get(name, self.otherwise) for name in operations}
        return {name: one.reason for name, one in found.items() if not one.is_right}

    def measured(self, operations: Iterable[str]) -> list[tuple[str, str]]:
        """Return the operations whose kernels were timed, and their times in words."""
        found = ((name, self.findings[name].measured) for name in operations if name in self.findings)
        return [(name, words) for name, words in found if words]


NOTHING_PROVEN = Verdict()


@dataclass(frozen=True, slots=True)
class Report:
    """What a process that proves kernels has told so far: findings, and the operation ``proving`` that it is at.

    ``otherwise``: why it proves nothing more.
    """

    findings: Mapping[str, Finding]
    proving: str | None = None
    otherwise: Finding | None = None

    @classmethod
    def read(cls, values: dict[str, Any]) -> "Report":
        """Return the report that ``dataclasses.asdict`` has told, and JSON has carried."""
        otherwise = values["otherwise"]
        findings = read_findings(values["findings"])
        return cls(findings, values["proving"], None if otherwise is None else Finding(**otherwise))


def read_findings(values: Mapping[str, Any]) -> dict[str, Finding]:
    """Return findings that ``dataclasses.asdict`` has told, and JSON has carried."""
    return {name: Finding(**fields) for name, fields in values.items()}
