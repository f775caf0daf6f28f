"""Orders causes by what a fix regains, and counts each part of a step once."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec.structs import replace

from perfscope.analyzers.findings.finding import Account, Basis, Cause, Confidence, Finding, Rule
from perfscope.analyzers.findings.training import Training
from perfscope.constants import NS_PER_US

#: A finding that regains a smaller share of a step is not worth a line.
SMALLEST_SHARE = 0.02
_SMALLEST_US = 50.0
#: A device that no longer waits keeps its clock, and the rest of a step takes less, too: in trainings whose fault was
#: taken out a step regained up to a third more than the idle time.
_BEYOND = 1.35
#: A replay that is farther from the measured step misses something that the job waited for.
_LARGEST_ERROR = 0.02
#: A saving stands out of the noise of the steps where it is so many times larger.
_CLEARLY = 1.5


def rank_findings(training: Training, rules: Iterable[Rule]) -> tuple[Finding, ...]:
    """The findings of a run, the one that regains most first.

    Rules claim time from their accounts in order. A cause that explains others comes before them, and the time that it
    claims is gone for them. All rules together claim no more than a step.
    """
    step_us = training.step_us
    if not step_us:
        return ()
    balances = _balances(training)
    unclaimed = dict(balances)
    left_us = step_us
    least_us = max(SMALLEST_SHARE * step_us, _SMALLEST_US)
    findings = []
    for rule in rules:
        cause = rule.find(training)
        if cause is None:
            continue
        if cause.saved_bytes is not None:
            findings.append(Finding(rule.id, rule.title, 0.0, step_us, cause))
            continue
        if cause.basis is Basis.BOUND and _BEYOND * cause.cost_us < least_us:
            continue  # no replay is needed to leave it out
        cause = _judged(training, rule, _replayed(training, cause))
        accounts = _accounts(rule)
        claimed_us = max(unclaimed.get(account, 0.0) - balances.get(account, 0.0) for account in accounts)
        limit = min(balances.get(account, math.inf) for account in accounts)
        if cause.is_of_all_steps:
            limit = math.inf
        elif cause.basis is Basis.REPLAY:
            # A replay knows what an account does not: communication that is hidden slows what hides it.
            limit = math.inf if not claimed_us else max(limit, cause.cost_us - claimed_us)
        if not (cause.is_of_all_steps or cause.is_beside):
            limit = min(limit, left_us)
        cost_us = min(cause.cost_us, limit)
        if cost_us < least_us:
            continue
        left_us = max(left_us - (0.0 if cause.is_beside else cost_us), 0.0)
        for account in {*accounts, *rule.accounts} & balances.keys():
            balances[account] = max(balances[account] - cost_us, 0.0)
        low, high = cause.interval_us
        whole_us = step_us + cost_us if cause.is_beside else max(step_us, cost_us)
        # A replay takes away what other causes have claimed, too.
        high = high - claimed_us if cause.basis is Basis.REPLAY else max(min(high, limit), _BEYOND * cost_us)
        low = 0.0 if training.is_power_limited and accounts[-1] is Account.SLACK else min(low, cost_us)
        cause = replace(cause, interval_us=(low, max(min(high, whole_us), cost_us)))
        findings.append(Finding(rule.id, rule.title, cost_us, whole_us, cause))
    return tuple(sorted(findings, key=lambda finding: (-finding.cost_us, finding.id)))


def _accounts(rule: Rule) -> tuple[Account, ...]:
    """The accounts that limit a rule."""
    first = rule.accounts[0]
    return (first, Account.SLACK) if first in {Account.HOST, Account.COMMUNICATION} else (first,)


def _judged(training: Training, rule: Rule, cause: Cause) -> Cause:
    """The cause with less confidence where the profiler may have slowed the host that it blames."""
    if rule.accounts[0] is not Account.HOST or cause.is_of_all_steps or training.is_undisturbed:
        return cause
    return replace(cause, confidence=Confidence.LOW, interval_us=(0.0, cause.interval_us[1]))


def _balances(training: Training) -> dict[Account, float]:
    """What each account of the profiled steps holds; accounts without traces are not limited."""
    ranks = training.ranks
    if not ranks:
        return {}
    host_us = max(rank.waits_for_host + rank.copy for rank in ranks)
    if training.pipeline:
        # Hosts of stages wait for what other stages send: only what the bubble's measurement leaves is theirs.
        facts, source = training.facts, training.pipeline
        names = ("host_fraction_of_total", "transfer_and_host_fraction_of_total")
        gaps = max(facts.amount(f"{source}/{name}") for name in names)
        host_us = min(host_us, gaps * facts.amount(f"{source}/section_us"))
    return {
        Account.HOST: host_us,
        Account.COMMUNICATION: max(rank.communication for rank in ranks),
        Account.SLACK: max(rank.communication + rank.waits_for_host + rank.copy for rank in ranks),
        Account.COMPUTE: max(rank.compute for rank in ranks),
    }


def _replayed(training: Training, cause: Cause) -> Cause:
    """The cause with what the replay says that a fix saves, where the traces can answer it.

    What was measured in many steps says more than a replay of the few in a window.
    """
    replay = training.regain(cause.scenario) if cause.scenario and not cause.is_of_all_steps else None
    if replay is None or replay.saved_ns is None or replay.interval_ns is None:
        return replace(cause, replay=replay)
    if abs(replay.replay_error or 0.0) > _LARGEST_ERROR:
        return replace(cause, replay=replay)
    part = cause.scenario_part
    low_us, high_us = (max(part * time_ns / NS_PER_US, 0.0) for time_ns in replay.interval_ns)
    # A replay that cannot tell a saving from none is no evidence of one.
    is_certain = replay.saved_ns > (0.0 if cause.is_counted else _CLEARLY * (replay.noise_ns or 0.0))
    if cause.is_counted and not is_certain:
        # What is counted is there: the replay that cannot tell what it costs limits it.
        cost_us = min(cause.cost_us, high_us)
        return replace(cause, cost_us=cost_us, interval_us=(0.0, cost_us), replay=replay)
    cost_us = part * replay.saved_ns / NS_PER_US if is_certain else 0.0
    return replace(cause, cost_us=cost_us, interval_us=(low_us, high_us), basis=Basis.REPLAY, replay=replay)
