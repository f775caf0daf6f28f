"""Claims about traces of real pipelines, held against figures that were found without this code."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import Plan, analyze
from perfscope.renderers import Format, render
from tests.conftest import ROOT

FIXTURES = ROOT / "fixtures" / "pipeline"
SETS = ("pp4_1f1b_m8", "pp4_gpipe_m8", "ds_pp4")
PARTS = ("useful_us", "schedule_us", "imbalance_us", "transfer_us", "host_us")


@cache
def _measured(name: str) -> dict[str, Any]:
    return _bubble(FIXTURES / name)


def _bubble(folder: Path) -> dict[str, Any]:
    """The bubble of a folder of traces."""
    found: dict[str, Any] = json.loads(_print(folder, Format.JSON))["results"]["pipeline_bubble"]
    return found


def _print(folder: Path, form: Format = Format.MARKDOWN) -> str:
    return render(to_report(analyze([folder], Plan(only=frozenset({"pipeline_bubble"})))), form)


@pytest.mark.parametrize("name", SETS)
def test_the_parts_add_up_to_p_times_the_section(name: str) -> None:
    found = _measured(name)
    for step in found["steps"]:
        for row in step["stages"]:
            assert sum(round(1000 * row[part]) for part in PARTS) == round(1000 * step["section_us"])
    total = sum(row[part] for row in found["stages"] for part in PARTS)
    assert total == pytest.approx(4 * found["section_us"], rel=1e-12)
    assert all(row["host_us"] > 0 and row["transfer_us"] > 0 for row in found["stages"])


@pytest.mark.parametrize("name", SETS[:2])
def test_the_schedule_part_is_that_of_the_slope_over_micro_batches(name: str) -> None:
    """Unprofiled steps took 79.1 and 125.4 ms at 4 and 8 micro-batches: 23 % of a step is filling and draining."""
    assert _measured(name)["schedule_fraction_of_total"] == pytest.approx(0.23, abs=0.03)


def _kernels(name: str, rank: int) -> list[tuple[float, float, str, bool, float]]:
    """Start, end, name, whether the autograd thread launched it, and launch time; by the json module alone."""
    text = gzip.decompress((FIXTURES / name / f"rank{rank}.pt.trace.json.gz").read_bytes())
    events = json.loads(text)["traceEvents"]
    events = [one for one in events if "cat" in one]
    calls = {one["args"]["correlation"]: one for one in events if one["cat"] in ("cuda_runtime", "cuda_driver")}
    annotated = next(one["tid"] for one in events if one["name"].startswith("ProfilerStep"))
    found = []
    for one in events:
        call = calls.get(one["args"].get("correlation")) if one["cat"].startswith(("kernel", "gpu_mem")) else None
        if call is not None:
            end = one["ts"] + one["dur"]
            found.append((one["ts"], end, one["name"], call["tid"] != annotated, call["ts"]))
    return sorted(found)


def _covered_us(spans: list[tuple[float, float]]) -> float:
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


@pytest.mark.parametrize("name", SETS[:1])
def test_section_and_useful_time_agree_with_a_reading_by_hand(name: str) -> None:
    """Stage 0 begins with its embedding's gather kernel; a rank works until its last backward pass."""
    ranks = [_kernels(name, rank) for rank in range(4)]
    gathers = [start for start, _, kernel, _, _ in ranks[0] if "vectorized_gather" in kernel]
    half = len(gathers) // 2
    for step, begin in enumerate((gathers[0], gathers[half])):
        until = gathers[half] if step == 0 else float("inf")
        last = max(end for rank in ranks for start, end, _, engine, _ in rank if engine and start < until)
        found = _measured(name)["steps"][step]
        assert found["section_us"] == pytest.approx(last - begin, abs=0.01)
        for rank, kernels in enumerate(ranks):
            within = [one for one in kernels if begin <= one[0] <= last]
            final = max(launch for _, _, _, engine, launch in within if engine)
            work = [
                (start, end) for start, end, kernel, _, launch in within if "nccl" not in kernel and launch <= final
            ]
            assert found["stages"][rank]["useful_us"] == pytest.approx(_covered_us(work), abs=0.05)


MARKED = {
    "megatron_pp2_m4": ("1f1b", 4, 1),
    "megatron_pp2_interleaved_m4": ("interleaved", 4, 2),
    "ds_pp2_m8": ("1f1b", 8, 1),
}


def _without_marks(name: str, folder: Path) -> Path:
    """The same traces as if the hooks had not been there, under other file names."""
    for rank in range(2):
        document = json.loads(gzip.decompress((FIXTURES / name / f"rank{rank}.pt.trace.json.gz").read_bytes()))
        kept = [one for one in document["traceEvents"] if not one["name"].startswith("perfscope: ")]
        assert len(kept) < len(document["traceEvents"])
        document["traceEvents"] = kept
        (folder / f"x{1 - rank}.json").write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize("name", MARKED)
def test_what_is_told_without_marks_is_what_the_marks_say(name: str, tmp_path: Path) -> None:
    marked = _measured(name)
    bare = _bubble(_without_marks(name, tmp_path))
    schedule, microbatches, chunks = MARKED[name]
    for found in (marked, bare):
        assert (found["schedule"], found["microbatches"], found["virtual_stages"]) == (schedule, microbatches, chunks)
        assert [row["rank"] for row in found["stages"]] == [0, 1]
    assert len(bare["notes"]) > len(marked["notes"])
    assert bare["fraction_of_total"] == pytest.approx(marked["fraction_of_total"], abs=0.006)
    assert bare["schedule_fraction_of_total"] == pytest.approx(marked["schedule_fraction_of_total"], abs=0.002)


def test_batched_transfers_without_metadata_are_the_pipeline_axis() -> None:
    """Megatron's SendRecv kernels name no group; its groups say that the rank is in a pipeline."""
    analysis = analyze([FIXTURES / "megatron_pp2_m4"], Plan(only=frozenset({"overlap"})))
    document: Any = analysis.results["overlap"].data()
    batched = next(axis["communication_us"] for axis in document["axes"] if axis["axis"] == "PP")
    spans = [span for rank in range(2) for span in _kernels("megatron_pp2_m4", rank) if "SendRecv" in span[2]]
    assert batched >= sum(end - start for start, end, *_ in spans)
