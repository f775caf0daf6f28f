"""Bandwidth, waiting, stragglers and clocks, on two to four ranks that a reader can follow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers import clock, collectives
from perfscope.analyzers.collectives.rank_calls import NumberedCalls, RankCalls, number_ranks_and_runs
from perfscope.analyzers.stragglers import traces as stragglers
from perfscope.errors import MissingInput
from perfscope.sources.traces.reader import read_trace
from tests.sources.traces.making import Event, call, distributed, kernel, step, write

US = 1000
WORLD = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}


def made(
    operation: str, start: int, end: int, *, elements: int = 1000, out: int | None = None, launch: int = -1, **more: Any
) -> Event:
    """A collective on bfloat16 in the group "0", times in microseconds."""
    stated: dict[str, Any] = {
        "Collective name": operation,
        "Process Group Name": "0",
        "Group size": 2,
        "In msg nelems": elements,
        "Out msg nelems": elements if out is None else out,
        "dtype": "BFloat16",
        **more,
    }
    return kernel("ncclDevKernel", start * US, end * US, stream=20, launch=launch, **stated)


def measured(
    tmp_path: Path, *ranks: Sequence[Event], groups: Sequence[Any] = (WORLD,), base: Sequence[int] = ()
) -> Any:
    partials = []
    for rank, events in enumerate(ranks):
        base_ns = base[rank] if base else 0
        path = write(
            tmp_path / f"rank{rank}.json",
            list(events),
            **distributed(rank, len(ranks), groups),
            baseTimeNanoseconds=base_ns,
        )
        partials.append(collectives.measure(read_trace(path)))
    return partials


def operations(tmp_path: Path, *ranks: Sequence[Event], **more: Any) -> list[dict[str, Any]]:
    data: Any = collectives.analyze(measured(tmp_path, *ranks, **more)).data()
    found: list[dict[str, Any]] = data["operations"]
    return found


@pytest.mark.parametrize(
    ("operation", "elements", "out", "factor"),
    [
        ("allreduce", 4_000_000, 4_000_000, 1.0),
        ("_allgather_base", 2_000_000, 4_000_000, 0.5),
        ("_reduce_scatter_base", 4_000_000, 2_000_000, 0.5),
        ("all_to_all", 4_000_000, 4_000_000, 0.5),
        ("broadcast", 4_000_000, 4_000_000, 1.0),
    ],
)
def test_bandwidth_is_in_the_units_of_nccl_tests(
    tmp_path: Path, operation: str, elements: int, out: int, factor: float
) -> None:
    """8 MB in 100 us are 80 GB/s; the bus factor of two ranks is 2(n-1)/n = 1 or (n-1)/n = 1/2."""
    ranks = [[made(operation, start, 200, elements=elements, out=out)] for start in (0, 100)]
    (found,) = operations(tmp_path, *ranks)
    assert (found["bytes"], found["transfer_us"], found["algbw_gb_s"]) == (8_000_000, 100, 80)
    assert (found["busbw_gb_s"], found["is_lower_bound"]) == (80 * factor, False)
    assert (found["duration_us"], found["wait_us"]) == (300, 100), "what takes longer than on the last rank is waiting"


def test_the_group_s_own_size_counts_and_not_the_job_s(tmp_path: Path) -> None:
    group = {"pg_name": "0", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 1]}
    path = write(tmp_path / "rank0.json", [made("allreduce", 0, 100)], **distributed(0, 64, [group]))
    (found,) = collectives.analyze([collectives.measure(read_trace(path)) or ()]).operations
    assert (found.group_size, found.axis, found.busbw_gb_s) == (2, "TP", found.algbw_gb_s)


def test_with_one_rank_of_two_the_bandwidth_is_a_lower_bound(tmp_path: Path) -> None:
    (found,) = operations(tmp_path, [made("allreduce", 0, 100)])
    assert (found["is_lower_bound"], found["ranks_seen"], found["group_size"]) == (True, 1, 2)
    assert found["wait_us"] is None
    assert found["algbw_gb_s"] == 0.02


def test_unknown_sizes_are_absent_and_not_zero(tmp_path: Path) -> None:
    (found,) = operations(tmp_path, [kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL()", 0, 100, stream=20)])
    assert (found["operation"], found["bytes"], found["algbw_gb_s"], found["group_size"]) == (
        "all_reduce",
        None,
        None,
        None,
    )


def test_a_send_is_matched_to_its_receive(tmp_path: Path) -> None:
    """Rank 0 sends for 10 us what rank 1 waits for from 0 on."""
    sent = made("send", 90, 100, **{"Dst Rank": 1})
    received = made("recv", 0, 100, **{"Src Rank": 0})
    (found,) = operations(tmp_path, [sent], [received])
    assert (found["operation"], found["axis"], found["calls"]) == ("send_recv", "PP", 1)
    assert (found["transfer_us"], found["wait_us"], found["busbw_gb_s"]) == (10, 90, 0.2)


def test_overlap_is_told_for_each_kind_of_operation(tmp_path: Path) -> None:
    gemm = kernel("gemm", 0, 50 * US)
    both = [gemm, made("allreduce", 0, 100), made("broadcast", 200, 300)]
    found = {each["operation"]: each["overlap_fraction"] for each in operations(tmp_path, both)}
    assert found == {"all_reduce": 0.5, "broadcast": 0.0}


def in_steps(*steps: tuple[int, list[tuple[str, int, int, int]]]) -> list[Event]:
    """Steps with operations of (name, start, end, elements), launched at the step's beginning."""
    events: list[Event] = []
    launch = 0
    for number, members in steps:
        first = members[0][1]
        events.append(step(number, (first - 5) * US, (members[-1][2] + 5) * US))
        for name, start, end, elements in members:
            launch += 1
            events.append(call("cudaLaunchKernel", (first - 4) * US, (first - 3) * US, launch=launch))
            events.append(made(name, start, end, elements=elements, launch=launch))
    return events


