"""Rules about the training loop: what comes in some steps only, or between them, over all steps of the run."""

from __future__ import annotations

from perfscope.analyzers.findings.communication import WHY_LATE
from perfscope.analyzers.findings.finding import Fault, Finder, fact
from perfscope.analyzers.findings.training import StepPart, TracedRun
from perfscope.analyzers.loop import Loop
from perfscope.analyzers.stragglers.lateness import BY_CHANCE
from perfscope.constants import NS_PER_S, NS_PER_US, US_PER_S
from perfscope.measures.parts import HostPart, LifePart
from perfscope.units import format_count, format_seconds

#: What lies before the loop is a finding where it takes longer than a usual start, and enough of the wall clock.
_USUAL_START_S, _LEAST_OF_WALL = 30.0, 0.02
_PREPARE = "Keep between runs what is prepared here, such as data and built extensions; load weights onto their device."
_START_UP = (LifePart.SET_UP, LifePart.BEFORE_FIRST_STEP, LifePart.DATA_WAIT)
#: What a long start is called, its parts, and what to try by the largest of them.
_STARTS = {
    "Long start-up": dict.fromkeys(_START_UP, _PREPARE)
    | {LifePart.IMPORTS: "`python -X importtime` names the imports that take long."},
    "Long first step": {
        LifePart.FIRST_STEP: "Move what the script does once out of it; keep caches of kernels between runs."
    },
    "Long compilation at the start": {
        LifePart.COMPILATION: "Keep `TORCHINDUCTOR_CACHE_DIR` between runs; compile one block in place of the model."
    },
}
_EVALUATION = (LifePart.VALIDATION, LifePart.VALIDATION_WAIT, LifePart.GENERATION)
#: What the host did in a pause, and what to try.
_REASONS = {
    HostPart.NO_PROCESSOR: (
        ", because other threads or processes had the processor",
        "Look for what else runs on this host; give the DataLoader fewer workers, and libraries fewer threads.",
    ),
    HostPart.COMPUTE: (
        ", in which the training thread computed",
        "Do this work less often, in a thread, or in the workers of the DataLoader.",
    ),
    HostPart.KERNEL: (
        ", in which the training thread was in the kernel, as for memory and files",
        "Do this work less often, or in a thread.",
    ),
}
_SLEEP = (
    ", in which the training thread slept or waited, as for a file, the network or a lock",
    "Do this less often, or in a thread.",
)


def find_evaluation(training: TracedRun) -> Fault | None:
    """Validation and generation, over the whole loop."""
    loop = training.results.loop
    spent_ns = loop.time_ns(*_EVALUATION) if loop is not None else 0
    if loop is None or not spent_ns:
        return None
    cost_us = spent_ns / NS_PER_US / loop.steps
    wait_ns = loop.time_ns(LifePart.VALIDATION_WAIT)
    waiting = f", {wait_ns / NS_PER_S:.2f} s of it for data" if 10 * wait_ns > spent_ns else ""
    evidence = fact(
        f"Validation and generation took {spent_ns / NS_PER_S:.2f} s{waiting} in a loop of "
        f"{format_count(loop.steps, 'step')}.",
        "/loop",
        "parts",
    )
    advice = training.advise("evaluation")
    return Fault(cost_us, (0.0, cost_us), (), (evidence,), advice)


def find_some_pauses(training: TracedRun) -> Fault | None:
    """Some steps pause, or much time between steps has no known cause."""
    loop = training.results.loop
    if loop is None:
        return None
    late = training.results.late_ranks.late if training.results.late_ranks is not None else ()
    # A rhythm is not by what other processes and the network do by chance.
    has_rhythm = loop.pauses is not None and loop.pauses.period is not None
    late_ns = sum(each.cost_ns for each in late if not each.persistent and (not has_rhythm or each.cause in WHY_LATE))
    if loop.pauses is not None and 2 * late_ns > loop.pauses.lost_ns:
        return None  # one fault is one finding: the late rank's
    lost_ns = _lost_ns(training, loop, late_ns)
    reason, advice = "", _SLEEP[1]
    title, place = "", None
    if loop.pauses is not None and lost_ns > 0:
        if loop.pauses.host is not None:
            reason, advice = _REASONS.get(loop.pauses.host, _SLEEP)
        evidence = fact(f"{loop.pauses.in_words}{reason}.", "/loop/pauses", "s steps")
        title, place = loop.pauses.title, loop.pauses.line
    elif loop.unknown_ns - late_ns > BY_CHANCE * loop.loop_ns and not training.has_device:
        lost_ns = loop.unknown_ns - late_ns
        evidence = fact(f"{lost_ns / NS_PER_S:.2f} s between steps have no known cause.", "/loop", "unknown_s")
    else:
        return None
    cost_us = lost_ns / NS_PER_US / loop.steps
    return Fault(cost_us, (0.0, cost_us), (), (evidence,), advice, title=title, place=place)


def _lost_ns(training: TracedRun, loop: Loop, late_ns: int) -> int:
    """What pauses cost, without that for which a late rank is named; 0 where it may be chance.

    A host that runs ahead waits for its device in some steps. The loop loses no more than what it takes beyond the
    device's work, which the profiled steps tell to a few per cent.
    """
    pauses = loop.pauses
    if pauses is None:
        return 0
    lost_ns, least = pauses.lost_ns - late_ns, BY_CHANCE
    if training.has_device:
        lost_ns = min(lost_ns, loop.loop_ns - int(loop.steps * training.busy_us * NS_PER_US))
    elif pauses.period is not None:
        least = 0.0
    return lost_ns if lost_ns > least * loop.loop_ns else 0


def find_long_start(training: TracedRun) -> Fault | None:
    """Start-up, the first step, or compilation takes long: the longest of them, beside the loop."""
    loop = training.results.loop
    if loop is None:
        return None
    spent_s = dict.fromkeys(LifePart, 0.0) | {row.part: row.s for row in loop.start}
    start_s, title = max((sum(spent_s[part] for part in parts), title) for title, parts in _STARTS.items())
    if start_s < max(_USUAL_START_S, _LEAST_OF_WALL * loop.wall_s):
        return None
    rows = sorted((row for row in loop.start if row.s > BY_CHANCE * start_s), key=lambda row: -row.ns)
    parts = "; ".join(f"{format_seconds(row.s)} {row.part.label}" for row in rows)
    evidence = fact(f"Before the loop: {parts}.", "/loop", "start wall_s")
    cost_us, wall_us = (seconds * US_PER_S / loop.steps for seconds in (start_s, loop.wall_s))
    advice = _STARTS[title][max(_STARTS[title], key=lambda part: spent_s[part])]
    return Fault(cost_us, (0.0, cost_us), (), (evidence,), advice, wall_us=wall_us, title=title)


RULES = (
    Finder("long_start", "Long start", (StepPart.OUTSIDE,), find_long_start),
    Finder("evaluation", "Evaluation", (StepPart.OUTSIDE,), find_evaluation),
    Finder("pauses", "Pauses in some steps", (StepPart.OUTSIDE,), find_some_pauses),
)
