"""The operations of a step that have kernels, and which kernels were chosen for each. Host only, no jax."""

from collections.abc import Mapping
from dataclasses import dataclass

XLA = "XLA"
"""The name of kernels that XLA makes of the plain twins."""

ATTENTION, COPIES, PRODUCTS, NORMS = "attention", "copies", "products", "norms"
ACTIVATIONS, ROTATION, EXPERTS, CODES = "activations", "rotation", "experts", "codes"
CONVOLUTIONS, DELTA_NETS = "convolutions", "delta_nets"
OPERATIONS = (
    *(ATTENTION, COPIES, PRODUCTS, NORMS, ACTIVATIONS, ROTATION, EXPERTS, CODES),
    *(CONVOLUTIONS, DELTA_NETS),
)
"""attention: with the cache's writes. copies: of the cache's blocks. products, experts: with weights that are numbers.
codes: with quantized weights. convolutions, delta_nets: of layers with a state."""
QUANTIZED = "products with quantized weights"
"""What a step computes for padding if XLA makes some of them."""
OF_EVERY_TOKEN = (ATTENTION, PRODUCTS, NORMS, ACTIVATIONS, ROTATION)
"""Operations that every layer has, whatever its weights are."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The kernels of one operation, and why they are not faster ones; an empty reason: these are the fastest."""

    implementation: str
    reason: str = ""


Choices = Mapping[str, Choice]
"""By operation."""


def reasons_of(choices: Choices) -> str:
    """Return why operations do not have the fastest kernels: each reason once, after the operations that it is of."""
    operations: dict[str, list[str]] = {}
    for operation, choice in choices.items():
        if choice.reason:
            operations.setdefault(choice.reason, []).append(operation)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in operations.items())
