"""Changes that were put into a real trace are found in the budget, exactly; a clean twin has none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from perfscope.analyzers.budget.terms import COMMUNICATION, COMPUTE, IDLE
from perfscope.analyzers.comparison.comparison import Comparison, compare_sides
from perfscope.engine.sides import read_side
from tests.analyzers.comparison.injection import (
    TRACE,
    Content,
    add_collective,
    edit,
    insert,
    is_of_device,
    load,
    marks,
    slow_down,
    start_ns,
)

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
    assert not comparison.inventory.differences
    assert comparison.verdict == "same"


def test_a_slower_kernel_is_the_first_term_with_all_of_the_change(tmp_path: Path, gemm: str) -> None:
    comparison = compare(edit(tmp_path, "slow", lambda content: slow_down(content, gemm, 50 * US)))
    assert comparison.budget is not None
    first, *others = comparison.budget.terms
    assert (first.term.kind, first.term.name) == (COMPUTE, gemm)
    assert first.change_ns == pytest.approx(comparison.budget.change_ns, rel=0.02)
    assert comparison.budget.change_ns > 1_000_000
    assert sum(abs(term.change_ns) for term in others) <= 0.03 * first.change_ns
    assert not comparison.inventory.differences


def test_an_added_collective_is_exposed_communication_of_its_axis(tmp_path: Path) -> None:
    comparison = compare(edit(tmp_path, "collective", lambda content: add_collective(content, 2000 * US)))
    assert comparison.budget is not None
    first = comparison.budget.terms[0]
    assert first.term.kind == COMMUNICATION
    assert first.change_ns == pytest.approx(2_000_000, rel=0.01)
    assert comparison.budget.change_ns == 2_000_000
    counts = [difference for difference in comparison.inventory.differences if difference.what == "count"]
    assert any("nccl" in difference.name for difference in counts)


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
    assert {(difference.what, difference.name) for difference in comparison.inventory.differences} == {
        ("vanished", gemm),
        ("appeared", "gemm_fp32"),
    }
    assert comparison.budget is not None
    assert comparison.budget.change_ns == 0
    gone, new = sorted(comparison.budget.terms[:2], key=lambda term: term.change_ns)
    assert (gone.term.name, new.term.name) == (gemm, "gemm_fp32")
    assert gone.change_ns == -new.change_ns


def test_another_data_type_and_another_shape_are_told_apart(tmp_path: Path) -> None:
    def retype(content: Content) -> None:
        for event in content["traceEvents"]:
            if event["name"] == "aten::addmm":
                event["args"]["Input type"] = [
                    "float" if "Half" in t or "Float" in t else t for t in event["args"]["Input type"]
                ]
            if event["name"] == "aten::bmm" or event["name"] == "aten::mm":
                event["args"]["Input Dims"] = [[2 * size for size in shape] for shape in event["args"]["Input Dims"]]

    comparison = compare(edit(tmp_path, "retyped", retype))
    whats = Counter((difference.name, difference.what) for difference in comparison.inventory.differences)
    assert whats["addmm", "dtype"] >= 1
    assert whats["mm", "shape"] >= 1
    assert not any(what in ("appeared", "vanished") for _, what in whats)


def test_another_grid_is_another_shape(tmp_path: Path, gemm: str) -> None:
    def regrid(content: Content) -> None:
        for event in content["traceEvents"]:
            if event.get("cat") == "kernel" and event["name"] == gemm:
                event["args"]["grid"] = [7, 7, 7]

    comparison = compare(edit(tmp_path, "grid", regrid))
    assert [(difference.what, difference.name) for difference in comparison.inventory.differences] == [("grid", gemm)]
