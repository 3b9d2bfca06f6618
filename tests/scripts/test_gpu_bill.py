"""The bill of a program: one small enough to count by hand, and what Pallas kernels touch of their operands."""

import pytest

from scripts.gpu.roofline.bill import LAUNCH, OTHER, PRODUCTS, Kernel, Rates, bill_of, total
from scripts.gpu.roofline.hlo import Array
from scripts.gpu.roofline.pallas import COSTS, Call, Load

PROGRAM = """HloModule jit_step, is_scheduled=true

%looked_up (p0: f32[1000,64], p1: s32[8,1]) -> bf16[8,64] {
  %p0 = f32[1000,64]{1,0} parameter(0)
  %p1 = s32[8,1]{1,0} parameter(1)
  %gather.1 = f32[8,64]{1,0} gather(%p0, %p1), offset_dims={1}, slice_sizes={1,64}
  ROOT %convert.1 = bf16[8,64]{1,0} convert(%gather.1)
}

%multiplied (p0.1: bf16[8,64], p1.1: s4[32,64]) -> f32[8,32] {
  %p0.1 = bf16[8,64]{1,0} parameter(0)
  %p1.1 = s4[32,64]{1,0:E(4)} parameter(1)
  %convert.2 = bf16[32,64]{1,0} convert(%p1.1)
  ROOT %dot.1 = f32[8,32]{1,0} dot(%p0.1, %convert.2), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}

%updated (p0.2: f32[100,32], p1.2: f32[8,32], p2.2: s32[]) -> f32[100,32] {
  %p0.2 = f32[100,32]{1,0} parameter(0)
  %p1.2 = f32[8,32]{1,0} parameter(1)
  %p2.2 = s32[] parameter(2)
  ROOT %put = f32[100,32]{1,0} dynamic-update-slice(%p0.2, %p1.2, %p2.2, %p2.2)
}

%body (state: (s32[], f32[100,32])) -> (s32[], f32[100,32]) {
  %state = (s32[], f32[100,32]{1,0}) parameter(0)
  %turn = s32[] get-tuple-element(%state), index=0
  %kept = f32[100,32]{1,0} get-tuple-element(%state), index=1
  %copied = f32[100,32]{1,0} copy(%kept)
  ROOT %next = (s32[], f32[100,32]{1,0}) tuple(%turn, %copied)
}

%more (state.1: (s32[], f32[100,32])) -> pred[] {
  %state.1 = (s32[], f32[100,32]{1,0}) parameter(0)
  ROOT %known = pred[] constant(true)
}

ENTRY %main (table: f32[1000,64], ids: s32[8,1], weight: s4[32,64], kept.1: f32[100,32], at: s32[]) -> f32[100,32] {
  %table = f32[1000,64]{1,0} parameter(0)
  %ids = s32[8,1]{1,0} parameter(1)
  %weight = s4[32,64]{1,0:E(4)} parameter(2)
  %kept.1 = f32[100,32]{1,0} parameter(3)
  %at = s32[] parameter(4)
  %rows = bf16[8,64]{1,0} fusion(%table, %ids), kind=kLoop, calls=%looked_up
  %product = f32[8,32]{1,0} fusion(%rows, %weight), kind=kCustom, calls=%multiplied
  %written = f32[100,32]{1,0} fusion(%kept.1, %product, %at), kind=kLoop, calls=%updated
  %first = (s32[], f32[100,32]{1,0}) tuple(%at, %written)
  %loop = (s32[], f32[100,32]{1,0}) while(%first), condition=%more, body=%body, backend_config=TRIPS
  ROOT %last = f32[100,32]{1,0} get-tuple-element(%loop), index=1
}
"""
STRANGE = """HloModule jit_f

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %y = f32[8]{0} custom-call(%x), custom_call_target="mosaic_gpu_v2", metadata={op_name="jit(f)/strange/mpmd_map"}
}
"""
LOAD = Load(((1, 600), (1, 100), (20, 90)), heads=8)
COUNTED = [
    Kernel("rows", OTHER, 8 * 64 * 4 + 8 * 4 + 8 * 64 * 2),
    Kernel("product", PRODUCTS, 8 * 64 * 2 + 32 * 64 // 2 + 8 * 32 * 4, 2 * 8 * 64 * 32, "bf16"),
    Kernel("written", OTHER, 8 * 32 * 4 + 4 + 8 * 32 * 4),
    Kernel("copied", OTHER, 2 * 100 * 32 * 4, launches=3),
]


def text(trips: str) -> str:
    return PROGRAM.replace("TRIPS", trips)


def test_a_program_counted_by_hand() -> None:
    kernels = bill_of(text('{"known_trip_count":{"n":"3"}}'), LOAD)
    assert kernels == COUNTED
    rates = Rates(copy=1e6, matrix=1e6)
    product, copied = COUNTED[1].flops / 1e6, COUNTED[3].bytes / 1e6
    others = (COUNTED[0].bytes + COUNTED[2].bytes) / 1e6
    found = total(kernels, rates)
    assert found[:3] == (6, sum(one.launches * one.bytes for one in COUNTED), COUNTED[1].flops)
    assert found.seconds == pytest.approx(product + others + 3 * copied + 6 * LAUNCH)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (text("{}"), "loop is a loop of an unknown number of turns"),
        (text("{}").replace("while(", "conditional("), "loop is a branch"),
        (STRANGE, "nothing says what the Pallas kernel strange costs"),
        ("nothing", "the text has no HloModule"),
    ],
)
def test_what_cannot_be_counted_is_refused(changed: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bill_of(changed, LOAD)


CACHE = Array("bf16", (40, 2, 2, 4, 64, 16))
CONTEXT, QUERY = 2 * 4 * 16 * 2, 8 * 16 * 2
"""Bytes of a context's token, and of a query's or an output's."""
SUMS = (2 + 1) * 4 * 8 * 18 * 4
"""Of 600 tokens two pieces, of 100 one; 4 kv heads, 8 rows, 16 numbers with a maximum and a sum, float32."""


@pytest.mark.parametrize(
    ("name", "operands", "results", "cost"),
    [
        ("attention_in_pieces", [CACHE], [], (700 * CONTEXT + 2 * QUERY + SUMS, 4 * 8 * 16 * 700, "bf16")),
        ("attention_of_tiles", [CACHE], [], (90 * CONTEXT + 40 * QUERY, 4 * 8 * 16 * sum(range(71, 91)), "bf16")),
        ("attention_combine", [], [Array("bf16", (22, 4, 128))], (SUMS + 2 * 4 * 128 * 2, 0, "")),
        (
            "attention_combine",
            [Array("f32", (22, 4, 128)), Array("bf16", (64, 4, 32))],
            [Array("bf16", (64, 4, 32))],
            (SUMS + 2 * 4 * 32 * 2, 0, ""),
        ),
        ("plan_attention", [Array("s32", (45,))], [Array("s32", (22,))], (67 * 4, 0, "")),
        (
            "rotate_write",
            [CACHE, Array("bf16", (64, 16, 16)), *2 * [Array("f32", (64, 8))]],
            [Array("bf16", (64, 8, 16))],
            (2 * 22 * 16 * 16 * 2 + 22 * 12 * 2 * 8 * 4, 0, ""),
        ),
        ("write_kv", [CACHE, *2 * [Array("bf16", (22, 4, 1, 16))], Array("s32", (22,))], [], (4 * 22 * 64 * 2, 0, "")),
        (
            "expert_product",
            [Array("bf16", (5, 32)), Array("s8", (3, 2, 64, 32)), Array("s32", (1,))],
            [Array("f32", (2, 64))],
            (2 * 32 * 2 + round(2 * 64 * 32 * 0.75) + 2 * 64 * 4, 2 * 2 * 32 * 64, "bf16"),
        ),
    ],
)
def test_what_pallas_kernels_touch(
    name: str, operands: list[Array], results: list[Array], cost: tuple[int, int, str]
) -> None:
    assert COSTS[name](Call(operands, results, LOAD)) == cost
