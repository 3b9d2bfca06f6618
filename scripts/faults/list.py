"""All faults."""

from scripts.faults.computing import KERNELS, MODELS, SAMPLING, WEIGHTS
from scripts.faults.fault import Fault
from scripts.faults.memory import CACHE, OFFLOAD, SIZING
from scripts.faults.scheduling import SCHEDULER
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