def test_operations_are_matched_by_step_where_windows_differ(tmp_path: Path) -> None:
    """Rank 1 was profiled from step 4 on; its first operation is rank 0's second."""
    found = operations(
        tmp_path,
        in_steps((3, [("allreduce", 0, 90, 10)]), (4, [("allreduce", 100, 150, 10)])),
        in_steps((4, [("allreduce", 120, 150, 10)])),
    )
    assert [(each["wait_us"], each["transfer_us"]) for each in found] == [(20, 30)]


def test_sequence_numbers_decide_where_there_are_any(tmp_path: Path) -> None:
    first = [made("allreduce", 100 * seq, 100 * seq + 50, Seq=seq) for seq in range(4)]
    later = [made("allreduce", 100 * seq, 100 * seq + 20, Seq=seq) for seq in (2, 3)]
    data: Any = collectives.analyze(measured(tmp_path, first, later)).data()
    (found,) = data["operations"]
    assert (found["wait_us"], data["unmatched"]) == (60, 2)


def test_operations_that_cannot_be_matched_are_counted(tmp_path: Path) -> None:
    data: Any = collectives.analyze(
        measured(tmp_path, [made("allreduce", 0, 10), made("allreduce", 20, 30)], [made("allreduce", 0, 10)])
    ).data()
    assert data["unmatched"] == 2
    assert any("have no match on every rank" in note for note in data["notes"])


def waits(tmp_path: Path, *ranks: Sequence[Event], **more: Any) -> dict[str, Any]:
    data: Any = stragglers.analyze(measured(tmp_path, *ranks, **more)).data()
    found: dict[str, Any] = data
    return found


def test_the_rank_that_comes_last_makes_the_others_wait(tmp_path: Path) -> None:
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 3, "ranks": [0, 1, 2]}
    starts = {0: (0, 200), 1: (80, 290), 2: (20, 205)}
    ranks = [
        [made("allreduce", first, 100), made("allreduce", second, 300, elements=7)] for first, second in starts.values()
    ]
    found = waits(tmp_path, *ranks, groups=[group])
    assert found["straggler"] == 1
    (of_group,) = found["groups"]
    assert of_group["caused_wait_us"] == (80 + 60) / 2 + (90 + 85) / 2
    assert [(each["wait_us"], each["came_last"]) for each in of_group["ranks"]] == [(170, 0), (0, 2), (145, 0)]


