"""Several devices that run a program together, each on a part of the model.

Each device has parameters and a cache of its own, of the shapes of its part. All else is the same on each: rows, plans,
hidden states and tokens. For JAX, what each device has of an array is a piece of one along its first axis.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxgen.core.model_config import ModelConfig
from jaxgen.models.kv_cache import KVCache
from jaxgen.models.rank_sum import RANKS

_OWN, _SAME = PartitionSpec(RANKS), PartitionSpec()


@dataclass(frozen=True)
class Devices:
    """The devices between which a model is divided: a mesh of one axis, RANKS."""

    mesh: Mesh

    @classmethod
    def of(cls, model: ModelConfig) -> "Devices | None":
        """Return JAX's first devices, as many as have a part of the model; None: one has all of it."""
        if model.num_devices == 1:
            return None
        return cls(Mesh(np.asarray(jax.devices()[: model.num_devices]), (RANKS,)))

    def on_each[Tree](self, make: Callable[[int], Tree]) -> Tree:
        """Return the arrays that ``make`` returns for each rank, called with its device as JAX's default.

        Parameters, in a dict, and caches are each device's own; of others ``make`` returns the same for all.
        """
        made = []
        for rank, device in enumerate(self.mesh.devices.flat):
            with jax.default_device(device):
                made.append(make(rank))
        leaves, tree = zip(*map(jax.tree.flatten, made), strict=True)
        specs = _specs(made[0])
        joined: Tree = jax.tree.unflatten(tree[0], map(self._joined, specs, *leaves))
        return joined

    def spread(self, function: Callable[..., Any], shapes: tuple[Any, ...]) -> tuple[Callable[..., Any], Any]:
        """Return the program in which each device runs ``function`` on what it has of the arguments, and the shapes of
        these. ``shapes``: of the arguments on one device."""
        specs, (leaves, tree) = _specs(shapes), jax.tree.flatten(shapes)
        of_all = [self._shape(leaf, spec) for leaf, spec in zip(leaves, specs, strict=True)]
        results = self.results(function, shapes)

        def on_one(*leaves: Any) -> Any:
            return jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves)))

        @wraps(function)
        def on_all(*arguments: Any) -> Any:
            found = self._mapped(on_one, specs, _specs(results))(*jax.tree.leaves(arguments))
            return jax.tree.unflatten(jax.tree.structure(results), found)

        return on_all, jax.tree.unflatten(tree, of_all)

    def results(self, function: Callable[..., Any], shapes: tuple[Any, ...]) -> Any:
        """Return the shapes of what ``function`` returns on one device."""
        return jax.eval_shape(self._mapped(function, _SAME, _SAME), *shapes)

    def _mapped(self, function: Callable[..., Any], specs: Any, results: Any) -> Callable[..., Any]:
        in_specs = tuple(specs) if isinstance(specs, list) else specs
        # JAX cannot see that devices compute the same, and its check knows nothing of kernels.
        mapped: Callable[..., Any] = jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=results, check_vma=False
        )
        return mapped

    def _shape(self, leaf: Any, spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        shape = leaf.shape if spec == _SAME else (len(self.mesh.devices) * leaf.shape[0], *leaf.shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=NamedSharding(self.mesh, spec))

    def _joined(self, spec: PartitionSpec, *leaves: Any) -> jax.Array:
        shape = self._shape(leaves[0], spec)
        return jax.make_array_from_single_device_arrays(shape.shape, shape.sharding, list(leaves))


def on_each[Tree](devices: Devices | None, make: Callable[[], Tree]) -> Tree:
    """Return the arrays that ``make`` returns, on each of the devices; None: on the default one."""
    return make() if devices is None else devices.on_each(lambda _: make())


def _specs(tree: Any) -> list[PartitionSpec]:
    """Return where each array of a tree is: in parameters and caches on its device, if it has an axis."""
    return [
        _OWN if _is_own(value) and len(leaf.shape) else _SAME
        for value in jax.tree.leaves(tree, is_leaf=_is_own)
        for leaf in jax.tree.leaves(value)
    ]


def _is_own(value: Any) -> bool:
    return isinstance(value, KVCache | dict)
