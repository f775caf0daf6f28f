"""Costs of one cause are counted once, the largest comes first, and small ones are left out."""

from __future__ import annotations

from typing import Any

import pytest

from perfscope.analyzers.findings import Findings
from perfscope.analyzers.findings.facts import Evidence, Facts
from perfscope.analyzers.findings.finding import Account, Cause, Rule
from perfscope.analyzers.findings.ranking import rank_findings
from perfscope.analyzers.findings.training import Training
from perfscope.analyzers.replay.scenarios import Regain
from perfscope.engine.run import Plan, analyze
from tests.conftest import ROOT

STEP_US = 10_000.0


def rank_row(rank: int, compute: float, communication: float, idle: float) -> dict[str, Any]:
    times = {"compute_us": compute, "exposed_communication_us": communication, "exposed_copy_us": 0.0, "idle_us": idle}
    times["window_us"] = sum(times.values())
    return {"rank": rank, "device": rank, "trace": f"{rank}", "steps": [{}], "marked": times, "outside": {"steps": 0.0}}


def training(*, host_us: float = 4000.0, step_s: float | None = 0.01, **results: Any) -> Training:
    """Two ranks: the device of rank 1 waits for its host, and rank 0 waits for rank 1 in communication."""
    breakdown: list[Any] = [rank_row(0, 6000.0, host_us, 0.0), rank_row(1, 6000.0, 0.0, host_us)]
    idle: list[Any] = [
        {"rank": rank, "device": rank, "trace": f"{rank}", "causes": {"operator_us": us}, "marked": {"operator_us": us}}
        for rank, us in ((0, 0.0), (1, host_us))
    ]
    steps: Any = {"step_time_s": step_s, "median_s": step_s, "ranks": [{"rank": 0, "means": {}}]}
    return Training(Facts({"breakdown": {"ranks": breakdown}, "idle": {"ranks": idle}, "steps": steps, **results}))


def rule(name: str, cost_us: float, *accounts: Account, **cause: Any) -> Rule:
    found = Cause(cost_us, (cost_us, cost_us), (), (Evidence("seen"),), "Try it.", **cause)
    return Rule(name, name.title(), accounts, lambda _: found)


def costs(training: Training, *rules: Rule) -> dict[str, float]:
    return {finding.id: finding.cost_us for finding in rank_findings(training, rules)}


def test_the_first_rule_claims_time_that_is_gone_for_the_next_one() -> None:
    found = costs(training(), rule("special", 3000.0, Account.HOST), rule("general", 4000.0, Account.HOST))
    assert found == {"special": 3000.0, "general": 1000.0}


def test_a_late_host_and_the_wait_for_it_are_one_time() -> None:
    found = costs(training(), rule("host", 4000.0, Account.HOST), rule("wait", 4000.0, Account.COMMUNICATION))
    assert found == {"host": 4000.0}


def test_all_findings_together_take_no_more_than_a_step() -> None:
    many = [rule(name, 6000.0, Account.COMPUTE) for name in ("first", "second")]
    found = costs(training(), rule("pipeline", 5000.0, Account.PIPELINE), *many, rule("host", 4000.0, Account.HOST))
    assert found == {"pipeline": 5000.0, "first": 5000.0}
    assert sum(found.values()) == STEP_US


def test_what_comes_beside_the_steps_takes_nothing_of_them() -> None:
    found = costs(
        training(), rule("saves", 9000.0, Account.BESIDE, is_beside=True), rule("kernels", 6000.0, Account.COMPUTE)
    )
    assert found == {"saves": 9000.0, "kernels": 6000.0}


def test_computation_is_another_account() -> None:
    found = costs(training(), rule("host", 4000.0, Account.HOST), rule("kernels", 5000.0, Account.COMPUTE))
    assert found == {"kernels": 5000.0, "host": 4000.0}
    assert list(found) == ["kernels", "host"]


def test_a_small_cost_makes_no_finding() -> None:
    assert costs(training(), rule("small", 150.0, Account.COMPUTE)) == {}


def test_what_the_profiler_added_is_taken_off() -> None:
    """The profiled step took 16 ms, the others 10 ms: 4 ms are left for what is not computed."""
    assert costs(training(host_us=10_000.0), rule("host", 9000.0, Account.HOST)) == {"host": 4000.0}


def test_without_records_the_profiled_step_counts_and_the_confidence_is_low() -> None:
    (found,) = rank_findings(training(step_s=None), (rule("host", 4000.0, Account.HOST),))
    assert found.cause.confidence == "low"
    assert found.cause.interval_us[0] == 0.0


def test_a_saving_that_is_less_than_the_noise_of_the_steps_is_none() -> None:
    launches = rule("host", 4000.0, Account.HOST, scenario="launch-free")
    assert costs(replayed(Answers(600.0, noise_us=300.0)), launches) == {"host": 600.0}
    assert costs(replayed(Answers(600.0, noise_us=700.0)), launches) == {}


def test_a_fix_may_save_a_part_of_what_its_scenario_saves() -> None:
    part = rule("reductions", 400.0, Account.COMMUNICATION, scenario="launch-free", scenario_part=0.75)
    (found,) = rank_findings(replayed(Answers(4000.0)), (part,))
    assert (found.cost_us, found.cause.interval_us) == (3000.0, (2625.0, 3375.0))


def test_what_was_measured_in_all_steps_is_not_limited_by_the_profiled_ones() -> None:
    found = costs(training(host_us=100.0), rule("data", 3000.0, Account.HOST, is_of_all_steps=True))
    assert found == {"data": 3000.0}


def test_what_comes_on_top_of_steps_is_a_share_of_both() -> None:
    (found,) = rank_findings(training(), (rule("saves", 10_000.0, Account.BESIDE, is_beside=True),))
    assert found.share == 0.5


