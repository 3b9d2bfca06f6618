"""All faults."""

from scripts.faults.cache import CACHE
from scripts.faults.fault import Fault
from scripts.faults.kernels import KERNELS
from scripts.faults.memory import OFFLOAD, SIZING
from scripts.faults.models import CONVOLUTIONS, LATENTS, MODELS
from scripts.faults.sampling import SAMPLING
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
