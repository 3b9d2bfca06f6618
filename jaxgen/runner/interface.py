"""The interface of a runner, which runs an engine's plans on a device."""

from typing import Protocol, runtime_checkable

from jaxgen.core.stats import OffloadStats
from jaxgen.core.step_plan import StepPlan
from jaxgen.kernels.kernels import Kernels
from jaxgen.runner.step import StepOutput


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
    def kernels(self) -> Kernels: ...

    def reset(self) -> None:
        """Forget everything but the parameters, also after a step that failed."""
        ...

    def load(self, plan: StepPlan) -> None:
        """Copy the blocks that the plan copies, and load the rows that it admits or moves to other blocks."""
        ...

    def run(self, plan: StepPlan, *, narrow: bool | None = None, again: bool = False) -> StepOutput:
        """Load the rows that the plan admits and run its step.

        ``narrow``: whether the narrow program runs it; None: if there is one and the plan has decodes only. ``again``:
        the same plan will be run once more, from the same state.
        """
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
