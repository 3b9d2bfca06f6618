"""What rows compute: loads of kernels, steps and servers, and those of a full run."""

from dataclasses import dataclass, replace

from jaxgen.core.decoder_config import DecoderConfig
from jaxgen.core.kv_dtype import KVDType
from jaxgen.core.model_config import ModelConfig
from jaxgen.core.quantization import Quantization, WeightFormat
from jaxgen.weights.encodings.weight_formats import quantized_config
from scripts.loads.large import LLAMA3_8B, OPT_6_7B, QWEN3_30B_A3B
from tests.support.attention_cases import Case


@dataclass(frozen=True)
class AttentionLoad:
    """A load of attention in one layer. ``rows``: (query tokens, context) of each row."""

    name: str
    model: ModelConfig
    rows: tuple[tuple[int, int], ...]

    def cost(self) -> tuple[int, int]:
        """Return bytes and FLOPs.

        Bytes of every context's K and V, of queries and outputs, each once; 4 * head_dim FLOPs for each head, query and
        token that the query attends to.
        """
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
    """Full steps of a model. ``budgets``: tokens per step, the most important first, since time may run out; ``rows``:
    decoding sequences; ``context``: tokens of each of them."""

    name: str
    model: ModelConfig
    budgets: tuple[int, ...]
    rows: int
    context: int


KV_CODES: tuple[KVDType, ...] = ("int8", "fp8")


def variants(model: DecoderConfig) -> dict[str, DecoderConfig]:
    """Return the model as it is, with weights of 8 and 4 bits, and with a KV cache of 8 bits."""
    weights: tuple[Quantization, ...] = ("int8", "int4", "fp8", "fp8_dynamic")
    return (
        {"bf16": model}
        | {name: quantized_config(model, name) for name in weights}
        | {f"kv_{name}": replace(model, kv_dtype=name) for name in KV_CODES}
    )


@dataclass(frozen=True)
class ExpertLoad:
    """A product of ``tokens`` tokens, each with ``per_token`` of ``experts`` weights [outputs, inputs].

    ``form``: of the weights; None: bfloat16.
    """

    name: str
    tokens: int
    per_token: int
    experts: int
    inputs: int
    outputs: int
    form: WeightFormat | None = None


EXPERT_FORMATS = {
    "int8": WeightFormat(8, None),
    "fp8": WeightFormat(8, None, floats=True),
    "int4": WeightFormat(4, 32),
    "mxfp4": WeightFormat(4, 32, floats=True),
}


@dataclass(frozen=True)
class ServerLoad:
    """A server of a model with random weights, and loads of ``jaxgen benchmark``: ``clients`` and requests of each.

    ``config``: values of config.json, as JSON.
    ``flags``: of ``jaxgen serve`` other than the model; ``prompt`` and ``answer``: mean tokens.
    """

    name: str
    config: str
    flags: tuple[str, ...]
    clients: tuple[tuple[int, int], ...]
    prompt: int
    answer: int
    start_limit: float
    kernels: str = "auto"


LLAMA3_8B_FILE = """{
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "dtype": "bfloat16"
}"""
"""What config.json says of LLAMA3_8B."""
SERVER = ServerLoad(
    "llama3_8b",
    LLAMA3_8B_FILE,
    (),
    ((1, 4), (16, 32), (64, 128), (256, 512)),
    prompt=512,
    answer=128,
    start_limit=200.0,
)


@dataclass(frozen=True)
class OffloadLoad:
    """Work of KV offload: ``tokens`` are recomputed in one of ``layers`` layers; ``blocks`` blocks are staged."""

    name: str
    model: ModelConfig
    tokens: int
    layers: int
    blocks: int


OFFLOADS = (
    OffloadLoad("llama3_8b", LLAMA3_8B, tokens=2048, layers=8, blocks=256),
    OffloadLoad("opt_6.7b", OPT_6_7B, tokens=2048, layers=8, blocks=64),
)
"""Weights of 8 layers do not fit in any L2 cache; the blocks of a load are half a gigabyte."""

