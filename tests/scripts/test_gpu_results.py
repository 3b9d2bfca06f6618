"""python -m scripts.gpu.results: the page of GPU figures is what the results say."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.gpu.page.cells import filled
from scripts.gpu.result.report import COPY_RATE, MATRIX_RATE
from scripts.gpu.results import DOCS, main, pages
from scripts.gpu.rows.listing import rows_of
from scripts.gpu.rows.sizes import FULL

HEADER = {"versions": {"jax": "0.11.2"}, "commit": "c0ffee", "dry_run": False, "failures": []}


def row(name: str, seconds: float | None = None, state: str = "ran", **others: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("bytes", "flops", "floor_seconds", "fraction", "why", "failure"))
    return {**empty, "name": name, "state": state, "seconds": seconds, "detail": {}, **others}


def step(budget: int, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {"floor_seconds": 0.004, "fraction": 0.004 / seconds}
    found["detail"] = {"overlapped_seconds": 0.0045, "bill": {"seconds": 0.0042}}
    return row(f"step_llama3_8b_{budget}", seconds, bytes=20, flops=1000 * budget, **found)


RATES = {"flops_per_second": 5e14, "of_ceiling": 0.625, "dispatch_share": 0.2}
PRODUCTS = {str(tokens): RATES for tokens in FULL.product_tokens}
BENCHMARK = {
    "output_tokens_per_s": 8123.0,
    "requests_per_s": 30.5,
    "ttft_s": {"p50": 0.0525, "p95": 0.0801},
    "inter_token_s": {"p50": 0.0112, "p95": 0.014},
}
EXPERTS = {"kernels": "Hopper", "loop_seconds": 0.01}
ROWS = [
    row("smoke_write_kv", detail={"kernels": "Hopper"}, failure="write_kv differs from numpy"),
    row("smoke_pieces_128", detail={"kernels": "Hopper", "largest_error": 0.00312}),
    row("smoke_tiles_of_128_rows_128", state="lost", why="hung and was killed after 20 s"),
    row("smoke_tiles_of_128_rows_128_registers_24_240", detail={"kernels": "Hopper, 24/240 registers"}),
    row("smoke_tiles_of_128_rows_64_registers_24_240", state="not needed", why="only if"),
    row("decode_attention_256x2k_gqa", 0.001, fraction=0.87, detail={"kernels": "Hopper", "plan_seconds": 0.00005}),
    row("xla_reference_decode_attention_256x2k_gqa", 0.0123),
    row("cudnn_decode_attention_256x2k_gqa", 0.0015, fraction=0.58),
    row("cudnn_decode_attention_16x32k_gqa", state="unavailable", why="RuntimeError: no"),
    row("prompt_attention_256_8k", state="not reached", why="no time was left"),
    row("prompt_attention_2048_8k", state="raised", why="XlaRuntimeError: out of memory\nmore"),
    step(256, 0.005),
    step(64, 0.0046),
    row("step_llama3_8b_256_top_p", 0.006, detail={"returns_seconds": 0.0001}),
    row("served_llama3_8b_1", 0.003, detail={"overlapped_seconds": 0.0025}),
    row(
        "step_llama3_8b_256_beside_copies",
        0.0052,
        detail={"alone_seconds": 0.005, "copied_bytes_per_second": 50e9, "copied_alone_bytes_per_second": 55e9},
    ),
    row("step_llama3_8b_256_whole_sums", 0.0042, detail={"returns_seconds": 0.0003}),
    row("bits_products_qkv", detail={"equal": False, "unequal": {"256": 12}}),
    row("server_llama3_8b_start", 61.0, detail={"cached_programs": 0}),
    row("server_llama3_8b_start_again", state="lost", why="hung"),
    row("server_llama3_8b_64_clients", 9.0, detail=BENCHMARK),
    row("step_llama3_8b_8_layers_int4_64", 0.0025, detail={"kernels": "Hopper"}),
    row("expert_product_qwen3_30b_a3b_256", 5e-4, fraction=0.7, detail=EXPERTS | {"dispatch_share": 0.2}),
    row("host_step_llama3_8b_256_full", 0.01, detail={"schedule_seconds": 0.0004, "idle_share": 0.031}),
    row("restore_llama3_8b_8192", 0.04, detail={"transfer_seconds": 0.04, "recompute_seconds": 0.3}),
    row("products_qkv", 0.0001, detail={"tokens": PRODUCTS}),
    row("step_llama3_8b_knee", 0.005, fraction=0.8, detail={"token_budget": 256, "roofline_token_budget": 192}),
    row("check_bits", detail={"equal": True}),
    row("staging_device_to_host_llama3_8b", 0.01, bytes=500_000_000, detail={"fraction_of_link": 0.951}),
]


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path


def write(docs: Path, name: str, **about: Any) -> None:
    ceilings = {COPY_RATE: 4e12, MATRIX_RATE: 8e14}
    (docs / "results" / name).write_text(json.dumps({**HEADER, "ceilings": ceilings, "rows": ROWS, **about}))


def page(docs: Path) -> str:
    assert main(["--docs", str(docs)]) == 0
    return (docs / "results" / "gpu.md").read_text()


def line(text: str, start: str) -> list[str]:
    """The cells of the one line of a table that begins with ``start``."""
    (found,) = [one for one in text.splitlines() if one.startswith(f"| {start} |")]
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def test_figures_of_a_run(docs: Path) -> None:
    write(docs, "nvidia-h200-2026-11-30.json", device="NVIDIA H200", failures=["smoke_write_kv: wrong"])
    text = page(docs)
    assert text.startswith("# Figures of GPUs\n\n## NVIDIA H200\n\n### In short\n\n")
    assert "\n\n2026-11-30, commit `c0ffee`, jax 0.11.2; docs/results/nvidia-h200-2026-11-30.json." in text
    assert line(text, "copy on the device") == ["4 TB/s"]
    assert line(text, "`decode_attention_256x2k_gqa`") == ["Hopper", "1", "0.87", "0.85", "0.05", "12.3", "1.5"]
    assert line(text, "`decode_attention_16x32k_gqa`") == ["", "not run", "", "", "", "not run", "unavailable"]
    assert line(text, "`prompt_attention_256_8k`")[1] == "not reached"
    assert line(text, "`prompt_attention_2048_8k`")[1:4] == ["failed: raised XlaRuntimeError", "", "0.60"]
    llama, served = text.split("### The step of Llama-3-8B")[1].split("### The step as a server has it")
    assert line(llama, "256") == ["5", "4.5", "4.2", "4", "arithmetic", "0.80", "51,200"]
    assert line(llama, "1024")[0] == "not run"
    assert "OPT-6.7B" not in text, "nothing of it has run"
    assert "would store: **256 tokens**, 0.80 of the floor (goal 0.80)" in " ".join(llama.split())
    assert line(text, "`staging_device_to_host_llama3_8b`")[1:3] == ["50", "0.951"]
    assert line(served, "top_p 0.9") == ["6", "0.1", ""]
    assert line(served, "decodes alone: 1") == ["3", "", "2.5"]
    assert "a step takes 5.2 ms; alone it takes 5 ms. The copies reach 50 GB/s, and alone 55." in " ".join(
        served.split()
    )
    assert line(served, "greedy, sums of products not split") == ["4.2", "0.3", ""]
    assert line(served, "qkv, 4096 to 6144") == [*["500 (0.62)"] * 6, "differ ({'256': 12})"]
    assert line(served, "64") == ["8,123", "30.5", "52.5", "80.1", "11.2", "14"]
    assert line(served, "1") == ["not run", *[""] * 5]
    assert "The first start takes 61 s, with 0 programs in its cache." in served
    assert line(served, "`step_llama3_8b_8_layers_int4_64`")[1] == "2.5"
    assert line(served, "`expert_product_qwen3_30b_a3b_256`") == ["Hopper", "0.5", "0.70", "10"]
    assert line(served, "full") == ["10", "0.031", "0.4"]
    assert line(served, "transfer") == ["40"]


def test_checks_and_rows_without_a_result(docs: Path) -> None:
    write(docs, "nvidia-h200-2026-11-30.json", device="NVIDIA H200", failures=["smoke_write_kv: wrong"])
    text = page(docs)
    assert line(text, "`smoke_write_kv`") == ["Hopper", "failed: write_kv differs from numpy", ""]
    assert line(text, "`smoke_pieces_128`") == ["Hopper", "passed", "0.00312"]
    assert line(text, "`smoke_tiles_of_128_rows_128`")[1] == "failed: lost its process or the device"
    assert line(text, "`smoke_tiles_of_128_rows_128_registers_24_240`")[0] == "Hopper, 24/240 registers"
    assert "| `smoke_tiles_of_128_rows_64_registers_24_240` |" not in text
    assert "Of 5 checks of kernels, parity and repeatability 3 held, 2 failed, 0 have no result." in text
    assert "- failed: smoke_write_kv: wrong" in text
    without = text.split("### Rows without a result")[1]
    assert "raised: XlaRuntimeError: out of memory:\n\n```text\nprompt_attention_2048_8k\n```" in without
    assert "not reached: no time was left:\n\n```text\nprompt_attention_256_8k\n```" in without
    assert "not needed" not in without


def test_every_row_of_the_page_is_one_of_the_check(docs: Path) -> None:
    write(docs, "nvidia-h200-2026-11-30.json", device="NVIDIA H200")
    planned = {row.name for row in rows_of(FULL)}
    named = [line.split("`")[1] for line in page(docs).splitlines() if line.startswith("| `")]
    assert len(named) > 20
    assert {*named} <= planned


def test_a_page_begins_with_five_numbers(docs: Path) -> None:
    """Of rows that have run, and says what was not measured."""
    loads = {clients: row(f"server_llama3_8b_{clients}_clients", 9.0, detail=BENCHMARK) for clients in (1, 16, 256)}
    again = row("server_llama3_8b_start_again", 14.6, detail={"cached_programs": 43})
    replaced = [one for one in ROWS if one["name"] != again["name"]]
    write(docs, "nvidia-h200-2026-11-30.json", device="NVIDIA H200", rows=[*replaced, *loads.values(), again])
    short = page(docs).split("### In short")[1].split("###")[0]
    assert [one for one in short.splitlines() if one.startswith("- ")] == [
        "- 1 client: **8,123 output tokens/s**, 11.2 ms between tokens.",
        "- 16 clients: **8,123 output tokens/s**, the first after 52.5 ms.",
        "- 256 clients: **8,123 output tokens/s**, the first after 52.5 ms.",
        "- A step of 256 tokens: **4.5 ms**; its floor is 4 ms.",
        "- The first start: **61 s**, a later one 14.6 s.",
    ]
    assert "Next to vLLM: **not measured**." in short


def test_rows_that_measured_the_host_show_no_rates(docs: Path) -> None:
    """Rows of before, which do not say how long the host dispatched."""
    of_products = {
        tokens: {name: times[name] for name in ("flops_per_second", "of_ceiling")} for tokens, times in PRODUCTS.items()
    }
    old = [
        row("products_qkv", 0.0001, detail={"tokens": of_products}),
        row("bits_products_qkv", detail={"equal": True}),
        row("expert_product_qwen3_30b_a3b_256", 5e-4, fraction=0.7, detail=EXPERTS),
        row("host_step_llama3_8b_256_full", 0.01, detail={"host_seconds": 0.0048, "host_share": 0.48}),
    ]
    write(docs, "nvidia-h200-2026-11-30.json", device="NVIDIA H200", rows=old)
    text = page(docs)
    assert line(text, "qkv, 4096 to 6144") == ["equal"]
    assert line(text, "`expert_product_qwen3_30b_a3b_256`") == ["Hopper", "at most 0.5", "10"]
    assert line(text, "full") == ["10", "4.8"]
    assert text.count("measured how fast\nthe host dispatches") == 2


def test_columns_without_a_value_are_left_out() -> None:
    lines = [["a", "1", "not run", ""], ["b", "lost", "not reached", "unavailable"]]
    assert filled(["row", "one", "two", "three"], lines) == "| row | one |\n|---|---:|\n| a | 1 |\n| b | lost |"
    assert filled(["row", "two"], [["a", "not run"]]) == ""


def test_the_newest_run_of_each_device_counts_and_dry_runs_do_not(docs: Path) -> None:
    write(docs, "nvidia-h200-2026-11-30-10.json", device="NVIDIA H200", commit="newest")
    write(docs, "nvidia-h200-2026-11-30-9.json", device="NVIDIA H200", commit="older")
    write(docs, "nvidia-h200-2026-11-30.json", device="NVIDIA H200", commit="oldest")
    write(docs, "nvidia-h100-2026-11-01.json", device="NVIDIA H100", commit="other")
    write(docs, "cpu-2026-12-30.json", device="cpu", dry_run=True, commit="dry")
    (docs / "results" / "demo.json").write_text("{}")
    text = page(docs)
    assert [word in text for word in ("newest", "other", "older", "oldest", "dry")] == [True, True, False, False, False]


def test_a_row_that_did_not_run_last_is_that_of_the_run_before(docs: Path) -> None:
    earlier = [step(256, 0.005), step(1024, 0.03)]
    later = [step(256, 0.004), row("step_llama3_8b_1024", state="not reached", why="no time was left")]
    write(docs, "nvidia-h200-2026-11-29.json", device="NVIDIA H200", commit="older", rows=earlier)
    write(docs, "nvidia-h200-2026-11-30.json", device="NVIDIA H200", commit="newest", rows=later)
    text = page(docs)
    steps = text.split("### The step of Llama-3-8B")[1].split("###")[0]
    assert line(steps, "256")[0] == "4"
    assert line(steps, "1024")[0] == "30"
    origin, names = text.split("These rows are from an earlier run")[1].split("```")[:2]
    assert "older" in origin
    assert names.split() == ["text", "step_llama3_8b_1024"]


def test_without_results_the_page_says_so(docs: Path) -> None:
    text = page(docs)
    assert "Nothing here has run on a GPU yet" in text
    assert "|" not in text
    assert not (docs / "results" / "gpu_bill.md").exists(), "it is compared with an H200"


@pytest.mark.parametrize("name", ["gpu.md", "gpu_bill.md"])
def test_the_pages_are_those_of_the_results(name: str) -> None:
    assert pages(DOCS / "results")[name] == (DOCS / "results" / name).read_text(), "run python -m scripts.gpu.results"
