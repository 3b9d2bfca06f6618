"""The interface of a runner, which runs an engine's plans on a device. Host only, no jax."""

from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import numpy as np

from jaxgen.core.operations import Choices
from jaxgen.core.stats import OffloadStats
from jaxgen.core.step_plan import StepPlan


@runtime_checkable
class Readable(Protocol):
    """An array that ``numpy.asarray`` brings to the host; on a device it may still be being computed."""

    def __array__(self) -> np.ndarray: ...


@runtime_checkable
class Awaitable(Readable, Protocol):
    """A readable array that can be waited for."""

    def block_until_ready(self) -> object: ...


@runtime_checkable
class LogprobArrays(Protocol):
    """The arrays of ``jaxgen.runner.step.Logprobs``, as the host reads them."""

    @property
    def chosen(self) -> Readable: ...

    @property
    def ranks(self) -> Readable: ...

    @property
    def top_tokens(self) -> Readable: ...

    @property
    def top_values(self) -> Readable: ...


@runtime_checkable
class StepArrays(Protocol):
    """The arrays of ``jaxgen.runner.step.StepOutput``, as the host reads them."""

    @property
    def tokens(self) -> Awaitable: ...

    @property
    def logprobs(self) -> LogprobArrays: ...

    @property
    def prompt_logprobs(self) -> LogprobArrays: ...

    @property
    def hidden(self) -> Readable: ...


@runtime_checkable
class ChosenKernels(Protocol):
    """What the host is told of ``jaxgen.kernels.kernels.Kernels``."""

    @property
    def name(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def choices(self) -> Choices: ...

    @property
    def skips_padding(self) -> bool: ...


@runtime_checkable
class Runner(Protocol):
    """Parameters, cache, rows and compiled programs. Runs plans in the order given."""

    @property
    def runs_ahead(self) -> bool:
        """Whether ``run`` returns before its step is done."""
        ...

    @property
    def copies_blocks(self) -> bool:
        """Whether it copies the blocks that plans copy; if not, plans must copy none."""
        ...

    @property
    def kernels(self) -> ChosenKernels: ...

    def reset(self) -> None:
        """Forget everything but the parameters, also after a step that failed."""
        ...

    def load(self, plan: StepPlan) -> None:
        """Copy blocks and states as the plan says, and load the rows that it admits or moves to other blocks."""
        ...

    def run(self, plan: StepPlan, *, narrow: bool | None = None) -> StepArrays:
        """Load the rows that the plan admits, run its step, and take the snapshots of states that it wants.

        ``narrow``: whether the narrow program runs it; None: if there is one and the plan has decodes only.
        """
        ...

    def rehearsal(self) -> AbstractContextManager[None]:
        """Return a context for one step, which is run once more from the same state after it."""
        ...

    def wait(self) -> None:
        """Wait until all dispatched programs and copies are done."""
        ...

    def first_not_finite(self, plan: StepPlan) -> int:
        """Return the first layer whose output has NaN or infinity when the plan is run after a reset.

        ``jaxgen.runner.finite.EMBEDDING``: the first layer's input has; the number of layers: none has. Compiles, and
        leaves cache and rows undefined.
        """
        ...

    def uses_narrow(self, plan: StepPlan) -> bool: ...

    def disable_narrow(self) -> None: ...

    def offload_stats(self) -> OffloadStats | None:
        """Return the counters of its KV cache in host memory; None: it has none there."""
        ...
