"""Exchanges of old profilers, which state no metadata, by the annotation around their launch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import collectives
from perfscope.analyzers.stragglers import traces as stragglers
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Work
from tests.sources.traces.making import Event, call, copy, distributed, kernel, span, write

KERNEL = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)"
AUTOGRAD = 101


def exchange(place: int, start: int, end: int, mark: str = "nccl:all_to_all", mark_thread: int = 100) -> list[Event]:
    """An exchange that is launched inside an annotation; times in nanoseconds."""
    at = 1_000 * place
    return [
        span("user_annotation", mark, at, at + 500, tid=mark_thread),
        call("cudaLaunchKernel", at + 100, at + 200, launch=place),
        kernel(KERNEL, start, end, launch=place, stream=20),
    ]


def partials(folder: Path, *ranks: Sequence[Event]) -> Any:
    return [
        collectives.measure(
            read_trace(write(folder / f"rank{rank}.json", list(events), **distributed(rank, len(ranks))))
        )
        for rank, events in enumerate(ranks)
    ]


@pytest.mark.parametrize("mark", ["nccl:all_to_all", "nccl2:all_to_all"])
def test_who_came_last_to_an_exchange_without_metadata_is_named(mark: str, tmp_path: Path) -> None:
    """All ranks leave at 900 us; rank 1 came 700 us after the others."""
    late = 100_000, 800_000, 100_000
    ranks = [exchange(place, start, 900_000, mark) for place, start in enumerate(late)]
    found = stragglers.analyze(partials(tmp_path, *ranks))
    assert found.straggler == 1
    (group,) = found.groups
    assert not group.pipeline
    assert group.slowest.caused == 700_000
    entries: Any = collectives.analyze(partials(tmp_path, *ranks)).data()
    assert [entry["operation"] for entry in entries["operations"]] == ["all_to_all"]


@pytest.mark.parametrize(
    ("mark", "thread"),
    [("nccl:send", 100), ("nccl:coalesced", 100), ("nccl:all_to_all", AUTOGRAD), ("## all2all ##", 100)],
)
def test_other_transfers_stay_what_they_were(mark: str, thread: int, tmp_path: Path) -> None:
    path = write(tmp_path / "rank0.json", exchange(0, 100_000, 900_000, mark, thread))
    trace = read_trace(path)
    assert trace.collectives == ()
    assert trace.device.collective.tolist() == [-1]


def gather(mark: str, *launched: Event) -> list[Event]:
    """What a call to NCCL launches inside its annotation, and one copy behind it."""
    calls = [call("cudaMemcpyAsync", 100 + 10 * number, 105 + 10 * number, launch=number) for number in range(4)]
    behind = [
        call("cudaMemcpyAsync", 900, 905, launch=9),
        copy("Memcpy DtoD (Device -> Device)", 5_000, 5_100, launch=9),
    ]
    return [span("user_annotation", mark, 0, 500), *calls, *launched, *behind]


def copied(number: int, kind: str = "DtoD (Device -> Device)") -> Event:
    return copy(f"Memcpy {kind}", 1_000 + 100 * number, 1_100 + 100 * number, launch=number, stream=20)


@pytest.mark.parametrize(
    ("mark", "launched", "ranks", "expected"),
    [
        ("nccl:_all_gather_base", [copied(0), copied(1)], 3, [Work.COMMUNICATION] * 2),
        ("nccl2:all_gather_into_tensor", [copied(0)], 2, [Work.COMMUNICATION]),
        ("nccl:_all_gather_base", [copied(0, "HtoD (Pinned -> Device)")], 2, [Work.COPY]),
        ("nccl:_all_gather_base", [copied(0)], 1, [Work.COPY]),
        ("copies of mine", [copied(0), copied(1)], 3, [Work.COPY] * 2),
        (
            "nccl:all_gather",  # of lists: the result is copied into them on the device
            [kernel("ncclDevKernel_AllGather_RING_LL", 1_000, 1_100, launch=0, stream=20), copied(1)],
            2,
            [Work.COMMUNICATION, Work.COPY],
        ),
    ],
)
def test_copies_that_are_all_of_a_collective_communicate(
    mark: str, launched: list[Event], ranks: int, expected: list[Work], tmp_path: Path
) -> None:
    trace = read_trace(write(tmp_path / "rank0.json", gather(mark, *launched), **distributed(0, ranks)))
    assert trace.device.work.tolist() == [*expected, Work.COPY]
