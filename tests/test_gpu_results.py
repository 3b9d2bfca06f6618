"""scripts/gpu_results.py: the page of GPU figures is what the results say."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.device_check.report import COPY_RATE, MATRIX_RATE
from scripts.gpu_results import DOCS, main

HEADER = {"versions": {"jax": "0.11.2"}, "commit": "c0ffee", "dry_run": False, "failures": []}


def row(name: str, seconds: float | None = None, error: str | None = None, **others: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("bytes", "flops", "floor_seconds", "fraction"))
    found = {"name": name, "ran": error is None, "seconds": seconds, "error": error, "detail": {}}
    return empty | found | others


def step(budget: int, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {"floor_seconds": 0.004, "fraction": 0.004 / seconds}
    found["detail"] = {"overlapped_seconds": 0.0045}
    return row(f"step_llama3_8b_{budget}", seconds, bytes=20, flops=1000 * budget, **found)


ROWS = [
    row("decode_attention_256x2k_gqa", 0.001, fraction=0.87, detail={"kernels": "Hopper", "reference_seconds": 0.0123}),
    row("cudnn_decode_attention_256x2k_gqa", 0.0015, fraction=0.58),
    row("cudnn_decode_attention_16x32k_gqa", error="unavailable: RuntimeError: no"),
    row("prompt_attention_256_8k", error="cut: 50 s of 50 s are spent"),
    row("prompt_attention_2048_8k", error="XlaRuntimeError: out of memory\nmore"),
    step(256, 0.005),
    step(64, 0.0046),
    row("step_llama3_8b_knee", 0.005, fraction=0.8, detail={"token_budget": 256, "roofline_token_budget": 192}),
    row("check_bits", detail={"equal": True}),
    row("check_proof_llama3_8b", error="AssertionError: wrong by nan in bfloat16"),
    row("check_write_kv"),
    row("serving_llama3_1b_jaxgen", 2.5, detail={"output_tokens_per_second": 6553.6}),
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
    return (docs / "gpu.md").read_text()


def line(text: str, start: str) -> list[str]:
    """The cells of the one line of a table that begins with ``start``."""
    (found,) = [one for one in text.splitlines() if one.startswith(f"| {start} |")]
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


def test_figures_of_a_run(docs: Path) -> None:
    write(docs, "nvidia-h200-2026-11-30.json", device="NVIDIA H200", failures=["check_write_kv: differ from numpy"])
    text = page(docs)
    assert "## NVIDIA H200\n\n2026-11-30, commit `c0ffee`, jax 0.11.2; results/nvidia-h200-2026-11-30.json." in text
    assert line(text, "copy on the device") == ["4 TB/s"]
    others = ["not run", "1.5", "not run"]
    assert line(text, "`decode_attention_256x2k_gqa`") == ["Hopper", "1", "0.87", "0.85", "12.3", *others]
    assert line(text, "`decode_attention_16x32k_gqa`")[1] == "compiled, not run"
    assert line(text, "`decode_attention_16x32k_gqa`")[6] == "unavailable"
    assert line(text, "`prompt_attention_256_8k`")[1] == "cut"
    assert line(text, "`prompt_attention_2048_8k`")[1:4] == ["failed (XlaRuntimeError)", "", "0.60"]
    llama, opt = text.split("### The step of ")[1:]
    assert line(llama, "256") == ["5", "4.5", "4", "arithmetic", "0.80", "51,200"]
    assert line(llama, "512")[0] == "compiled, not run"
    assert line(opt, "512")[0] == "compiled, not run"
    assert "would store: **256 tokens**, 0.80 of the floor (goal 0.80)" in llama
    assert line(text, "jaxgen") == ["2.50", "6,554"]
    assert line(text, "`staging_device_to_host_llama3_8b`")[2:4] == ["50", "0.951"]
    assert "1 of 3 checks" in text
    assert "- `check_proof_llama3_8b`: failed (AssertionError)\n- failed: check_write_kv: differ from numpy" in text


def test_plots_are_beside_the_page_and_replaced_by_the_next_run(docs: Path) -> None:
    write(docs, "nvidia-h200-2026-11-30.json", device="NVIDIA H200")
    write(docs, "nvidia-h200-2026-12-01.json", device="NVIDIA H200")
    text = page(docs)
    images = {"gpu-nvidia-h200-steps.png", "gpu-nvidia-h200-attention.png"}
    assert {path.name for path in docs.glob("*.png")} == images
    for name in images:
        assert f"]({name})" in text
        assert (docs / name).read_bytes().startswith(b"\x89PNG")


def test_a_run_without_steps_and_attention_has_no_plots(docs: Path) -> None:
    write(docs, "nvidia-h200-2026-11-30.json", device="NVIDIA H200", rows=[])
    assert "![" not in page(docs)
    assert list(docs.glob("*.png")) == []


def test_the_newest_run_of_each_device_counts_and_dry_runs_do_not(docs: Path) -> None:
    write(docs, "nvidia-h200-2026-11-30-10.json", device="NVIDIA H200", commit="newest")
    write(docs, "nvidia-h200-2026-11-30-9.json", device="NVIDIA H200", commit="older")
    write(docs, "nvidia-h200-2026-11-30.json", device="NVIDIA H200", commit="oldest")
    write(docs, "nvidia-h100-2026-11-01.json", device="NVIDIA H100", commit="other")
    write(docs, "cpu-2026-12-30.json", device="cpu", dry_run=True, commit="dry")
    (docs / "results" / "demo.json").write_text("{}")
    text = page(docs)
    assert [word in text for word in ("newest", "other", "older", "oldest", "dry")] == [True, True, False, False, False]


def test_without_results_the_page_says_so(docs: Path) -> None:
    text = page(docs)
    assert "Nothing here has run on a GPU yet" in text
    assert line(text, "`decode_attention_256x2k_gqa`")[1] == "compiled, not run"


def test_the_page_is_that_of_the_results(tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(DOCS / "results")
    assert page(tmp_path) == (DOCS / "gpu.md").read_text(), "run scripts/gpu_results.py"
