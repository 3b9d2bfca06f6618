"""Go on after a failed step, if the device still runs. Runs in the engine's thread. Host only, no jax."""

from jaxgen.core.errors import DeviceLostError
from jaxgen.core.step_plan import StepPlan
from jaxgen.runner.interface import Runner


def recover(runner: Runner, failure: Exception) -> None:
    """Reset the device and prove that it still runs. Raises DeviceLostError if it does not.

    CUDA keeps some errors until the process ends: faults of an address, of memory or of the bus. JAX reports them as
    the same INTERNAL error as the error of a single step. The message does not tell them apart, so an empty step is
    run.
    """
    try:
        runner.reset()
        runner.run(StepPlan(()))
        runner.wait()
    except Exception as error:
        what = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        raise DeviceLostError(f"after {type(failure).__name__} in a step the device runs no other: {what}") from error
