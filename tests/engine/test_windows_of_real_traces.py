"""A light trace made of a real one by taking away what a light window does not record changes no figure.

Both windows then have the same times, so that every result of the pair must be the result of the real trace, down to
collectives, axes and pipelines: all that the light trace lacks is found again in the other one.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import Plan, analyze
from tests.conftest import ROOT

TRACES = ROOT / "fixtures" / "traces"
PIPELINES = ROOT / "fixtures" / "pipeline"
_RECORDED = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
_KNOWN = ("device", "stream", "correlation", "bytes", "grid", "block")
#: Steps of a light window follow each other without a gap; what is said of files and windows differs, too.
_DIFFERENT = ("host_us", "tflops", "window", "trace")


def make_pair(trace: Path, folder: Path, rank: int) -> None:
    """Write a trace with our metadata, and what is left of it in a light window."""
    content = json.loads(gzip.decompress(trace.read_bytes()))
    events = content["traceEvents"]
    marks = [
        event for event in events if event["name"].startswith("ProfilerStep#") and event["cat"] == "user_annotation"
    ]
    base_ns = int(content.get("baseTimeNanoseconds", 0))
    edges = sorted(base_ns + round(mark["ts"] * 1000) for mark in marks)
    end = max(base_ns + round((mark["ts"] + mark["dur"]) * 1000) for mark in marks)
    metadata = {
        "rank": rank,
        "world_size": content.get("distributedInfo", {}).get("world_size", 1),
        "first_step": min(int(mark["name"].partition("#")[2]) for mark in marks),
        "host": "node",
        "pid": 1000 + rank,
    }
    light = []
    for event in events:
        if event.get("cat") in _RECORDED:
            args = {key: value for key, value in event.get("args", {}).items() if key in _KNOWN}
            light.append({**event, "args": args})
    for name, activities, kept, moments in (
        ("operators", "operators", events, []),
        ("light", "light", light, [*edges, end]),
    ):
        stated = {**metadata, "activities": activities, "edges_ns": moments}
        head = {key: value for key, value in content.items() if key not in ("traceEvents", "traceName")}
        document = {**head, "perfscope": stated, "traceEvents": kept}
        target = folder / name / f"rank{rank}.pt.trace.json.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(json.dumps(document, indent=1).encode(), 1))


def without_differences(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_differences(entry) for key, entry in value.items() if key not in _DIFFERENT}
    return [without_differences(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "folder",
    [
        TRACES / "ddp4",
        PIPELINES / "pp4_1f1b_m8",
        PIPELINES / "megatron_pp2_interleaved_m4",
    ],
    ids=lambda folder: folder.name,
)
def test_what_a_light_window_does_not_record_is_found_in_the_other(folder: Path, tmp_path: Path) -> None:
    for trace in sorted(folder.glob("*.gz")):
        rank = int(trace.name.removeprefix("rank").partition(".")[0])
        make_pair(trace, tmp_path, rank)
    plan = Plan(with_operators=True)
    paired, real = (analyze([path], plan) for path in (tmp_path, tmp_path / "operators"))
    assert (paired.windows.times, paired.windows.notes, real.windows.times) == ("light", (), "operators")
    found, expected = (without_differences(to_report(analysis).data["results"]) for analysis in (paired, real))
    assert found.keys() == expected.keys()
    for name, result in expected.items():
        assert found[name] == result, name
