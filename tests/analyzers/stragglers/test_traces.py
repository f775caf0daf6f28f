"""Who made the others wait, and why: each fault injected into one rank of two, and the clean twin beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import kept_run
from benchmarks.synthetic_ranks import ON_A_HOST, Job, Made, make_job
from perfscope.analyzers import clock, collectives
from perfscope.analyzers.collectives.rank_calls import RankCalls
from perfscope.analyzers.stragglers import traces as stragglers
from perfscope.engine.analysis_report import to_report
from perfscope.engine.run import Plan, analyze
from perfscope.sources.traces.reader import read_trace
from tests.analyzers.test_collectives import made
from tests.conftest import ROOT
from tests.sources.traces.making import Event, call, distributed, kernel, span, step, write

US = 1000
PIPELINES = ROOT / "fixtures" / "pipeline"
WORLD = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}
STEP_US = 10_000
#: How long each rank of a step computes, and when its reduction ends.
COMPUTE_US, END_US = 2000, 6000


class Rank:
    """The events of a rank, added one after the other; times in microseconds."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._launch = 0

    def launch(self, at: float) -> int:
        """A launch at a moment; the operator around it takes 4 us."""
        self._launch += 1
        start = round(at * US)
        self.events.append(span("cpu_op", "aten::op", start - US, start + 3 * US))
        self.events.append(call("cudaLaunchKernel", start, start + 2 * US, launch=self._launch))
        return self._launch

    def compute(self, name: str, start: float, end: float, **args: Any) -> None:
        """A kernel that was launched 5 us before it began."""
        launch = self.launch(start - 5)
        self.events.append(kernel(name, round(start * US), round(end * US), launch=launch, **args))

    def reduce(self, start: int, end: int) -> None:
        """An all_reduce."""
        self.events.append(made("allreduce", start, end, launch=self.launch(start - 5)))


def trained(
    late_us: int = 0, *, steps: Sequence[int] = (1, 2), late_steps: Sequence[int] = (), slower: float = 1.0
) -> Rank:
    """Steps in which a rank computes and then reduces, which begins later by some time, in all steps or in some."""
    rank = Rank()
    for number in steps:
        first = number * STEP_US
        rank.events.append(step(number, first * US, (first + STEP_US) * US))
        begin = first + 100
        for _ in range(4):
            end = begin + int(COMPUTE_US / 4 * slower)
            rank.compute("gemm", begin, end, grid=[4, 1, 1])
            begin = end + 1
        is_late = not late_steps or number in late_steps
        rank.reduce(max(begin + 10, begin + late_us * is_late), first + END_US)
    return rank


def analyzed(tmp_path: Path, *ranks: Rank, groups: Sequence[Any] = (WORLD,)) -> stragglers.Stragglers:
    partials = []
    for number, rank in enumerate(ranks):
        path = write(tmp_path / f"rank{number}.json", rank.events, **distributed(number, len(ranks), groups))
        partials.append(collectives.measure(read_trace(path)) or ())
    return stragglers.analyze(partials)


def reason(result: stragglers.Stragglers) -> str | None:
    """Why the straggler came last."""
    (group,) = result.groups
    (found,) = [rank.reason for rank in group.ranks if rank.rank == result.straggler]
    return found


def pace(result: stragglers.Stragglers) -> list[tuple[float | None, float]]:
    return [
        (
            None if rank.relative_compute is None else round(rank.relative_compute, 3),
            round(rank.relative_work, 3),
        )
        for rank in result.ranks
        if rank.relative_work is not None
    ]


def test_equal_ranks_have_no_straggler(tmp_path: Path) -> None:
    result = analyzed(tmp_path, trained(), trained())
    assert result.straggler is None
    assert pace(result) == [(1.0, 1.0), (1.0, 1.0)]


def test_ranks_that_come_last_by_turns_make_no_straggler(tmp_path: Path) -> None:
    """Each makes the other wait for 1 ms in one of two steps."""
    ranks = trained(1000, late_steps=[1]), trained(1000, late_steps=[2])
    result = analyzed(tmp_path, *ranks)
    assert [rank.caused for rank in result.ranks] == [990 * US, 990 * US]
    assert result.straggler is None
    assert any("by turns" in note for note in result.sections()[0].notes)


def test_a_slower_device_is_told_from_more_work(tmp_path: Path) -> None:
    result = analyzed(tmp_path, trained(), trained(slower=1.5))
    assert result.straggler == 1
    assert pace(result) == [(1.0, 1.0), (0.667, 1.0)]
    assert reason(result) == "its device computed longer: slower (the same kernels take 50 % longer)"


