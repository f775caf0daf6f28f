"""Two processes in one file count their launches alike: each kernel belongs to the call of its own process."""

from __future__ import annotations

from pathlib import Path

from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import ABSENT
from tests.sources.traces.making import Event, call, kernel, step, write


def of_process(process: int, delay: int) -> list[Event]:
    """Two steps of five launches; the kernels of process 1 run a step later than they are launched by the other one."""
    events = [
        {**step(number, 1000 * number + delay, 1000 * number + delay + 1000), "pid": process} for number in (0, 1)
    ]
    for number in range(10):
        launched = 200 * number + delay
        events += [
            call("cudaLaunchKernel", launched, launched + 5, launch=number, pid=process),
            kernel(f"of {process}", launched + 20, launched + 90, launch=number, device=process),
        ]
    return events


def test_each_kernel_has_the_launch_and_the_step_of_its_own_process(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "both.json", [*of_process(1, 0), *of_process(2, 90)]))
    assert (trace.device.correlation != ABSENT).all()
    assert trace.calls.process[trace.launch].tolist() == trace.device.device.tolist()
    assert trace.steps.process[trace.step].tolist() == trace.device.device.tolist()
    assert (trace.device.start_ns - trace.calls.start_ns[trace.launch] == 20).all()
