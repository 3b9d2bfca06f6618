"""Prove a GPU's kernels in a child process, and keep the findings for the next start. Host only, no jax.

A faulty kernel can crash its process, make the GPU unusable for it, or hang. So a child computes with the kernels, in
the shapes that will be served and under a time limit. It runs before this process opens the GPU and takes its memory.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from jaxgen.files.cache_files import find_json, keep_json, named_by
from jaxgen.hardware.nvidia import Gpu, ptxas, versions
from jaxgen.kernels.proving.verdict import Finding, Outcome, Report, ServedShapes, Verdict, read_findings

logger = logging.getLogger(__name__)

PROOF_SECONDS = 300.0
"""Some ten seconds go into starting, a minute or two into compiling on few cores, and less than one into computing."""
EXIT_SECONDS = 10.0
"""Longest wait for a killed process to end: with a kernel that never ends, its driver may take a while."""
COMMAND = (
    sys.executable,
    "-c",
    "import sys; sys.path[:] = sys.argv[2:]; from jaxgen.tools.prove_kernels import main; main(sys.argv[1])",
)
_PACKAGES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt"),
    *("nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvcc"),
)
_FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
"""Signals that say nothing about the kernels; a machine that is out of memory sends one of them."""


def proof_key(shapes: ServedShapes, gpu: Gpu, sources: str) -> dict[str, Any]:
    """Return everything that the result of a proof depends on. ``sources``: a digest of the kernels' code."""
    installed = versions(_PACKAGES) | {"ptxas": ptxas()}
    device = asdict(gpu.device)
    key: dict[str, Any] = {"shapes": asdict(shapes), "device": device, "driver": gpu.driver, "sources": sources}
    return {**key, "versions": installed}


def judge(
    shapes: ServedShapes,
    gpu: Gpu,
    sources: str,
    folder: Path | None,
    operations: Sequence[str],
    *,
    may_run: bool,
    again: bool = False,
) -> Verdict:
    """Return the kept findings on the kernels of ``operations``, and those of a proof of the others, which are kept.

    ``sources``: digest of the kernels' code. ``may_run``: False if this process has opened the GPU, which leaves no
    memory for a child. ``again``: ignore what is kept.
    """
    key = proof_key(shapes, gpu, sources)
    path = None if folder is None else folder / named_by(key)
    stored = {} if again else _stored(path)
    known = {name: replace(one, reason=_as_stored(one.reason)) for name, one in stored.items()}
    missing = [name for name in operations if name not in stored]
    if not missing:
        return Verdict(known)
    if not may_run:
        unavailable = (
            "this process has opened the GPU before, so no other can prove them, and no verdict is kept: start the "
            "engine before JAX is used, or jaxgen serve once, or say kernels='unproven'"
        )
        return Verdict(known, Finding("unavailable", unavailable))
    logger.info("proving the kernels on %s in a process of their own, which may take a minute, once", gpu.device.kind)
    job = {"shapes": asdict(shapes), "device": asdict(gpu.device), "operations": missing}
    verdict = run_proof(job, PROOF_SECONDS)
    final = {name: one for name, one in verdict.findings.items() if one.is_final}
    if final:
        keep_json(path, {"findings": {name: asdict(one) for name, one in (stored | final).items()}, "key": key})
    return replace(verdict, findings={**known, **verdict.findings})


def _stored(path: Path | None) -> dict[str, Finding]:
    """Return the kept findings; none if there is no file, or it has another form."""
    values = find_json(path, "the kernels are proven again")
    findings = None if values is None else values.get("findings")
    return {} if findings is None else read_findings(findings)


def run_proof(job: dict[str, Any], seconds: float) -> Verdict:
    """Return what child processes find of the ``operations`` of a job; they end with this one or after ``seconds``.

    What ends a child is found of the operation that it was at. Another child proves the operations that follow.
    """
    deadline, findings, left = time.monotonic() + seconds, dict[str, Finding](), list(job["operations"])
    while left:
        report, failure = _prove({**job, "operations": left}, max(0.0, deadline - time.monotonic()), seconds)
        findings |= report.findings
        if failure is None or not failure.is_final or report.proving is None:
            return Verdict(findings, report.otherwise or failure or Verdict().otherwise)
        findings[report.proving] = failure
        left = left[left.index(report.proving) + 1 :]
        if failure.outcome == "timed out":
            return Verdict(findings, Finding("unavailable", "the proof of others took all of the time; start again"))
    return Verdict(findings)


def _prove(job: dict[str, Any], left: float, seconds: float) -> tuple[Report, Finding | None]:
    """Run a child process for ``left`` of ``seconds``; return what it has told, and why it has not ended well."""
    # The child takes only the GPU memory that it needs, not a server's share. Its checks are assertions, so no -O.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONOPTIMIZE": ""}
    with tempfile.TemporaryDirectory(prefix="jaxgen-proof-") as work, Path(work, "log").open("w+") as log:
        file = Path(work, "report.json")
        process = subprocess.Popen(
            [*COMMAND, str(file), *sys.path],
            stdin=subprocess.PIPE,  # closes when this process ends, in any way, and that ends the child
            stdout=log,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
            process.wait(left)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
        log.seek(0)
        told = Report.read(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
        if status == 0 and told is not None and told.proving is None:
            return told, None
        return told or Report({}), _failure(status, seconds, log.read())


def _as_stored(reason: str) -> str:
    return f"{reason} (kept; --kernels prove tries again)" if reason else ""


def _end(process: "subprocess.Popen[str]") -> None:
    """Kill a child and everything it started, such as a compiler."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        logger.error("process %d, which proved kernels, was killed and has not ended: it may hold the GPU", process.pid)
    with suppress(BrokenPipeError):
        if process.stdin is not None:
            process.stdin.close()


def _failure(status: int | None, seconds: float, log: str) -> Finding:
    """Return the finding on a process that ended with a status; None: it had to be ended."""
    if status is None:
        return Finding("timed out", f"their proof was not done after {seconds:.0f} s")
    last_line = log.strip().splitlines()[-1:] or ["it said nothing"]
    if status >= 0:
        return Finding("crashed", f"the process of their proof ended with status {status}: {last_line[0]}")
    name = signal.Signals(-status).name
    outcome: Outcome = "killed" if name in _FROM_OUTSIDE else "crashed"
    return Finding(outcome, f"the process of their proof was ended by {name}")