def test_more_kernels_are_more_work_on_a_device_as_fast(tmp_path: Path) -> None:
    busy = trained(1520)
    for number in (1, 2):
        first = number * STEP_US + 100 + COMPUTE_US + 10
        for index in range(2):
            busy.compute("gemm", first + 510 * index, first + 510 * index + 500, grid=[9, 1, 1])
    result = analyzed(tmp_path, trained(), busy)
    assert result.straggler == 1
    assert pace(result) == [(1.0, 1.0), (1.0, 1.5)]
    assert reason(result) == "its device computed longer: 50 % more work"


def test_kernels_beside_a_waiting_collective_do_not_make_a_device_slow(tmp_path: Path) -> None:
    """Rank 0 waits in its reduction and meanwhile runs a kernel for twice its time; rank 1 runs it alone."""
    early, late = trained(), trained(1500)
    for number in (1, 2):
        first = number * STEP_US + 100 + COMPUTE_US
        early.compute("update", first + 100, first + 1100)
        late.compute("update", first + 100, first + 600)
    result = analyzed(tmp_path, early, late)
    assert pace(result) == [(1.0, 1.0), (1.0, 1.0)]
    assert result.compared is not None
    assert (result.compared.without_communication, result.compared.kernels) == (True, 1)


def pause(rank: Rank, kind: str) -> None:
    """What fills the 1.5 ms in which the host of a rank is late."""
    for number in (1, 2):
        start = (number * STEP_US + 100 + COMPUTE_US + 4) * US
        end = start + 1480 * US
        if kind == "synchronisation":
            rank.events.append(call("cudaDeviceSynchronize", start, end, launch=999))
        elif kind == "loader":
            rank.events.append(span("user_annotation", "enumerate(DataLoader)#_SingleProcess", start, end))
        elif kind == "operator":
            rank.events.append(span("cpu_op", "aten::slow", start, end))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("synchronisation", "its host waited in a synchronisation"),
        ("loader", "its host loaded data"),
        ("operator", "its host was late (operators, Python, calls): launch-bound"),
        ("sleep", "its host did what the trace does not show (a sleep, Python, data)"),
    ],
)
def test_what_the_host_did_before_it_came_last_is_said(tmp_path: Path, kind: str, text: str) -> None:
    late = trained(1500)
    pause(late, kind)
    result = analyzed(tmp_path, trained(), late)
    assert (result.straggler, reason(result)) == (1, text)
    data: Any = result.data()
    (group,) = data["groups"]
    assert [rank["reason"] for rank in group["ranks"]] == [None, text]
    assert sum(group["ranks"][1]["excess_us"].values()) == pytest.approx(0, abs=1e-6)
    table = result.sections()[0]
    assert [row[-1] for row in table.rows] == [None, text]
    assert f"Reason: {text}." in table.notes[0]


def test_waits_outside_the_marked_steps_blame_nobody(tmp_path: Path) -> None:
    """Before the marked steps rank 1 came 3 ms later; within them nobody is late."""
    ranks = trained(), trained()
    for rank, late in zip(ranks, (0, 3000), strict=True):
        rank.events.append(made("allreduce", 1000 + late, 5000))
    result = analyzed(tmp_path, *ranks)
    assert [group.operations for group in result.groups] == [2]
    assert (result.straggler, [rank.caused for rank in result.ranks]) == (None, [0, 0])


def test_ranks_that_marked_different_steps_are_compared_over_the_common_one(tmp_path: Path) -> None:
    result = analyzed(tmp_path, trained(steps=[1, 2]), trained(steps=[2, 3], slower=1.5))
    assert result.compared is not None
    assert result.compared.steps == (2,)
    assert pace(result) == [(1.0, 1.0), (0.667, 1.0)]


def test_without_marks_the_whole_windows_are_compared_and_that_is_said(tmp_path: Path) -> None:
    ranks = trained(), trained(slower=1.5)
    for rank in ranks:
        rank.events = [event for event in rank.events if "ProfilerStep" not in event["name"]]
    result = analyzed(tmp_path, *ranks)
    assert pace(result) == [(1.0, 1.0), (0.667, 1.0)]
    assert any("whole windows, because no step is marked" in note for note in result.sections()[0].notes)


def in_a_pipeline(*, transfers: bool) -> list[Rank]:
    """Two stages: the second one waits for the first in a reduction, as the order of a pipeline has it."""
    ranks = [trained(1500), trained()]
    for rank in ranks if transfers else []:
        for number in (1, 2):
            start = (number * STEP_US + 50) * US
            rank.events.append(
                kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", start, start + 20 * US)
            )
    return ranks


