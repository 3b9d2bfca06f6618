"""Where a model's layers are, and the shortest program that visits them. Plain Python, no jax."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cache

from jaxgen.core.model_config import ModelConfig

NO_KIND = -1
"""The kind of cache of a layer that keeps no K and V."""


@dataclass(frozen=True, slots=True)
class LayerAt:
    """Where a layer has its parameters, and the K and V that it attends to.

    Its parameters are at ``index`` of the model's ``stack``, and its K and V at ``place`` of the array of its ``kind``
    of cache. Of NO_KIND, ``place`` is its number among such layers.
    """

    index: int
    place: int
    stack: int = 0
    kind: int = 0
    window: int | None = None


def layers_of(config: ModelConfig, num_kinds: int = 1, *, windows: bool = True) -> tuple[LayerAt, ...]:
    """Return where each layer of a model is, with this many kinds of cache. ``windows``: False: no layer has one."""
    kind_of = {layer: kind for kind, one in enumerate(config.kinds_in(num_kinds)) for layer in one.layers}
    seen: dict[Hashable, int] = {}

    def count(key: Hashable) -> int:
        seen[key] = seen.get(key, -1) + 1
        return seen[key]

    def layer_at(layer: int) -> LayerAt:
        stack, kind = config.layer_stacks[layer], kind_of.get(layer, NO_KIND)
        window = config.windows[layer] if windows and config.windows else None
        place = 0 if layer in readers else count(("kind", kind))
        return LayerAt(count(("stack", stack)), place, stack, kind, window)

    readers = config.readers
    layers = list(map(layer_at, range(config.num_layers)))
    for layer, read in readers.items():
        layers[layer] = replace(layers[layer], place=layers[read].place, kind=layers[read].kind)
    return tuple(layers)


def kv_places(config: ModelConfig) -> dict[int, int]:
    """Return the layers of a model that attend, and the place of the K and V of each in a cache of one kind."""
    return {layer: at.place for layer, at in enumerate(layers_of(config)) if at.kind != NO_KIND}


def alike(num_layers: int) -> tuple[LayerAt, ...]:
    """Return where the layers of one stack and one kind are."""
    return tuple(LayerAt(layer, layer) for layer in range(num_layers))


@dataclass(frozen=True, slots=True)
class Repeat:
    """Parts that are visited one after another, ``times`` times."""

    parts: "tuple[Part, ...]"
    times: int


Part = Hashable | Repeat
"""A type of layer, or a repetition."""


def length(part: Part) -> int:
    """Return how many layers a part has."""
    return part.times * sum(map(length, part.parts)) if isinstance(part, Repeat) else 1


@cache
def shortest(types: tuple[Hashable, ...]) -> tuple[Part, ...]:
    """Return parts that visit layers of these types in order, with the fewest bodies of layers, then of repetitions.

    Each body is compiled: six layers of which the last differs, four times, have two bodies and two repetitions.
    """
    n = len(types)
    if n == 1:
        return types
    found = [shortest(types[:cut]) + shortest(types[cut:]) for cut in range(1, n)]
    for period in range(1, n // 2 + 1):
        if n % period == 0 and types == types[:period] * (n // period):
            found.append((Repeat(shortest(types[:period]), n // period),))
            break
    return min(found, key=_cost)


def _cost(parts: tuple[Part, ...]) -> tuple[int, int]:
    """Return the bodies of layers and the repetitions of parts."""
    inner = [(1, 0) if not isinstance(part, Repeat) else _cost(part.parts) for part in parts]
    repeats = sum(isinstance(part, Repeat) for part in parts)
    return sum(bodies for bodies, _ in inner), repeats + sum(loops for _, loops in inner)
