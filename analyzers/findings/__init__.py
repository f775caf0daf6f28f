"""What costs the most in a run, and what to try: causes that other results show, each with what a fix would regain.

A rule is a function of the results of the other analyzers. It computes no time of its own: it reads figures, and says
where they are. Its cost is what a fix regains of a step, by the replay where its scenario was replayed, else as it was
measured. It costs no more than the part of the step that it is in. Rules of what remains of a part, such as launches
that are too slow, cost no more than what the other findings leave of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from perfscope.analyzers.findings import communication, compute, host, loop
from perfscope.analyzers.findings.finding import Basis, Fault, Finder, Finding
from perfscope.analyzers.findings.training import AnalyzerResults, StepPart, TracedRun
from perfscope.constants import NS_PER_S, NS_PER_US, US_PER_MS
from perfscope.report import MOST_ROWS, SMALLEST_CHANGE, Section, percent
from perfscope.result import Result, ResultList
from perfscope.units import format_ranges

if TYPE_CHECKING:
    from perfscope.analyzers.whatif.rank_graph import RankGraph
    from perfscope.analyzers.whatif.scenarios import Fixes

#: The rules; those of what remains of a part come after the others.
RULES: tuple[Finder, ...] = tuple(
    sorted((*loop.RULES, *host.RULES, *communication.RULES, *compute.RULES), key=lambda rule: rule.is_rest)
)
NOTHING = f"Nothing stands out: no cause that perfscope knows costs {percent(SMALLEST_CHANGE):.0f} %."
NOTHING_RECORDED = "No step was profiled: nothing stands out in the record of every step, which says little of a step."


class Findings(ResultList, frozen=True):
    """``results.findings``: what costs the most in a run, and what to try; the one that regains most first."""

    findings: tuple[Finding, ...]
    step_us: float
    is_profiled: bool = True

    def __repr__(self) -> str:
        lines = (f"{finding.title}, {finding.cost}" for finding in self.findings)
        return f"<findings: {'; '.join(lines) or 'nothing stands out'}>"

    def sections(self) -> tuple[Section, ...]:
        """One line a finding."""
        lines = [describe(finding) for finding in self.findings[:MOST_ROWS]]
        left_out = len(self.findings) - len(lines)
        if left_out:
            lines.append(f"{left_out} more are in --format json.")
        if not lines:
            lines = [NOTHING if self.is_profiled else NOTHING_RECORDED]
        return (Section("Findings", notes=tuple(lines)),)


def describe(finding: Finding) -> str:
    """A finding in one line."""
    where = f", rank {format_ranges(finding.ranks, MOST_ROWS)}" if finding.ranks else ""
    each = ""
    if finding.saved_bytes is None and not finding.of_wall:
        low, high = (us / US_PER_MS for us in finding.interval_us)
        each = f", {finding.cost_us / US_PER_MS:.2f} ms a step ({finding.basis}: {low:.2f} to {high:.2f} ms)"
    why = f"{finding.evidence[0].text} {finding.advice}"
    return f"**{finding.title}** (`{finding.id}`): {finding.cost}{each}{where}. {why}"


def derive(
    results: Mapping[str, Result], graphs: Callable[[], Sequence[tuple[RankGraph, ...]]] = lambda: ()
) -> Findings | None:
    """The findings of all results; None where no result has the time of a step.

    ``graphs`` gives the execution graphs of the traces. It is asked only where a finding has a scenario to replay.
    """
    known = {name: result for name, result in results.items() if name in AnalyzerResults.__struct_fields__}
    typed = AnalyzerResults(**cast("dict[str, None]", known))

    @cache
    def fixes() -> Fixes | None:
        partials = graphs()
        if not partials:
            return None
        from perfscope.analyzers.whatif.scenarios import Fixes  # takes long; most runs need no replay

        step_s = typed.steps.step_time_s if typed.steps is not None else None
        return Fixes(partials, None if step_s is None else step_s * NS_PER_S)

    training = TracedRun(typed, lambda scenario: None if (job := fixes()) is None else job.regain(scenario))
    if not training.step_us:
        return None
    return Findings(rank_findings(training, RULES), training.step_us, bool(training.ranks))


def rank_findings(training: TracedRun, rules: Iterable[Finder]) -> tuple[Finding, ...]:
    """The findings of a run, the one that regains most first; rules of what remains of a part come last."""
    step_us, base_us = training.step_us, training.base_us
    if not step_us or not base_us:
        return ()
    least_us = SMALLEST_CHANGE * base_us
    steps = training.results.loop.steps if training.results.loop is not None else None
    found: list[tuple[Finder, Finding]] = []
    for rule in rules:
        cause = rule.find(training)
        if cause is None:
            continue
        if cause.saved_bytes is not None or cause.wall_us:
            found.append((rule, _finding(rule, cause, cause.cost_us, cause.wall_us or base_us, steps)))
            continue
        if cause.cost_us < least_us and cause.basis is Basis.BOUND:
            continue  # no replay is needed to leave it out
        cause = _replayed(training, cause)
        is_inside = StepPart.OUTSIDE not in rule.parts and not cause.is_of_all_steps
        cost_us = min(cause.cost_us, step_us if is_inside else base_us)
        if not cause.is_of_all_steps and cause.basis is not Basis.REPLAY:
            cost_us = min(cost_us, training.part_us(rule.parts[0]))
        if rule.is_rest:
            named_us = sum(each.cost_us for other, each in found if not {*other.parts}.isdisjoint(rule.parts))
            if named_us:
                # A replay knows of more than its part: it may take away what other causes cost, too.
                replayed_us = cost_us if cause.basis is Basis.REPLAY else 0.0
                cost_us = min(cost_us, max(training.part_us(*rule.parts), replayed_us) - named_us)
                cause = replace(cause, interval_us=(cause.interval_us[0], cause.interval_us[1] - named_us))
            # A profiled step may be longer than the step time, of which all causes are a part.
            inside_us = sum(each.cost_us for other, each in found if StepPart.OUTSIDE not in other.parts)
            cost_us = min(cost_us, step_us - inside_us)
        if cost_us >= max(least_us, cause.least_us):
            if _may_be_free(training, rule, cause):
                cause = replace(cause, interval_us=(0.0, cause.interval_us[1]))
            found.append((rule, _finding(rule, cause, cost_us, base_us, steps)))
    by_cost = sorted((finding for _, finding in found), key=lambda finding: (-finding.cost_us, finding.id))
    return tuple(sorted(by_cost, key=lambda finding: finding.of_wall))


def _finding(rule: Finder, cause: Fault, cost_us: float, step_us: float, steps: int | None) -> Finding:
    low, high = cause.interval_us
    step_us = max(step_us, cost_us)
    return Finding(
        id=rule.id,
        title=cause.title or rule.title,
        cost_us=cost_us,
        interval_us=(min(low, cost_us), max(min(high, step_us), cost_us)),  # nothing regains more than a step
        step_us=step_us,
        steps=steps,
        saved_bytes=cause.saved_bytes,
        basis=cause.basis,
        scenario=cause.scenario if cause.basis is Basis.REPLAY else None,
        ranks=tuple(rank for rank in cause.ranks if rank is not None),
        evidence=cause.evidence,
        advice=cause.advice,
        place=cause.place,
        of_wall=bool(cause.wall_us),
    )


def _may_be_free(training: TracedRun, rule: Finder, cause: Fault) -> bool:
    """Whether the waits that a cause is blamed for may cost nothing.

    The profiler slows hosts. GPUs at their power limit save power in pauses, and compute faster in the rest of the
    step.
    """
    is_slowed = rule.parts[0] is StepPart.HOST and not cause.is_of_all_steps and not training.has_step_time
    return is_slowed or (training.is_power_capped and rule.parts[0] in {StepPart.HOST, StepPart.COMMUNICATION})


def _replayed(training: TracedRun, cause: Fault) -> Fault:
    """The cause with what the replay says that a fix saves, where the traces can answer it.

    What was measured in many steps says more than a replay of the few in a window.
    """
    replay = training.regain(cause.scenario) if cause.scenario and not cause.is_of_all_steps else None
    if replay is None:
        return cause
    part, saved_ns, off_ns = cause.scenario_part, replay.saved_ns, replay.uncertain_ns
    low_us, high_us = (max(part * time_ns / NS_PER_US, 0.0) for time_ns in (saved_ns - off_ns, saved_ns + off_ns))
    # A replay that cannot tell a saving from none is no evidence of one.
    is_certain = saved_ns > (0.0 if cause.is_counted else replay.noise_ns)
    if cause.is_counted and not is_certain:
        # What is counted is there: the replay that cannot tell what it costs limits it.
        cost_us = min(cause.cost_us, high_us)
        return replace(cause, cost_us=cost_us, interval_us=(0.0, cost_us))
    cost_us = part * saved_ns / NS_PER_US if is_certain else 0.0
    return replace(cause, cost_us=cost_us, interval_us=(low_us, high_us), basis=Basis.REPLAY)
