"""The models, and parameters as a flat dict from dotted path to array.

Weights are loaded into this dict, and a step takes it: ``layers.attn.qkv.weight`` is [layers, out, in], and so on.
"""

from typing import Any, Protocol, cast, runtime_checkable

import jax
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxgen.arrays import ArrayLike
from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.batch import StepBatch
from jaxgen.models.decoder import Decoder
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.residual import Residual
from jaxgen.models.walk import Layer

Params = dict[str, jax.Array]
"""Parameters as they are loaded."""
PackedParams = dict[str, Any]
"""Parameters as a program reads them: arrays, PackedWeights, StackedWeights or SeparateWeights, as its kernels need
them."""
Graph = nnx.GraphDef[nnx.Module]


@runtime_checkable
class Model(Protocol):
    """The interface of a model for a step."""

    @property
    def stacks(self) -> tuple[nnx.Module, ...]: ...

    def __call__(self, batch: StepBatch, cache: KVCache) -> tuple[Float[Array, "T D"], KVCache]: ...

    def embedded(self, batch: StepBatch) -> Float[Array, "T W"]: ...

    def with_layer_inputs(self, batch: StepBatch, x: Float[Array, "T W"], kernels: Kernels) -> StepBatch: ...

    def final(self, x: Residual, batch: StepBatch, kernels: Kernels) -> Float[Array, "T D"]: ...

    def head_products(self, hidden: Float[Array, "n D"], num_rows: Int[ArrayLike, ""]) -> Float[Array, "n V"]: ...

    def logits(self, products: Float[Array, "n V"]) -> Float[Array, "n V"]: ...


REGISTRY: dict[type[ModelConfig], type[nnx.Module]] = {DecoderConfig: Decoder}
"""The module of each kind of configuration. A family that no description fits has a kind and a module of its own."""


State = nnx.State[Any, Any]


def abstract_model(config: ModelConfig) -> tuple[Graph, State]:
    """Return the model and its parameters without values."""
    return nnx.split(nnx.eval_shape(lambda: _build(config, seed=0)))


def _build(config: ModelConfig, seed: int) -> nnx.Module:
    make: Any = REGISTRY[type(config)]  # each takes its own subclass of ModelConfig
    return cast(nnx.Module, make(config, rngs=nnx.Rngs(seed)))


def dotted(path: tuple[object, ...]) -> str:
    return ".".join(str(part) for part in path)


def graph_of(config: ModelConfig) -> Graph:
    """Return the model without its parameters; ``bind`` joins both."""
    return abstract_model(config)[0]


LAYERS = "layers"
"""Name of the attribute that has a model's stacked layers."""


def graphs_apart(config: ModelConfig) -> tuple[Graph, tuple[Graph, ...]]:
    """Return the model without its layers, and a layer of each stack; ``bind`` and ``bind_layer`` join them with
    parameters."""
    model = nnx.eval_shape(lambda: _build(config, seed=0))
    layers = tuple([nnx.split(stack)[0] for stack in cast(Model, model).stacks])
    delattr(model, LAYERS)
    return nnx.split(model)[0], layers


def in_one_layer(config: ModelConfig, path: str) -> tuple[str, tuple[int, ...]]:
    """Return what a parameter of the layers is called in one of them, and the numbers of the layers that have it."""
    below = path.removeprefix(f"{LAYERS}.")
    if not (isinstance(config, DecoderConfig) and config.stacks):
        return below, tuple(range(config.num_layers))
    name, _, below = below.partition(".")
    return below, next(config.layers_in(stack) for stack in config.stacks if stack.name == name)


def bind_layer(graph: Graph, params: PackedParams) -> Layer:
    """Return a layer with these parameters, whose paths begin below ``layers``."""
    return cast(Layer, _merge(graph, params))


def bind(graph: Graph, params: PackedParams) -> Model:
    """Return the model with these parameters, as a step calls it."""
    return cast(Model, _merge(graph, params))


def _merge(graph: Graph, params: PackedParams) -> Any:
    flat: Any = {tuple(path.split(".")): nnx.Param(value) for path, value in params.items()}
    return nnx.merge(graph, nnx.from_flat_state(flat))


def abstract_params(config: ModelConfig) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shape and dtype of each parameter, by dotted path."""
    flat = nnx.to_flat_state(abstract_model(config)[1])
    return {dotted(path): leaf.get_raw_value() for path, leaf in flat}


def init_params(config: ModelConfig, seed: int) -> Params:
    """Make random parameters on the default device, for measurements that need no checkpoint."""

    def make() -> Params:
        return {dotted(path): leaf[...] for path, leaf in nnx.to_flat_state(initial_state(config, seed))}

    return jax.jit(make)()


def initial_state(config: ModelConfig, seed: int) -> State:
    """Return the random parameters of a new model; inside a program only the used ones are made."""
    return nnx.state(_build(config, seed))
