"""Changes that were put into a real trace are found in the budget, exactly; a clean twin has none."""

from __future__ import annotations

import copy
import gzip
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfscope.analyzers.budget import COMMUNICATION, COMPUTE, IDLE
from perfscope.analyzers.compare.comparison import Comparison, compare_sides
from perfscope.analyzers.compare.report import to_sections
from perfscope.engine.sides import read_side
from tests.conftest import ROOT

TRACE = ROOT / "fixtures" / "traces" / "ddp4" / "rank0.pt.trace.json.gz"
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")

Content = dict[str, Any]


def load() -> Content:
    content: Content = json.loads(gzip.decompress(TRACE.read_bytes()))
    return content


def save(content: Content, folder: Path, name: str) -> Path:
    path = folder / name / "rank0.pt.trace.json"
    path.parent.mkdir()
    path.write_text(json.dumps(content))
    return path


def start_ns(event: Mapping[str, Any]) -> int:
    return round(float(event["ts"]) * 1000)


def end_ns(event: Mapping[str, Any]) -> int:
    return start_ns(event) + round(float(event.get("dur", 0)) * 1000)


def is_of_device(event: Mapping[str, Any]) -> bool:
    return event.get("cat") in _DEVICE


def insert(content: Content, moments: Mapping[int, int]) -> None:
    """At each moment let so many nanoseconds more pass; what was under way then takes longer."""
    points = np.array(sorted(moments), np.int64)
    total = np.concatenate([[0], np.cumsum([moments[point] for point in points.tolist()])])
    for event in content["traceEvents"]:
        if "ts" not in event:
            continue
        start, end = start_ns(event), end_ns(event)
        moved = [moment + int(total[np.searchsorted(points, moment, side="right")]) for moment in (start, end)]
        event["ts"] = moved[0] / 1000
        if "dur" in event:
            event["dur"] = (moved[1] - moved[0]) / 1000


