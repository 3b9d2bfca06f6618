"""How much each part measures: on a device, and in a dry run that only shows that everything works."""

import random
from dataclasses import dataclass, replace

from jaxgen.config import LlamaConfig, ModelConfig
from scripts.device_check.shapes import LLAMA3_1B, LLAMA3_8B, OPT_6_7B, TINY, TINY_OPT
from scripts.step_time import SHAPES
from tests.attention_cases import Case
from tests.goldens import NAMES


@dataclass(frozen=True)
class AttentionLoad:
    """``rows``: (query tokens, context) of each."""

    name: str
    model: ModelConfig
    rows: tuple[tuple[int, int], ...]

    def cost(self) -> tuple[int, int]:
        """Bytes of every context's K and V, of queries and outputs, each once; 4 * head_dim FLOPs for each head, query
        and token that it attends to."""
        model, itemsize = self.model, 2
        tokens, contexts = (sum(column) for column in zip(*self.rows, strict=True))
        pairs = sum((2 * context - length + 1) * length // 2 for length, context in self.rows)
        moved = 2 * contexts * model.num_kv_heads + 2 * tokens * model.num_heads
        return moved * model.head_dim * itemsize, 4 * model.num_heads * model.head_dim * pairs


ATTENTION = (
    AttentionLoad("decode_attention_256x2k_gqa", LLAMA3_8B, ((1, 2048),) * 256),
    AttentionLoad("decode_attention_16x32k_gqa", LLAMA3_8B, ((1, 32768),) * 16),
    AttentionLoad("decode_attention_256x2k_mha", OPT_6_7B, ((1, 2048),) * 256),
    AttentionLoad("prompt_attention_256_8k", LLAMA3_8B, ((256, 8192),)),
    AttentionLoad("prompt_attention_2048_8k", LLAMA3_8B, ((2048, 8192),)),
)


@dataclass(frozen=True)
class StepLoad:
    """``budgets`` is in tokens a step, those first that would be missed most if time ran out; ``rows`` in decoding
    sequences, ``context`` in tokens each of them has."""

    name: str
    model: ModelConfig
    budgets: tuple[int, ...]
    rows: int
    context: int


@dataclass(frozen=True)
class OffloadLoad:
    """``tokens`` are recomputed in one of ``layers`` layers; ``blocks`` of as many layers are staged."""

    name: str
    model: ModelConfig
    tokens: int
    layers: int
    blocks: int


OFFLOADS = (
    OffloadLoad("llama3_8b", LLAMA3_8B, tokens=2048, layers=8, blocks=256),
    OffloadLoad("opt_6.7b", OPT_6_7B, tokens=2048, layers=8, blocks=64),
)
"""Weights of 8 layers do not fit in any L2 cache; blocks are half a gigabyte."""

BUDGETS = (256, 1024, 64, 2048, 512, 128)


GROUPED = Case((), heads=8, kv_heads=2, head_dim=128, block_size=64, dtype="bfloat16")
EDGES = ((1, 512), (1, 513), (1, 1025), (70, 1024), (3, 64), (2, 65))
ATTENTION_CASES = (
    ("window_soft_cap_sinks", replace(GROUPED, rows=((1, 700), (37, 330)), window=200, soft_cap=5.0, sinks=True)),
    ("group_of_7", replace(GROUPED, rows=EDGES, heads=14, head_dim=64)),
    ("heads_of_80", replace(GROUPED, rows=EDGES, heads=4, kv_heads=4, head_dim=80)),
    ("float16_blocks_of_16", replace(GROUPED, rows=EDGES, dtype="float16", block_size=16)),
    ("blocks_of_128", replace(GROUPED, rows=EDGES, block_size=128)),
    ("heads_of_96", replace(GROUPED, rows=EDGES, head_dim=96)),
    ("no_rows", GROUPED),
)


@dataclass(frozen=True)
class ServingLoad:
    """``requests`` random prompts of ``prompt`` tokens at once, of which each is answered by ``answer`` tokens."""

    name: str
    model: LlamaConfig
    requests: int
    prompt: int
    answer: int

    def prompts(self, seed: int) -> list[list[int]]:
        draw = random.Random(seed)
        return [draw.choices(range(3, self.model.vocab_size), k=self.prompt) for _ in range(self.requests)]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """``repeats`` are runs of which the best (ceilings) or the median (steps) counts; ``row_seconds`` ends the repeats
    of a step early. ``chosen_kernels``: those that a server would choose, not XLA's.
    """

    chosen_kernels: bool = True
    copy_bytes: int = 8 * 2**30
    copy_repeats: int = 20
    matrix_side: int = 8192
    link_bytes: int = 2**30
    repeats: int = 10
    goldens: tuple[str, ...] = NAMES
    repeatability_model: LlamaConfig = SHAPES["88m"]
    repeatability_budget: int = 256
    steps: StepLoad = StepLoad("llama3_8b", LLAMA3_8B, BUDGETS, rows=32, context=1024)
    opt_steps: StepLoad = StepLoad("opt_6.7b", OPT_6_7B, BUDGETS, rows=32, context=512)
    row_seconds: float = 6.0
    attention: tuple[AttentionLoad, ...] = ATTENTION
    offloads: tuple[OffloadLoad, ...] = OFFLOADS
    launch_budget: int = 256
    serving: ServingLoad = ServingLoad("llama3_1b", LLAMA3_1B, requests=128, prompt=512, answer=128)
    random_batches: int = 5
    random_case: Case = GROUPED
    random_most_context: int = 1600
    attention_cases: tuple[tuple[str, Case], ...] = ATTENTION_CASES
    host_budget: int = 512
    host_context: int = 256
    host_steps: int = 20


FULL = Sizes()
DRY = Sizes(
    chosen_kernels=False,
    copy_bytes=2**20,
    copy_repeats=3,
    matrix_side=256,
    link_bytes=2**20,
    repeats=3,
    goldens=("llama",),
    repeatability_model=TINY,
    repeatability_budget=32,
    steps=StepLoad("tiny", TINY, (16, 32), rows=4, context=96),
    opt_steps=StepLoad("tiny_opt", TINY_OPT, (16,), rows=4, context=64),
    row_seconds=0.5,
    launch_budget=16,
    serving=ServingLoad("tiny", TINY, requests=3, prompt=20, answer=8),
    random_batches=2,
    random_case=Case((), head_dim=16, block_size=16),
    random_most_context=140,
    attention_cases=(("tiny", Case(((1, 70), (5, 33)), window=20)),),
    offloads=(
        OffloadLoad("tiny", TINY, tokens=128, layers=2, blocks=3),
        OffloadLoad("tiny_opt", TINY_OPT, tokens=128, layers=2, blocks=3),
    ),
    host_budget=16,
    host_context=32,
    host_steps=4,
    attention=(AttentionLoad("decode_attention_tiny", TINY, ((1, 70), (1, 5))),),
)