def test_stages_of_a_pipeline_wait_by_design(tmp_path: Path) -> None:
    blamed = analyzed(tmp_path, *in_a_pipeline(transfers=False))
    assert blamed.straggler == 0
    result = analyzed(tmp_path, *in_a_pipeline(transfers=True))
    assert (result.straggler, [rank.caused for rank in result.ranks]) == (None, [0, 0])
    data: Any = result.data()
    assert (data["groups"][0]["pipeline"], data["groups"][0]["caused_wait_us"]) == (True, 2 * 1490)
    notes = result.sections()[0].notes
    assert notes[0] == "No straggler is named: all waits are between the stages of a pipeline."
    assert any("pipeline bubble" in note for note in notes)


@pytest.mark.parametrize("description", ["DATA_PARALLEL_GROUP", "mesh_tp"])
def test_ranks_of_one_stage_are_still_blamed_in_a_pipeline(tmp_path: Path, description: str) -> None:
    group = {**WORLD, "pg_desc": description}
    assert analyzed(tmp_path, *in_a_pipeline(transfers=True), groups=[group]).straggler == 0


def test_a_ring_of_context_parallel_ranks_is_no_pipeline(tmp_path: Path) -> None:
    ring = {"pg_name": "7", "pg_desc": "CONTEXT_PARALLEL_GROUP", "pg_size": 2, "ranks": [0, 1]}
    assert analyzed(tmp_path, *in_a_pipeline(transfers=True), groups=[WORLD, ring]).straggler == 0


@pytest.mark.parametrize("pipeline", ["pp4_1f1b_m8", "pp4_gpipe_m8", "ds_pp4", "megatron_pp2_m4"])
def test_the_first_stage_of_a_real_pipeline_is_not_blamed(pipeline: str) -> None:
    paths = sorted((PIPELINES / pipeline).glob("**/*.json.gz"))
    partials = [collectives.measure(read_trace(path)) or () for path in paths]
    result = stragglers.analyze(partials)
    assert all(group.pipeline for group in result.groups)
    assert result.groups[0].slowest.caused > 20_000 * US
    assert result.straggler is None


@pytest.mark.parametrize(
    ("run", "slowest", "most_work", "words"),
    [
        # Its optimizer takes 5 % longer, and it has half as many samples more, with products of the same grids.
        ("findings/h200/straggler_work", 0.94, 1.3, "33 % more work"),
        ("findings/h200/straggler_device", 0.7, 1.0, "slower (the same kernels take 35 % longer)"),
        ("whatif/slow_gpu", 0.93, 1.2, "24 % more work"),
    ],
)
def test_more_work_and_a_slower_device_are_told_apart_on_real_runs(
    run: str, slowest: float, most_work: float, words: str
) -> None:
    data = to_report(analyze([kept_run(ROOT / "fixtures" / run)], Plan(only=frozenset({"stragglers"})))).data
    results: Any = json.loads(json.dumps(data))["results"]
    other, slow = results["stragglers"]["ranks"]
    assert (other["relative_compute"], other["relative_work"]) == (1.0, 1.0)
    assert slowest <= slow["relative_compute"] < 1
    assert most_work <= slow["relative_work"] < most_work + 0.1
    (group,) = results["stragglers"]["groups"]
    assert words in json.dumps(group["ranks"])
    assert results["stragglers"]["compared"]["sizes_differ"] == (run == "findings/h200/straggler_work")


RANKS = 1024
#: What a cause is called in the reason.
REASONS = {"compute": "computed longer: slower", "not_shown": "does not show", "data_loading": "loaded data"}


def calls_of(job: Job) -> list[tuple[RankCalls, ...]]:
    partials = []
    for measured in Made(job):
        calls = measured.partials["collectives"]
        assert isinstance(calls, tuple)
        partials.append(calls)
    return partials


@pytest.mark.parametrize("is_flat", [False, True])
def test_the_straggler_of_many_ranks_is_named_with_its_reason(is_flat: bool) -> None:
    """The one of several that the others wait for most."""
    job = replace(make_job(RANKS, stragglers=12), is_flat=is_flat)
    result = stragglers.analyze(calls_of(job))
    named = next(straggler for straggler in job.stragglers if straggler.rank == result.straggler)
    reasons = [
        rank.reason for group in result.groups for rank in group.ranks if rank.rank == named.rank and rank.excess
    ]
    assert reasons
    assert all(REASONS[named.cause] in (reason or "") for reason in reasons)


def test_no_rank_is_late_in_a_clean_job() -> None:
    assert stragglers.analyze(calls_of(make_job(RANKS, stragglers=0))).straggler is None


def test_clocks_are_found_as_they_were_set() -> None:
    job = make_job(RANKS, stragglers=0)
    for rank in clock.analyze(calls_of(job)).ranks:
        assert rank.offset_ns is not None
        assert rank.residual_ns is not None
        assert abs(rank.offset_ns - job.skew_ns[rank.rank // ON_A_HOST]) <= rank.residual_ns + 1
