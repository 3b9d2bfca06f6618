"""Format the page of the roofline estimate: what the kernels of a step should take, and what an H200 took."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scripts.gpu.page.cells import filled, ms_in, number
from scripts.gpu.result.report import COPY_RATE, MATRIX_RATE, State
from scripts.gpu.roofline.bill import ATTENTION, EXPERTS, LAUNCH, OTHER, PRODUCTS, Kernel, Rates, by_kind, total

BILLS = "gpu-bill.json"
"""The file of bills in docs/results."""
SPECIFIED = {"H100": Rates(3.35e12, 989e12), "H200": Rates(4.8e12, 989e12)}
"""By the data sheets of the SXM modules, dense."""
MEASURED = "H200"
TITLES = {
    "llama3_8b_bf16": "Llama-3-8B, bf16",
    "llama3_8b_int8": "Llama-3-8B, int8",
    "llama3_8b_fp8": "Llama-3-8B, fp8",
    "llama3_8b_fp8_dynamic": "Llama-3-8B, fp8_dynamic",
    "llama3_8b_int4": "Llama-3-8B, int4",
    "qwen3_30b_a3b_bf16": "Qwen3-30B-A3B, bf16",
    "gpt_oss_20b_mxfp4": "gpt-oss-20b, experts in MXFP4",
}
KERNELS_OF = ("llama3_8b_bf16", "llama3_8b_int4", "qwen3_30b_a3b_bf16", "gpt_oss_20b_mxfp4")
"""Programs whose costliest kernels are listed."""
COSTLIEST = 5
"""Kernels that the page lists for a step."""


@dataclass(frozen=True)
class Compared:
    """A measured step that a bill is for, with its number of layers."""

    row: str
    name: str
    tokens: int
    layers: int


COMPARED = (
    Compared("step_llama3_8b_64", "llama3_8b_bf16", 64, 32),
    Compared("step_llama3_8b_256", "llama3_8b_bf16", 256, 32),
    Compared("step_llama3_8b_1024", "llama3_8b_bf16", 1024, 32),
    Compared("step_llama3_8b_8_layers_bf16_64", "llama3_8b_bf16", 64, 8),
    Compared("step_llama3_8b_8_layers_int8_64", "llama3_8b_int8", 64, 8),
    Compared("step_llama3_8b_8_layers_fp8_64", "llama3_8b_fp8", 64, 8),
    Compared("step_llama3_8b_8_layers_fp8_dynamic_64", "llama3_8b_fp8_dynamic", 64, 8),
    Compared("step_llama3_8b_8_layers_int4_64", "llama3_8b_int4", 64, 8),
    Compared("step_qwen3_30b_a3b_8_layers_256", "qwen3_30b_a3b_bf16", 256, 8),
)
INTRO = """# Roofline estimate of a step

What the kernels of a step on a GPU move, compute and should take at best: an estimate for developers, calculated from
the compiled programs (`scripts/gpu/roofline/bill.py`). It is compared with what an H200 took.

`python -m scripts.gpu.bills` compiles the programs, and needs no GPU. `python -m scripts.gpu.results` makes
this page from docs/results/gpu-bill.json and from the results of [gpu_check.md](../gpu_check.md).

- The program is the text that XLA leaves after its passes. Each instruction is one kernel, except views.
- Bytes count the operands that a kernel reads and its results, once each. For a slice or a gather they count the part.
  For a buffer that is updated in place they count the update. The GPU's L2 cache is assumed to keep nothing between
  kernels.
- FLOPs count matrix products alone, 2 per multiply-add.
- A kernel is expected to take max(bytes / copy rate, FLOPs / matrix rate), plus {launch:g} µs for its launch. If
  both operands have 8 bits (`fp8_dynamic`), the matrix rate is double.
- The operands of a Pallas kernel are the whole KV cache and the weights of all experts. The estimate counts the part
  that the kernel touches for the load (`scripts/gpu/roofline/pallas.py`). The load is 32 decodes at a context of
  1,024 tokens, and a prompt that fills the step. The expert of each row is drawn at random.