BUDGETS = (256, 512, 64, 1024, 2048)
PRODUCTS = (("qkv", 4096, 6144), ("out", 4096, 4096), ("gate_up", 4096, 28_672), ("down", 14_336, 4096))
"""The weights of a layer of Llama-3-8B: name, inputs and outputs."""


SMOKE = Case((), heads=8, kv_heads=2, head_dim=128, block_size=64, dtype="bfloat16")
SMOKE_CTAS = 8
"""Thread blocks in grids of smoke rows: so few that each has several items, and that few tokens make larger tiles."""
DECODES = ((1, 70), (1, 513), (1, 1300))
SHORT = ((1, 600), (40, 300), (9, 9))
LONG = ((1, 600), (150, 700), (40, 64))


@dataclass(frozen=True)
class SmokeLoad:
    """A small case of one attention kernel. ``kind``: pieces or tiles; ``warpgroups``: number of computing ones."""

    name: str
    kind: str
    warpgroups: int
    case: Case


PIECES, TILES = "pieces", "tiles"
SMOKES = (
    SmokeLoad("pieces_128", PIECES, 1, replace(SMOKE, rows=DECODES)),
    SmokeLoad("tiles_of_64_rows_128", TILES, 1, replace(SMOKE, rows=SHORT)),
    SmokeLoad("tiles_of_128_rows_128", TILES, 2, replace(SMOKE, rows=LONG)),
    SmokeLoad("pieces_64", PIECES, 1, replace(SMOKE, rows=DECODES, head_dim=64)),
    SmokeLoad("tiles_of_64_rows_64", TILES, 1, replace(SMOKE, rows=SHORT, head_dim=64)),
    SmokeLoad("tiles_of_128_rows_64", TILES, 2, replace(SMOKE, rows=LONG, head_dim=64)),
    SmokeLoad("pieces_256", PIECES, 2, replace(SMOKE, rows=DECODES, head_dim=256)),
    SmokeLoad("tiles_of_64_rows_256", TILES, 2, replace(SMOKE, rows=SHORT, head_dim=256)),
)
"""Heads of 256 are always shared by two warpgroups."""

GROUPED = Case((), heads=8, kv_heads=2, head_dim=128, block_size=64, dtype="bfloat16")
RANDOM_ROWS, RANDOM_TOKENS = 10, 256
"""Most rows and tokens of random batches."""
BITS = replace(SMOKE, rows=((5, 1091), (7, 150)), heads=6, head_dim=64)
"""The first row's context has three pieces of 512 tokens; the last of these has two tiles of 64."""
BITS_TOKENS = 48
"""Tokens of the widest step with BITS."""
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


SMALL_STEP = StepLoad("llama3_8b_2_layers", replace(LLAMA3_8B, num_layers=2, vocab_size=1024), (256,), 32, 1024)
STEPS = StepLoad("llama3_8b", LLAMA3_8B, BUDGETS, rows=32, context=1024)
OPT_STEPS = StepLoad("opt_6.7b", OPT_6_7B, (256,), rows=32, context=512)
MOE_STEP = StepLoad("qwen3_30b_a3b_8_layers", QWEN3_30B_A3B.of_layers(8), (256,), rows=32, context=1024)
VARIANTS = tuple(
    StepLoad(f"llama3_8b_8_layers_{name}", model, (64,), rows=32, context=1024)
    for name, model in variants(replace(LLAMA3_8B, num_layers=8)).items()
)
EXPERT_LOADS = (
    ExpertLoad("qwen3_30b_a3b_32", 32, 8, 128, 2048, 1536),
    ExpertLoad("qwen3_30b_a3b_256", 256, 8, 128, 2048, 1536),
    *(ExpertLoad(f"qwen3_30b_a3b_256_{name}", 256, 8, 128, 2048, 1536, form) for name, form in EXPERT_FORMATS.items()),
    ExpertLoad("qwen3_30b_a3b_2048", 2048, 8, 128, 2048, 1536),
)
