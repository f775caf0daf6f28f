"""Costs of one cause are counted once, the largest comes first, and small ones are left out."""

from __future__ import annotations

import json
from typing import Any

from perfscope.analyzers.findings import Findings
from perfscope.analyzers.findings.facts import Evidence, Facts
from perfscope.analyzers.findings.finding import Account, Cause, Rule
from perfscope.analyzers.findings.ranking import rank_findings
from perfscope.analyzers.findings.training import Training
from perfscope.engine.run import Plan, analyze
from tests.conftest import ROOT

STEP_US = 10_000.0


def rank_row(rank: int, compute: float, communication: float, idle: float) -> dict[str, Any]:
    times = {"compute_us": compute, "exposed_communication_us": communication, "exposed_copy_us": 0.0, "idle_us": idle}
    times["window_us"] = sum(times.values())
    return {"rank": rank, "device": rank, "trace": f"{rank}", "steps": [{}], "marked": times, "outside": {"steps": 0.0}}


def training(*, host_us: float = 4000.0, median_s: float | None = 0.01, **results: Any) -> Training:
    """Two ranks: the device of rank 1 waits for its host, and rank 0 waits for rank 1 in communication."""
    breakdown: list[Any] = [rank_row(0, 6000.0, host_us, 0.0), rank_row(1, 6000.0, 0.0, host_us)]
    idle: list[Any] = [
        {"rank": rank, "device": rank, "trace": f"{rank}", "causes": {"operator_us": us}, "marked": {"operator_us": us}}
        for rank, us in ((0, 0.0), (1, host_us))
    ]
    steps: Any = {"median_s": median_s, "ranks": [{"rank": 0, "means": {"step_s": median_s}}]}
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
    (found,) = rank_findings(training(median_s=None), (rule("host", 4000.0, Account.HOST),))
    assert found.cause.confidence == "low"
    assert found.cause.interval_us[0] == 0.0


def test_what_was_measured_in_all_steps_is_not_limited_by_the_profiled_ones() -> None:
    found = costs(training(host_us=100.0), rule("data", 3000.0, Account.HOST, is_of_all_steps=True))
    assert found == {"data": 3000.0}


def test_what_comes_on_top_of_steps_is_a_share_of_both() -> None:
    (found,) = rank_findings(training(), (rule("saves", 10_000.0, Account.BESIDE, is_beside=True),))
    assert found.share == 0.5


def test_the_replay_decides_what_a_fix_regains_where_it_was_asked() -> None:
    scenario = {"name": "launch-free", "saved_us": 2500.0, "interval_us": [7000.0, 8000.0]}
    whatif = {"measured_step_us": STEP_US, "scenarios": [scenario]}
    (found,) = rank_findings(training(whatif=whatif), (rule("host", 4000.0, Account.HOST, scenario="launch-free"),))
    assert (found.cost_us, found.cause.basis, found.cause.interval_us) == (2500.0, "replay", (2000.0, 3000.0))


def test_a_replay_knows_of_more_than_what_is_exposed_unless_another_cause_has_claimed_it() -> None:
    """Communication that is hidden slows what hides it: 4,000 us are exposed, 5,000 are regained."""
    scenario = {"name": "no-stragglers", "saved_us": 5000.0, "interval_us": [4500.0, 5500.0]}
    job = training(whatif={"measured_step_us": STEP_US, "scenarios": [scenario]})
    straggler = rule("straggler", 3000.0, Account.COMMUNICATION, scenario="no-stragglers")
    (found,) = rank_findings(job, (straggler,))
    assert (found.cost_us, found.cause.interval_us) == (5000.0, (4500.0, 5500.0))
    assert costs(job, rule("host", 1500.0, Account.HOST), straggler) == {"straggler": 2500.0, "host": 1500.0}
    assert costs(job, straggler, rule("network", 4000.0, Account.COMMUNICATION)) == {"straggler": 5000.0}


def test_what_a_straggler_costs_by_the_replay_is_what_its_absence_saved() -> None:
    """The same training was run without the slow rank, unprofiled: 63.3 ms and 51.5 ms."""
    folder = ROOT / "fixtures" / "whatif"
    slow, base = (json.loads((folder / name / "truth.json").read_text())["median_ms"] for name in ("slow_gpu", "base"))
    plan = Plan(only=frozenset(("breakdown", "idle", "stragglers", "collectives", "overlap", "whatif", "findings")))
    findings = analyze([folder / "slow_gpu"], plan).results["findings"]
    assert isinstance(findings, Findings)
    assert findings.findings[0].cause.basis == "replay"
    assert abs(findings.findings[0].cost_us / 1000 - (slow - base)) < 0.02 * slow


def test_nothing_is_found_without_the_time_of_a_step() -> None:
    assert rank_findings(Training(Facts({})), (rule("host", 4000.0, Account.HOST),)) == ()