class Answers:
    """Replays that answer as they are told; microseconds."""

    def __init__(
        self, saved_us: float, uncertain_us: float = 500.0, replay_error: float = 0.0, noise_us: float = 0.0
    ) -> None:
        self.answer = Regain(
            "launch-free",
            step_ns=STEP_US * 1e3,
            saved_ns=saved_us * 1e3,
            uncertain_ns=uncertain_us * 1e3,
            noise_ns=noise_us * 1e3,
            replay_error=replay_error,
        )

    def regain(self, fix: str) -> Regain:
        return self.answer if fix == "launch-free" else Regain(fix, why_not="no trace tells")


def replayed(answers: Answers) -> Training:
    return Training(training().facts, answers)


def test_the_replay_decides_what_a_fix_regains() -> None:
    launches = rule("host", 4000.0, Account.HOST, scenario="launch-free")
    (found,) = rank_findings(replayed(Answers(2500.0)), (launches,))
    assert (found.cost_us, found.cause.basis, found.cause.interval_us) == (2500.0, "replay", (2000.0, 3000.0))
    data: Any = found.data()
    assert (data["replay"]["scenario"], data["replay"]["saved_us"]) == ("launch-free", 2500.0)


@pytest.mark.parametrize(("uncertain_us", "cost_us"), [(1500.0, 1300.0), (9000.0, 4000.0), (300.0, None)])
def test_a_replay_that_cannot_tell_what_a_counted_cause_costs_limits_it(
    uncertain_us: float, cost_us: float | None
) -> None:
    """FSDP 1 without prefetch: the replay saved -2 +- 12 ms of 110, and prefetch 10 ms."""
    counted = rule("host", 4000.0, Account.HOST, scenario="launch-free", is_counted=True)
    found = rank_findings(replayed(Answers(-200.0, uncertain_us=uncertain_us)), (counted,))
    assert [(finding.cost_us, finding.cause.interval_us[0]) for finding in found] == (
        [] if cost_us is None else [(cost_us, 0.0)]
    )
    guessed = rule("host", 4000.0, Account.HOST, scenario="launch-free")
    assert rank_findings(replayed(Answers(-200.0, uncertain_us=uncertain_us)), (guessed,)) == ()


def test_where_the_replay_cannot_answer_the_bound_stands_with_the_reason() -> None:
    unknown = rule("data", 4000.0, Account.HOST, scenario="data-loading-free")
    (found,) = rank_findings(replayed(Answers(2500.0)), (unknown,))
    assert (found.cost_us, found.cause.basis) == (4000.0, "measured")
    data: Any = found.data()
    assert data["replay"]["reason"] == "no trace tells"


def test_a_replay_that_misses_the_measured_step_decides_nothing() -> None:
    launches = rule("host", 4000.0, Account.HOST, scenario="launch-free")
    (found,) = rank_findings(replayed(Answers(2500.0, replay_error=-0.05)), (launches,))
    assert (found.cost_us, found.cause.basis) == (4000.0, "measured")


def test_what_was_measured_in_all_steps_is_not_replayed() -> None:
    data = rule("data", 4000.0, Account.HOST, scenario="launch-free", is_of_all_steps=True)
    assert costs(replayed(Answers(2500.0)), data) == {"data": 4000.0}


def test_a_replay_knows_of_more_than_what_is_exposed_unless_another_cause_has_claimed_it() -> None:
    """Communication that is hidden slows what hides it: 4,000 us are exposed, 5,000 are regained."""
    job = replayed(Answers(5000.0))
    straggler = rule("straggler", 3000.0, Account.COMMUNICATION, scenario="launch-free")
    (found,) = rank_findings(job, (straggler,))
    assert (found.cost_us, found.cause.interval_us) == (5000.0, (4500.0, 5500.0))
    assert costs(job, rule("host", 1500.0, Account.HOST), straggler) == {"straggler": 3500.0, "host": 1500.0}
    assert costs(job, straggler, rule("network", 4000.0, Account.COMMUNICATION)) == {"straggler": 5000.0}


@pytest.mark.parametrize(
    ("folder", "scenario", "truth_ms"),
    [("slow_gpu", "median-device=1", 63.3 - 51.55), ("no_overlap", "perfect-overlap", 53.5 - 51.55)],
)
def test_the_first_finding_costs_what_its_fix_saved(folder: str, scenario: str, truth_ms: float) -> None:
    """The same training was run with the fix, unprofiled: 51.55 ms."""
    findings = analyze([ROOT / "fixtures" / "whatif" / folder], Plan(only=frozenset({"findings"}))).results["findings"]
    assert isinstance(findings, Findings)
    (first, *_) = findings.findings
    assert first.cause.basis == "replay"
    assert first.cause.replay is not None
    assert first.cause.replay.scenario == scenario
    low_us, high_us = first.cause.interval_us
    assert low_us <= 1000 * truth_ms <= high_us
    assert high_us - low_us <= 0.1 * 1000 * 63.3


def test_only_the_host_that_is_late_tells_a_straggler_whose_trace_says_nothing() -> None:
    """Rank 1 slept 20 ms before each step; its trace has no operators, so that only a replay tells."""
    folder = ROOT / "fixtures" / "whatif" / "pairs" / "changes" / "delay"
    findings = analyze([folder], Plan(only=frozenset({"findings"}))).results["findings"]
    assert isinstance(findings, Findings)
    assert (findings.findings[0].id, findings.findings[0].cause.ranks) == ("straggler_host", (1,))
    assert "by the replay" in findings.findings[0].cause.evidence[0].text


def test_nothing_is_found_without_the_time_of_a_step() -> None:
    assert rank_findings(Training(Facts({})), (rule("host", 4000.0, Account.HOST),)) == ()