@pytest.mark.parametrize("name", ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", "ncclKernel_AllReduce_RING_LL_Sum_f"])
def test_a_straggler_is_found_without_metadata_and_whatever_nccl_calls_its_kernels(tmp_path: Path, name: str) -> None:
    early = [kernel(name, 0, 100 * US), kernel("gemm", 100 * US, 101 * US)]
    late = [kernel("gemm", 0, 90 * US), kernel(name, 90 * US, 100 * US)]
    assert waits(tmp_path, early, late)["straggler"] == 1


def test_one_rank_has_nobody_to_wait_for(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="two ranks or more"):
        waits(tmp_path, [made("allreduce", 0, 10)])


def test_clocks_are_aligned_by_the_ends_of_collectives(tmp_path: Path) -> None:
    """Rank 1's clock shows 5 ms more; one end of three differs by 2 us. It comes last: that may be 4 us of 40."""
    first = [made("allreduce", start, start + 50) for start in (0, 100, 200)]
    second = [made("allreduce", start + 10, end) for start, end in ((0, 50), (100, 152), (200, 250))]
    partials = measured(tmp_path, first, second, base=[10**18, 10**18 + 5_000_000])
    data: Any = clock.analyze(partials).data()
    assert data["reference_rank"] == 0
    assert [(each["offset_us"], each["residual_us"]) for each in data["ranks"]] == [(0, 0), (5000, 4)]


def test_clocks_are_aligned_through_ranks_between(tmp_path: Path) -> None:
    """Ranks 0 and 1 share one group, 1 and 2 another."""
    groups = [
        {"pg_name": "a", "pg_desc": "mesh_tp", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "b", "pg_desc": "mesh_dp", "pg_size": 2, "ranks": [1, 2]},
    ]

    def ends(group: str) -> list[Event]:
        stated: dict[str, Any] = {"Process Group Name": group}
        return [made("allreduce", start, start + 50, **stated) for start in (0, 100, 200)]

    partials = measured(
        tmp_path, ends("a"), [*ends("a"), *ends("b")], ends("b"), groups=groups, base=[0, 1_000_000, 3_000_000]
    )
    assert [rank.offset_ns for rank in clock.analyze(partials).ranks] == [0, 1_000_000, 3_000_000]


def test_two_windows_of_a_rank_are_one_sequence(tmp_path: Path) -> None:
    partials = []
    for rank in (0, 1):
        for window in (1, 2):
            events = [made("allreduce", 1000 * window + 10 * rank, 1000 * window + 50)]
            path = write(tmp_path / f"{rank}-{window}.json", events, **distributed(rank, 2, [WORLD]))
            partials.append(collectives.measure(read_trace(path)) or ())
    (found,) = collectives.analyze(partials).operations
    assert (found.calls, found.wait) == (2, 20 * US)


def test_collectives_of_two_runs_are_matched_each_among_its_own(tmp_path: Path) -> None:
    """In the first run rank 1 comes 10 us later, in the second one rank 0 comes 30 us later; process ids differ."""
    partials = []
    for rank, process, start in ((0, 41, 1000), (1, 42, 1010), (0, 57, 5030), (1, 58, 5000)):
        end = 1050 if start < 5000 else 5090
        launch = call("cudaLaunchKernel", start * US - 5, start * US - 4, launch=1, pid=process)
        path = write(
            tmp_path / f"{rank}-{process}.json",
            [launch, made("allreduce", start, end, launch=1)],
            **distributed(rank, 2, [WORLD]),
        )
        partials.append(collectives.measure(read_trace(path)) or ())
    (found,) = collectives.analyze(partials).operations
    assert (found.calls, found.wait) == (2, 40 * US)
    groups = stragglers.analyze(partials).groups
    assert sorted(group.slowest.number for group in groups) == [0, 1]


def test_devices_of_one_process_wait_for_each_other_like_ranks(tmp_path: Path) -> None:
    """Device 1 comes 10 us later than device 0 of the same process."""
    events = [made("allreduce", 1000, 1050), made("allreduce", 1010, 1050, device=1)]
    (found,) = operations(tmp_path, events)
    assert (found["ranks_seen"], found["calls"], found["wait_us"]) == (2, 1, 10)


def calls(rank: int | None, first_ns: int, trace: str, device: int = 0) -> tuple[RankCalls]:
    return (RankCalls(rank, device, 7, trace, "", first_ns, first_ns + 10, 0, (), 0, None, None),)


def numbers(partials: list[tuple[RankCalls]]) -> list[NumberedCalls]:
    return list(number_ranks_and_runs(partials))


def test_devices_without_a_rank_are_numbered_below_zero() -> None:
    found = numbers([calls(3, 0, "a"), calls(None, 0, "b"), calls(3, 0, "a", device=1), calls(None, 5, "b")])
    assert [numbered.rank for numbered in found] == [3, -1, -2, -1]


def test_a_second_window_that_overlaps_the_first_does_not_count() -> None:
    first, second, third = numbers([calls(0, 0, "a"), calls(0, 5, "b"), calls(0, 10, "c")])
    assert (first.counts, second.counts, third.counts) == (True, False, True)
