"""Choose the token budget of a step: the knee of throughput over tokens, measured or from a data sheet.

docs/tuning.md has the argument and the figures behind it. Host only, no jax.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from jaxgen.hardware.device_info import DeviceInfo

CPU_NARROW = 16
"""Most sequences of a step that the narrow program takes on a CPU, and the fewest rows by default."""
GPU_NARROW = 64
"""The same on a GPU: the rows of the smallest tile of its products."""
CPU_BUDGET = 64
CPU_WIDTH = 384
"""Most tokens of a step on a CPU whose kernels skip padding; which of them are filled is decided step by step."""
GPU_WIDTH = 1024
"""The same on a GPU: a wider step would make gaps between tokens longer than 30 ms (docs/simulation.md)."""
CPU_ROWS = 64
"""Most rows of a step on a CPU by default."""
GPU_ROWS, GPU_WIDE_ROWS = 256, 512
"""The same on a GPU, and on one that skips padding."""
UNKNOWN_BUDGET = 512
MOST_BUDGET = 2048
TUNE_CONTEXT, TUNE_ROUNDS = 128, 3
"""Defaults of jaxgen tune: tokens before each decode, and timings of each budget."""
_MULTIPLE = 64


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Tokens of each step, and the rule that chose them. ``most_rows``: the most rows of a step on a GPU by default."""

    tokens: int
    reason: str
    most_rows: int = GPU_ROWS


@dataclass(frozen=True, slots=True)
class DevicePeaks:
    """A device's data sheet: dense bfloat16 FLOP/s with float32 sums, and bytes/s of its memory."""

    flops: float
    bandwidth: float


_DATA_SHEETS: tuple[tuple[str, DevicePeaks], ...] = (
    ("B200", DevicePeaks(2250e12, 8000e9)),
    ("H200 NVL", DevicePeaks(836e12, 4800e9)),
    ("H200", DevicePeaks(989e12, 4800e9)),
    ("H100 NVL", DevicePeaks(835e12, 3900e9)),
    ("H100 PCIe", DevicePeaks(756e12, 2000e9)),
    ("H100", DevicePeaks(989e12, 3350e9)),
    ("A100 40GB", DevicePeaks(312e12, 1555e9)),
    ("A100", DevicePeaks(312e12, 2039e9)),
    ("L40S", DevicePeaks(362e12, 864e9)),
    ("L4", DevicePeaks(121e12, 300e9)),
    ("A10G", DevicePeaks(70e12, 600e9)),
    ("RTX 4090", DevicePeaks(165e12, 1008e9)),
)
"""Data sheets by words that must all be in JAX's ``device_kind``; more specific names come first."""


def least_budget(*, skips_padding: bool, is_cpu: bool) -> int:
    """Return the least budget to choose by measurement, wherever the knee is.

    Where padding costs time, the knee decides alone. Where it does not, the budget is only the most that a step may
    have, and a larger one costs steps that are not full hardly any time.
    """
    if not skips_padding:
        return 1
    return CPU_WIDTH if is_cpu else GPU_WIDTH


def default_budget(
    device: DeviceInfo, *, skips_padding: bool = False, padded: str = "", active_share: float = 1.0
) -> TokenBudget:
    """Return the budget without a measurement: the roofline of a known GPU, else a constant.

    ``padded``: what a GPU computes for padding, for the reason. ``active_share``: as of ModelConfig: on accelerators
    the budget grows as it falls, to what jaxgen tune tries.
    """
    if skips_padding:
        reason = "the most of a step where padding costs nothing"
        return TokenBudget(CPU_WIDTH, reason) if device.is_cpu else TokenBudget(GPU_WIDTH, reason, GPU_WIDE_ROWS)
    if device.is_cpu:
        return TokenBudget(CPU_BUDGET, "the rule for CPUs; jaxgen tune measures it")
    sheet = data_sheet(device.kind)
    if sheet is None:
        tokens, reason = UNKNOWN_BUDGET, f"{device.kind} is in no table here; jaxgen tune measures it"
    else:
        tokens, reason = roofline_budget(sheet), f"the roofline of {device.kind}; jaxgen tune measures it"
    if padded:
        reason += f"; no wider, since XLA computes padding in {padded}"
    return TokenBudget(max(tokens, min(_rounded(tokens / active_share), MOST_BUDGET)), reason)


def data_sheet(kind: str) -> DevicePeaks | None:
    """Return the ceilings of a device by its name; None if it is not in the table."""
    words = _words(kind)
    return next((sheet for name, sheet in _DATA_SHEETS if _words(name) <= words), None)


def roofline_budget(sheet: DevicePeaks) -> int:
    """Return the tokens whose arithmetic takes as long as reading the weights.

    Each weight is 2 bytes and takes 2 FLOPs per token, so T* = flops * 2 / (2 * bandwidth), rounded up to a multiple of
    64. It is the same for float32 weights on TensorFloat-32 units, which have half the FLOP/s for twice the bytes.
    (Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.)
    """
    bytes_per_weight, flops_per_weight = 2, 2
    tokens = sheet.flops * bytes_per_weight / (flops_per_weight * sheet.bandwidth)
    return _rounded(tokens)


def _rounded(tokens: float) -> int:
    """Return the next multiple of 64."""
    return ceil(tokens / _MULTIPLE) * _MULTIPLE


def knee(seconds: Mapping[int, float], least: int = 1) -> int:
    """Return the budget at the knee of measured step times: token budget -> seconds of a full step.

    Only budgets from ``least`` on count, or the largest if none is. The knee is the budget with the most power,
    throughput / time = T / t(T)**2; of equal ones the smaller. (Kleinrock, ICC 1979. Jain, The Art of Computer Systems
    Performance Analysis, 1991, has the same definition.) It is the roofline's T* = a / b both for t = max(a, bT) and
    for t = a + bT.
    """
    by_budget = power(seconds)
    allowed = [budget for budget in seconds if budget >= least] or [max(seconds)]
    return max(allowed, key=lambda budget: (by_budget[budget], -budget))


def past_knee(seconds: Mapping[int, float], least: int = 1) -> bool:
    """Whether larger budgets need not be tried: the last two have less power than the best, the last less than half.

    It takes two so that one slow measurement does not end the search. The search continues to ``least`` in any case.
    """
    if max(seconds) < least:
        return False
    by_budget = power(seconds)
    best = max(by_budget.values())
    last = [by_budget[budget] for budget in sorted(seconds)[-2:]]
    return max(last) < best and last[-1] < best / 2


def power(seconds: Mapping[int, float]) -> dict[int, float]:
    """Return throughput / time, T / t(T)**2, by token budget T."""
    return {budget: budget / time**2 for budget, time in seconds.items()}


def _words(name: str) -> set[str]:
    return set(re.split(r"[\s-]+", name.upper()))
