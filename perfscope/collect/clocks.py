"""How far the hosts' wall clocks are apart, by the ends of steps, which all ranks end nearly together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from perfscope.constants import NS_PER_S
from perfscope.sources.runs.processes import RankProcess

#: Clocks that differ by less are never reported, however short the steps are.
_SMALLEST_REPORTED_S = 0.1


@dataclass(frozen=True)
class Clock:
    """One host's wall clock against that of the lowest rank's host.

    Attributes:
        host: The host.
        ahead_s: By how much its clock is ahead: the median over common steps.
        steps: Number of common steps.
    """

    host: str
    ahead_s: float
    steps: int


def compare_clocks(processes: Sequence[RankProcess]) -> tuple[Clock, ...]:
    """Compare each host's clock with that of the lowest rank's host; hosts without common steps are left out."""
    longest: dict[str, RankProcess] = {}
    for process in sorted(processes, key=lambda process: (process.record.rank, process.first_ns)):
        current = longest.get(process.record.host)
        if current is None or len(process.step_ends_ns) > len(current.step_ends_ns):
            longest[process.record.host] = process
    if not longest:
        return ()
    reference = next(iter(longest.values()))
    clocks = []
    for host, process in longest.items():
        common = sorted(set(process.step_ends_ns) & set(reference.step_ends_ns))
        if process is not reference and common:
            ahead_ns = median(process.step_ends_ns[step] - reference.step_ends_ns[step] for step in common)
            clocks.append(Clock(host, ahead_ns / NS_PER_S, len(common)))
    return tuple(clocks)


def describe_clock_errors(clocks: Sequence[Clock], processes: Sequence[RankProcess]) -> list[str]:
    """Describe the clocks that differ by more than the length of a step can explain."""
    mean_steps_s = [
        (max(ends_ns) - min(ends_ns)) / NS_PER_S / (len(ends_ns) - 1)
        for ends_ns in (list(process.step_ends_ns.values()) for process in processes)
        if len(ends_ns) > 1
    ]
    limit_s = max([_SMALLEST_REPORTED_S, *mean_steps_s])
    return [
        f"the clock of {clock.host} is {abs(clock.ahead_s):.3g} s {'ahead' if clock.ahead_s > 0 else 'behind'} "
        f"by the ends of {clock.steps} common steps"
        for clock in clocks
        if abs(clock.ahead_s) > limit_s
    ]
