"""All faults."""

from scripts.faults.computing import CONVOLUTIONS, KERNELS, LATENTS, MODELS, SAMPLING
from scripts.faults.fault import Fault
from scripts.faults.memory import CACHE, OFFLOAD, SIZING
from scripts.faults.scheduling import SCHEDULER
from scripts.faults.serving import SERVER
from scripts.faults.texts_and_batches import BATCHES, TEXT
from scripts.faults.weights import WEIGHTS

FAULTS: tuple[Fault, ...] = (
    *SCHEDULER,
    *CACHE,
    *OFFLOAD,
    *SIZING,
    *SAMPLING,
    *MODELS,
    *LATENTS,
    *KERNELS,
    *CONVOLUTIONS,
    *WEIGHTS,
    *TEXT,
    *SERVER,
    *BATCHES,
)
