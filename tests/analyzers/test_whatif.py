"""Scenarios against trainings in which the change was really made, and what cannot be answered."""

from __future__ import annotations

import json

import numpy as np
import pytest
from msgspec.structs import replace

from perfscope.analyzers.collectives.calls import GroupKey
from perfscope.analyzers.whatif import RefusedScenario, WhatIf, answer, measure
from perfscope.analyzers.whatif.rank_graph import RankGraph
from perfscope.analyzers.whatif.scenarios import Fixes, MeasuredJob
from perfscope.errors import MissingInput, UsageError
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS, Trace
from tests.analyzers.whatif.jobs import FIXTURES, truth_ms

NS_PER_MS = 1e6


def traces_of(folder: str, *ranks: int) -> list[Trace]:
    paths = sorted((FIXTURES / folder).glob("*.json.gz"))
    return [read_trace(path, BASIC_EVENTS) for number, path in enumerate(paths) if not ranks or number in ranks]


def ask(folder: str, *scenarios: str, ranks: tuple[int, ...] = ()) -> WhatIf:
    partials = [measure(trace) for trace in traces_of(folder, *ranks)]
    return answer([partial for partial in partials if partial], scenarios)


@pytest.mark.parametrize("folder", ["whatif/base", "whatif/fsdp2", "whatif/ds_pp4"])
def test_every_offered_scenario_saves_time_and_keeps_the_parts_together(folder: str) -> None:
    result = ask(folder)
    saved = [outlook.saved_ns for outlook in result.scenarios]
    assert saved == sorted(saved, reverse=True)
    assert all(value > 0 for value in saved)
    assert abs(result.replay_error) < 0.002
    document = json.loads(json.dumps(result.data()))
    path_us = sum(part["us"] for part in document["critical_path"])
    assert path_us == pytest.approx(document["replayed_step_us"], rel=1e-9)
    for scenario in document["scenarios"]:
        assert scenario["step_us"] + scenario["saved_us"] == pytest.approx(document["replayed_step_us"], rel=1e-12)
        assert scenario["interval_us"][0] <= scenario["step_us"] <= scenario["interval_us"][1]


def test_a_scenario_changes_nothing_that_it_does_not_name() -> None:
    """Where nothing waits for data, and where a rank is as fast as the other, nothing is saved."""
    assert ask("whatif/base", "median-host=0").scenarios[0].saved_ns >= 0
    result = ask("whatif/base", "data-loading-free")
    assert result.scenarios == ()
    assert result.refused == (RefusedScenario("data-loading-free", "the traces contain no `enumerate(DataLoader)`"),)


def test_free_launches_help_where_the_host_is_the_limit_and_only_there() -> None:
    bound_by_host, bound_by_device = ask("whatif/fsdp2", "launch-free"), ask("whatif/base", "launch-free")
    assert bound_by_host.scenarios[0].saved_ns > 0.2 * bound_by_host.measured.step_ns
    # Kernels of a graph follow each other faster: half a microsecond for each of 1,100.
    assert bound_by_device.scenarios[0].saved_ns < 0.02 * bound_by_device.measured.step_ns


def test_where_the_host_bounds_the_traces_the_profiler_may_be_why_and_the_answer_says_so() -> None:
    def is_warned(folder: str, undisturbed_ns: float | None = None) -> bool:
        partials = [partial for trace in traces_of(folder) if (partial := measure(trace))]
        section = answer(partials, ("launch-free",), undisturbed_ns).sections()[0]
        return any("The profiler slows hosts and may have made it so" in note for note in section.notes)

    assert is_warned("whatif/fsdp2")
    assert not is_warned("whatif/base")
    assert not is_warned("whatif/fsdp2", ask("whatif/fsdp2", "launch-free").measured.step_ns / 1.3)


def test_stages_of_a_single_pipeline_are_not_compared() -> None:
    result = ask("whatif/ds_pp4", "median-device=2", "no-stragglers", "median-host=2")
    assert [refused.name for refused in result.refused] == ["median-device=2", "no-stragglers"]
    assert "no other rank does the same work" in result.refused[0].reason


def test_in_a_pipeline_ranks_that_share_a_group_of_another_axis_do_the_same_work() -> None:
    """Ranks 0 and 2 of four stages get a group for gradients."""
    graphs = graphs_of("whatif/ds_pp4")
    shared = replace(graphs[0].groups[-1], key=GroupKey("8", "0,2", role="DP"))
    graphs = [
        replace(graph, groups=(*graph.groups, shared), group_events=(*graph.group_events, graph.group_events[-1]))
        if graph.rank in (0, 2)
        else graph
        for graph in graphs
    ]
    result = answer([tuple(graphs)], ("median-device=0", "median-device=1"))
    assert [outlook.name for outlook in result.scenarios] == ["median-device=0"]
    assert [refused.name for refused in result.refused] == ["median-device=1"]


