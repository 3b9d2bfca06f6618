"""Sample clocks, power and temperature of the device while it works, with nvidia-smi."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
_EVERY_MS = 100


@contextmanager
def sampled_clocks() -> Iterator[dict[str, Any]]:
    """Sample within the context. At its end the dict gets the least, median and largest value of each of FIELDS.

    It also gets the number of ``samples``; or only ``missing``, the reason why there are none.
    """
    clocks: dict[str, Any] = {}
    command = [
        "nvidia-smi",
        f"--query-gpu={','.join(FIELDS)}",
        "--format=csv,noheader,nounits",
        f"--loop-ms={_EVERY_MS}",
    ]
    try:
        sampler = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError as error:
        clocks["missing"] = str(error)
        yield clocks
        return
    try:
        yield clocks
    finally:
        sampler.terminate()
        printed, _ = sampler.communicate()
        clocks |= summary(printed)


def summary(printed: str) -> dict[str, Any]:
    """Summarize the lines that nvidia-smi printed, the last of which may be cut."""
    samples = []
    for line in printed.splitlines():
        try:
            samples.append([float(word) for word in line.split(",")])
        except ValueError:  # a value that the device does not report is [N/A]
            continue
    samples = [sample for sample in samples if len(sample) == len(FIELDS)]
    if not samples:
        return {"missing": f"nvidia-smi printed {printed[:200]!r}"}
    columns = zip(FIELDS, zip(*samples, strict=True), strict=True)
    return {"samples": len(samples)} | {name: [min(of), median(of), max(of)] for name, of in columns}
