"""What other tools are known to get wrong, each case on a trace small enough to check by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from perfscope.analyzers import breakdown
from perfscope.engine.run import Analysis, analyze
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import Event, call, compact, copy, distributed, kernel, step, write

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def only(tmp_path: Path, *events: Event) -> dict[str, Any]:
    path = write(tmp_path / "rank0.json", list(events), **distributed(0))
    (rank,) = breakdown.analyze([breakdown.measure(read_trace(path))]).ranks
    found: Any = rank.data()
    assert isinstance(found, dict)
    return found


def data(analysis: Analysis, name: str) -> Any:
    return analysis.results[name].data()


def test_fractions_of_a_microsecond_are_kept(tmp_path: Path) -> None:
    """Thousands of 10 us kernels that begin at odd eighths of a microsecond: rounding ends and starts loses a tenth."""
    start = 4_362_342_475_491_125
    events = [kernel("gemm", start + 10_250 * n, start + 10_250 * n + 10_125) for n in range(2000)]
    events += [kernel(NCCL, start + 10_250 * n + 5_000, start + 10_250 * n + 10_250, stream=20) for n in range(2000)]
    entry = only(tmp_path, *events)
    assert entry["compute_us"] == 2000 * 10.125
    assert entry["communication_us"] == 2000 * 5.25
    assert entry["overlap_fraction"] == (2000 * 5_125) / (2000 * 5_250)
    assert entry["idle_us"] == 0


def test_a_fill_is_not_compute(tmp_path: Path) -> None:
    entry = only(tmp_path, kernel("gemm", 0, 100), copy("Memset (Device)", 100, 150, category="gpu_memset"))
    assert (entry["compute_us"], entry["copy_us"]) == (0.1, 0.05)


def test_two_ranks_in_compact_json_are_two_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        path = write(tmp_path / f"{'ab'[rank]}.json", [kernel("gemm", 0, 100)], compact, **distributed(rank, 2))
        assert re.search(r'"rank":\d', path.read_text())
    analysis = analyze([tmp_path])
    assert [entry["rank"] for entry in data(analysis, "breakdown")["ranks"]] == [0, 1]
    assert analysis.damage == ()


def test_a_kernel_before_its_launch_is_no_error(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", [call("cudaLaunchKernel", 100, 110, launch=1), kernel("gemm", 90, 200, launch=1)])
    analysis = analyze([tmp_path])
    assert data(analysis, "breakdown")["ranks"][0]["compute_us"] == 0.11


def test_a_profiler_that_saw_launches_but_no_kernels_is_told(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", [call("cudaLaunchKernel", n, n + 1, launch=n) for n in range(10)], **distributed(0))
    analysis = analyze([tmp_path])
    assert "breakdown" in {skip.analyzer for skip in analysis.skipped}
    (line,) = analysis.damage
    assert "launches but none of their kernels" in line
    assert "DCGM" in line


def test_a_profiler_that_lost_some_kernels_is_told(tmp_path: Path) -> None:
    launches = [call("cudaLaunchKernel", 10 * n, 10 * n + 1, launch=n) for n in range(100)]
    seen = [kernel("gemm", 10 * n + 2, 10 * n + 8, launch=n) for n in range(90)]
    write(tmp_path / "rank0.json", [*launches, *seen], **distributed(0))
    (line,) = analyze([tmp_path]).damage
    assert "10 of 100 launches have no GPU event" in line


def test_kernels_of_one_graph_share_its_launch(tmp_path: Path) -> None:
    events = [
        step(1, 0, 100),
        call("cudaGraphLaunch", 10, 20, launch=5),
        *(kernel(f"node {n}", 30 + 20 * n, 40 + 20 * n, launch=5) for n in range(3)),
    ]
    entry = only(tmp_path, *events)
    assert entry["steps"][0]["compute_us"] == 0.03
    assert entry["steps"][0]["window_us"] == 0.05
