"""Collectives on copy engines are known by the annotations around their launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Work
from tests.sources.traces.making import Event, call, copy, distributed, kernel, span, write


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
