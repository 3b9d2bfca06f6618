"""DeepSpeed-FastGen's benchmark: what its systems cost a step, and what they had room for.

Figures marked F were read by eye off the plots of arXiv 2401.08671 and its blog post (November 2023).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxgen.core.config import CacheConfig, SchedulerConfig
from jaxgen.scheduling.cost_model import LinearCost, StepSample, fit
from jaxgen.scheduling.step_time import StepTimeModel
from scripts.simulation.baselines import WholePrompts
from scripts.simulation.policies import Policy, SplitFuse

LATENCY_POINTS = ((256, 0.035), (512, 0.067), (768, 0.093), (1024, 0.130), (2048, 0.255))
"""(tokens, seconds) of a forward pass, F."""
THROUGHPUT_POINTS = ((64, 75.0), (128, 115.0), (256, 184.0), (384, 202.0))
"""(tokens, TFLOP/s) of the saturation curve, F; its other points have latencies above."""
TOKEN_BUDGET = 768
MAX_NUM_SEQS = 512
MAX_MODEL_LEN = 8192
BLOCK_SIZE = 64
"""FastGen's for heads of 128 or more."""
VLLM_BATCHED_TOKENS = 4096
"""Of a step of prompts: max(max_model_len, 2048) in vLLM's releases of the time, where Llama 2 has 4,096."""
STATIC_BATCH = 32
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A model in 16 bits on GPUs of 80 GiB; sizes in bytes, ``kv_bytes`` of a token in all layers."""

    gpus: int
    weight_bytes: float
    kv_bytes: int

    @property
    def cache_tokens(self) -> int:
        """FastGen's way: all that weights leave free, less 1e9 bytes of each GPU."""
        return int((self.gpus * (80 * GIB - 1e9) - self.weight_bytes) / self.kv_bytes)


LLAMA_70B = Hardware(gpus=4, weight_bytes=2 * 68.98e9, kv_bytes=2 * 80 * 8 * 128 * 2)
LLAMA_13B = Hardware(gpus=1, weight_bytes=2 * 13.02e9, kv_bytes=2 * 40 * 40 * 128 * 2)


@dataclass(frozen=True, slots=True)
class Setting:
    """A system to simulate, and the loads to put on it: (prompt mean, output mean)."""

    title: str
    cost: LinearCost
    hardware: Hardware
    loads: tuple[tuple[int, int], ...]

    @property
    def step_time(self) -> StepTimeModel:
        return StepTimeModel(TOKEN_BUDGET, self.cost)


def figure_samples() -> list[StepSample]:
    """The points as steps without context; seconds of the small ones by throughput relative to 256 tokens."""
    tokens_256, seconds_256 = LATENCY_POINTS[0]
    tflops_256 = dict(THROUGHPUT_POINTS)[tokens_256]
    known = dict(LATENCY_POINTS)
    for tokens, tflops in THROUGHPUT_POINTS:
        known.setdefault(tokens, seconds_256 * (tokens / tokens_256) * (tflops_256 / tflops))
    return [StepSample(tokens, 0, seconds) for tokens, seconds in sorted(known.items())]


def fit_with_floor(samples: Sequence[StepSample]) -> LinearCost:
    """A line through the larger steps and a floor under the smaller ones, split where relative errors are least."""
    splits = (_split(samples[:place], samples[place:]) for place in range(len(samples) - 2))
    return min(splits, key=lambda cost: sum(error**2 for error in residuals(cost, samples)))


def _split(small: Sequence[StepSample], large: Sequence[StepSample]) -> LinearCost:
    line = fit(large)
    floor = fit([StepSample(0, 0, sample.seconds) for sample in small]).base if small else 0.0
    return LinearCost(line.base, line.per_token, floor=floor)


def residuals(cost: LinearCost, samples: Sequence[StepSample]) -> list[float]:
    """Predicted over measured, less 1."""
    return [cost.seconds(sample.tokens, sample.positions, sample.contexts) / sample.seconds - 1.0 for sample in samples]


def calibrated_cost(decodes: int = 16, p50: float = 0.07, p95: float = 0.19) -> LinearCost:
    """From two of FastGen's own token latencies, F: at ``decodes`` clients the P50 is a step of decodes only, the P95 a
    full one. Their time outside the forward pass is in them."""
    per_token = (p95 - p50) / (TOKEN_BUDGET - decodes)
    return LinearCost(p50 - decodes * per_token, per_token)


P2600_G60, P1200_G128, P2600_G128 = (2600, 60), (1200, 128), (2600, 128)


def settings() -> dict[str, Setting]:
    figure = fit_with_floor(figure_samples())
    return {
        "points": Setting(
            "70B on 4 A100-80G, costs as read off the figure",
            figure,
            LLAMA_70B,
            (P2600_G60, P1200_G128, P2600_G128),
        ),
        "calibrated": Setting(
            "70B on 4 A100-80G, costs calibrated by two published token latencies",
            calibrated_cost(),
            LLAMA_70B,
            (P2600_G60, P1200_G128, P2600_G128),
        ),
        "13b": Setting("13B on one A100-80G, costs as read off the figure", figure, LLAMA_13B, (P2600_G60,)),
    }


def make_policies(setting: Setting) -> dict[str, Policy]:
    """New ones, for one run."""
    cache = CacheConfig(BLOCK_SIZE, setting.hardware.cache_tokens // BLOCK_SIZE)
    whole = {"max_batched_tokens": VLLM_BATCHED_TOKENS, "cache_tokens": cache.num_slots}
    return {
        "SplitFuse": SplitFuse(
            SchedulerConfig(TOKEN_BUDGET, MAX_NUM_SEQS, MAX_MODEL_LEN), cache, step_time=setting.step_time
        ),
        "prompt-first": WholePrompts(max_num_seqs=256, joining=True, **whole),
        "static": WholePrompts(max_num_seqs=STATIC_BATCH, joining=False, **whole),
    }
