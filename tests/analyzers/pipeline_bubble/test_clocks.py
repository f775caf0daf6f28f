"""Claims about the clocks of stages: one on each host, and between hosts what collectives of both show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.pipeline_bubble.extraction import extract_passes
from perfscope.analyzers.pipeline_bubble.measurement import align_clocks
from perfscope.analyzers.pipeline_bubble.rank_passes import CollectiveRun, PassesOfStep, RankPasses
from perfscope.schedules.catalog import Schedule, make_plan
from perfscope.schedules.operations import PassOrder
from perfscope.schedules.simulator import UniformTiming
from perfscope.sources.traces.reader import read_trace
from tests.analyzers.pipeline_bubble.generator import ALL_REDUCE, Job, write_job
from tests.analyzers.pipeline_bubble.test_measurement import _bubble, _reason

MS = 1_000_000


def stage(host: str, ends_ms: list[float], duration_ms: float = 1) -> RankPasses:
    runs = {
        (ALL_REDUCE, number): CollectiveRun(round(end * MS), round(duration_ms * MS))
        for number, end in enumerate(ends_ms)
    }
    return RankPasses(None, None, host, (), None, None, True, (PassesOfStep("1", (), (), runs),))


def work() -> tuple[PassOrder, UniformTiming]:
    plan = make_plan(Schedule.ONE_F_ONE_B, 4, 8)
    return plan, UniformTiming((4000,) * 4, (8000,) * 4, (4000,) * 4, (0,) * 4)


def test_the_same_collectives_between_two_hosts_align_them_with_an_error() -> None:
    clocks = align_clocks([stage("one", [10, 20, 30]), stage("two", [43, 54, 66])])
    assert (clocks.offset_ns, clocks.error_ns) == ((0, -34 * MS), MS)  # 33, 34 and 36


def test_all_ranks_of_a_host_are_moved_alike_by_its_best_known_offset() -> None:
    exact, doubtful = [1010.0, 1020.0, 1030.0], [1015.0, 1021.0, 1038.0]
    clocks = align_clocks([stage("one", [10, 20, 30]), stage("two", doubtful), stage("two", exact), stage("one", [])])
    assert clocks.offset_ns == (0, -1000 * MS, -1000 * MS, 0)


def test_ranks_of_one_host_are_never_aligned() -> None:
    clocks = align_clocks([stage("vm", [10, 20, 30]), stage("vm", [43, 54, 66])])
    assert (clocks.offset_ns, clocks.error_ns) == ((0, 0), 0)


@pytest.mark.parametrize("ends", [[10.2, 20.2, 30.2], [45, 54, 64], [10, 90, 31]])
def test_hosts_that_are_not_stated_have_one_clock_unless_collectives_clearly_say_so(ends: list[float]) -> None:
    clocks = align_clocks([stage("", [10, 20, 30]), stage("", ends)])
    assert clocks.offset_ns == ((0, -34 * MS) if ends[0] == 45 else (0, 0))


def test_without_a_common_collective_the_error_between_hosts_is_unknown() -> None:
    assert align_clocks([stage("one", [10]), stage("two", [])]).error_ns is None
    assert align_clocks([stage("", [10]), stage("", [])]).error_ns == 0


def test_a_bubble_that_is_shorter_than_the_error_of_the_clocks_is_withheld_with_the_reason(tmp_path: Path) -> None:
    """The barrier ends at random on one host: its collectives disagree by more than a stage idles."""
    plan, timing = work()
    for name, late_ns in (("clear", 0), ("doubtful", 40_000_000)):
        (tmp_path / name).mkdir()
        job = Job(plan, timing, steps=6, hosts={0: "one", 1: "one", 2: "two", 3: "two"}, clock_ns={2: MS, 3: MS})
        job.extra = {device: _Late(late_ns if device > 1 else 0) for device in range(4)}
        write_job(job, tmp_path / name)
    assert _bubble(tmp_path / "clear")["fraction_of_total"] == 3 / 11
    assert "the clocks of the stages' hosts are known to about" in _reason(tmp_path / "doubtful")


class _Late:
    """Collectives behind a step that end later on a rank than on the others, by another time in each step."""

    def __init__(self, most_ns: int) -> None:
        self.most_ns, self.count = most_ns, 0

    def __call__(self, writer: Any, _zero: int, end: int) -> None:
        for number in range(3):
            self.count += 1
            late = self.most_ns * (self.count * 7 % 11) // 11
            writer.launch(f"{ALL_REDUCE} {number}", end + 4_000_000 + late, end + 4_100_000 + late)


def test_each_stage_has_groups_of_its_own_whose_collectives_align_nothing(tmp_path: Path) -> None:
    """FSDP gathers within a stage: the gathers of two stages have one name, and nothing in common."""
    plan, timing = work()
    groups = [
        {"pg_name": "7", "pg_desc": "mesh_fsdp", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "8", "pg_desc": "mesh_fsdp", "pg_size": 2, "ranks": [2, 3]},
    ]

    def gather(writer: Any, zero: int, _end: int, name: str) -> None:
        stated = {"Collective name": "_allgather_base", "Process Group Name": name, "Group size": 2}
        writer.launch("ncclDevKernel_AllGather_RING_LL", zero - 500_000, zero - 400_000, args=stated)

    extra = {
        device: lambda writer, zero, end, name=name: gather(writer, zero, end, name)
        for device, name in ((0, "7"), (3, "8"))
    }
    paths = write_job(Job(plan, timing, groups=groups, extra=extra), tmp_path)
    first, last = (extract_passes(read_trace(path)) for path in (paths[0], paths[3]))
    assert first is not None
    assert last is not None
    names = [{name for step in passes.steps for name, _ in step.collectives} for passes in (first, last)]
    assert {name for name in names[0] & names[1] if "AllGather" in name} == set()
    assert any("AllGather" in name for name in names[0])
