"""What costs the most in a run, and what to try: causes that other results show, each with what a fix would regain.

A rule is a function of the results of the other analyzers (``perfscope.analyzers.findings.registry``). It computes no
time of its own: it reads figures, and says where they are. A cost is what a fix regains of a step: by the replay where
the scenario was replayed, as measured where nothing else can take its place, or a bound. Causes share accounts: what
one of them claims of a step counts for no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from perfscope.analyzers.findings.devices import describe_own_limit
from perfscope.analyzers.findings.facts import Facts
from perfscope.analyzers.findings.finding import Finding
from perfscope.analyzers.findings.ranking import SMALLEST_SHARE, rank_findings
from perfscope.analyzers.findings.registry import all_rules
from perfscope.analyzers.findings.replays import Replays
from perfscope.analyzers.findings.training import Training
from perfscope.constants import GB, NS_PER_S, US_PER_MS
from perfscope.report import Json, Section, percent
from perfscope.units import format_ranges

_MOST_LINES = 9
_MOST_RANGES = 8


class HasData(Protocol):
    """A result of an analyzer."""

    def data(self) -> Json:
        """Its value in JSON."""
        ...


class Findings(Struct, frozen=True):
    """The findings of a run.

    Attributes:
        findings: The one that regains most first.
        step_us: A step of the run.
        limit: What limits the run, and nobody can change; empty where nothing does.
    """

    findings: tuple[Finding, ...]
    step_us: float
    limit: str = ""

    def data(self) -> Json:
        """The value of ``results.findings``."""
        return [finding.data() for finding in self.findings]

    def sections(self) -> tuple[Section, ...]:
        """One line a finding."""
        lines = [describe(finding) for finding in self.findings[:_MOST_LINES]]
        left_out = len(self.findings) - len(lines)
        if left_out:
            lines.append(f"{left_out} more are in --format json.")
        if not lines:
            lines = [
                f"Nothing stands out: no cause that perfscope knows costs {percent(SMALLEST_SHARE):.0f} % of a step."
            ]
        if self.limit and len(lines) < _MOST_LINES:
            lines.append(self.limit)
        return (Section("Findings", notes=tuple(lines)),)


def describe(finding: Finding) -> str:
    """A finding in one line."""
    low, high = (us / US_PER_MS for us in finding.cause.interval_us)
    ranks = finding.cause.ranks
    where = f", rank {format_ranges(ranks, _MOST_RANGES)}" if ranks else ""
    cost = (
        f"{finding.cost_us / US_PER_MS:.2f} ms, {percent(finding.share):.1f} % of a step "
        f"({finding.cause.basis}: {low:.2f} to {high:.2f} ms)"
    )
    if finding.cause.saved_bytes is not None:
        cost = f"{finding.cause.saved_bytes / GB:.2f} GB less at the peak"
    return (
        f"**{finding.title}** (`{finding.id}`): {cost}{where}. {finding.cause.evidence[0].text} {finding.cause.advice}"
    )


def derive(results: Mapping[str, HasData], graphs: Callable[[], Sequence[object]] = lambda: ()) -> Findings | None:
    """The findings of all results; None where no result has the time of a step.

    Args:
        results: The results of the analyzers.
        graphs: Gives the execution graphs of the traces, for a replay without a cause; asked only where there is one.
    """
    facts = Facts({name: result.data() for name, result in results.items()})
    step_s = facts.number("/steps/step_time_s")
    undisturbed_ns = None if step_s is None else step_s * NS_PER_S
    training = Training(facts, Replays(graphs, undisturbed_ns))
    if not training.step_us:
        return None
    return Findings(rank_findings(training, all_rules()), training.step_us, describe_own_limit(training))
