"""Exchanges of unequal parts, and the bandwidth of every operation by the formulas of nccl-tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import clock, collectives
from perfscope.analyzers.stragglers import traces as stragglers
from perfscope.errors import MissingInput
from tests.analyzers.test_collectives import made, measured, operations

PAIR = {"elements": 10, "out": 10}


def splits(sent: str, received: str) -> dict[str, Any]:
    """The split sizes as PyTorch writes them and Kineto passes them on: lists in text."""
    return {"In split size": sent, "Out split size": received}


def exchange(name: str, start: int, end: int, sent: str, received: str, **more: Any) -> Any:
    return made(name, start, end, **{**PAIR, **more}, **splits(sent, received))


UNEVEN = (
    [exchange("all_to_allv", 0, 100, "[3, 5]", "[3, 2]", elements=8, out=5)],
    [exchange("all_to_allv", 70, 100, "[2, 7]", "[5, 7]", elements=9, out=12)],
)


@pytest.mark.parametrize(
    ("operation", "elements", "out", "factor"),
    [
        ("gather", 2_000_000, 4_000_000, 0.5),
        ("scatter", 4_000_000, 2_000_000, 0.5),
        ("reduce", 4_000_000, 4_000_000, 1.0),
    ],
)
def test_a_root_s_operations_have_the_factors_of_nccl_tests(
    tmp_path: Path, operation: str, elements: int, out: int, factor: float
) -> None:
    """The size is what the root has of all ranks together: 8 MB in 100 us are 80 GB/s."""
    (entry,) = operations(tmp_path, *([made(operation, start, 200, elements=elements, out=out)] for start in (0, 100)))
    assert (entry["operation"], entry["bytes"], entry["algbw_gb_s"]) == (operation, 8_000_000, 80)
    assert entry["busbw_gb_s"] == 80 * factor


@pytest.mark.parametrize("operation", ["something_new", "barrier"])
def test_an_operation_without_a_formula_has_no_busbw(tmp_path: Path, operation: str) -> None:
    (entry,) = operations(tmp_path, *([made(operation, start, 200)] for start in (0, 100)))
    assert entry["algbw_gb_s"] is not None
    assert entry["busbw_gb_s"] is None


def test_an_exchange_of_unequal_parts_has_no_size_no_bandwidth_and_no_waiting(tmp_path: Path) -> None:
    (entry,) = operations(tmp_path, *UNEVEN)
    assert (entry["operation"], entry["calls"], entry["duration_us"]) == ("all_to_all_v", 1, 130)
    absent = "bytes", "algbw_gb_s", "busbw_gb_s", "transfer_us", "wait_us", "wait_fraction"
    assert [entry[key] for key in absent] == [None] * len(absent)


def test_an_exchange_of_unequal_parts_makes_no_straggler_and_aligns_no_clock(tmp_path: Path) -> None:
    partials = measured(tmp_path, *UNEVEN)
    for analyzer in (stragglers, clock):
        with pytest.raises(MissingInput, match="made collectives together"):
            analyzer.analyze(partials)


@pytest.mark.parametrize("name", ["all_to_all", "all_to_allv"])
def test_equal_parts_make_an_exchange_an_all_to_all(tmp_path: Path, name: str) -> None:
    sizes = "[]" if name == "all_to_all" else "[5, 5]"
    (entry,) = operations(tmp_path, *([exchange(name, start, 100, sizes, sizes)] for start in (0, 60)))
    assert (entry["operation"], entry["bytes"], entry["transfer_us"], entry["wait_us"]) == ("all_to_all", 20, 40, 60)
    assert entry["busbw_gb_s"] == entry["algbw_gb_s"] / 2


def test_parts_are_unequal_where_ranks_disagree_on_the_size(tmp_path: Path) -> None:
    """A list of tensors states no split sizes: each rank alone sees as much go as come."""
    ranks = [[made("all_to_all", start, 100, elements=size, out=size)] for start, size in ((0, 10), (60, 20))]
    assert [(entry["bytes"], entry["busbw_gb_s"]) for entry in operations(tmp_path, *ranks)] == [(20, None), (40, None)]
    with pytest.raises(MissingInput):
        stragglers.analyze(measured(tmp_path, *ranks))


def test_a_rank_that_sees_equal_parts_is_matched_to_one_that_does_not(tmp_path: Path) -> None:
    """Behind the exchange, a reduction is matched although the exchange has two names."""
    ranks = [
        [exchange("all_to_allv", 0, 90, "[5, 5]", "[5, 5]"), made("allreduce", 100, 150)],
        [exchange("all_to_allv", 60, 90, "[5, 9]", "[5, 9]", elements=14, out=14), made("allreduce", 120, 150)],
    ]
    data: Any = collectives.analyze(measured(tmp_path, *ranks)).data()
    waits = {entry["operation"]: entry["wait_us"] for entry in data["operations"]}
    assert (waits["all_reduce"], waits["all_to_all_v"], data["unmatched"]) == (20, None, 0)
