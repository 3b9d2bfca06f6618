"""Sizes of all measurements: on a device, and in a dry run that only shows that everything works."""

from dataclasses import dataclass, replace

from jaxgen.core.decoder_config import DecoderConfig
from scripts.gpu.rows.work import (
    ATTENTION,
    ATTENTION_CASES,
    EXPERT_FORMATS,
    EXPERT_LOADS,
    GROUPED,
    MOE_STEP,
    OFFLOADS,
    OPT_STEPS,
    PRODUCTS,
    SERVER,
    SMALL_STEP,
    SMOKES,
    STEPS,
    VARIANTS,
    AttentionLoad,
    ExpertLoad,
    OffloadLoad,
    ServerLoad,
    SmokeLoad,
    StepLoad,
    variants,
)
from scripts.loads.large import GEMMA3_12B, GPT_OSS_20B_BF16, TINY, TINY_MOE
from scripts.loads.shapes import SHAPES
from tests.support.attention_cases import Case
from tests.support.goldens import OF_FAMILIES


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of all rows. ``pallas``: use Pallas kernels, where the device has them.

    ``repeats``: samples of which the best (ceilings) or the median (steps) counts. ``row_seconds`` ends the repeats of
    a step early. ``load_seconds``: time of work while clocks are read. ``chained``: calls of a short kernel in one
    program.
    """

    pallas: bool = True
    copy_bytes: int = 8 * 2**30
    copy_repeats: int = 20
    matrix_side: int = 8192
    load_seconds: float = 1.5
    link_bytes: int = 2**30
    repeats: int = 10
    chained: int = 16
    smokes: tuple[SmokeLoad, ...] = SMOKES
    small_step: StepLoad = SMALL_STEP
    served_budget: int = 256
    served_decodes: tuple[int, ...] = (1, 64)
    """Decodes of the steps without a prompt: of one user, and of 64."""
    product_tokens: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    bits_tokens: tuple[int, ...] = (16, 64, 256)
    products: tuple[tuple[str, int, int], ...] = PRODUCTS
    own_tokens: tuple[int, ...] = (1, 16, 64, 128, 256, 512, 1024, 2048)
    """Rows of our own products, all of one program."""
    own_bits_tokens: tuple[int, ...] = (1, 8, 9, 63, 64, 65, 128, 250, 256, 257, 1000, 2048)
    own_norm_width: int = 4096
    copied_blocks: int = 64
    goldens: tuple[str, ...] = OF_FAMILIES
    families: tuple[tuple[str, DecoderConfig], ...] = (
        ("gpt_oss_20b_2_layers", replace(GPT_OSS_20B_BF16.of_layers(2), vocab_size=1024)),
        ("gemma3_12b_6_layers", replace(GEMMA3_12B.of_layers(6), vocab_size=1024)),
    )
    """Compared by the device's kernels and by XLA's: sinks, windows and experts; heads of 256."""
    repeatability_model: DecoderConfig = SHAPES["88m"]
    repeatability_budget: int = 256
    steps: StepLoad = STEPS
    opt_steps: StepLoad = OPT_STEPS
    variants: tuple[StepLoad, ...] = VARIANTS
    widths: tuple[tuple[int, int], ...] = ((64, 512), (256, 512))
    """Tokens of two programs that compute the same decodes, of the first of ``variants``."""
    widths_rows: int = 256
    whole_sums: str = "llama3_8b_8_layers_int4"
    """The one of ``variants`` that is measured with whole sums too."""
    moe_step: StepLoad = MOE_STEP
    expert_loads: tuple[ExpertLoad, ...] = EXPERT_LOADS
    server: ServerLoad = SERVER
    restored_tokens: int = 8192
    restores: int = 2
    row_seconds: float = 6.0
    attention: tuple[AttentionLoad, ...] = ATTENTION
    offloads: tuple[OffloadLoad, ...] = OFFLOADS
    random_batches: int = 5
    random_case: Case = GROUPED
    random_most_context: int = 1600
    attention_cases: tuple[tuple[str, Case], ...] = ATTENTION_CASES
    host_context: int = 256
    host_steps: int = 20


FULL = Sizes()
DRY = Sizes(
    pallas=False,
    copy_bytes=2**20,
    copy_repeats=3,
    matrix_side=256,
    load_seconds=0.1,
    link_bytes=2**20,
    repeats=3,
    chained=2,
    smokes=tuple(replace(load, case=replace(load.case, rows=load.case.rows[:2], head_dim=16)) for load in SMOKES[:3]),
    small_step=StepLoad("tiny", TINY, (16,), rows=4, context=96),
    served_budget=16,
    served_decodes=(1, 4),
    product_tokens=(8, 16),
    bits_tokens=(8, 16),
    products=(("qkv", 64, 128),),
    own_tokens=(1, 8, 16),
    own_bits_tokens=(1, 8, 9),
    own_norm_width=128,
    copied_blocks=2,
    goldens=("llama",),
    families=(("tiny_moe", TINY_MOE),),
    repeatability_model=TINY,
    repeatability_budget=32,
    steps=StepLoad("tiny", TINY, (16, 32), rows=4, context=96),
    opt_steps=StepLoad("tiny", TINY, (), rows=4, context=64),  # the same program as for the others
    variants=tuple(
        StepLoad(f"tiny_{name}", model, (16,), rows=4, context=96)
        for name, model in variants(replace(TINY, num_layers=1)).items()
        if name in ("int8", "kv_int8")
    ),
    whole_sums="",
    widths=((4, 16),),
    widths_rows=4,
    moe_step=StepLoad("tiny_moe", TINY_MOE, (16,), rows=4, context=96),
    expert_loads=(
        ExpertLoad("tiny", 8, 2, 4, 64, 32),
        ExpertLoad("tiny_mxfp4", 8, 2, 4, 64, 32, EXPERT_FORMATS["mxfp4"]),
    ),
    server=ServerLoad(
        "tiny",
        "{}",
        ("--max-model-len", "128", "--token-budget", "16", "--max-num-seqs", "4"),
        ((1, 2), (4, 4)),
        prompt=20,
        answer=8,
        start_limit=120.0,
        kernels="xla",
    ),
    restored_tokens=256,
    restores=1,
    row_seconds=0.5,
    random_batches=2,
    random_case=Case((), head_dim=16, block_size=16),
    random_most_context=140,
    attention_cases=(("tiny", Case(((1, 70), (5, 33)), window=20)),),
    offloads=(OffloadLoad("tiny", TINY, tokens=128, layers=2, blocks=3),),
    host_context=32,
    host_steps=4,
    attention=(AttentionLoad("decode_attention_tiny", TINY, ((1, 70), (1, 5))),),
)
