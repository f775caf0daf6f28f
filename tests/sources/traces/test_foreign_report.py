"""The comparison with other readers sees differences."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks import foreign_traces, slow_parse
from benchmarks.damaged_traces import join
from perfscope.sources.traces.reader import read_trace
from tests.analyzers.flops.making import answer
from tests.sources.traces.making import call, copy, kernel, span, step, write

FIXTURES = Path(__file__).parents[3] / "fixtures"
TRACES = FIXTURES / "traces"


@pytest.mark.parametrize("path", sorted(TRACES.rglob("*.json.gz")), ids=lambda path: f"{path.parent.name} {path.name}")
def test_the_fixtures_are_read_exactly_whole_and_by_step(path: Path) -> None:
    compared = foreign_traces.compare(path, path.name, {})
    assert (compared.outcome, compared.differences) == ("exact", [])


def test_sums_are_over_what_was_launched_in_a_step(tmp_path: Path) -> None:
    """Two kernels of a step with 30 ns between them, the second launched by it and ending behind it; one before."""
    events = [
        step(1, 1_000, 2_000),
        kernel("early", 900, 1_010, launch=7),
        call("cudaLaunchKernel", 1_100, 1_110, launch=1),
        kernel("a", 1_150, 1_200, launch=1),
        call("cudaLaunchKernel", 1_900, 1_910, launch=2),
        kernel("b", 1_230, 2_500, launch=2),
    ]
    path = write(tmp_path / "rank0.json", events)
    sums = foreign_traces.sums_of(*slow_parse.read_device(path))
    assert sums == {"device 0": (1_600, 170), "device 0, ProfilerStep#1": (1_350, 30)}
    assert foreign_traces.answers_of(read_trace(path)) == sums
    assert foreign_traces.idle_of_parts(*slow_parse.read_device(path)) == {"launched": 30}


def test_a_difference_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "rank0.json", [kernel("a", 100, 200), kernel("b", 300, 400)])

    def without_one(path: Path) -> object:
        trace = read_trace(path)
        return replace(trace, device=trace.device.take(trace.device.start_ns > 100))

    monkeypatch.setattr(foreign_traces, "read_trace", without_one)
    compared = foreign_traces.compare(path, "rank0.json", {})
    assert compared.outcome == "differing"
    assert compared.differences == ["device: 1 for 2", "device 0: window and idle time (100, 0) for (300, 100) ns"]


def test_what_other_tools_take_for_work_is_told_apart(tmp_path: Path) -> None:
    """Two kernels with a gap, of which a wait that names a stream takes 40 ns, a fill 10 ns, and a call 5 ns."""
    events = [
        call("cudaLaunchKernel", 0, 10, launch=1),
        call("cudaMemsetAsync", 10, 20, launch=2),
        call("cudaLaunchKernel", 20, 30, launch=3),
        {**call("cudaStreamWaitEvent", 250, 255, launch=4), "args": {"correlation": 4, "stream": 7}},
        kernel("a", 100, 200, launch=1),
        copy("Memset (Device)", 200, 210, launch=2, category="gpu_memset"),
        {**kernel("Stream Wait Event", 210, 250), "cat": "cuda_sync"},
        kernel("b", 300, 400, launch=3),
    ]
    path = write(tmp_path / "rank0.json", events)
    assert foreign_traces.idle_of_others(path) == {"calls": 45, "without_fills": 100, "doubles": 90}


def test_the_waits_of_the_dlrm_are_those_that_perfscope_answers(tmp_path: Path) -> None:
    """Made again from the durations of its collectives: kernels of old NCCL, named by the annotations around them."""
    late = json.loads((FIXTURES / "benchmarks" / "dlrm-collectives.json").read_text())
    rows = late["duration_ns"]
    for rank in range(8):
        events = [step(10, 0, 20_000_000)]
        for index, (name, row) in enumerate(zip(late["operations"], rows, strict=True)):
            begin, end_ns = index * 1_000, (index + 1) * 10_000_000
            kind = "SendRecv" if name == "all_to_all" else "AllReduce"
            events += [
                span("user_annotation", f"nccl:{name}", begin, begin + 900),
                call("cudaLaunchKernel", begin + 100, begin + 200, launch=index + 1),
                kernel(f"ncclKernel_{kind}_RING", end_ns - row[rank], end_ns, launch=index + 1, stream=84),
            ]
        write(tmp_path / f"rank{rank}.json", events)
    results = answer("analyze", tmp_path, "--only", "stragglers")["results"]["stragglers"]
    (group,) = results["groups"]
    assert results["straggler"] == 7
    caused = [rank["caused_wait_us"] * 1000 * 7 for rank in group["ranks"]]
    expected = [0] * 8
    for row in rows:
        expected[row.index(min(row))] += sum(row) - 8 * min(row)
    assert caused == pytest.approx(expected, abs=7)


def test_pieces_of_the_damage_are_added_up() -> None:
    pieces = [
        {
            "seed": 1,
            "counts": {"flip": {"said": 2}},
            "most_beyond_twice_s": 0.1,
            "most_times_the_whole": 2.0,
            "peak_memory_mb": 90,
        },
        {
            "seed": 1,
            "counts": {"flip": {"said": 1, "refused": 1}},
            "most_beyond_twice_s": 0.3,
            "most_times_the_whole": 1.5,
            "peak_memory_mb": 80,
        },
    ]
    assert join(pieces) == {
        "seed": 1,
        "counts": {"flip": {"refused": 1, "said": 3}},
        "most_beyond_twice_s": 0.3,
        "most_times_the_whole": 2.0,
        "peak_memory_mb": 90,
    }
