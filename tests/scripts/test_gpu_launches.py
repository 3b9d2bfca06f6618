"""python -m scripts.gpu: what it reads from a profile of steps on a GPU."""

from typing import Any

import pytest

from scripts.gpu.rows.bench import UnavailableError
from scripts.gpu.rows.launches import summarize

STREAM, MEMCPY, OPS, HOST = (1, 7), (1, 8), (1, 9), (2, 1)


def named(pid: int, process: str, *threads: tuple[int, str]) -> list[dict[str, Any]]:
    of_threads = [
        {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}} for tid, name in threads
    ]
    return [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": process}}, *of_threads]


def ran(track: tuple[int, int], name: str, start: float, duration: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "pid": track[0], "tid": track[1], "name": name, "ts": start, "dur": duration, "args": args}


NAMES = [
    *named(1, "/device:GPU:0", (7, "Stream #13(Compute)"), (8, "Stream #14(MemcpyD2H)"), (9, "XLA Ops")),
    *named(2, "/host:CPU", (1, "python")),
    {"ph": "M", "name": "process_sort_index", "pid": 2, "args": {"sort_index": 2}},
    {},
]


def test_two_steps_by_hand() -> None:
    """Busy from 0 to 30, 40 to 60 and 100 to 150 us: 100 of 150 us, with gaps of 10 and 40. The step before them and
    the gap after it do not count."""
    events = [
        *NAMES,
        ran(STREAM, "gemm", -900, 20),
        ran(STREAM, "gemm", -880, 20),
        ran(STREAM, "gemm", 0, 20),
        ran(STREAM, "attention", 20, 10),
        ran(STREAM, "gemm", 40, 20),
        ran(MEMCPY, "MemcpyD2H", 45, 5),
        ran(STREAM, "CudaGraphExec:5", 100, 50),
        ran(OPS, "fusion", 0, 150),
        ran(HOST, "cuLaunchKernelEx", 0, 1),
        ran(HOST, "cuLaunchKernelEx", 2, 1),
        ran(HOST, "cuGraphLaunch", 4, 2),
        ran(HOST, "cuStreamSynchronize", 5, 1),
    ]
    found = summarize(events, steps=2)
    assert found.seconds == pytest.approx(75e-6)
    detail = found.detail
    assert (detail["busy_share"], detail["idle_share"]) == pytest.approx((100 / 150, 50 / 150))
    assert detail["idle_seconds"] == pytest.approx(25e-6)
    assert detail["largest_gaps_seconds"] == pytest.approx([40e-6, 10e-6])
    assert (detail["device_events"], detail["graph_events"], detail["command_buffers"]) == (2.5, 0.5, True)
    assert detail["graph_share"] == pytest.approx(50 / 105)
    assert detail["host_calls"] == {"cuLaunchKernelEx": 2 / 3, "cuGraphLaunch": 1 / 3}
    assert detail["host_seconds_by_event"]["cuGraphLaunch"] == pytest.approx(2e-6 / 3)
    assert detail["all_kernels"].keys() == {"gemm", "attention", "MemcpyD2H", "CudaGraphExec:5"}
    assert detail["all_kernels"]["gemm"] == pytest.approx({"launches": 1.0, "seconds": 20e-6})


def test_all_kernels_of_a_profile_are_kept() -> None:
    events = [ran(STREAM, f"kernel_{number}", number, 1) for number in range(100)]
    found = summarize([*NAMES, *events], steps=99).detail
    assert len(found["all_kernels"]) == 99


@pytest.mark.parametrize(
    ("events", "command_buffers"),
    [
        ([ran(STREAM, "gemm", 0, 1)], False),
        ([ran(STREAM, "gemm", 0, 1, cuda_graph_exec_id=0)], False),
        ([ran(STREAM, "gemm", 0, 1, cuda_graph_exec_id=3)], True),
        ([ran(STREAM, "gemm", 0, 1), ran(HOST, "cudaGraphLaunch", 0, 1)], True),
    ],
)
def test_command_buffers_show_in_either_way(events: list[dict[str, Any]], command_buffers: bool) -> None:
    assert (
        summarize([*NAMES, ran(STREAM, "first", -9, 1), *events], steps=1).detail["command_buffers"] is command_buffers
    )


def test_a_profile_without_a_device_is_no_result() -> None:
    with pytest.raises(UnavailableError, match="only /host:CPU"):
        summarize([*NAMES, ran(HOST, "cuGraphLaunch", 0, 1)], steps=1)
