"""A summary of an analysis for the end of ``perfscope profile``, made from its JSON so that both agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfscope.constants import US_PER_S
from perfscope.report import percent, percent_of
from perfscope.units import format_rate, format_seconds

_MOST_RANKS = 8
#: What the test of a window's effect says where the steps behind it are slower.
_SLOWED = "slower"
_MOST_FINDINGS = 3
#: Parts of the wall clock that are named; the smaller ones are added up.
_MOST_PARTS = 8
#: Results that every run on GPUs has; the report itself lists everything that was not computed.
_EXPECTED_RESULTS = ("steps", "gpus", "breakdown")


def summarize(analysis: Mapping[str, Any]) -> list[str]:
    """Summarize the steps, the shares of the profiled time, and what could not be computed."""
    results = analysis["results"]
    lines = _describe_findings(results.get("findings"))
    lines += [*_describe_steps(results.get("steps")), *results.get("steps", {}).get("unreached_windows", ())]
    lines += _describe_window_effect(results.get("steps"))
    lines += _describe_wall_clock(results.get("wall_clock"))
    lines += _describe_shares(results.get("breakdown") or results.get("host"))
    lines += _describe_overhead(results.get("cost"))
    lines += _describe_energy(results.get("energy"), results.get("throttling"))
    lines += [
        f"not computed: {skip['analyzer']}: {skip['reason']}"
        for skip in analysis["skipped"]
        if skip["analyzer"] in _EXPECTED_RESULTS and not (skip["analyzer"] == "breakdown" and "host" in results)
    ]
    lines += [f"warning: {text}" for text in dict.fromkeys(analysis["warnings"])]
    return lines


def _describe_findings(findings: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """The findings that regain most, one line each."""
    if findings is None:
        return []
    lines = [
        f"finding {number}: {finding['title'].lower()}, {format_seconds(finding['cost_us'] / US_PER_S)} "
        f"({percent(finding['share_of_step']):.0f} % of a step): {finding['advice']}"
        for number, finding in enumerate(findings[:_MOST_FINDINGS], 1)
    ]
    left_out = len(findings) - len(lines)
    return (
        [*lines, f"{left_out} more findings are in the report"]
        if left_out
        else lines or ["findings: nothing stands out"]
    )


def _describe_steps(steps: Mapping[str, Any] | None) -> list[str]:
    if steps is None:
        return []
    ranks = len(steps["ranks"])
    line = f"{steps['count']} training steps on {ranks} rank{'s' * (ranks > 1)}, counted by {steps['source']}"
    if steps["step_time_s"] is None:
        return [f"{line}; no step time, because too few are in steady state"]
    line += f": step time {format_seconds(steps['step_time_s'])}, p95 {format_seconds(steps['p95_s'])}"
    excluded = [
        f"{name} {format_seconds(steps[key])}"
        for name, key in (("first", "first_s"), ("profiled", "profiled_s"))
        if steps[key] is not None
    ]
    rates = [
        f"{format_rate(steps[key])} {unit}/s"
        for unit, key in (("tokens", "tokens_per_s"), ("samples", "samples_per_s"))
        if steps[key] is not None
    ]
    return [line + (f" ({', '.join(excluded)})" if excluded else "") + (f"; {', '.join(rates)}" if rates else "")]


def _describe_window_effect(steps: Mapping[str, Any] | None) -> list[str]:
    """Say that a window slowed the steps behind it, and which steps the figures are of."""
    effect = (steps or {}).get("window_effect")
    if effect is None or effect["verdict"] != _SLOWED:
        return []
    behind, before = format_seconds(effect["after_s"]), format_seconds(effect["before_s"])
    change = f"{percent(effect['change']):.0f} %"
    return [
        f"the window slowed the steps behind it by {change}, to a median of {behind} from {before}: figures are of the "
        f"{effect['before']} steps before it"
    ]


def _describe_wall_clock(clock: Mapping[str, Any] | None) -> list[str]:
    """Describe where the wall time of the slowest rank went, the largest parts first, and the slowest steps."""
    if clock is None:
        return []
    parts: Sequence[Mapping[str, Any]] = clock["parts"]
    named = [f"{part['label']} {percent(part['share']):.1f} %" for part in parts[:_MOST_PARTS] if part["share"]]
    rest = sum(part["share"] or 0 for part in parts[_MOST_PARTS:])
    named += [f"the rest {percent(rest):.1f} %"] if rest else []
    lines = [f"wall clock of rank {clock['rank']}, {format_seconds(clock['wall_s'])}: {', '.join(named)}"]
    slow = [f"{step['step']} ({format_seconds(step['s'])}, {step['cause']})" for step in clock["slowest_steps"]]
    return [*lines, f"slowest steps: {', '.join(slow)}"] if slow else lines


def _describe_energy(energy: Mapping[str, Any] | None, throttling: Sequence[Mapping[str, Any]] | None) -> list[str]:
    parts = []
    if energy is not None and energy["step_j"] is not None:
        tokens = energy["tokens_per_j"]
        parts.append(f"{energy['step_j']:,.1f} J/step" + (f", {tokens:,.3g} tokens/J" if tokens else ""))
    causes = sorted({cause["cause"] for gpu in throttling or () for cause in gpu["causes"] if cause["steps"]})
    if causes:
        throttled_steps = {step for gpu in throttling or () for step in gpu["steps"]}
        parts.append(f"{len(throttled_steps)} steps throttled ({', '.join(causes)})")
    return ["; ".join(parts)] if parts else []


def _describe_overhead(cost: Mapping[str, Any] | None) -> list[str]:
    """Describe the overhead of the windows in one line."""
    windows: Sequence[Mapping[str, Any]] = cost["windows"] if cost else []
    if not windows:
        return []
    stall_s = sum(window["held_s"] for window in windows)
    slowdowns = [window["slower"] for window in windows if window["slower"] is not None]
    line = f"windows stalled training for {format_seconds(stall_s)}"
    if slowdowns:
        line += f"; slowdown of profiled steps {percent(max(slowdowns)):.0f} %"
    distorted = any(window["distorted"] for window in windows)
    return [line + (": their shares are not representative" if distorted else "")]


def _count_more(ranks: int) -> list[str]:
    return [f"... and {ranks - _MOST_RANKS} more ranks"] if ranks > _MOST_RANKS else []


def _describe_shares(breakdown: Mapping[str, Any] | None) -> list[str]:
    if breakdown is None:
        return []
    ranks: Sequence[Mapping[str, Any]] = breakdown["ranks"]
    return [*(_describe_rank(rank) for rank in ranks[:_MOST_RANKS]), *_count_more(len(ranks))]


def _describe_rank(rank: Mapping[str, Any]) -> str:
    row = rank.get("marked") or rank
    shares = [
        (row[key], label)
        for label, key in (
            ("compute", "compute_us"),
            ("exposed communication", "exposed_communication_us"),
            ("exposed copies", "exposed_copy_us"),
            ("data loading", "exposed_data_loading_us"),
            ("idle", "idle_us"),
            ("other", "other_us"),
        )
        if row.get(key) is not None and row["window_us"]
    ]
    shares.sort(key=lambda share: -share[0])
    parts = [f"{label} {percent_of(part_us, row['window_us']):.1f} %" for part_us, label in shares]
    return f"rank {rank['rank']}: {', '.join(parts)} of {format_seconds(row['window_us'] / US_PER_S)} profiled"
