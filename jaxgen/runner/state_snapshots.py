"""Snapshots of rows' states on the device: states that the prefix cache finds again by their tokens."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxgen.core.config import EngineConfig
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.step_plan import StateCopy
from jaxgen.kernels.choice import REFERENCE
from jaxgen.kernels.kernels import Kernels
from jaxgen.models.kv_cache import init_states
from jaxgen.runner.program import Program, int32

States = tuple[Float[Array, "..."], ...]
"""The states of rows, or snapshots of them: as ``KVCache.states``."""


OneState = tuple[Float[Array, "..."], ...]
"""One of ``States``: as these, without their first axis."""


@dataclass(frozen=True)
class StatePrograms:
    """``copy_state``, compiled. ``load``: from snapshots to rows. ``take``: from rows to snapshots."""

    load: Callable[..., States]
    take: Callable[..., States]


def copy_state(targets: States, sources: States, target: Int[Array, ""], source: Int[Array, ""]) -> States:
    """Return ``targets`` with number ``source`` of ``sources`` at number ``target``. Meant to be jitted, donated.

    It copies one state, since a state may be large. The host never waits for it, as it would for a loop on a GPU.
    """

    return with_state(targets, target, state_at(sources, source))


def state_at(sources: States, number: Int[Array, ""]) -> OneState:
    """Return a copy of number ``number`` of ``sources``."""
    return tuple([lax.dynamic_index_in_dim(of, number, keepdims=False) for of in sources])


def with_state(targets: States, number: Int[Array, ""], state: OneState) -> States:
    """Return ``targets`` with a state at number ``number``. Meant to be jitted, donated."""
    both = zip(targets, state, strict=True)
    return tuple([lax.dynamic_update_index_in_dim(into, of, number, 0) for into, of in both])


def compile_states(model: ModelConfig, config: EngineConfig) -> StatePrograms | None:
    """Compile the programs that copy states; None: there are no snapshots."""
    number = config.cache.num_snapshots
    if not model.states or not number:
        return None
    rows = jax.eval_shape(lambda: init_states(model, config.scheduler.max_num_seqs))
    snapshots = jax.eval_shape(lambda: init_states(model, number))
    return StatePrograms(
        Program(copy_state, (rows, snapshots, int32(), int32()), donated=(0,)).compile(),
        Program(copy_state, (snapshots, rows, int32(), int32()), donated=(0,)).compile(),
    )


def states_on_host(states: States) -> list[np.ndarray]:
    """Return a copy of states in host memory, from which ``states_on_device`` makes them again.

    They may be gigabytes, and the plan of the device's memory has them once.
    """
    return [np.array(state) for state in states]


def states_on_device(states: Iterable[np.ndarray]) -> States:
    """Return states that the host has."""
    return tuple([jnp.array(state) for state in states])


class DeviceSnapshots:
    """The snapshots of a runner. Copies run in the order of calls, after all steps that were dispatched before."""

    def __init__(
        self, model: ModelConfig, config: EngineConfig, programs: StatePrograms | None, kernels: Kernels = REFERENCE
    ) -> None:
        """``programs`` None: plans have no copies of states."""
        self._programs, self._model, self._kernels = programs, model, kernels
        self._num_snapshots = config.cache.num_snapshots or 0
        self._snapshots: States = ()
        self.reset()

    @property
    def arrays(self) -> States:
        """The snapshots, by number. Only this class writes them, also for ``update``."""
        return self._snapshots

    def update(self, program: Callable[..., States], *args: object) -> None:
        """Replace the snapshots by ``program(snapshots, *args)``, which may take the old ones' memory."""
        self._snapshots = program(self._snapshots, *args)

    def reset(self) -> None:
        """Forget all snapshots."""
        self._snapshots = ()  # first, since two of each may not fit
        if self._programs is not None:
            self._snapshots = init_states(self._model, self._num_snapshots, self._kernels)

    def load(self, states: States, copies: Iterable[StateCopy]) -> States:
        """Return the rows' states, which are donated, with snapshots in the rows that get one."""
        for copy in copies:
            assert self._programs is not None, "a plan loads a state only where there are snapshots"
            states = self._programs.load(states, self._snapshots, np.int32(copy.row), np.int32(copy.snapshot))
        return states

    def take(self, states: States, copies: Iterable[StateCopy]) -> None:
        """Take snapshots of the rows' states."""
        for copy in copies:
            assert self._programs is not None, "a plan takes a snapshot only where there are places"
            self._snapshots = self._programs.take(self._snapshots, states, np.int32(copy.snapshot), np.int32(copy.row))