- A program of one layer and one of two are compiled. Their difference is the cost of each further layer.
  Tokens are chosen greedily.
- Attention reads whole contexts, also in layers with windows (gpt-oss). Dequantization in registers is not counted.

For some products, a compilation on a GPU gets other kernels than one without a GPU. It also splits their sums in
another way. So the estimate shows what the program asks for. The tables of times below show how far it is off.
"""
COMPARED_ABOUT = """Rows without an estimate of the program that ran are older. A step was one program with branches
then, for which the host waited. Steps with weights in 8 and 4 bits take longer than estimated. The
[report](../reports/2026-11-27-h200.md#weights-in-8-and-4-bits) says why."""
PROFILE = "launches_llama3_8b_256"
PROFILED = f"""The row `{PROFILE}` is a profile of the step of Llama-3-8B in bf16 with 256 tokens. Pallas kernels
have the same names as in the estimate. For products the device chooses kernels with other names."""


def page(header: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Return the page. ``header``: gpu-bill.json; ``measured``: the newest rows of an H200, with its ceilings."""
    bills = {(one["name"], one["tokens"]): Bill.read(one) for one in header["bills"]}
    rates = rates_of(measured)
    parts = [
        INTRO.format(launch=1e6 * LAUNCH),
        _rates(rates),
        "## Steps",
        _steps(bills, rates),
        "## Compared with an H200",
        _compared(bills, rates[MEASURED], measured),
        COMPARED_ABOUT,
        "## Kernels in a profile",
        PROFILED,
        _profiled(bills["llama3_8b_bf16", 256], rates[MEASURED], measured),
        *(_costliest(name, bills[name, 256], rates[MEASURED]) for name in KERNELS_OF if (name, 256) in bills),
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def rates_of(measured: Mapping[str, Any]) -> dict[str, Rates]:
    """Return the rates that the H200 reached, and of an H100 the same share of its data sheet."""
    reached = Rates(measured["ceilings"][COPY_RATE], measured["ceilings"][MATRIX_RATE])
    sheet, other = SPECIFIED[MEASURED], SPECIFIED["H100"]
    share = Rates(other.copy / sheet.copy * reached.copy, other.matrix / sheet.matrix * reached.matrix)
    return {"H100": share, MEASURED: reached}


@dataclass(frozen=True)
class Bill:
    """The kernels of a step with one layer, and the kernels that a further one adds."""

    layers: int
    few: tuple[Kernel, ...]
    layer: tuple[Kernel, ...]

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> "Bill":
        few, layer = (tuple(Kernel(*one) for one in header[part]) for part in ("few", "layer"))
        return cls(header["layers"], few, layer)

    def of(self, layers: int) -> list[Kernel]:
        """Return the kernels of a step of ``layers`` layers, at least one."""
        more = (replace(one, launches=one.launches * (layers - 1)) for one in self.layer)
        return [one for one in (*self.few, *more) if one.launches]


Bills = Mapping[tuple[str, int], Bill]


def _rates(rates: Mapping[str, Rates]) -> str:
    rows = [[name, f"{of.copy / 1e12:.2f}", f"{of.matrix / 1e12:.0f}"] for name, of in rates.items()]
    note = "The H200 reached its rates in a run. The rates of the H100 are the same share of its data sheet."
    return f"{note}\n\n{filled(['', 'TB/s', 'TFLOP/s of bf16'], rows)}"


def _steps(bills: Bills, rates: Mapping[str, Rates]) -> str:
    rows = []
    for (name, tokens), bill in sorted(bills.items(), key=lambda item: (list(TITLES).index(item[0][0]), item[0][1])):
        kernels = bill.of(bill.layers)
        whole = total(kernels, rates[MEASURED])
        row = [TITLES[name], f"{tokens:,}", f"{whole.launches:,}", _giga(whole.bytes), number(whole.flops / 1e12)]
        row += [_ms(total(kernels, of).seconds) for of in rates.values()]
        row += [_ms(one.seconds) for one in by_kind(kernels, rates[MEASURED]).values()]
        rows.append(row)
    kinds = [f"H200: {kind}, ms" for kind in (PRODUCTS, ATTENTION, EXPERTS, OTHER)]
    titles = ["step", "tokens", "launches", "GB", "TFLOP", *(f"{name}, ms" for name in rates), *kinds]
    return f"{filled(titles, rows)}\n\nThe last four columns are times of the {MEASURED}, in ms."


def _compared(bills: Bills, rates: Rates, measured: Mapping[str, Any]) -> str:
    ran = {row["name"]: row for row in measured["rows"] if row["state"] == State.RAN}
    rows = []
    for one in COMPARED:
        bill, row = bills.get((one.name, one.tokens)), ran.get(one.row)
        if bill is None or row is None:
            continue
        expected = total(bill.of(one.layers), rates).seconds
        overlapped = row["detail"]["overlapped_seconds"]
        times = [_ms(expected), ms_in("bill", "seconds")(row), _ms(row["seconds"]), _ms(overlapped)]
        rows.append([f"`{one.row}`", *times, f"{expected / overlapped:.2f}"])
    titles = ["row", "estimate, ms", "of the program that ran, ms", "one step, ms", "back to back, ms per step"]
    return filled([*titles, "estimate / back to back"], rows)


def _profiled(bill: Bill, rates: Rates, measured: Mapping[str, Any]) -> str:
    """Return a table of the Pallas kernels that the profile of a step lists."""
    found: Mapping[str, Any] = next((row["detail"] for row in measured["rows"] if row["name"] == PROFILE), {})
    kernels = {name: of["seconds"] for name, of in found.get("all_kernels", {}).items()}
    profile: Mapping[str, float] = kernels or found.get("costliest_seconds", {})  # of a version that kept only twelve
    rows = []
    for name in dict.fromkeys(one.name for one in bill.layer):
        taken = profile.get(f"{name}_mosaic_gpu_kernel")
        if taken is not None:
            alike = [one for one in bill.of(bill.layers) if one.name == name]
            expected, launches = total(alike, rates).seconds, sum(one.launches for one in alike)
            each = [number(1e6 * seconds / launches) for seconds in (expected, taken)]
            rows.append([f"`{name}`", str(launches), *each, f"{expected / taken:.2f}"])
    return filled(["kernel", "launches", "estimate, µs each", "taken, µs each", "estimate / taken"], rows)


def _costliest(name: str, bill: Bill, rates: Rates) -> str:
    """Return a table of the kernels that cost most in a step, those alike together."""
    alike: dict[Kernel, int] = {}
    for one in bill.of(bill.layers):
        key = replace(one, launches=1)
        alike[key] = alike.get(key, 0) + one.launches
    whole = total(bill.of(bill.layers), rates).seconds
    ordered = sorted(
        (replace(one, launches=count) for one, count in alike.items()), key=lambda one: -one.seconds(rates)
    )
    rows = [_line(one, rates, whole) for one in ordered[:COSTLIEST]]
    titles = ["kernel", "kind", "launches", "MB each", "GFLOP each", "µs each", "of the step"]
    return f"## {TITLES[name]}, 256 tokens: the costliest kernels\n\n{filled(titles, rows)}"


def _line(one: Kernel, rates: Rates, whole: float) -> Sequence[str]:
    each = one.seconds(rates) / one.launches
    figures = [f"{one.launches:,}", number(one.bytes / 1e6), number(one.flops / 1e9), number(1e6 * each)]
    return [f"`{one.name}`", one.kind, *figures, f"{one.seconds(rates) / whole:.0%}"]


def _ms(seconds: float) -> str:
    return number(1e3 * seconds)


def _giga(count: int) -> str:
    return number(count / 1e9)
