"""All faults."""

from scripts.faults.computing import KERNELS, MODELS, SAMPLING, WEIGHTS
from scripts.faults.fault import Fault
from scripts.faults.scheduling import CACHE, OFFLOAD, SCHEDULER, SIZING
from scripts.faults.serving import BATCHES, SERVER, TEXT

FAULTS: tuple[Fault, ...] = (
    *SCHEDULER,
    *CACHE,
    *OFFLOAD,
    *SIZING,
    *SAMPLING,
    *MODELS,
    *KERNELS,
    *WEIGHTS,
    *TEXT,
    *SERVER,
    *BATCHES,
)
