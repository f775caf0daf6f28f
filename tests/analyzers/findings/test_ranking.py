"""What a finding costs: no more than its part of a step, or what others leave of it; the largest comes first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perfscope.analyzers.findings import Findings, rank_findings
from perfscope.analyzers.findings.finding import Fault, Finder, Finding, Proof
from perfscope.analyzers.findings.training import AnalyzerResults, StepPart, TracedRun
from perfscope.analyzers.loop import Loop
from perfscope.analyzers.whatif.scenarios import Regain
from perfscope.engine.run import Plan, analyze
from tests.analyzers.findings.made import breakdown, idle, parts, steps
from tests.conftest import ROOT

HOST, COMMUNICATION, COMPUTE = StepPart.HOST, StepPart.COMMUNICATION, StepPart.COMPUTE


def training(*, host_us: float = 4000.0, step_s: float | None = 0.01, regain: Any = lambda _: None) -> TracedRun:
    """Two ranks: the device of rank 1 waits for its host, and rank 0 waits for rank 1 in communication."""
    devices = breakdown(parts(6000.0, host_us), parts(6000.0, 0.0))
    devices.ranks[1].row = parts(6000.0, 0.0)
    results: Any = {
        "breakdown": devices,
        "idle": idle({}, {"operator": host_us}),
        "steps": steps(step_s, ranks=[]),
    }
    return TracedRun(AnalyzerResults(**results), regain)


def rule(name: str, cost_us: float, *of: StepPart, is_rest: bool = False, **cause: Any) -> Finder:
    found = Fault(cost_us, (cost_us, cost_us), (), (Proof("seen"),), "Try it.", **cause)
    return Finder(name, name.title(), of, lambda _: found, is_rest)


def costs(training: TracedRun, *rules: Finder) -> dict[str, float]:
    return {finding.id: finding.cost_us for finding in rank_findings(training, rules)}


def test_a_cause_costs_no_more_than_its_part_whatever_else_is_found() -> None:
    found = costs(training(), rule("first", 3000.0, HOST), rule("second", 9000.0, HOST), rule("third", 9000.0, COMPUTE))
    assert found == {"third": 6000.0, "second": 4000.0, "first": 3000.0}
    assert list(found) == ["third", "second", "first"]


def test_a_rest_costs_what_others_leave_of_its_part() -> None:
    launches = rule("launches", 4000.0, HOST, is_rest=True)
    assert costs(training(), rule("special", 3000.0, HOST), launches) == {"special": 3000.0, "launches": 1000.0}
    assert costs(training(), launches) == {"launches": 4000.0}
    assert costs(training(), rule("kernels", 5000.0, COMPUTE), launches) == {"kernels": 5000.0, "launches": 4000.0}


def test_a_rest_and_all_others_are_no_more_than_a_step() -> None:
    """A wait for data that was measured in every step, and the pauses of one longer step, were 108 % of a step."""
    data = rule("data", 8000.0, COMPUTE, is_of_all_steps=True)
    assert costs(training(), data, rule("pauses", 4000.0, HOST, is_rest=True)) == {"data": 8000.0, "pauses": 2000.0}


def test_a_late_host_and_the_wait_for_it_are_one_time() -> None:
    wait = rule("wait", 4000.0, COMMUNICATION, HOST, is_rest=True)
    assert costs(training(), rule("host", 4000.0, HOST), wait) == {"host": 4000.0}


def test_what_comes_between_steps_is_a_share_of_the_loop() -> None:
    """Steps of 10 ms with 10 ms of saves between two of them."""
    rules = rule("saves", 10_000.0, StepPart.OUTSIDE), rule("kernels", 6000.0, COMPUTE)
    loop = Loop(
        0,
        50,
        10**9,
        10**9,
        start=(),
        parts=(),
        pauses=None,
        samples_per_s=None,
        tokens_per_s=None,
        lines=(),
        unusual_steps=(),
        unknown_ns=0,
        garbage_ns=0,
        blocked_ns=0,
        delays_ns={},
    )
    job = training()
    job.results = msgspec.structs.replace(job.results, loop=loop)
    saves, kernels = rank_findings(job, rules)
    assert (saves.cost_us, saves.share_of_step, saves.cost_s) == (10_000.0, 0.5, 0.5)
    assert (kernels.cost_us, kernels.share_of_step, kernels.cost) == (6000.0, 0.3, "300 ms of 1 s (30.0 % of the loop)")


def test_a_small_cost_makes_no_finding() -> None:
    assert costs(training(), rule("small", 150.0, COMPUTE)) == {}


def test_what_the_profiler_added_is_taken_off() -> None:
    """The profiled step took 16 ms, the others 10 ms: 4 ms are left for what is not computed."""
    assert costs(training(host_us=10_000.0), rule("host", 9000.0, HOST)) == {"host": 4000.0}


def test_without_records_the_profiled_step_counts_and_the_interval_begins_at_0() -> None:
    (found,) = rank_findings(training(step_s=None), (rule("host", 4000.0, HOST),))
    assert found.interval_us[0] == 0.0


def test_what_was_measured_in_all_steps_is_neither_limited_by_the_profiled_ones_nor_replayed() -> None:
    data = rule("data", 3000.0, HOST, scenario="launch-free", is_of_all_steps=True)
    assert costs(training(host_us=100.0), data) == {"data": 3000.0}
    assert costs(replayed(2500.0), data) == {"data": 3000.0}


def replayed(saved_us: float, uncertain_us: float = 500.0, noise_us: float = 0.0) -> TracedRun:
    """Replays that answer as they are told; microseconds."""
    answer = Regain(saved_us * 1e3, uncertain_us * 1e3, noise_us * 1e3)
    return training(regain=lambda fix: answer if fix == "launch-free" else None)


LAUNCHES = rule("host", 4000.0, HOST, scenario="launch-free")


def test_the_replay_decides_what_a_fix_regains() -> None:
    (found,) = rank_findings(replayed(2500.0), (LAUNCHES,))
    assert (found.cost_us, found.basis, found.interval_us) == (2500.0, "replay", (2000.0, 3000.0))
    assert found.scenario == "launch-free"


def test_a_saving_that_is_less_than_the_noise_of_the_steps_is_none() -> None:
    assert costs(replayed(600.0, noise_us=300.0), LAUNCHES) == {"host": 600.0}
    assert costs(replayed(600.0, noise_us=700.0), LAUNCHES) == {}


def test_a_fix_may_save_a_part_of_what_its_scenario_saves() -> None:
    part = rule("reductions", 400.0, COMMUNICATION, scenario="launch-free", scenario_part=0.75)
    (found,) = rank_findings(replayed(4000.0), (part,))
    assert (found.cost_us, found.interval_us) == (3000.0, (2625.0, 3375.0))


@pytest.mark.parametrize(("uncertain_us", "cost_us"), [(1500.0, 1300.0), (9000.0, 4000.0), (300.0, None)])
def test_a_replay_that_cannot_tell_what_a_counted_cause_costs_limits_it(
    uncertain_us: float, cost_us: float | None
) -> None:
    """FSDP 1 without prefetch: the replay saved -2 +- 12 ms of 110, and prefetch 10 ms."""
    job = replayed(-200.0, uncertain_us=uncertain_us)
    counted = rule("host", 4000.0, HOST, scenario="launch-free", is_counted=True)
    found = [(finding.cost_us, finding.interval_us[0]) for finding in rank_findings(job, (counted,))]
    assert found == ([] if cost_us is None else [(cost_us, 0.0)])
    assert costs(job, LAUNCHES) == {}


def test_where_the_replay_cannot_answer_what_was_measured_stands() -> None:
    (found,) = rank_findings(replayed(2500.0), (rule("data", 4000.0, HOST, scenario="data-loading-free"),))
    assert (found.cost_us, found.basis, found.scenario) == (4000.0, "measured", None)


def test_a_replay_knows_of_more_than_what_is_exposed_unless_another_cause_has_it() -> None:
    """Communication that is hidden slows what hides it: 4,000 us are exposed, 5,000 are regained."""
    exposed = rule("exposed", 3000.0, COMMUNICATION, is_rest=True, scenario="launch-free")
    assert costs(replayed(5000.0), exposed) == {"exposed": 5000.0}
    straggler = rule("straggler", 1500.0, COMMUNICATION)
    assert costs(replayed(5000.0), straggler, exposed) == {"straggler": 1500.0, "exposed": 3500.0}


def first_of(folder: str) -> Finding:
    findings = analyze([ROOT / "fixtures" / "whatif" / folder], Plan(only=frozenset({"findings"}))).results["findings"]
    assert isinstance(findings, Findings)
    return findings.findings[0]


@pytest.mark.parametrize(
    ("folder", "scenario", "truth_ms"),
    [("slow_gpu", "median-device=1", 63.3 - 51.55), ("no_overlap", "perfect-overlap", 53.5 - 51.55)],
)
def test_the_first_finding_costs_what_its_fix_saved(folder: str, scenario: str, truth_ms: float) -> None:
    """The same training was run with the fix, unprofiled: 51.55 ms."""
    first = first_of(folder)
    assert first.basis == "replay"
    assert first.scenario == scenario
    low_us, high_us = first.interval_us
    assert low_us <= 1000 * truth_ms <= high_us
    assert high_us - low_us <= 0.1 * 1000 * 63.3


def test_only_the_host_that_is_late_tells_a_straggler_whose_trace_says_nothing() -> None:
    """Rank 1 slept 20 ms before each step; its trace has no operators, so that only a replay tells."""
    first = first_of("pairs/changes/delay")
    assert (first.id, first.ranks) == ("straggler_host", (1,))
    assert "by the replay" in first.evidence[0].text


def test_nothing_is_found_without_the_time_of_a_step() -> None:
    assert rank_findings(TracedRun(AnalyzerResults()), (LAUNCHES,)) == ()
