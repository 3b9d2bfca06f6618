"""The limits of a container are read from the files of control groups, in all the forms that they have."""

import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from jaxgen.assembly import device
from jaxgen.hardware import container
from jaxgen.hardware.container import HostMemory, host_memory, num_cores
from jaxgen.hardware.device_info import this_cpu
from jaxgen.sizing.device_memory import DeviceMemory

MIB, GIB = 2**20, 2**30
MACHINE = HostMemory(22 * GIB, 24 * GIB)


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(available=MACHINE.available, total=MACHINE.total)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(container, "allowed_cores", lambda: 8)


def tree(root: Path, files: Mapping[str, str]) -> Path:
    """Make a file system with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


SELF, TOP = "proc/self/cgroup", "sys/fs/cgroup"
STAT = f"anon {200 * MIB}\ninactive_file {50 * MIB}\nactive_file {30 * MIB}"
OLD_STAT = f"inactive_file 7\ntotal_inactive_file {50 * MIB}\ntotal_active_file {30 * MIB}"
OF_A_GIB = {"memory.max": str(GIB), "memory.current": str(300 * MIB), "memory.stat": STAT}
OLD = {"memory.limit_in_bytes": str(GIB), "memory.usage_in_bytes": str(300 * MIB), "memory.stat": OLD_STAT}
ABOVE = {"memory.max": str(512 * MIB), "memory.current": str(400 * MIB), "memory.stat": STAT}
LIMITED = HostMemory(GIB - 220 * MIB, GIB, GIB)


def group(path: str, files: Mapping[str, str], **other: str) -> dict[str, str]:
    """Return the files of the control group at a path below /sys/fs/cgroup; ``other``: with "_" for "."."""
    both = {**files, **{name.replace("_", ".", 1): text for name, text in other.items()}}
    return {f"{TOP}/{path}/{name}": text for name, text in both.items()}


MEMORY: dict[str, tuple[str, dict[str, str], HostMemory]] = {
    "no groups": ("", {}, MACHINE),
    "v2, a namespace of its own": ("0::/", group(".", OF_A_GIB), LIMITED),
    "v2, the host's path": ("0::/pod/one", group("pod/one", OF_A_GIB), LIMITED),
    "v2, a path that is not to be seen": ("0::/pod/one", group(".", OF_A_GIB), LIMITED),
    "v2, a path above the namespace": ("0::/../x", group(".", OF_A_GIB), LIMITED),
    "v2, beside v1": ("4:memory:/\n0::/", group("unified", OF_A_GIB), LIMITED),
    "v2, no limit": ("0::/", group(".", OF_A_GIB, memory_max="max"), MACHINE),
    "v2, high": ("0::/", group(".", OF_A_GIB, memory_max="max", memory_high=str(GIB)), LIMITED),
    "v2, a lower limit above": (
        "0::/pod/one",
        group("pod", ABOVE) | group("pod/one", OF_A_GIB),
        HostMemory(192 * MIB, 512 * MIB, 512 * MIB),
    ),
    "v2, used up": ("0::/", group(".", OF_A_GIB, memory_current=str(2 * GIB)), HostMemory(0, GIB, GIB)),
    "v2, more than the machine": ("0::/", group(".", OF_A_GIB, memory_max=str(100 * GIB)), MACHINE),
    "v2, no usage": ("0::/", group(".", {}, memory_max=str(GIB)), MACHINE),
    "v2, nonsense": ("0::/", group(".", OF_A_GIB, memory_max="nonsense"), MACHINE),
    "v1, docker": ("4:memory:/docker/a\n0::/", group("memory", OLD), LIMITED),
    "v1, the host's path": ("4:memory:/docker/a", group("memory/docker/a", OLD), LIMITED),
    "v1, no limit": ("4:memory:/", group("memory", OLD, memory_limit_in_bytes="9223372036854771712"), MACHINE),
}


@pytest.mark.parametrize("case", MEMORY)
def test_memory(case: str, tmp_path: Path) -> None:
    groups, files, expected = MEMORY[case]
    assert host_memory(tree(tmp_path, {SELF: groups} | files)) == expected


CORES: dict[str, tuple[str, dict[str, str], int]] = {
    "no groups": ("", {}, 8),
    "v2, no quota": ("0::/", group(".", {}, cpu_max="max 100000"), 8),
    "v2, half a core": ("0::/", group(".", {}, cpu_max="50000 100000"), 1),
    "v2, two and a half": ("0::/", group(".", {}, cpu_max="250000 100000"), 3),
    "v2, more than there are": ("0::/", group(".", {}, cpu_max="9900000 100000"), 8),
    "v2, nonsense": ("0::/", group(".", {}, cpu_max="1 2 3"), 8),
    "v2, above": ("0::/a/b", group("a", {}, cpu_max="200000 100000") | group("a/b", {}, cpu_max="max 100000"), 2),
    "v1": ("2:cpu,cpuacct:/x", group("cpu,cpuacct/x", {}, cpu_cfs_quota_us="100000", cpu_cfs_period_us="100000"), 1),
    "v1, no quota": ("2:cpu:/", group("cpu", {}, cpu_cfs_quota_us="-1", cpu_cfs_period_us="100000"), 8),
}


@pytest.mark.parametrize("case", CORES)
def test_cores(case: str, tmp_path: Path) -> None:
    groups, files, cores = CORES[case]
    assert num_cores(tree(tmp_path, {SELF: groups} | files)) == cores


def test_words_name_the_limit() -> None:
    assert str(DeviceMemory("cpu", GIB, GIB, GIB)).endswith("that may be used of the container's 1.00 GiB")
    assert "container" not in str(DeviceMemory("cpu", GIB, GIB))
    assert "container" not in str(DeviceMemory("gpu", GIB, GIB, GIB)), "it bounds memory of the host"


def test_threads_are_as_many_as_the_quota_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "is_open", lambda: False)
    monkeypatch.setattr(device, "allowed_cores", lambda: 8)
    monkeypatch.delenv("NPROC", raising=False)
    for cores, expected in ((8, None), (3, "3")):
        monkeypatch.setattr(device, "num_cores", lambda cores=cores: cores)
        device.limit_threads()
        assert os.environ.get("NPROC") == expected
    monkeypatch.setenv("NPROC", "5")
    device.limit_threads()
    assert os.environ["NPROC"] == "5", "whoever set it knows why"


def test_a_cpu_has_the_cores_of_its_quota() -> None:
    assert this_cpu().num_cores == num_cores()
