"""Who made the others wait, and why: each fault injected into one rank of two, and the clean twin beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import kept_run
from perfscope.analyzers import collectives
from perfscope.analyzers.stragglers import traces as stragglers
from perfscope.analyzers.stragglers.compute_pace import compare
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


def test_ranks_without_a_step_in_common_are_not_compared(tmp_path: Path) -> None:
    ranks = trained(steps=[1, 2]), trained(steps=[3, 4])
    for rank in ranks:
        rank.events.append(made("allreduce", 100, 200))
    partials = []
    for number, rank in enumerate(ranks):
        path = write(tmp_path / f"rank{number}.json", rank.events, **distributed(number, 2, [WORLD]))
        partials.append(collectives.measure(read_trace(path)) or ())
    assert compare({rank: each[0].kernels for rank, each in enumerate(partials) if each[0].kernels}) is None


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


CALLS = st.lists(
    st.tuples(st.sampled_from(("a", "b", "adam")), st.integers(1, 3), st.integers(1, 90)), min_size=1, max_size=12
)


def is_resized(ranks: list[list[tuple[str, int, int]]]) -> bool:
    """Whether kernels that run equally often on all ranks, with other grids, take a tenth of each rank's time."""
    names = set.intersection(*({name for name, _, _ in kernels} for kernels in ranks))
    grids = {name: [sorted(grid for each, grid, _ in kernels if each == name) for kernels in ranks] for name in names}
    resized = {
        name
        for name, of_ranks in grids.items()
        if len({len(grid) for grid in of_ranks}) == 1 and any(grid != of_ranks[0] for grid in of_ranks)
    }

    def time(kernels: list[tuple[str, int, int]], chosen: set[str]) -> float:
        halves = {
            (name, grid): int(median(each for *key, each in kernels if key == [name, grid]))
            for name, grid, _ in kernels
        }
        return sum(halves[name, grid] for name, grid, _ in kernels if name in chosen)

    return all(time(kernels, resized) >= 0.1 * time(kernels, {name for name, _, _ in kernels}) for kernels in ranks)


def by_hand(ranks: list[list[tuple[str, int, int]]]) -> list[tuple[float | None, float]] | None:
    """Relative compute and work of ranks whose kernels all run alone in one step, with plain dictionaries."""
    durations: list[dict[tuple[str, int], list[int]]] = []
    for kernels in ranks:
        of_rank: dict[tuple[str, int], list[int]] = {}
        for name, grid, duration in kernels:
            of_rank.setdefault((name, grid), []).append(duration)
        durations.append(of_rank)
    common = [
        key for key in durations[0] if all(len(each.get(key, ())) == len(durations[0][key]) for each in durations)
    ]
    if not common:
        return None
    halves = [{key: int(median(values)) for key, values in each.items()} for each in durations]
    if is_resized(ranks):
        common = [key for key in common if key[0] == "adam"]
    times = [sum(len(each[key]) * half[key] for key in common) for each, half in zip(durations, halves, strict=True)]
    least = {key: min(half[key] for half in halves if key in half) for half in halves for key in half}
    work = [sum(len(values) * least[key] for key, values in each.items()) for each in durations]
    paces = [min(times) / time for time in times] if all(times) else [None] * len(times)
    if is_resized(ranks):
        whole = [
            sum(len(values) * half[key] for key, values in each.items())
            for each, half in zip(durations, halves, strict=True)
        ]
        at_pace = [own * (pace or 1.0) for own, pace in zip(whole, paces, strict=True)]
        return [(pace, own / min(at_pace)) for pace, own in zip(paces, at_pace, strict=True)]
    return [(pace, own / min(work)) for pace, own in zip(paces, work, strict=True)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ranks=st.lists(CALLS, min_size=2, max_size=3))
def test_paces_are_those_of_plain_dictionaries(tmp_path: Path, ranks: list[list[tuple[str, int, int]]]) -> None:
    kernels = {}
    for number, calls in enumerate(ranks):
        events: list[Event] = [step(1, 0, 10**6), made("allreduce", 900, 901)]
        moment = 1000
        for launch, (name, grid, duration) in enumerate(calls):
            events.append(call("cudaLaunchKernel", 10 + launch, 11 + launch, launch=launch))
            events.append(kernel(name, moment, moment + 2 * duration, launch=launch, grid=[grid, 1, 1]))
            moment += 2 * duration + 1
        path = write(tmp_path / f"rank{number}.json", events, **distributed(number, len(ranks), [WORLD]))
        (measured,) = collectives.measure(read_trace(path)) or ()
        assert measured.kernels is not None
        kernels[number] = measured.kernels
    comparison = compare(kernels)
    expected = by_hand([[(name, grid, 2 * duration) for name, grid, duration in calls] for calls in ranks])
    if comparison is None or expected is None:
        assert comparison is None
        assert expected is None
        return
    for found, (relative_compute, relative_work) in zip(comparison.paces.values(), expected, strict=True):
        assert found.relative_compute == (None if relative_compute is None else pytest.approx(relative_compute))
        assert found.relative_work == pytest.approx(relative_work)


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
