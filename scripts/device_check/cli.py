"""Measure this machine's device and check the engine on it.

Writes DIR/<device>-<date>.json anew after every row. All parts together take less than nine minutes on a device; each
has a budget, to which comes what the parts before it left, and rows that would exceed it are cut and say so.

Exit status: 0 everything asked for ran and held; 1 a check failed or a row raised; 3 nothing failed, but rows were cut.
"""

import argparse
import os
import platform
import subprocess
import threading
import time
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from jaxgen.config import ModelConfig
from jaxgen.models import Params, init_params
from scripts.device_check import attention, ceilings, host_times, parity, repeatability, step_times, target
from scripts.device_check.report import Part, Report
from scripts.device_check.sizes import DRY, FULL, Sizes

ROOT = Path(__file__).resolve().parents[2]
PART_SECONDS = {
    "ceilings": 50.0,
    "attention": 90.0,
    "parity": 90.0,
    "repeatability": 60.0,
    "steps": 120.0,
    "host": 30.0,
    "opt_steps": 60.0,
}
TOTAL_SECONDS = 525.0
"""When the process ends itself, whatever it is waiting for."""
PACKAGES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "flax", "orbax-checkpoint", "transformers", "numpy"),
    *("jaxtyping", "safetensors", "tokenizers", "ml_dtypes"),
)
FAILED, CUT_SHORT = 1, 3


def main(arguments: list[str] | None = None) -> int:
    """Run the parts asked for; the exit status says how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the result goes; made if need be")
    parser.add_argument("--commit", help="hash to record (default: what git says)")
    parser.add_argument("--parts", default=",".join(PART_SECONDS), help="comma-separated, of: %(default)s")
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, to see that everything works; any device")
    options = parser.parse_args(arguments)
    names = options.parts.split(",")
    if unknown := [name for name in names if name not in PART_SECONDS]:
        parser.error(f"--parts has {unknown[0]!r}; the parts are {', '.join(PART_SECONDS)}")
    device = jax.devices()[0]
    if device.platform == "cpu" and not options.dry_run:
        parser.error("jax finds no accelerator here; --dry-run runs everything on the CPU in tiny sizes")
    report = Report(options.out, device.device_kind, _header(device, options.commit, options.dry_run))
    watchdog = threading.Timer(TOTAL_SECONDS, partial(_give_up, report))
    watchdog.daemon = True
    watchdog.start()
    run_parts(report, names, DRY if options.dry_run else FULL, device)
    watchdog.cancel()
    print(f"written: {report.path}")
    return exit_status(report)


def run_parts(report: Report, names: list[str], sizes: Sizes, device: jax.Device) -> None:
    """The parts asked for, in the order of PART_SECONDS: floors need the ceilings first."""

    @lru_cache(maxsize=1)
    def params_of(model: ModelConfig) -> Params:
        return jax.block_until_ready(init_params(model, seed=0))

    parts: dict[str, Callable[[Part], None]] = {
        "ceilings": lambda part: ceilings.run(part, sizes, device),
        "attention": lambda part: attention.run(part, sizes),
        "parity": lambda part: parity.run(part, sizes),
        "repeatability": lambda part: repeatability.run(part, sizes),
        "steps": lambda part: step_times.run(part, sizes, sizes.steps, params_of),
        "host": lambda part: host_times.run(part, sizes, params_of),
        "opt_steps": lambda part: step_times.run(part, sizes, sizes.opt_steps, params_of),
    }
    started, allowed = time.monotonic(), 0.0
    for name, run in parts.items():
        if name in names:
            print(f"# {name}", flush=True)
            allowed += PART_SECONDS[name]
            run(Part(report, allowed - (time.monotonic() - started)))


def exit_status(report: Report) -> int:
    """FAILED, CUT_SHORT or 0."""
    if report.failures or report.has_errors:
        return FAILED
    return CUT_SHORT if report.has_cuts else 0


def _give_up(report: Report) -> None:
    report.fail(f"stopped after {TOTAL_SECONDS:.0f} s, in the middle of the row after the last one here")
    os._exit(FAILED)


def _header(device: jax.Device, commit: str | None, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "versions": _versions(),
        "commit": commit or _output_of("git", "rev-parse", "HEAD"),
        "target": target.describe(device),
        "nvidia_smi": _output_of("nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem", "--format=csv"),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _output_of(*command: str) -> str | None:
    """What a command prints; None where there is no such command or it fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
