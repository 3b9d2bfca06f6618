"""Run rows again under NVIDIA's tools: hardware counters, and checkers of memory accesses."""

import csv
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.gpu.result.header import ROOT
from scripts.gpu.result.report import Measurement, State
from scripts.gpu.rows.bench import Bench, UnavailableError

PLACES = ("usr/local/cuda*/bin", "usr/local/cuda*/nsight-compute*", "opt/nvidia/nsight-compute/*")
LAUNCHES = 6
"""Launches of attention's kernels to profile, from two calls."""
METRICS = (
    *("gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", "launch__registers_per_thread"),
    *("dram__throughput.avg.pct_of_peak_sustained_elapsed", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
    *("lts__t_sector_hit_rate.pct", "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"),
    *("sm__warps_active.avg.pct_of_peak_sustained_active", "smsp__issue_active.avg.pct_of_peak_sustained_active"),
    *("launch__shared_mem_per_block_dynamic", "launch__grid_size", "launch__block_size"),
)
"""Metrics that are copied into the result; the report next to it has all metrics."""
_TAIL = 4000


def ncu(bench: Bench, row: str) -> Measurement:
    """Profile the first launches of attention in a row with Nsight Compute. Raises UnavailableError."""
    tool, report = find_tool("ncu"), bench.out / f"ncu_{row}.ncu-rep"
    _run(
        *(tool, "--clock-control", "none", "--kernel-name", "regex:attention", "-c", str(LAUNCHES), "--set", "full"),
        *("--kill", "yes", "-f", "-o", str(report), *_alone(bench, [row])),
    )
    if not report.exists():
        raise UnavailableError("ncu left no report; the log has what it said")
    printed = _run(tool, "--import", str(report), "--page", "raw", "--csv")
    return Measurement(detail={"report": report.name, "kernels": kernels_in(printed)})


def kernels_in(printed: str) -> list[dict[str, str]]:
    """Parse ncu's table, which has a line of names, one of units and one for each launch.

    Return the kernel's name and the METRICS of each launch.
    """
    lines = printed.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    units, *launches = list(csv.DictReader(io.StringIO("\n".join(lines[start:])))) or [{}]
    return [
        {"kernel": launch["Kernel Name"]}
        | {name: f"{launch[name]} {units[name]}".strip() for name in METRICS if launch.get(name)}
        for launch in launches
    ]


def sanitizer(bench: Bench, check: str) -> Measurement:
    """Run compute-sanitizer on the smoke rows that ran. Raises UnavailableError.

    Only errors of memcheck are failures: racecheck may not know every way to wait for asynchronous copies.
    """
    names = [name for name, row in bench.results.items() if row["state"] == State.RAN]
    if not names:
        raise UnavailableError("no row of the smoke ran")
    # XLA tries calls that a driver may not support, and handles their errors: report errors of kernels only.
    tool = (find_tool("compute-sanitizer"), "--tool", check, "--report-api-errors", "no", "--print-limit", "20")
    printed = _run(*tool, *_alone(bench, names))
    errors = errors_in(printed)
    detail = {"rows": names, "errors": errors, "printed": printed[-_TAIL:]}
    failure = f"{errors} errors" if check == "memcheck" and errors else None
    return Measurement(detail=detail, failure=failure)


def errors_in(printed: str) -> int:
    """Return the number of errors in the summary. Raises UnavailableError without one: the checker did not run."""
    match = re.search(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error", printed)
    if match is None:
        raise UnavailableError(f"no summary in {printed[-_TAIL:]}")
    return int(match[1] or match[2])


def find_tool(name: str) -> str:
    """Return the path of a tool. Raises UnavailableError where it is missing."""
    places = [str(found) for place in PLACES for found in sorted(Path("/").glob(place))]
    tool = shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))
    if tool is None:
        raise UnavailableError(f"there is no {name} here")
    return tool


def _alone(bench: Bench, rows: list[str]) -> list[str]:
    """Return the command that runs rows without a supervisor."""
    size = "full" if bench.sizes.pallas else "dry"
    registers = ",".join(map(str, bench.registers))
    return [sys.executable, "-m", "scripts.gpu.alone", size, registers, str(bench.out), *rows]


def _run(*command: str) -> str:
    """Run a command, and return its output, whose end is also logged. The row's time limit ends it."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout[-_TAIL:], file=sys.stderr)
    return done.stdout
