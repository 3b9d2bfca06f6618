"""A step on its way through the layers of a streamed model."""

from dataclasses import dataclass

import jax

from jaxgen.core.step_plan import StateCopy
from jaxgen.layerwise.planning.layer_store import StreamedBlock
from jaxgen.layerwise.programs import WidthPrograms
from jaxgen.models.batch import StepBatch


@dataclass(slots=True, eq=False)
class LayeredStep:
    """A step under way through the layers. ``project``, ``transfer``: blocks of the context that each layer needs as
    inputs, and as K and V. ``filled``: open blocks whose last token it writes."""

    programs: WidthPrograms
    batch: StepBatch
    x: jax.Array
    """[T, E]: output of the last dispatched layer."""
    project: tuple[StreamedBlock, ...]
    transfer: tuple[StreamedBlock, ...]
    filled: tuple[int, ...]
    snapshots: tuple[StateCopy, ...] = ()
    """Snapshots of states that it takes."""