def marks(content: Content) -> list[Mapping[str, Any]]:
    return [
        event
        for event in content["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    ]


def slow_down(content: Content, name: str, extra_ns: int) -> int:
    """Let every launch of a kernel take longer; returns how many there are."""
    ends = [end_ns(event) for event in content["traceEvents"] if is_of_device(event) and event["name"] == name]
    insert(content, dict.fromkeys(ends, extra_ns))
    return len(ends)


def edit(folder: Path, name: str, change: Callable[[Content], object]) -> Path:
    """The trace with a change, as a file in a folder of its own."""
    content = load()
    change(content)
    return save(content, folder, name)


def add_collective(content: Content, extra_ns: int) -> None:
    """In the middle of each step, run one more exposed collective before the next kernel."""
    launches = {
        event["args"]["correlation"]: event
        for event in content["traceEvents"]
        if event.get("cat") == "cuda_runtime" and "correlation" in event.get("args", {})
    }
    pattern = next(event for event in content["traceEvents"] if is_of_device(event) and "nccl" in event["name"])
    added, moments = [], {}
    for number, mark in enumerate(marks(content)):
        inside = [
            event
            for event in content["traceEvents"]
            if event.get("cat") == "kernel"
            and "nccl" not in event["name"]
            and event["args"]["correlation"] in launches
            and start_ns(mark) <= start_ns(launches[event["args"]["correlation"]]) < end_ns(mark)
        ]
        inside.sort(key=start_ns)
        following = inside[len(inside) // 2]
        launch = copy.deepcopy(launches[following["args"]["correlation"]])
        collective = copy.deepcopy(pattern)
        launch["args"]["correlation"] = collective["args"]["correlation"] = 10**8 + number
        moments[start_ns(following)] = extra_ns
        added.append((launch, collective, start_ns(following)))
    insert(content, moments)
    for launch, collective, moment in added:
        before = sum(extra for point, extra in moments.items() if point < moment)
        collective["ts"], collective["dur"] = (moment + before) / 1000, extra_ns / 1000
        moved = sum(extra for point, extra in moments.items() if point <= start_ns(launch))
        launch["ts"] = (start_ns(launch) + moved) / 1000
        content["traceEvents"] += [launch, collective]


US = 1000


@pytest.fixture(scope="module")
def gemm() -> str:
    """The product that takes most time."""
    times: Counter[str] = Counter()
    for event in load()["traceEvents"]:
        if event.get("cat") == "kernel" and "nccl" not in event["name"]:
            times[event["name"]] += event["dur"]
    return times.most_common(1)[0][0]


def compare(changed: Path) -> Comparison:
    comparison = compare_sides(read_side(str(TRACE)), read_side(str(changed)))
    budget = comparison.budget
    assert budget is not None
    assert sum(term.change_ns for term in budget.terms) + budget.unexplained_ns == budget.change_ns
    assert budget.unexplained_ns == 0
    return comparison


def test_the_clean_twin_has_no_change_at_all(tmp_path: Path) -> None:
    def move(content: Content) -> None:
        for event in content["traceEvents"]:
            if "ts" in event:
                event["ts"] = (start_ns(event) + 5_000_000) / 1000

    comparison = compare(edit(tmp_path, "twin", move))
    assert comparison.budget is not None
    assert comparison.budget.change_ns == 0
    assert not any(term.change_ns for term in comparison.budget.terms)
    assert all(term.a_calls == term.b_calls for term in comparison.budget.terms)
    assert comparison.verdict == "same"


def test_a_slower_kernel_is_the_first_term_with_all_of_the_change(tmp_path: Path, gemm: str) -> None:
    comparison = compare(edit(tmp_path, "slow", lambda content: slow_down(content, gemm, 50 * US)))
    assert comparison.budget is not None
    first, *others = comparison.budget.terms
    assert (first.term.kind, first.term.name) == (COMPUTE, gemm)
    assert first.change_ns == pytest.approx(comparison.budget.change_ns, rel=0.02)
    assert comparison.budget.change_ns > 1_000_000
    assert sum(abs(term.change_ns) for term in others) <= 0.03 * first.change_ns
    table = next(section for section in to_sections(comparison, 10) if section.title == "What the change is made of")
    *named, rest, _, _ = table.rows
    assert all(abs(float(str(row[4]))) >= 0.01 * comparison.budget.change_ns / 1e6 for row in named)
    assert str(rest[0]).endswith("smaller terms")
    assert all(term.a_calls == term.b_calls for term in comparison.budget.terms)


def test_an_added_collective_is_exposed_communication_of_its_axis(tmp_path: Path) -> None:
    comparison = compare(edit(tmp_path, "collective", lambda content: add_collective(content, 2000 * US)))
    assert comparison.budget is not None
    first = comparison.budget.terms[0]
    assert first.term.kind == COMMUNICATION
    assert first.change_ns == pytest.approx(2_000_000, rel=0.01)
    assert comparison.budget.change_ns == 2_000_000
    assert first.a_calls is not None
    assert first.b_calls == first.a_calls + 1


def test_a_host_that_sleeps_is_idle_time_by_its_cause(tmp_path: Path) -> None:
    def sleep(content: Content) -> None:
        """Between two kernels of each step, where the device is idle, nothing happens for 3 ms."""
        insert(content, {start_ns(mark) + 1: 3_000 * US for mark in marks(content)})

    comparison = compare(edit(tmp_path, "sleep", sleep))
    assert comparison.budget is not None
    assert comparison.budget.change_ns == 3_000_000
    assert comparison.budget.terms[0].term.kind in (IDLE, COMPUTE, COMMUNICATION)
    assert sum(term.change_ns for term in comparison.budget.terms) == 3_000_000


def test_a_renamed_kernel_vanished_and_appeared(tmp_path: Path, gemm: str) -> None:
    def rename(content: Content) -> None:
        for event in content["traceEvents"]:
            if is_of_device(event) and event["name"] == gemm:
                event["name"] = "gemm_fp32"

    comparison = compare(edit(tmp_path, "renamed", rename))
    assert comparison.budget is not None
    assert comparison.budget.change_ns == 0
    gone, new = sorted(comparison.budget.terms[:2], key=lambda term: term.change_ns)
    assert (gone.term.name, new.term.name) == (gemm, "gemm_fp32")
    assert gone.change_ns == -new.change_ns
    assert (gone.b_calls, new.a_calls) == (0, 0)
    assert gone.a_calls == new.b_calls
