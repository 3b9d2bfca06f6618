"""The tensors of a decoder in a checkpoint: names are a family's, shapes and presence follow from the description."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.decoder_parts import NormConfig
from jaxgen.core.layer_kind import ONE_STACK, LayerKind, Stack, path_in_stack
from jaxgen.core.model_config import DType
from jaxgen.core.moe_config import MOE_NORMS, MoEConfig
from jaxgen.weights.families.tensors import HeadRows, Parameter, Source, Stacked

Rows = Callable[[DecoderConfig], tuple[int, ...]]
"""Gives the file's row for each row of a parameter's part; see Source.rows."""


@dataclass(frozen=True, kw_only=True)
class DecoderNames:
    """Names of modules in a checkpoint, by what they are; those in a layer follow ``layer``. A family has one.

    ``qkv`` and ``gate_up`` name the modules whose rows, one after another, are those of the merged matrices: three or
    two, or one that has all. ``rows``: the order of a module's rows, if it is another. Norms of queries and keys have
    that of their projections. ``{head}`` in the name of such a norm: each head has a tensor of its own.
    ``transposed``: matrices are stored as [in, out] in the layers. ``correction_is_row``: the corrections of a router
    are a matrix of one row. ``norm_plus``: what is added to norms' weights.
    """

    embed: str = "model.embed_tokens"
    layer: str = "model.layers.{layer}"
    attn_norm: str = "input_layernorm"
    attn_post_norm: str = "post_attention_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    v_norm: str = "self_attn.v_norm"
    """Of files that have one, where it computes nothing."""
    sinks: str = "self_attn.sinks"
    out: str = "self_attn.o_proj"
    q_down: str = "self_attn.q_a_proj"
    q_down_norm: str = "self_attn.q_a_layernorm"
    q_up: str = "self_attn.q_b_proj"
    kv_down: str = "self_attn.kv_a_proj_with_mqa"
    kv_down_norm: str = "self_attn.kv_a_layernorm"
    kv_up: str = "self_attn.kv_b_proj"
    conv_in: str = "conv.in_proj"
    conv_filter: str = "conv.conv"
    conv_out: str = "conv.out_proj"
    delta_in: tuple[str, ...] = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z")
    delta_gates: tuple[str, ...] = ("linear_attn.in_proj_b", "linear_attn.in_proj_a")
    delta_filter: str = "linear_attn.conv1d"
    delta_a_log: str = "linear_attn.A_log"
    delta_dt_bias: str = "linear_attn.dt_bias"
    delta_norm: str = "linear_attn.norm"
    delta_out: str = "linear_attn.out_proj"
    mlp_norm: str = "post_attention_layernorm"
    mlp_post_norm: str = "post_feedforward_layernorm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    correction: str = "mlp.gate.e_score_correction_bias"
    correction_is_row: bool = False
    expert_gate_up: tuple[str, ...] = ("mlp.experts.{expert}.gate_proj", "mlp.experts.{expert}.up_proj")
    expert_down: str = "mlp.experts.{expert}.down_proj"
    stacked_gate_up: str = "mlp.experts.gate_up_proj"
    stacked_down: str = "mlp.experts.down_proj"
    shared_gate_up: tuple[str, ...] = ("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj")
    shared_down: str = "mlp.shared_expert.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    moe_norms: Mapping[str, str] = field(default_factory=dict)
    expert_scale: str = "router.per_expert_scale"
    scale: str = "layer_scalar"
    layer_table: str = "model.embed_tokens_per_layer"
    layer_project: str = "model.per_layer_model_projection"
    layer_norm: str = "model.per_layer_projection_norm"
    input_gate: str = "per_layer_input_gate"
    input_out: str = "per_layer_projection"
    input_norm: str = "post_per_layer_input_norm"
    norm: str = "model.norm"
    head: str = "lm_head"
    positions: str = "model.embed_positions"
    project_in: str = "model.project_in"
    project_out: str = "model.project_out"
    rows: Mapping[str, Rows] = field(default_factory=dict)
    transposed: bool = False
    norm_plus: float = 0.0

    def table(self, config: DecoderConfig) -> tuple[Parameter, ...]:
        """Return all parameters of the decoder. Raises ValueError if ``rows`` names a module that there is not."""
        table = (*self._ends(config), *self._layers(config))
        modules = {source.name.rpartition(".")[0] for parameter in table for source in parameter.sources}
        if unused := sorted(name for name in self.rows if f"{self.layer}.{name}" not in modules):
            raise ValueError(f"rows names {unused[0]}, which is not a module of a layer of {config.family}")
        return table

    def _layers(self, config: DecoderConfig) -> list[Parameter]:
        if not config.stacks:
            return self._of_layers(config, ONE_STACK)
        return [parameter for stack in config.stacks for parameter in self._stack(config, stack)]

    def _stack(self, config: DecoderConfig, stack: Stack) -> list[Parameter]:
        """Return the parameters of the layers in a stack, where there are several."""
        numbers = config.layers_in(stack)
        return [
            replace(one, path=path_in_stack(one.path, stack), num_layers=len(numbers), numbers=numbers)
            for one in self._of_layers(config, stack)
        ]

    def _of_layers(self, config: DecoderConfig, stack: Stack) -> list[Parameter]:
        """Return the parameters of the layers in a stack as they are called where there is one."""
        others = {"latent": self._latent, "conv": self._convolution, "delta": self._delta}
        mixing = others[stack.kind](config) if stack.kind in others else self._attention(config, stack.kind)
        return [*mixing, *self._mlp(config, stack), *self._norms(config), *self._input(config)]

    def _input(self, config: DecoderConfig) -> list[Parameter]:
        """Return what layers have for embeddings of their own."""
        options, width = config.layer_embedding, config.hidden_size
        if options is None:
            return []
        result = self._stacked(config, "embedding.gate", {self.input_gate: options.width}, width, bias=False)
        result += self._stacked(config, "embedding.out", {self.input_out: width}, options.width, bias=False)
        return result + self._layer_norm(config, "embedding.norm", self.input_norm, config.norm, width)

    def _convolution(self, config: DecoderConfig) -> list[Parameter]:
        options, width = config.convolution, config.hidden_size
        assert options is not None
        result = self._stacked(config, "conv.in_proj", {self.conv_in: 3 * width}, width, options.bias)
        result += self._stacked(config, "conv.out", {self.conv_out: width}, width, options.bias)
        name = f"{self.layer}.{self.conv_filter}"
        weight = Source(f"{name}.weight", (width, 1, options.taps), is_filter=True)
        result.append(Parameter("layers.conv.filter.weight", (weight,), config.num_layers))
        if options.bias:
            bias = Source(f"{name}.bias", (width,), is_bias=True)
            result.append(Parameter("layers.conv.filter.bias", (bias,), config.num_layers))
        return result

    def _delta(self, config: DecoderConfig) -> list[Parameter]:
        options, width = config.delta, config.hidden_size
        assert options is not None
        projected = (
            (options.channels, options.values) if len(self.delta_in) == 2 else (options.channels + options.values,)
        )
        gates = dict.fromkeys(self.delta_gates, 2 * options.heads // len(self.delta_gates))
        result = self._stacked(config, "delta.in_proj", dict(zip(self.delta_in, projected, strict=True)), width, False)
        result += self._stacked(config, "delta.gates", gates, width, False)
        result += self._stacked(config, "delta.out", {self.delta_out: width}, options.values, False)
        filters = Source(
            f"{self.layer}.{self.delta_filter}.weight", (options.channels, 1, options.taps), is_filter=True
        )
        norm = Source(f"{self.layer}.{self.delta_norm}.weight", (options.value_dim,))
        result += [
            Parameter(f"layers.delta.{path}.weight", (source,), config.num_layers)
            for path, source in (("filter", filters), ("norm", norm))
        ]
        for path, name in (("a_log", self.delta_a_log), ("dt_bias", self.delta_dt_bias)):
            source = Source(f"{self.layer}.{name}", (options.heads,), is_bias=True)
            result.append(Parameter(f"layers.delta.{path}", (source,), config.num_layers, dtype="float32"))
        return result

    def _latent(self, config: DecoderConfig) -> list[Parameter]:
        options, width, heads = config.latent, config.hidden_size, config.num_heads
        assert options is not None
        queries, rank = heads * options.query, options.query_rank
        first = {self.qkv[0]: queries} if rank is None else {self.q_down: rank}
        result = self._stacked(config, "attn.down", first | {self.kv_down: options.row}, width, False)
        if rank is not None:
            result += self._layer_norm(config, "attn.q_norm", self.q_down_norm, config.norm, rank)
            result += self._stacked(config, "attn.q_up", {self.q_up: queries}, rank, False)
        result += self._layer_norm(config, "attn.kv_norm", self.kv_down_norm, config.norm, options.rank)
        of_head = options.plain + options.values
        for path, part in (
            ("keys", HeadRows(heads, of_head, 0, options.plain, turned=True)),
            ("values", HeadRows(heads, of_head, options.plain, options.values)),
        ):
            source = Source(f"{self.layer}.{self.kv_up}.weight", (heads * of_head, options.rank), of_heads=part)
            result.append(Parameter(f"layers.attn.{path}.weight", (source,), config.num_layers, heads))
        return result + self._stacked(config, "attn.out", {self.out: width}, heads * options.values, False)

    def _ends(self, config: DecoderConfig) -> list[Parameter]:
        width, narrow, offset = config.hidden_size, config.embedding_width, config.positions.table_offset
        result = _linear("embed", {self.embed: config.vocab_size}, narrow)
        if offset is not None:
            result += _linear("positions", {self.positions: config.max_position + offset}, width)
        if config.layer_embedding is not None:
            size = config.num_layers * config.layer_embedding.width
            result += _linear("layer_embedding.table", {self.layer_table: config.layer_embedding.vocab_size}, size)
            result += _linear("layer_embedding.project", {self.layer_project: size}, width)
            result += self._norm("layer_embedding.norm", self.layer_norm, config.norm, config.layer_embedding.width)
        if narrow != width:
            result += _linear("project_in", {self.project_in: width}, narrow)
            result += _linear("project_out", {self.project_out: narrow}, width)
        if config.final_norm:
            result += self._norm("norm", self.norm, config.norm, width)
        if not config.head.tied:
            result += _linear("lm_head", {self.head: config.vocab_size}, narrow, bias=config.head.bias)
        return result

    def _attention(self, config: DecoderConfig, kind: LayerKind) -> list[Parameter]:
        options, width, shape = config.attention, config.hidden_size, config.heads_of(kind)
        heads, kv_heads = config.num_heads * shape.head_dim, shape.kv_heads * shape.head_dim
        queries = 2 * heads if options.output_gate else heads
        of_kv = (kv_heads,) * shape.projections
        rows = (queries, *of_kv) if len(self.qkv) == 3 else (queries + sum(of_kv),)
        result = self._stacked(config, "attn.qkv", dict(zip(self.qkv, rows, strict=False)), width, options.qkv_bias)
        result += self._stacked(config, "attn.out", {self.out: width}, heads, options.out_bias)
        if options.qk_norm is not None:
            norm = partial(self._qk_norm, config, norm=options.qk_norm, head_dim=shape.head_dim)
            result += norm("q_norm", self.q_norm, module=self.qkv[0], heads=config.num_heads)
            if not shape.reads:
                result += norm("k_norm", self.k_norm, module=self.qkv[-2:][0], heads=shape.kv_heads)
        if shape.reads:
            unused = tuple([f"{self.layer}.{name}" for name in (*self.qkv[1:], self.k_norm, self.v_norm)])
            result[0] = replace(result[0], unused=unused)
        if options.sinks:
            source = Source(f"{self.layer}.{self.sinks}", (config.num_heads,))
            result.append(Parameter("layers.attn.sinks", (source,), config.num_layers, dtype="float32"))
        return result

    def _qk_norm(
        self, config: DecoderConfig, path: str, name: str, *, norm: NormConfig, module: str, heads: int, head_dim: int
    ) -> list[Parameter]:
        """Return the norm of queries or keys, whose weight has the order of the rows that ``module`` gives them."""
        options, in_order = config.attention, len(self.qkv) == 3 and module in self.rows
        size = head_dim * (heads if options.qk_norm_rows else 1)
        order = self.rows[module](config)[:size] if in_order else None  # that of the first head is that of all
        if not options.qk_norm_heads:
            return self._layer_norm(config, f"attn.{path}", name, norm, size, order)
        # a tensor for each head, as for each expert, or one for all
        shape = (size,) if "{head}" in name else (heads, size)
        name = name.replace("{head}", "{expert}")
        weight = Source(f"{self.layer}.{name}.weight", shape, rows=order, is_bias=True)
        dtype: DType | None = "float32" if norm.scale_in_float32 else None
        return [Parameter(f"layers.attn.{path}.weight", (weight,), config.num_layers, heads, self.norm_plus, dtype)]

    def _mlp(self, config: DecoderConfig, stack: Stack) -> list[Parameter]:
        options, width, inner = config.mlp, config.hidden_size, config.inner_of(stack.kind)
        if config.moe is not None and not stack.dense:
            return [*self._router(config, config.moe), *self.experts(config, config.moe)]
        if options.gated:
            each = 2 * inner // len(self.gate_up)
            result = self._stacked(config, "mlp.gate_up", dict.fromkeys(self.gate_up, each), width, options.up_bias)
        else:
            result = self._stacked(config, "mlp.up", {self.up: inner}, width, options.up_bias)
        return result + self._stacked(config, "mlp.down", {self.down: width}, inner, options.down_bias)

    def _router(self, config: DecoderConfig, moe: MoEConfig) -> list[Parameter]:
        width, inner = config.hidden_size, moe.shared_inner
        result = self._stacked(config, "mlp.router", {self.router: moe.experts}, width, moe.router_bias)
        if moe.corrected:
            shape = (1, moe.experts) if self.correction_is_row else (moe.experts,)
            source = Source(f"{self.layer}.{self.correction}", shape, is_bias=True, is_row=self.correction_is_row)
            result.append(Parameter("layers.mlp.correction", (source,), config.num_layers, dtype="float32"))
        if inner is not None:
            gate_up = dict.fromkeys(self.shared_gate_up, 2 * inner // len(self.shared_gate_up))
            result += self._stacked(config, "mlp.shared.gate_up", gate_up, width, bias=False)
            result += self._stacked(config, "mlp.shared.down", {self.shared_down: width}, inner, bias=False)
        if moe.shared_gate:
            result += self._stacked(config, "mlp.shared_gate", {self.shared_gate: 1}, width, bias=False)
        return result + (self._side_by_side(config, moe) if moe.norms else [])

    def _side_by_side(self, config: DecoderConfig, moe: MoEConfig) -> list[Parameter]:
        """Return the norms of a shared expert and experts that stand side by side, and the scales of experts."""
        names = {"expert_scale": (self.expert_scale, moe.experts)}
        names |= {f"{path}.weight": (self.moe_norms[path], config.hidden_size) for path in MOE_NORMS}
        return [
            Parameter(
                f"layers.mlp.norms.{path}",
                (Source(f"{self.layer}.{name}", (size,), is_bias=True),),
                config.num_layers,
                dtype="float32",
            )
            for path, (name, size) in names.items()
        ]

    def experts(self, config: DecoderConfig, moe: MoEConfig) -> list[Parameter]:
        """Return the matrices of a MoE's experts, of which each has tensors of its own, or which are stacked."""
        width, inner = config.hidden_size, moe.inner
        stacked = Stacked(f"{self.layer}.{self.stacked_gate_up}", (moe.experts, 2 * inner, width))
        gate_up = tuple(
            Source(f"{self.layer}.{name}.weight", (inner, width), stacked=replace(stacked, row=i * inner))
            for i, name in enumerate(self.expert_gate_up)
        )
        stacked = Stacked(f"{self.layer}.{self.stacked_down}", (moe.experts, width, inner))
        down = (Source(f"{self.layer}.{self.expert_down}.weight", (width, inner), stacked=stacked),)
        return [
            Parameter(f"layers.mlp.experts.{path}.weight", sources, config.num_layers, moe.experts)
            for path, sources in (("gate_up", gate_up), ("down", down))
        ]

    def _norms(self, config: DecoderConfig) -> list[Parameter]:
        names = {
            "attn_norm": self.attn_norm,
            "attn_post_norm": self.attn_post_norm,
            "mlp_norm": self.mlp_norm,
            "mlp_post_norm": self.mlp_post_norm,
        }
        wanted = [(path, names[path]) for path in config.layer_norms]
        scale = Source(f"{self.layer}.{self.scale}", (1,), is_bias=True)
        scales = [Parameter("layers.scale", (scale,), config.num_layers, dtype="float32")]
        return [
            parameter
            for path, name in wanted
            for parameter in self._layer_norm(config, path, name, config.norm, config.hidden_size)
        ] + (scales if config.layer_scale else [])

    def _stacked(
        self, config: DecoderConfig, path: str, names: Mapping[str, int], width: int, bias: bool
    ) -> list[Parameter]:
        """Return a matrix of the layers, [sum of rows, width], of modules by name and number of rows, and its bias."""
        weights, biases = [], []
        for name, size in names.items():
            order = self.rows[name](config) if name in self.rows else None
            shape = (width, size) if self.transposed else (size, width)
            weights.append(Source(f"{self.layer}.{name}.weight", shape, self.transposed, order))
            biases.append(Source(f"{self.layer}.{name}.bias", (size,), rows=order, is_bias=True))
        result = [Parameter(f"layers.{path}.weight", tuple(weights), config.num_layers)]
        return result + ([Parameter(f"layers.{path}.bias", tuple(biases), config.num_layers)] if bias else [])

    def _layer_norm(
        self,
        config: DecoderConfig,
        path: str,
        name: str,
        norm: NormConfig,
        width: int,
        rows: tuple[int, ...] | None = None,
    ) -> list[Parameter]:
        return self._norm(f"layers.{path}", f"{self.layer}.{name}", norm, width, config.num_layers, rows)

    def _norm(
        self,
        path: str,
        name: str,
        norm: NormConfig,
        width: int,
        num_layers: int | None = None,
        rows: tuple[int, ...] | None = None,
    ) -> list[Parameter]:
        if not norm.affine:
            return []
        dtype: DType | None = "float32" if norm.scale_in_float32 else None
        weight = (Source(f"{name}.weight", (width,), rows=rows),)
        result = [Parameter(f"{path}.weight", weight, num_layers, plus=self.norm_plus, dtype=dtype)]
        if norm.kind == "layer" and norm.bias:
            bias = Source(f"{name}.bias", (width,), rows=rows, is_bias=True)
            result.append(Parameter(f"{path}.bias", (bias,), num_layers))
        return result


def _linear(path: str, names: Mapping[str, int], width: int, *, bias: bool = False) -> list[Parameter]:
    weights = tuple(Source(f"{name}.weight", (rows, width)) for name, rows in names.items())
    biases = tuple(Source(f"{name}.bias", (rows,), is_bias=True) for name, rows in names.items())
    return [Parameter(f"{path}.weight", weights)] + ([Parameter(f"{path}.bias", biases)] if bias else [])
