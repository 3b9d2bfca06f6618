"""Read the limits of memory and processor time that control groups (cgroup v1, v2) set for this process. Host only.

A container sees the memory and the cores of its host. What it may use is in files of /sys/fs/cgroup: see the kernel's
documentation of cgroup-v2 (memory.max, memory.high, cpu.max) and cgroup-v1 (memory.limit_in_bytes, cpu.cfs_quota_us).
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

_NO_LIMIT = 2**60
"""Bytes from which a limit of version 1 is none: without one its file has the largest number of pages."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Memory in bytes that this process can still take, and that it could take if nothing else did.

    ``limit``: that of the container, if it is what bounds them.
    """

    available: int
    total: int
    limit: int | None = None


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Return the memory of the machine, or of the container where that has less. ``root``: of the file system."""
    import psutil  # here: python -m scripts.gpu runs where it is not installed

    machine = psutil.virtual_memory()
    memory = HostMemory(machine.available, machine.total)
    for limit, used in _memory_limits(root):
        left = max(limit - used, 0)
        if left < memory.available or limit < memory.total:
            memory = HostMemory(min(left, memory.available), min(limit, memory.total), min(limit, memory.total))
    return memory


def allowed_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def num_cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use: those allowed, or as many as its quota of time fills."""
    return max(1, min([allowed_cores(), *map(ceil, _quotas(root))]))


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield each limit of memory above this process, and what is used of it without files that can be dropped."""
    for group in _groups(root, ""):
        limits = [number for name in ("memory.max", "memory.high") if (number := _number(group / name)) is not None]
        used = _number(group / "memory.current")
        if limits and used is not None:
            yield min(limits), used - _dropped(group, ("inactive_file", "active_file"))
    for group in _groups(root, "memory"):
        limit, used = _number(group / "memory.limit_in_bytes"), _number(group / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _NO_LIMIT:
            yield limit, used - _dropped(group, ("total_inactive_file", "total_active_file"))


def _quotas(root: Path) -> Iterator[float]:
    """Yield each quota above this process: seconds of processor time in a second."""
    for group in _groups(root, ""):
        words = _read(group / "cpu.max").split()
        if len(words) == 2 and words[0] != "max":
            yield int(words[0]) / int(words[1])
    for group in _groups(root, "cpu"):
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            yield quota / period


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of those above it; ``controller``: of version 1, "" for version 2.

    In a container the path may be the host's, which is not to be seen there: then its own group is the top.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if not path or controller not in controllers.split(","):
            continue
        for top in _tops(root, controller):
            inside = "" if ".." in Path(path).parts else path.strip("/")
            group = top / inside
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top) and folder.is_dir())


def _tops(root: Path, controller: str) -> list[Path]:
    """Return the folders where groups may be mounted. Version 2 is at the top, or in "unified" next to version 1."""
    mounted = root / "sys/fs/cgroup"
    return [mounted, mounted / "unified"] if controller == "" else [mounted / controller, mounted / "cpu,cpuacct"]


def _dropped(group: Path, names: tuple[str, ...]) -> int:
    """Return the bytes of files in memory, which the kernel drops where memory is short."""
    lines = (line.split() for line in _read(group / "memory.stat").splitlines())
    return sum(int(line[1]) for line in lines if len(line) == 2 and line[0] in names)


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def _read(path: Path) -> str:
    """Return a file's text, or an empty one where it is missing or may not be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
