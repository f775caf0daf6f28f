"""A summary of an analysis for the end of ``perfscope profile``, made from its JSON so that both agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfscope.constants import US_PER_S
from perfscope.report import percent
from perfscope.units import format_count, format_rate, format_seconds

MOST_FINDINGS = 3
#: What the parts of the wall clock have no name for on a line.
REST = "the rest"
#: Parts of the wall clock that a line names; what else there is, is the rest.
_MOST_PARTS = 5
#: Parts of the wall clock as people say them; others have their own label.
_WALL_PARTS = {
    "imports": "start-up",
    "set_up": "start-up",
    "before_first_step": "start-up",
    "window_steps": "steps",
    "validation": "evaluation",
    "validation_data_wait": "evaluation",
    "generation": "evaluation",
    "saves": "saves",
    "between_steps": "between steps",
    "window_start": "perfscope",
    "window_stop": "perfscope",
    "window_export": "perfscope",
    "hooks": "perfscope",
    "end": "end",
}
#: Results that every run on GPUs has; the report itself lists everything that was not computed.
_OF_GPUS = ("gpus", "breakdown")
_EXPECTED_RESULTS = ("steps", *_OF_GPUS)
#: Parts of the profiled time, of devices or of hosts.
_PARTS = (
    ("compute_us", "compute"),
    ("exposed_communication_us", "exposed communication"),
    ("exposed_copy_us", "exposed copies"),
    ("exposed_data_loading_us", "data loading"),
    ("idle_us", "idle"),
    ("other_us", "outside of PyTorch"),
)


def summarize(analysis: Mapping[str, Any]) -> list[str]:
    """Summarize the steps, the shares of the profiled time, and what could not be computed."""
    results = analysis["results"]
    lines = describe_findings(results)
    if (steps := results.get("steps")) is not None:
        lines.append(describe_steps(steps, results.get("loop")))
    clock = results.get("wall_clock")
    lines += [] if clock is None else [describe_wall_clock(clock)]
    shares = describe_shares(results)
    lines += [] if shares is None else [shares]
    lines += describe_doubts(analysis)
    lines += [f"warning: {text}" for text in dict.fromkeys(analysis["warnings"])]
    return lines


def describe_findings(results: Mapping[str, Any]) -> list[str]:
    """The findings that regain most, one line each: what is wrong, where, its price, and what to do."""
    findings = results.get("findings")
    if findings is None:
        return []
    lines = [
        f"finding {number}: {name_finding(finding)}. {finding['advice']}"
        for number, finding in enumerate(findings[:MOST_FINDINGS], 1)
    ]
    left_out = len(findings) - len(lines)
    return [*lines, f"{left_out} more in the report"] if left_out else lines or [describe_nothing(results)]


def name_finding(finding: Mapping[str, Any]) -> str:
    """What is wrong, where, and its price."""
    place = "" if finding["place"] is None else f", in {finding['place']}"
    return f"{finding['title']}{place}: {finding['cost']}"


def describe_nothing(results: Mapping[str, Any]) -> str:
    """What is said of a run without findings."""
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


def describe_doubts(analysis: Mapping[str, Any]) -> list[str]:
    """What was not measured as it should have been: windows, and what could not be computed."""
    results = analysis["results"]
    steps = results.get("steps") or {}
    return [
        *steps.get("unreached_windows", ()),
        *_describe_window_effect(steps.get("window_effect")),
        *(
            f"not computed: {skip['analyzer']}: {skip['reason']}"
            for skip in analysis["skipped"]
            if skip["analyzer"] in _EXPECTED_RESULTS and not (skip["analyzer"] in _OF_GPUS and "host" in results)
        ),
    ]


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
    parts = ", ".join(f"{label} {percent(share):.1f} %" for share, label in wall_parts(clock))
    return f"wall clock of rank {clock['rank']}, {format_seconds(clock['wall_s'])}: {parts}"


def wall_parts(clock: Mapping[str, Any]) -> list[tuple[float, str]]:
    """The share of each part, of 1, and its name: the largest ones, and the rest, without what is 0.0 %."""
    shares: dict[str, float] = {}
    for part in clock["parts"]:
        label = _WALL_PARTS.get(part["part"], part["label"])
        shares[label] = shares.get(label, 0.0) + part["share"]
    parts = sorted(((share, label) for label, share in shares.items() if round(share, 3)), reverse=True)
    rest = parts[_MOST_PARTS - 1 :]
    return [*parts[: _MOST_PARTS - 1], (sum(share for share, _ in rest), REST)] if len(rest) > 1 else parts


def describe_shares(results: Mapping[str, Any]) -> str | None:
    """The parts of the profiled time of one rank: of the straggler where there is one."""
    breakdown = results.get("breakdown") or results.get("host")
    if breakdown is None or not breakdown["ranks"]:
        return None
    straggler = (results.get("stragglers") or {}).get("straggler")
    ranks: Sequence[Mapping[str, Any]] = breakdown["ranks"]
    rank = next((rank for rank in ranks if rank["rank"] == straggler), ranks[0])
    row = rank.get("marked") or rank
    window_us = row["window_us"]
    times = sorted(((row.get(key) or 0, label) for key, label in _PARTS), key=lambda time: -time[0])
    parts = ", ".join(f"{label} {percent(time_us / window_us):.1f} %" for time_us, label in times if time_us)
    return f"profiled steps of rank {rank['rank']}, {format_seconds(window_us / US_PER_S)}: {parts}"
