"""A summary of an analysis for the end of ``perfscope profile``, made from its JSON so that both agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfscope.constants import US_PER_S
from perfscope.report import percent
from perfscope.units import format_count, format_rate, format_seconds

#: Ranks, and parts of the wall clock, that are named.
MOST_RANKS = 8
_MOST_FINDINGS = 3
#: Results that every run on GPUs has; the report itself lists everything that was not computed.
_EXPECTED_RESULTS = ("steps", "gpus", "breakdown")
#: Parts of the profiled time, of devices or of hosts.
_PARTS = (
    ("compute_us", "compute"),
    ("exposed_communication_us", "exposed communication"),
    ("exposed_copy_us", "exposed copies"),
    ("exposed_data_loading_us", "data loading"),
    ("idle_us", "idle"),
    ("other_us", "other"),
)


def summarize(analysis: Mapping[str, Any]) -> list[str]:
    """Summarize the steps, the shares of the profiled time, and what could not be computed."""
    results = analysis["results"]
    lines = describe_findings(results)
    if (steps := results.get("steps")) is not None:
        lines += [describe_steps(steps, results.get("loop")), *steps.get("unreached_windows", ())]
        lines += _describe_window_effect(steps.get("window_effect"))
    clock = results.get("wall_clock")
    lines += [] if clock is None else [f"wall clock {describe_wall_clock(clock)}"]
    lines += _describe_shares(results.get("breakdown") or results.get("host"))
    lines += [
        f"not computed: {skip['analyzer']}: {skip['reason']}"
        for skip in analysis["skipped"]
        if skip["analyzer"] in _EXPECTED_RESULTS and not (skip["analyzer"] == "breakdown" and "host" in results)
    ]
    lines += [f"warning: {text}" for text in dict.fromkeys(analysis["warnings"])]
    return lines


def describe_findings(results: Mapping[str, Any]) -> list[str]:
    """The findings that regain most, one line each."""
    findings = results.get("findings")
    if findings is None:
        return []
    lines = [
        f"finding {number}: {finding['title']}, {finding['cost']}. {finding['evidence'][0]['text']} {finding['advice']}"
        for number, finding in enumerate(findings[:_MOST_FINDINGS], 1)
    ]
    left_out = len(findings) - len(lines)
    return (
        [*lines, f"{left_out} more findings are in the report"] if left_out else lines or [_describe_nothing(results)]
    )


def _describe_nothing(results: Mapping[str, Any]) -> str:
    is_profiled = "breakdown" in results or "host" in results
    return "findings: nothing stands out" if is_profiled else "findings: no step was profiled"


def describe_steps(steps: Mapping[str, Any], loop: Mapping[str, Any] | None = None) -> str:
    """How many there are, their times, and the throughput: of steady-state steps, and of the loop with everything."""
    ranks = format_count(len(steps["ranks"]), "rank")
    line = f"{steps['count']:,} training steps on {ranks}, counted by {steps['source']}"
    if steps["step_time_s"] is None:
        return f"{line}; no step time, because too few are in steady state"
    line += f": step time {format_seconds(steps['step_time_s'])}, p95 {format_seconds(steps['p95_s'])}"
    rates = [
        f"{format_rate(steps[key])} {unit}/s in steady-state steps"
        + (f", {format_rate(loop[key])} with everything" if loop is not None and loop[key] is not None else "")
        for unit, key in (("tokens", "tokens_per_s"), ("samples", "samples_per_s"))
        if steps[key] is not None
    ]
    return "; ".join([line, *rates])


def _describe_window_effect(effect: Mapping[str, Any] | None) -> list[str]:
    """Say that a window slowed the steps after it, and which steps the figures are of."""
    if effect is None or effect["verdict"] != "slower":
        return []
    after, before = format_seconds(effect["after_s"]), format_seconds(effect["before_s"])
    return [
        f"the window slowed the steps after it by {percent(effect['change']):.0f} %, to a median of {after} from "
        f"{before}: figures are of the {effect['before']} steps before it"
    ]


def describe_wall_clock(clock: Mapping[str, Any]) -> str:
    """Where the wall time of the slowest rank went, the largest parts first."""
    parts = [part for part in clock["parts"] if part["share"]]
    named = [f"{part['label']} {percent(part['share']):.1f} %" for part in parts[:MOST_RANKS]]
    if rest := sum(part["share"] for part in parts[MOST_RANKS:]):
        named.append(f"the rest {percent(rest):.1f} %")
    return f"of rank {clock['rank']}, {format_seconds(clock['wall_s'])}: {', '.join(named)}"


def _describe_shares(breakdown: Mapping[str, Any] | None) -> list[str]:
    if breakdown is None:
        return []
    ranks: Sequence[Mapping[str, Any]] = breakdown["ranks"]
    more = [f"... and {len(ranks) - MOST_RANKS} more ranks"] if len(ranks) > MOST_RANKS else []
    return [*map(_describe_rank, ranks[:MOST_RANKS]), *more]


def shares_of(rank: Mapping[str, Any]) -> list[tuple[float, str]]:
    """The share of each part of a rank's profiled time, of 1, and its name."""
    row = rank.get("marked") or rank
    whole = row["window_us"]
    return [(row[key] / whole, label) for key, label in _PARTS if row.get(key) is not None and whole]


def _describe_rank(rank: Mapping[str, Any]) -> str:
    shares = sorted(shares_of(rank), key=lambda share: -share[0])
    parts = ", ".join(f"{label} {percent(share):.1f} %" for share, label in shares)
    window_us = (rank.get("marked") or rank)["window_us"]
    return f"rank {rank['rank']}: {parts} of {format_seconds(window_us / US_PER_S)} profiled"