def test_one_rank_of_several_is_answered_with_what_it_waited_as_measured() -> None:
    result = ask("whatif/base", "communication-free", ranks=(0,))
    assert any("Only one rank's trace" in note for note in result.notes)
    assert abs(result.replay_error) < 0.002
    assert ask("whatif/base", "no-stragglers", ranks=(0,)).refused[0].reason.startswith("the traces of one rank")


@pytest.mark.parametrize(
    ("scenario", "problem"),
    [
        ("faster", "there is no scenario 'faster'"),
        ("faster-kernel=nothing-like-it:2", "names no kernel"),
        ("faster-kernel=nvjet:0", "must be a positive number"),
        ("faster-kernel=nvjet:-1", "must be a positive number"),
        ("faster-communication=x", "must be a positive number"),
        ("faster-communication", "needs a value"),
        ("launch-free=3", "takes no value"),
        ("median-device=7", "is no rank of the traces"),
        ("communication-free=EP", "no communication of 'EP'"),
    ],
)
def test_a_scenario_that_names_nothing_is_refused(scenario: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        ask("whatif/base", scenario)


def graphs_of(folder: str) -> list[RankGraph]:
    return [graph for trace in traces_of(folder) for graph in measure(trace) or ()]


def test_traces_that_lack_events_say_so_or_are_refused() -> None:
    (trace,) = traces_of("whatif/base", 0)
    assert measure(replace(trace, calls=trace.calls.take(trace.calls.start_ns < 0))) is None
    partial = measure(replace(trace, device=trace.device.take(np.arange(len(trace.device)) % 10 != 3)))
    assert partial is not None
    assert any("the profiler dropped events" in note for note in answer([partial], ("launch-free",)).notes)
    unmarked = measure(replace(trace, annotations=trace.annotations.take(trace.annotations.start_ns < 0)))
    assert unmarked is not None
    with pytest.raises(MissingInput, match="no step is marked"):
        answer([unmarked], ())


def test_ranks_of_different_runs_are_refused() -> None:
    first, second = graphs_of("whatif/base")
    with pytest.raises(MissingInput, match="different steps"):
        answer([(first, replace(second, marks=(1, 2, 3)))], ())
    with pytest.raises(MissingInput, match="jobs of 2 and 4 ranks"):
        answer([(first,), (replace(second, world_size=4),)], ())
    with pytest.raises(MissingInput, match="two traces are of the same steps of rank 0"):
        answer([(first,), (replace(second, rank=0),)], ())
    with pytest.raises(MissingInput, match="one process drives several devices"):
        answer([(first,), (replace(first, end_ns=first.end_ns),)], ())
    with pytest.raises(MissingInput, match="recorded 3600 s apart"):
        answer([(first,), (replace(second, base_ns=second.base_ns + 3600 * 10**9),)], ())


def test_of_several_windows_the_first_is_replayed_and_the_answer_says_so() -> None:
    graphs = graphs_of("whatif/base")
    later = [replace(graph, marks=tuple(mark + 10 for mark in graph.marks)) for graph in graphs]
    result = answer([tuple(graphs), tuple(later)], ("launch-free",))
    assert result.measured == ask("whatif/base", "launch-free").measured
    assert "2 traces of other windows are left out." in result.notes


def test_what_fixes_regain_is_the_answer_of_the_replay_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    partials = [partial for trace in traces_of("whatif/slow_gpu") if (partial := measure(trace))]
    fixes = ("no-stragglers", "median-host=9", "data-loading-free")
    straggler, nobody, loading = map(Fixes(partials).regain, fixes)
    (outlook,) = ask("whatif/slow_gpu", "no-stragglers").scenarios
    assert straggler is not None
    assert straggler.saved_ns == outlook.saved_ns > 0.15 * outlook.replayed_ns
    assert (nobody, loading, Fixes([]).regain("launch-free")) == (None, None, None)
    monkeypatch.setattr(MeasuredJob, "error", property(lambda _: -0.05))
    assert Fixes(partials).regain("no-stragglers") is None, "a replay that is far from the measured step"


def test_a_host_is_as_fast_as_in_steps_that_nobody_profiled_where_they_tell_it() -> None:
    graphs = [tuple(graphs_of("whatif/fsdp2"))]
    profiled = answer(graphs, ("communication-free",))
    undisturbed_ns = truth_ms("whatif/fsdp2") * NS_PER_MS
    result = answer(graphs, ("communication-free",), undisturbed_ns)
    assert profiled.replayed.step_ns > 1.3 * undisturbed_ns
    assert result.replayed.step_ns == pytest.approx(undisturbed_ns, rel=0.15)
    assert result.replay_error == profiled.replay_error
    assert result.overhead_ns > 0
